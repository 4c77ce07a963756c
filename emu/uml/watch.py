"""A virtual machine seen from outside: its clock, read out of its memory, and whether it stands still.

Time that goes by only when everything sleeps does not go by at all while something inside waits by looking, and nobody
in there can notice. Nor can anybody when all processes of the machine sleep and none is ever woken. From outside both
show: the clock is a word in the memory of the kernel's process, and what that process and its children compute is
counted by this machine's kernel [proc(5)].
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gradwire.emu.switches.base import TestbedError

CLOCK: Final = "time_travel_time"
"""Nanoseconds since the machine began [arch/um/kernel/time.c]."""
STILL_S: Final = 300.0
"""Longest time of a processor that the machine may take without its clock going on; our choice. Starting the programs
of a large testbed takes some ten seconds. On the wall clock it may be long: others may have the processors."""
ASLEEP_S: Final = 30.0
"""The same, when nothing in it computes; our choice. With all asleep its clock would go on at once."""
CRAWL_NS: Final = 100_000
"""So far it goes on at least in that time, or it stands still; our choice. Looking at the clock takes a nanosecond now
and then (`gradwire.emu.uml.build`), so that it crawls while something waits by looking."""
ENDING_S: Final = 60.0
"""Time of a processor that a machine may take until it knows that it is to end; our choice: four ranks import torch in
half of it."""
EVERY_S: Final = 2.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
SYMBOLS, WORD = 2, struct.Struct("<Q")
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class StoodStill(TestbedError):
    """The clock of a virtual machine did not go on any more."""


def symbol_address(program: Path, name: str) -> int | None:
    """Where a variable of a program is that is loaded at fixed addresses; None if it does not say [elf(5)]."""
    data = program.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    sections_at, entry_size, count = (
        WORD.unpack_from(data, 0x28)[0], *struct.unpack_from("<2H", data, 0x3A)
    )  # fmt: skip
    headers = [struct.unpack_from("<2I4Q2I2Q", data, sections_at + i * entry_size) for i in range(count)]
    for _, kind, _, _, at, size, link, *_ in headers:
        if kind != SYMBOLS:
            continue
        names, length = headers[link][4:6]
        text = data.find(b"\0" + name.encode() + b"\0", names, names + length) + 1 - names
        symbols = np.frombuffer(data, SYMBOL, size // SYMBOL.itemsize, at)
        for each in symbols[symbols["name"] == text] if text > 0 else ():
            return int(each["value"])
    return None


@dataclass(frozen=True)
class Process:
    """One process of the machine, as its host's kernel counts it."""

    number: int
    parent: int
    state: str
    ticks: int


