"""Starts a user program's rank in its host's namespace, passes on its output lines, and ends it with its children.

The process is a session, so that a signal reaches its children too, and it is killed with the runner. Its host name is
that of the scenario, by which programs find their address, and /sys shows its host's devices.

In virtual time its threads never preempt each other (SCHED_BATCH): a woken thread waits until the running one sleeps.
The clock stands still without ticks, so a preempted thread would get the processor back only when the other one sleeps.
A thread that polls a lock without sleeping, woken by the lock's holder and run in its place, would poll for ever.
gloo's threads do (`Pair::handleEvents`), if two ranks share a host.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import CLONE_NEWNET
from gradwire.emu.system.processes import LIBC, tied_to_parent
from gradwire.emu.user_programs.programs import Rank

CLONE_NEWUTS, CLONE_NEWNS = 0x04000000, 0x00020000
STREAMS = ("out", "err")
LONGEST_LINE = 1 << 14
"""Bytes; longer lines are split; our choice."""
READ = 1 << 16
PIPE_READS = 64
"""Reads of `READ` bytes that empty any pipe [pipe(7): 1 MiB at most]."""

LineCallback = Callable[[Rank, str, str], None]
"""(rank, "out" or "err", text): called with every line of a rank's output."""


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank.

    status : its exit status, or minus the signal that ended it; None: never started.
    time_ns : since the beginning.
    ended : True if the player ended it, because another rank had failed or the run was over.
    """

    rank: int
    status: int | None
    time_ns: int = -1
    ended: bool = False


class Stream:
    """One output of a rank, written to a file and passed on line by line."""

    def __init__(self, pipe: IO[bytes], path: Path, line: Callable[[str], None]) -> None:
        self._pipe, self._line = pipe, line
        self._file = path.open("wb", buffering=0)
        self._rest = b""
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        return self._pipe.fileno()

    def read(self) -> bool:
        """Read available output; return False at the end of the stream."""
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
        for line in lines:
            self._line(line.decode(errors="replace").rstrip("\r"))
        return True

    def close(self) -> None:
        """Read the rest after the writers have ended, and close the files."""
        for _ in range(PIPE_READS):
            if not self.read():
                break
        if self._rest:
            self._line(self._rest.decode(errors="replace"))
            self._rest = b""
        self._pipe.close()
        self._file.close()


class RankProcess:
    """A running rank."""

    def __init__(self, rank: Rank, process: subprocess.Popen[bytes], streams: Sequence[Stream]) -> None:
        self.rank, self._process, self.streams = rank, process, list(streams)
        self.pidfd = os.pidfd_open(process.pid)
        self.end: RankEnd | None = None
        self.told_to_end = False

    def reap(self, time_ns: int) -> RankEnd | None:
        """Return the end of the rank, or None while it is running."""
        if (status := self._process.poll()) is not None:
            self.end = RankEnd(self.rank.number, status, time_ns, self.told_to_end)
        return self.end

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Kill the rank with its children, and read the rest of its output."""
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        os.close(self.pidfd)
        for stream in self.streams:
            stream.close()
        self.streams = []


def start(
    rank: Rank,
    words: Sequence[str],
    variables: Mapping[str, str],
    cwd: str,
    namespace: int,
    folder: Path,
    line: LineCallback,
    *,
    in_turn: bool = False,
) -> RankProcess:
    """Start a rank in a network namespace; its output goes to rankN.out and rankN.err in `folder`, and to `line`.

    in_turn : its threads never preempt each other, as virtual time requires.

    Raises TestbedError if it cannot be started.
    """
    first = tied_to_parent()

    def prepare() -> None:
        first()
        if in_turn:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if LIBC.setns(namespace, CLONE_NEWNET) < 0:
            raise OSError(ctypes.get_errno(), "setns")
        if LIBC.unshare(CLONE_NEWUTS) == 0:  # otherwise the rank keeps the machine's name
            name = rank.host.encode()
            LIBC.sethostname(name, len(name))
        if LIBC.unshare(CLONE_NEWNS) == 0:  # /sys/class/net shows the devices of the mounting namespace
            LIBC.mount(b"gradwire", b"/sys", b"sysfs", ctypes.c_ulong(0), None)

    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(variables),
            start_new_session=True,
            preexec_fn=prepare,
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TestbedError(f"cannot start {words[0]}: {reason}", f"rank {rank.number} at {rank.host}") from None
    pipes = (process.stdout, process.stderr)
    streams = [
        Stream(pipe, folder / f"rank{rank.number}.{name}", partial(line, rank, name))
        for pipe, name in zip(pipes, STREAMS, strict=True)
        if pipe is not None
    ]
    return RankProcess(rank, process, streams)
