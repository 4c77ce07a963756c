"""Processes: many pieces of work, run side by side by worker processes of this machine.

What `reproduce` and `sweep` run is hundreds of simulations that know nothing of each other. Python's own pool would
do but for one thing: a worker that is killed (out of memory, `kill -9`, a crash in compiled code) takes its whole
pool with it. Here it costs the piece that it was at, and another worker takes its place.

A worker is an interpreter of its own that imports nothing of the program that wants the work, so a script needs no
guard around what it does. It is asked for one piece at a time, over a pipe. Ctrl-C is the parent's to answer; and
workers end by themselves when their parent is gone, however it went.

Pieces may share something that the first of them has to make and others only use, such as a compiled engine: pieces
of the same `group` wait until one of them is through, and those of other groups go first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gradwire.scenarios.interrupt import deferred
from gradwire.scenarios.readable import killed_text

T = TypeVar("T")
PATIENCE_S = 2.0
"""Given to a worker to end when it is told to, before it is killed."""
PROCESS_BYTES, HOST_BYTES = 256 << 20, 3 << 19
"""What one simulation takes in memory, roughly: Python, Numba and an engine, and 1.5 MB a host (144 hosts took 410
MB)."""


@dataclass(frozen=True)
class Work(Generic[T]):
    """One piece: `call(*arguments)` in some process; both have to be picklable. `group`: see above; "" for none."""

    key: str
    call: Callable[..., T]
    arguments: tuple[Any, ...]
    group: str = ""


class Ended(NamedTuple):
    """What has become of a piece: its value; or the exception that it raised, which may have been made plain; or
    `lost`, how its worker ended, such as "killed by signal 15"."""

    work: Work[Any]
    value: Any = None
    error: BaseException | None = None
    lost: str = ""


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    pipe: Connection


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting(hosts: int, most: int | None = None) -> int:
    """How many simulations of networks of so many hosts this machine has processors and memory for; at least one.

    The memory is what is free now, within the limit of the process's control group.
    """
    free = free_memory()
    room = most or cores()
    return room if free is None else max(1, min(room, free // (PROCESS_BYTES + hosts * HOST_BYTES)))


def free_memory() -> int | None:
    """Bytes that are free; None if that is not known."""
    found = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            found.append(max(0, int(Path(most).read_text()) - int(Path(used).read_text())))
    return min(found) if found else None


def play(works: Sequence[Work[T]], jobs: int, ready: Callable[[str], bool] = lambda group: False,
         until: float | None = None) -> Iterator[Ended]:  # fmt: skip
    """Run pieces in `jobs` worker processes, beginning in their order. Yields each when it has ended.

    Parameters
    ----------
    ready : whether what a group shares is there already.
    until : of `time.monotonic`: when what is under way is given up, and not yielded; never if absent.

    Whoever stops asking for more ends the workers by that, Ctrl-C among the reasons.
    """
    queue = _Queue(works, ready)
    workers: dict[int, _Worker] = {}  # by file descriptor
    busy: dict[int, Work[T]] = {}
    try:
        while queue.left or busy:
            if until is not None and time.monotonic() >= until:
                return
            _hand_out(queue, jobs, workers, busy)
            found = _next(workers, busy, until)
            for ended in found:
                queue.through(ended.work)
            if until is None or time.monotonic() < until:
                _hand_out(queue, jobs, workers, busy)  # nobody waits until what has ended was looked at
            yield from found
    finally:
        with deferred():
            _end(list(workers.values()))


def _hand_out(queue: _Queue, jobs: int, workers: dict[int, _Worker], busy: dict[int, Work[Any]]) -> None:
    """Give a piece to every worker that has none, and start those that are missing."""
    while len(busy) < jobs and (work := queue.take()) is not None:
        idle = [number for number in workers if number not in busy]
        if idle:
            number = idle[0]
        else:
            with deferred():  # a worker that has been started is known
                number = _start(workers)
        busy[number] = work
        with suppress(OSError):  # it has just died: seen by `_next`
            workers[number].pipe.send((work.call, work.arguments))


class _Queue:
    """What is still to be begun, in an order in which nobody waits for what another one makes."""

    def __init__(self, works: Sequence[Work[Any]], ready: Callable[[str], bool]) -> None:
        self._of: dict[str, list[Work[Any]]] = {}
        for work in reversed(works):
            self._of.setdefault(work.group, []).append(work)
        self._order = {work.key: number for number, work in enumerate(works)}
        self._open = {group for group in self._of if not group or ready(group)}
        self._made: set[str] = set()  # groups of which the first piece is under way
        self.left = len(works)

    def take(self) -> Work[Any] | None:
        """The next piece; None if all that is left waits for the first of its group."""
        for groups in (self._open, set(self._of) - self._open - self._made):
            waiting = [self._of[group][-1] for group in groups if self._of.get(group)]
            if waiting:
                work = min(waiting, key=lambda each: self._order[each.key])
                self._of[work.group].pop()
                self.left -= 1
                if work.group not in self._open:
                    self._made.add(work.group)
                return work
        return None

    def through(self, work: Work[Any]) -> None:
        """A piece has ended, well or not: what its group shares is there, or others may find out as well."""
        self._open.add(work.group)


def _start(workers: dict[int, _Worker]) -> int:
    """Start a worker; its number is that of its pipe."""
    ours, theirs = Pipe()
    call = f"serve({theirs.fileno()}, {os.getpid()})"
    # what it writes names the command that wants it, and not how workers are started
    settings = f"sys.path[:] = {sys.path!r}; sys.argv[:] = {sys.argv!r}"
    code = f"import sys; {settings}; from gradwire.processes import serve; {call}"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the worker inherits
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], close_fds=True
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    workers[ours.fileno()] = _Worker(process, ours)
    return ours.fileno()


def _next(workers: dict[int, _Worker], busy: dict[int, Work[Any]], until: float | None) -> list[Ended]:
    """What has ended meanwhile, at least one piece unless the time is up."""
    pipes = {workers[number].pipe: number for number in busy}
    left = None if until is None else max(0.0, until - time.monotonic())
    found = []
    for pipe in wait(list(pipes), left):
        number = pipes[pipe]  # type: ignore[index]
        work = busy.pop(number)
        try:
            value, error = workers[number].pipe.recv()
            found.append(Ended(work, value, error))
        except (EOFError, OSError):
            worker = workers.pop(number)
            _end([worker])
            found.append(Ended(work, lost=_how(worker.process.returncode)))
    return found


def _how(code: int) -> str:
    return killed_text(-code) if code < 0 else f"ended with code {code}"


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.pipe.close()
        if worker.process.poll() is None:
            worker.process.terminate()
    last = time.monotonic() + PATIENCE_S
    for worker in workers:
        try:
            worker.process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


# --- in a worker -------------------------------------------------------------------------------------------------


def serve(number: int, parent: int) -> None:
    """A worker: one piece after the other from a pipe, until nobody asks any more."""
    pipe = Connection(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _watch(parent)
    while True:
        try:
            call, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Any, BaseException | None] = (call(*arguments), None)
        except BaseException as error:
            error.add_note(traceback.format_exc())
            answer = (None, error)
        try:
            pipe.send(answer)
        except OSError:
            return
        except Exception as error:  # an exception of somebody's own that cannot be pickled
            pipe.send((None, RuntimeError(f"{answer[1]!r}, which {error!r}")))


def _watch(parent: int) -> None:
    """Without the parent there is nobody to work for."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
