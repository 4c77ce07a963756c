"""Figures as people read them: durations, counts, sizes and shares with three digits, a fitting unit, and a space; and
the ends of processes.

Everything that is printed, drawn or put on a page takes them from here, so that one figure reads alike everywhere.
What has to be read back exactly is spelled by `units`.
"""

from __future__ import annotations

import signal

TIME_STEPS = ((1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us"), (1_000, "ns"))
COUNT_STEPS = ((1_000_000_000, " G"), (1_000_000, " M"))
SIZE_STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
RATE_STEPS = ((1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"))


def three_digits(value: float) -> str:
    """1.23, 12.3, 123: three significant digits for numbers from 1 to 999, none after the point above."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def time_text(picoseconds: float) -> str:
    """A duration with three digits and a fitting unit, such as "41.7 ms"."""
    for scale, unit in TIME_STEPS:
        if abs(picoseconds) >= scale:
            return f"{three_digits(picoseconds / scale)} {unit}"
    return f"{picoseconds:.0f} ps"


def wall_text(seconds: float) -> str:
    """Seconds on the wall clock in words, no more precise than a guess is."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * 60:
        return f"{round(seconds / 60)} min"
    return f"{three_digits(seconds / 3600)} h"


def count_text(number: float) -> str:
    """A count with separators, or in millions from a million on: "33,157", "1.4 M"."""
    for scale, unit in COUNT_STEPS:
        if number >= scale:
            return f"{three_digits(number / scale)}{unit}"
    return f"{number:,.0f}"


def size_text(size: float) -> str:
    """Bytes with three digits and a fitting 1024-based unit."""
    unit, name = size_unit(size)
    return f"{three_digits(size / unit)} {name}" if unit > 1 else f"{size:.0f} B"


def size_unit(largest: float) -> tuple[int, str]:
    """The unit in which sizes up to `largest` bytes are shown, and its name."""
    return next((step for step in SIZE_STEPS if largest >= step[0]), (1, "B"))


def time_unit(largest: float) -> tuple[int, str]:
    """The unit in which times up to `largest` picoseconds are shown, and its name."""
    return next((step for step in TIME_STEPS if largest >= step[0]), TIME_STEPS[-1])


def rate_text(rate: float) -> str:
    """Bits per second with three digits and a fitting unit."""
    for scale, unit in RATE_STEPS:
        if rate >= scale:
            return f"{three_digits(rate / scale)} {unit}"
    return f"{rate:.0f} bps"


def share_text(share: float) -> str:
    """A fraction as a percentage, three digits; never 0 % for something."""
    if 0 < share < 0.00005:
        return "< 0.01 %"
    return f"{three_digits(100 * share)} %" if share else "0 %"


def accuracy_text(accuracy: float) -> str:
    """An accuracy as a percentage with two digits after the point, as it is published: "91.68 %"."""
    return f"{100 * accuracy:.2f} %"


def chosen_text(share: float) -> str:
    """A share that somebody chose, with as many digits as it has: "10 %", "0.1 %"."""
    return f"{100 * share:g} %"


def change_text(ratio: float) -> str:
    """By how much something is more, or less, than what it is held against: 1.25 is "+25.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def killed_text(number: int) -> str:
    """How a process has ended that a signal has killed: "killed by signal 15". By 9 the kernel kills for memory."""
    return f"killed by signal {number}" + (" (has memory run out?)" if number == signal.SIGKILL else "")