class Watch:
    """Looks at a machine now and then.

    Parameters
    ----------
    kernel : the program.
    root : the process that was started; the machine is that and what descends from it.
    still_s, asleep_s : see `STILL_S`, `ASLEEP_S`.
    """

    def __init__(
        self, kernel: Path, root: int, still_s: float = STILL_S, asleep_s: float = ASLEEP_S
    ) -> None:
        self._kernel, self._root = kernel.resolve(), root
        self._still_s, self._asleep_s = still_s, asleep_s
        self._address = symbol_address(kernel, CLOCK)
        self._seen = -CRAWL_NS
        self._ticks: dict[int, int] = {}
        self._taken = 0  # ticks that it has taken since its clock went on
        self._moved = self._worked = self._looked = time.monotonic()

    def clock_ns(self) -> int | None:
        """The machine's time, since it began. None if there is none yet, or if it cannot be seen from here."""
        return self._clock_of(self.processes())

    def machine(self) -> int:
        """The number of the process of the machine's kernel; 0 if there is none."""
        found = self._machine(self.processes())
        return found.number if found is not None else 0

    def _clock_of(self, processes: list[Process]) -> int | None:
        machine = self._machine(processes)
        if machine is None or self._address is None:
            return None
        with suppress(OSError, struct.error):  # it may be about to go, and then has no memory
            memory = os.open(f"/proc/{machine.number}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(WORD.unpack(os.pread(memory, WORD.size, self._address))[0])
            finally:
                os.close(memory)
        return None

    def look(self) -> None:
        """Raises StoodStill if it is time to give up."""
        now = time.monotonic()
        if now - self._looked < min(EVERY_S, self._asleep_s / 4):
            return
        if now - self._looked > max(self._asleep_s / 2, EVERY_S):  # it is we who stood still
            self._moved = self._worked = now
        self._looked = now
        processes = self.processes()
        ticks, clock = {each.number: each.ticks for each in processes}, self._clock_of(processes)
        if ticks != self._ticks:
            self._taken += _more(ticks, self._ticks)
            self._ticks, self._worked = ticks, now
        if clock is None and self._seen < 0:  # it has not begun
            return
        if clock is not None and not self._seen <= clock < self._seen + CRAWL_NS:
            self._seen, self._moved, self._taken = clock, now, 0
        asleep = now - max(self._moved, self._worked)
        if asleep >= self._asleep_s:
            raise self._error(f"and nothing was computed for {asleep:.0f} s", processes)
        if (taken := self._taken / TICKS) >= self._still_s:
            raise self._error(f"while something computed for {taken:.0f} s", processes)

    def _error(self, how: str, processes: list[Process]) -> StoodStill:
        machine = self._machine(processes)
        others = sorted({each.state for each in processes if each is not machine})
        where = f"its kernel's process is {machine.state} in {_call(machine.number)}" if machine else "it is gone"
        return StoodStill(
            f"the clock stood still at {self._seen / 1e9:.9f} s, {how}: {where}, {len(processes) - 1} others "
            f"are {' and '.join(others)}",
            "virtual time", "a machine in which everything sleeps at times", usage=False,
        )  # fmt: skip

    def processes(self) -> list[Process]:
        """All of the machine."""
        children: dict[int, list[Process]] = {}
        for each in _everybody():
            children.setdefault(each.parent, []).append(each)
            if each.number == self._root:
                children.setdefault(0, []).insert(0, each)
        found = children.get(0, [])[:1]
        for each in found:  # which grows meanwhile
            found += children.get(each.number, [])
        return found

    def _machine(self, processes: list[Process]) -> Process | None:
        """The process of the machine's kernel: it runs that program, and its children do, too."""
        ours = []
        for each in processes:
            with suppress(OSError):
                if Path(f"/proc/{each.number}/exe").resolve() == self._kernel:
                    ours.append(each)
        numbers = {each.number for each in ours}
        return next((each for each in ours if each.parent not in numbers), None)


class Ending:
    """A machine that has been asked to end. It cannot know as long as its clock stands still, and so may compute: for
    `most_s` of a processor, and may do nothing for `asleep_s`."""

    def __init__(self, watch: Watch, most_s: float = ENDING_S, asleep_s: float = ASLEEP_S) -> None:
        self._watch, self._most_s, self._asleep_s = watch, most_s, asleep_s
        self._ticks: dict[int, int] = {}
        self._taken = 0
        self._worked = time.monotonic()

    def may_go_on(self) -> bool:
        """Whether to wait for it; counts from the first call on."""
        now = time.monotonic()
        ticks = {each.number: each.ticks for each in self._watch.processes()}
        if ticks != self._ticks:
            self._taken += _more(ticks, self._ticks or ticks)
            self._ticks, self._worked = ticks, now
        return self._taken / TICKS < self._most_s and now - self._worked < self._asleep_s


class Pause:
    """Lets a machine stand still on purpose: its kernel's process is stopped, and with it all that is inside. Its time
    does not go by then, nor does it compute. Before `use` there is nothing to stop."""

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._number = 0
        self.lasts = False

    def use(self, watch: Watch) -> None:
        """The machine is the one that is watched so."""
        self._watch = watch

    def begin(self) -> None:
        """Stop it, if it is there."""
        if self._watch is not None and not self._number:
            self._number = self._watch.machine()
        if self._number:
            self.lasts = True
            self._tell(signal.SIGSTOP)

    def end(self) -> None:
        """Let it go on."""
        if self.lasts:
            self._tell(signal.SIGCONT)
            self.lasts = False

    def _tell(self, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._number, what)


def _more(ticks: dict[int, int], before: dict[int, int]) -> int:
    """What processes have taken since."""
    return sum(max(0, more - before.get(number, 0)) for number, more in ticks.items())


def _everybody() -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError):
            words = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            yield Process(int(entry.name), int(words[1]), words[0], int(words[11]) + int(words[12]))


def _call(number: int) -> str:
    """What a process is waiting for: the number of a system call and the place in the kernel, as /proc has them."""
    found = []
    for name in ("syscall", "wchan"):
        with suppress(OSError):
            found.append(Path(f"/proc/{number}/{name}").read_text().split(" ")[0].strip() or "?")
    return " ".join(found) or "?"
