"""Reads a virtual machine's clock from outside, detects if it stops, pauses the machine, and waits for its end.

If time passes only when everything sleeps, it stops while a process inside polls, and no process there can notice. The
same holds if all processes of the machine sleep for ever. Both are visible from outside: the clock is a word in the
memory of the kernel's process, and this machine's kernel counts the processor time of that process and its children
[proc(5)].
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

from gradwire.emu.switches.backend_kind import TestbedError

CLOCK: Final = "time_travel_time"
"""Variable with the nanoseconds since the machine began [arch/um/kernel/time.c]."""
STILL_S: Final = 300.0
"""Limit on processor time without progress of the machine's clock; our choice. Starting the programs of a large testbed
takes some ten seconds. It may be long on the wall clock, if other processes use the processors."""
ASLEEP_S: Final = 30.0
"""Limit on time without progress while nothing computes; our choice. If all slept, the clock would advance at once."""
MIN_ADVANCE_NS: Final = 100_000
"""Smallest advance that counts as progress; our choice. Some reads of the clock take a nanosecond
(`gradwire.emu.virtual_time.kernel_patches`), so that the clock crawls while a process polls."""
ENDING_S: Final = 60.0
"""Processor time that a machine may take until it notices a stop request; our choice: four ranks import torch in half
of it."""
EVERY_S: Final = 2.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
SYMBOLS, WORD = 2, struct.Struct("<Q")
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class ClockStoppedError(TestbedError):
    """The clock of a virtual machine made no progress."""


def symbol_address(program: Path, name: str) -> int | None:
    """Return the address of a variable of a program loaded at fixed addresses; None if unknown [elf(5)]."""
    data = program.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    sections_at, entry_size, count = (WORD.unpack_from(data, 0x28)[0], *struct.unpack_from("<2H", data, 0x3A))
    headers = [struct.unpack_from("<2I4Q2I2Q", data, sections_at + i * entry_size) for i in range(count)]
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind != SYMBOLS:
            continue
        names, length = headers[link][4:6]
        text = data.find(b"\0" + name.encode() + b"\0", names, names + length) + 1 - names
        symbols = np.frombuffer(data, SYMBOL, size // SYMBOL.itemsize, offset)
        for symbol in symbols[symbols["name"] == text] if text > 0 else ():
            return int(symbol["value"])
    return None


@dataclass(frozen=True)
class MachineProcess:
    """One process of the machine, with the host kernel's counts."""

    number: int
    parent: int
    state: str
    ticks: int


