"""Runs tasks in a pool of worker processes; a killed worker loses only its task, and another replaces it.

`reproduce` and `sweep` run hundreds of independent simulations. Python's own pool would do but for one thing: a worker
that is killed (out of memory, `kill -9`, a crash in compiled code) breaks the whole pool. Here it costs only the piece
it was running, and another worker takes its place.

A worker is a separate interpreter that imports nothing of the calling program, so a script needs no `__main__` guard.
It gets one piece at a time, over a pipe. The parent handles Ctrl-C; workers end by themselves when their parent is
gone.

Pieces may share something that the first of them makes and others only use, a compiled engine: pieces of the same
`group` wait until one of them has ended, and those of other groups go first.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.readable import killed_text

T = TypeVar("T")
TERMINATION_TIMEOUT_S = 2.0
"""Time for a worker to end before it is killed."""
PROCESS_BYTES, HOST_BYTES = 256 << 20, 3 << 19


@dataclass(frozen=True)
class Task(Generic[T]):
    """One piece: `call(*arguments)` in some process; both must be picklable. `group`: the engine that it needs, see the
    module; "" for none. `name`: in messages."""

    key: str
    call: Callable[..., T]
    arguments: tuple[Any, ...]
    group: str = ""
    name: str = ""


class TaskOutcome(NamedTuple):
    """The outcome of a piece of work. Its value; or the exception that it raised, possibly simplified; or `lost`, how
    its worker ended, such as "killed by signal 15"."""

    work: Task[Any]
    value: Any = None
    error: BaseException | None = None
    lost: str = ""


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    pipe: Connection


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def max_parallel_simulations(hosts: int, most: int | None = None) -> int:
    """Return how many simulations of `hosts` hosts this machine has processors and memory for; at least one. The memory
    is what is free now, within the limit of the process's control group."""
    free = free_memory()
    room = most or cores()
    return room if free is None else max(1, min(room, free // (PROCESS_BYTES + hosts * HOST_BYTES)))


def free_memory() -> int | None:
    """Return the free memory in bytes; None if unknown."""
    limits = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            limits.append(max(0, int(Path(limit).read_text()) - int(Path(used).read_text())))
    return min(limits) if limits else None


def engine_is_cached(group: str) -> bool:
    """Return True if the compiled engine that a group shares exists already."""
    from gradwire.jit.engine_cache import is_cached

    return is_cached(group)


def completed(works: Sequence[Task[T]], jobs: int, expected: str, prefix: str = "") -> Iterator[tuple[str, T]]:
    """Run pieces like `run_tasks`, and yield (key, value) of each. Raises the exception of a piece, or GradwireError
    with `prefix` and what is `expected` if its process was killed."""
    for ended in run_tasks(works, jobs):
        if ended.error is not None:
            raise ended.error
        if ended.lost:
            raise GradwireError(f"{prefix}its process was {ended.lost}", ended.work.name, expected)
        yield ended.work.key, ended.value


Workers = dict[int, _Worker]
"""Worker processes, by file descriptor."""


@contextmanager
def lasting_workers() -> Iterator[Workers]:
    """Yield workers that several calls of `run_tasks` share; end them at the end."""
    workers: Workers = {}
    try:
        yield workers
    finally:
        with defer_interrupt():
            _end(list(workers.values()))


def run_tasks(
    works: Sequence[Task[T]],
    jobs: int,
    ready: Callable[[str], bool] = engine_is_cached,
    until: float | None = None,
    shared: Workers | None = None,
) -> Iterator[TaskOutcome]:
    """Run pieces in `jobs` worker processes, started in order. Yields each when it has ended.

    ready : returns True if what a group shares exists already.
    until : of `time.monotonic`: pieces still running then are aborted, and not yielded; never if absent.
    shared : workers to use and to leave behind idle (`lasting_workers`); new ones, which end, if absent.

    Closing the generator, also by Ctrl-C, ends the workers that are busy or not shared.
    """
    queue = _Queue(works, ready)
    workers: Workers = {} if shared is None else shared
    busy: dict[int, Task[T]] = {}
    try:
        while queue.left or busy:
            if until is not None and time.monotonic() >= until:
                return
            _hand_out(queue, jobs, workers, busy)
            outcomes = _wait_for_any(workers, busy, until)
            for ended in outcomes:
                queue.finish(ended.work)
            if until is None or time.monotonic() < until:
                _hand_out(queue, jobs, workers, busy)  # before the caller processes what has ended
            yield from outcomes
    finally:
        with defer_interrupt():
            _end([workers.pop(number) for number in list(workers if shared is None else busy)])


def _hand_out(queue: _Queue, jobs: int, workers: Workers, busy: dict[int, Task[Any]]) -> None:
    """Give a piece to every idle worker, and start missing workers."""
    while len(busy) < jobs and (work := queue.take()) is not None:
        idle = [number for number in workers if number not in busy]
        if idle:
            number = idle[0]
        else:
            with defer_interrupt():  # a started worker is always registered
                number = _start(workers)
        busy[number] = work
        with suppress(OSError):  # it has just died: seen by `_wait_for_any`
            workers[number].pipe.send((work.call, work.arguments))


class _Queue:
    """The pieces still to be started, in an order that avoids waiting for a group's first piece."""

    def __init__(self, works: Sequence[Task[Any]], ready: Callable[[str], bool]) -> None:
        self._by_group: dict[str, list[Task[Any]]] = {}
        for work in reversed(works):
            self._by_group.setdefault(work.group, []).append(work)
        self._order = {work.key: number for number, work in enumerate(works)}
        self._open = {group for group in self._by_group if not group or ready(group)}
        self._running_groups: set[str] = set()  # groups whose first piece is running
        self.left = len(works)

    def take(self) -> Task[Any] | None:
        """Return the next piece; None if all that remain wait for the first of their group."""
        for groups in (self._open, set(self._by_group) - self._open - self._running_groups):
            waiting = [self._by_group[group][-1] for group in groups if self._by_group.get(group)]
            if waiting:
                work = min(waiting, key=lambda piece: self._order[piece.key])
                self._by_group[work.group].pop()
                self.left -= 1
                if work.group not in self._open:
                    self._running_groups.add(work.group)
                return work
        return None

    def finish(self, work: Task[Any]) -> None:
        """Note that a piece has ended, well or not: what its group shares exists, or others may try."""
        self._open.add(work.group)


def _start(workers: Workers) -> int:
    """Start a worker; its number is that of its pipe."""
    parent_end, worker_end = Pipe()
    call = f"serve({worker_end.fileno()}, {os.getpid()})"
    # its output names the parent's command, not the code that starts workers
    settings = f"sys.path[:] = {sys.path!r}; sys.argv[:] = {sys.argv!r}"
    code = f"import sys; {settings}; from gradwire.studies.parallel.process_pool import serve; {call}"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the worker inherits
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[worker_end.fileno()], close_fds=True
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    worker_end.close()
    workers[parent_end.fileno()] = _Worker(process, parent_end)
    return parent_end.fileno()


def _wait_for_any(workers: Workers, busy: dict[int, Task[Any]], until: float | None) -> list[TaskOutcome]:
    """Return what has ended meanwhile, at least one piece unless the time is up."""
    pipes = {workers[number].pipe: number for number in busy}
    left = None if until is None else max(0.0, until - time.monotonic())
    outcomes = []
    for pipe in wait(list(pipes), left):
        number = pipes[pipe]  # type: ignore[index]
        work = busy.pop(number)
        try:
            value, error = workers[number].pipe.recv()
            outcomes.append(TaskOutcome(work, value, error))
        except (EOFError, OSError):
            worker = workers.pop(number)
            _end([worker])
            code = worker.process.returncode
            outcomes.append(TaskOutcome(work, lost=killed_text(-code) if code < 0 else f"ended with code {code}"))
    return outcomes


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.pipe.close()
        if worker.process.poll() is None:
            worker.process.terminate()
    last = time.monotonic() + TERMINATION_TIMEOUT_S
    for worker in workers:
        try:
            worker.process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


# --- in a worker -------------------------------------------------------------------------------------------------


def serve(number: int, parent: int) -> None:
    """Run pieces from a pipe, one after the other, until it is closed."""
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
        except Exception as error:  # a user-defined exception that cannot be pickled
            pipe.send((None, RuntimeError(f"{answer[1]!r}, which {error!r}")))


def _watch(parent: int) -> None:
    """End this process when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
