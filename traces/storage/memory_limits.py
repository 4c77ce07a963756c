"""Measures the machine's memory, and refuses traces that would take more than half of what is available."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gradwire.scenarios.errors import TraceError

AVAILABLE_FRACTION = 2  # a trace may take half of the available memory; our choice
_GROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the bytes of memory still available, as the system estimates; all of the machine's without an estimate."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:  # of a container
        limit, used = ((_GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        if limit.isdecimal():
            limits.append(max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        pass
    return min(limits, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def installed_bytes() -> int:
    """Return the bytes of memory of the machine or container."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        limits.append(int((_GROUP / "memory.max").read_text()))
    return min(limits)


def refuse_beyond(wanted: int, what: str, where: str) -> None:
    """Raise TraceError if `wanted` bytes for `what` exceed half of the available memory."""
    limit = available_bytes() // AVAILABLE_FRACTION
    if wanted > limit:
        expected = f"at most {limit / 2**30:.1f} GiB, half of what is available here"
        raise TraceError(f"{what} would take {wanted / 2**30:.1f} GiB of memory", where, expected)