class MachineWatch:
    """Observer of a machine.

    kernel : the program.
    root : the started process; the machine consists of it and its descendants.
    still_s, asleep_s : see `STILL_S`, `ASLEEP_S`.
    """

    def __init__(self, kernel: Path, root: int, still_s: float = STILL_S, asleep_s: float = ASLEEP_S) -> None:
        self._kernel, self._root = kernel.resolve(), root
        self._still_s, self._asleep_s = still_s, asleep_s
        self._address = symbol_address(kernel, CLOCK)
        self._seen = -MIN_ADVANCE_NS
        self._ticks: dict[int, int] = {}
        self._taken = 0  # ticks since the clock's last progress
        self._moved = self._worked = self._looked = time.monotonic()

    def clock_ns(self) -> int | None:
        """Return the machine's time since its beginning; None if it has none yet or it is not readable."""
        return self._clock_of(self.processes())

    def machine(self) -> int:
        """Return the process number of the machine's kernel; 0 if there is none."""
        process = self._machine(self.processes())
        return process.number if process is not None else 0

    def _clock_of(self, processes: list[MachineProcess]) -> int | None:
        machine = self._machine(processes)
        if machine is None or self._address is None:
            return None
        with suppress(OSError, struct.error):  # an ending process has no memory
            memory = os.open(f"/proc/{machine.number}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(WORD.unpack(os.pread(memory, WORD.size, self._address))[0])
            finally:
                os.close(memory)
        return None

    def check(self) -> None:
        """Raise ClockStoppedError if the machine must be given up."""
        now = time.monotonic()
        if now - self._looked < min(EVERY_S, self._asleep_s / 4):
            return
        if now - self._looked > max(self._asleep_s / 2, EVERY_S):  # this process itself was stopped
            self._moved = self._worked = now
        self._looked = now
        processes = self.processes()
        ticks, clock = {process.number: process.ticks for process in processes}, self._clock_of(processes)
        if ticks != self._ticks:
            self._taken += _more(ticks, self._ticks)
            self._ticks, self._worked = ticks, now
        if clock is None and self._seen < 0:  # not begun yet
            return
        if clock is not None and not self._seen <= clock < self._seen + MIN_ADVANCE_NS:
            self._seen, self._moved, self._taken = clock, now, 0
        asleep = now - max(self._moved, self._worked)
        if asleep >= self._asleep_s:
            raise self._error(f"and nothing computed for {asleep:.0f} s", processes)
        if (used_s := self._taken / TICKS) >= self._still_s:
            raise self._error(f"while something computed for {used_s:.0f} s", processes)

    def _error(self, circumstance: str, processes: list[MachineProcess]) -> ClockStoppedError:
        machine = self._machine(processes)
        states = sorted({process.state for process in processes if process is not machine})
        where = f"its kernel's process is {machine.state} in {_call(machine.number)}" if machine else "it has ended"
        return ClockStoppedError(
            f"the clock stood still at {self._seen / 1e9:.9f} s, {circumstance}: {where}, {len(processes) - 1} others "
            f"are {' and '.join(states)}",
            "virtual time",
            "a machine in which all processes sleep at times",
            usage=False,
        )

    def processes(self) -> list[MachineProcess]:
        children: dict[int, list[MachineProcess]] = {}
        for process in _all_processes():
            children.setdefault(process.parent, []).append(process)
            if process.number == self._root:
                children.setdefault(0, []).insert(0, process)
        machine_processes = children.get(0, [])[:1]
        for process in machine_processes:  # the list grows in the loop
            machine_processes += children.get(process.number, [])
        return machine_processes

    def _machine(self, processes: list[MachineProcess]) -> MachineProcess | None:
        """Return the process of the machine's kernel; its children run the same program."""
        kernel_processes = []
        for process in processes:
            with suppress(OSError):
                if Path(f"/proc/{process.number}/exe").resolve() == self._kernel:
                    kernel_processes.append(process)
        numbers = {process.number for process in kernel_processes}
        return next((process for process in kernel_processes if process.parent not in numbers), None)


class EndingMachine:
    """A machine that has been asked to end. It does not notice while its clock stands still, so it may compute for
    `most_s` of processor time, and idle for `asleep_s`."""

    def __init__(self, watch: MachineWatch, most_s: float = ENDING_S, asleep_s: float = ASLEEP_S) -> None:
        self._watch, self._most_s, self._asleep_s = watch, most_s, asleep_s
        self._ticks: dict[int, int] = {}
        self._taken = 0
        self._worked = time.monotonic()

    def is_alive(self) -> bool:
        """Return True while it is worth waiting; counts from the first call on."""
        now = time.monotonic()
        ticks = {process.number: process.ticks for process in self._watch.processes()}
        if ticks != self._ticks:
            self._taken += _more(ticks, self._ticks or ticks)
            self._ticks, self._worked = ticks, now
        return self._taken / TICKS < self._most_s and now - self._worked < self._asleep_s


class MachinePause:
    """A deliberate stop of a machine: its kernel's process is stopped, and with it everything inside.

    Neither virtual time passes nor does it compute. There is no effect before `use`.
    """

    def __init__(self) -> None:
        self._watch: MachineWatch | None = None
        self._number = 0
        self.lasts = False

    def use(self, watch: MachineWatch) -> None:
        self._watch = watch

    def begin(self) -> None:
        """Stop the machine, if it exists."""
        if self._watch is not None and not self._number:
            self._number = self._watch.machine()
        if self._number:
            self.lasts = True
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        if self.lasts:
            self._signal(signal.SIGCONT)
            self.lasts = False

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._number, number)


def _more(ticks: dict[int, int], before: dict[int, int]) -> int:
    return sum(max(0, count - before.get(number, 0)) for number, count in ticks.items())


def _all_processes() -> Iterator[MachineProcess]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError):
            words = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            yield MachineProcess(int(entry.name), int(words[1]), words[0], int(words[11]) + int(words[12]))


def _call(number: int) -> str:
    """Return the system call and kernel function in which a process waits, as in /proc."""
    words = []
    for name in ("syscall", "wchan"):
        with suppress(OSError):
            words.append(Path(f"/proc/{number}/{name}").read_text().split(" ")[0].strip() or "?")
    return " ".join(words) or "?"
