"""How much memory a trace may take: a few bytes of a file can ask for all that a machine has, and get it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gradwire.scenarios.errors import TraceError

SHARE = 2  # a trace may take this part, one half, of what is available; our choice
_GROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Bytes of memory that may still be taken, as the system estimates it; all of the machine's where it does not."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:  # of a container
        limit, used = ((_GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        if limit.isdecimal():
            found.append(max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        pass
    return min(found, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def installed() -> int:
    """Bytes of memory that the machine has, or the container may take."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        found.append(int((_GROUP / "memory.max").read_text()))
    return min(found)


def refuse_beyond(wanted: int, what: str, where: str) -> None:
    """TraceError if `wanted` bytes for `what` are more than half of the memory that is available."""
    limit = available() // SHARE
    if wanted > limit:
        raise TraceError(
            f"{what} would take {wanted / 2**30:.1f} GiB of memory",
            where,
            f"at most {limit / 2**30:.1f} GiB, half of what is available here",
        )
