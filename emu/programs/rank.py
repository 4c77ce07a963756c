"""One rank's process: started in its host's namespace, its output taken line by line, ended with all it has started.

It is a session of its own, so that a signal reaches its children, too, and it is killed with the runner, whatever ends
that. Its host name is the scenario's, by which programs look for their own address, and /sys shows its host's devices.

Under virtual time its threads take no processor from each other: who is woken waits until the one that computes sleeps
(SCHED_BATCH). A clock that stands still has no ticks either, so who has lost the processor gets it back only when the
other one sleeps; and one that looks for a lock again and again instead of sleeping, woken by who holds it and run in
its place, would look for ever. gloo's threads do (`Pair::handleEvents`), where two ranks share a host.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gradwire.emu.programs.described import Rank
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.namespaces import CLONE_NEWNET, tied
from gradwire.emu.system.sockets import LIBC

CLONE_NEWUTS, CLONE_NEWNS = 0x04000000, 0x00020000
STREAMS = ("out", "err")
LONGEST_LINE = 1 << 14
"""Bytes; longer lines are passed on in pieces; our choice."""
READ = 1 << 16
PIPE_READS = 64
"""More than a pipe can hold [pipe(7): 1 MiB at most]."""

Line = Callable[[Rank, str, str], None]
"""(rank, "out" or "err", text): called with every line that a rank has written."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended. `status` : its exit status, or minus the signal that ended it; None: it was never started.
    `time_ns` : since the beginning. `ended` : it was made to, because another one had failed or the run was over."""

    rank: int
    status: int | None
    time_ns: int = -1
    ended: bool = False


class Stream:
    """One of a rank's outputs: into a file, and line by line to whoever wants them."""

    def __init__(self, pipe: IO[bytes], path: Path, line: Callable[[str], None]) -> None:
        self._pipe, self._line = pipe, line
        self._file = path.open("wb", buffering=0)
        self._rest = b""
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """For a selector."""
        return self._pipe.fileno()

    def read(self) -> bool:
        """Take some of what is there. False: there will be nothing more."""
        try:
            data = os.read(self._pipe.fileno(), READ)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._file.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        for each in lines:
            self._line(each.decode(errors="replace").rstrip("\r"))
        return True

    def close(self) -> None:
        """Take what is left: nobody writes any more."""
        for _ in range(PIPE_READS):
            if not self.read():
                break
        if self._rest:
            self._line(self._rest.decode(errors="replace"))
            self._rest = b""
        self._pipe.close()
        self._file.close()


class RankProcess:
    """A rank that runs."""

    def __init__(self, rank: Rank, process: subprocess.Popen[bytes], streams: Sequence[Stream]) -> None:
        self.rank, self._process, self.streams = rank, process, list(streams)
        self.pidfd = os.pidfd_open(process.pid)
        self.end: RankEnd | None = None
        self.told_to_end = False

    def reap(self, time_ns: int) -> RankEnd | None:
        """How it ended, if it has."""
        if self.end is None and (status := self._process.poll()) is not None:
            self.end = RankEnd(self.rank.number, status, time_ns, self.told_to_end)
        return self.end

    def signal(self, number: int) -> None:
        """To it and to what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Nothing of it is left, and all that it has written has been taken."""
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        os.close(self.pidfd)
        for stream in self.streams:
            stream.close()
        self.streams = []


def start(
    rank: Rank, words: Sequence[str], variables: Mapping[str, str], cwd: str, namespace: int, folder: Path, line: Line,
    *, in_turn: bool = False,
) -> RankProcess:  # fmt: skip
    """Start a rank in a network namespace; its output goes to rankN.out and rankN.err in `folder`, and to `line`.

    in_turn : its threads take no processor from each other, as virtual time wants it.

    TestbedError if it cannot be started.
    """
    first = tied()

    def prepare() -> None:
        first()
        if in_turn:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if LIBC.setns(namespace, CLONE_NEWNET) < 0:
            raise OSError(ctypes.get_errno(), "setns")
        if LIBC.unshare(CLONE_NEWUTS) == 0:  # a kernel without goes on under the machine's name
            name = rank.host.encode()
            LIBC.sethostname(name, len(name))
        if LIBC.unshare(CLONE_NEWNS) == 0:  # /sys/class/net shows the devices of whoever has mounted it
            LIBC.mount(b"gradwire", b"/sys", b"sysfs", ctypes.c_ulong(0), None)

    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
            env=dict(variables), start_new_session=True, preexec_fn=prepare,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TestbedError(f"{words[0]} cannot be started: {why}", f"rank {rank.number} at {rank.host}") from None
    pipes = (process.stdout, process.stderr)
    streams = [
        Stream(pipe, folder / f"rank{rank.number}.{name}", _passing(line, rank, name))
        for pipe, name in zip(pipes, STREAMS, strict=True)
        if pipe is not None
    ]
    return RankProcess(rank, process, streams)


def _passing(line: Line, rank: Rank, name: str) -> Callable[[str], None]:
    return lambda text: line(rank, name, text)
