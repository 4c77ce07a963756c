"""Formats durations, counts, sizes and shares for people, with three digits and a unit.

Everything printed, plotted or written to a page uses these functions, so that figures look the same everywhere. `units`
spells what must be read back exactly.
"""

from __future__ import annotations

import signal

TIME_STEPS = ((1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us"), (1_000, "ns"))
COUNT_STEPS = ((1_000_000_000, " G"), (1_000_000, " M"))
SIZE_STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
RATE_STEPS = ((1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"))


def three_digits(value: float) -> str:
    """Return three significant digits for numbers from 1 to 999 (1.23, 12.3, 123), and no decimals above."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def time_text(picoseconds: float) -> str:
    """Return a duration with three digits and a suitable unit, such as "41.7 ms"."""
    unit, name = time_unit(abs(picoseconds))
    return f"{three_digits(picoseconds / unit)} {name}" if abs(picoseconds) >= unit else f"{picoseconds:.0f} ps"


def wall_text(seconds: float) -> str:
    """Return wall-clock seconds as text, rounded as an estimate."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * 60:
        return f"{round(seconds / 60)} min"
    return f"{three_digits(seconds / 3600)} h"


def count_text(number: float) -> str:
    """Return a count with separators, or in millions from a million on: "33,157", "1.4 M"."""
    for scale, unit in COUNT_STEPS:
        if number >= scale:
            return f"{three_digits(number / scale)}{unit}"
    return f"{number:,.0f}"


def size_text(size: float) -> str:
    """Return bytes with three digits and a suitable 1024-based unit."""
    unit, name = size_unit(size)
    return f"{three_digits(size / unit)} {name}" if unit > 1 else f"{size:.0f} B"


def size_unit(largest: float) -> tuple[int, str]:
    """Return the unit for sizes up to `largest` bytes, and its name."""
    return next((step for step in SIZE_STEPS if largest >= step[0]), (1, "B"))


def time_unit(largest: float) -> tuple[int, str]:
    """Return the unit for times up to `largest` picoseconds, and its name."""
    return next((step for step in TIME_STEPS if largest >= step[0]), TIME_STEPS[-1])


def rate_text(rate: float) -> str:
    """Return bits per second with three digits and a suitable unit."""
    unit, name = next((step for step in RATE_STEPS if rate >= step[0]), (1, "bps"))
    return f"{three_digits(rate / unit)} {name}" if unit > 1 else f"{rate:.0f} bps"


def share_text(share: float) -> str:
    """Return a fraction as a percentage with three digits; never 0 % for a nonzero fraction."""
    if 0 < share < 0.00005:
        return "< 0.01 %"
    return f"{three_digits(100 * share)} %" if share else "0 %"


def accuracy_text(accuracy: float) -> str:
    """Return an accuracy as a percentage with two decimals, as papers do: "91.68 %"."""
    return f"{100 * accuracy:.2f} %"


def exact_percent_text(share: float) -> str:
    """Return a configured fraction as an exact percentage: "10 %", "0.1 %"."""
    return f"{100 * share:g} %"


def change_text(ratio: float) -> str:
    """Return a ratio as a relative change: 1.25 is "+25.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def killed_text(number: int) -> str:
    """Return "killed by signal 15" for a signal number; the kernel uses signal 9 on memory shortage."""
    return f"killed by signal {number}" + (" (out of memory?)" if number == signal.SIGKILL else "")
