"""Stretches of memory: how many of them a process of this machine may have, and what a virtual machine needs.

Of every page that a program inside has touched, the virtual machine maps one of its own to the same place, and what is
not next to each other there is a stretch by itself. A program with half a gigabyte has more of them than the 65,530
that Linux allows a process by default (`vm.max_map_count`), and is then killed inside, without a word.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

LIMIT = Path("/proc/sys/vm/max_map_count")
ENOUGH = 1 << 20
"""As many distributions set by now; at 4 KiB each, 4 GiB in the worst case."""


def make_room() -> None:
    """Raise the machine's limit, where that is allowed. It stays raised: it only limits, and others may need it too."""
    if 0 < limit() < ENOUGH:
        with suppress(OSError):
            LIMIT.write_text(f"{ENOUGH}\n", encoding="ascii")


def limit() -> int:
    """How many stretches a process may have; 0: that is not known."""
    try:
        return int(LIMIT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def too_few() -> str:
    """What to tell whose program was killed inside: nothing, if there is room."""
    found = limit()
    if found == 0 or found >= ENOUGH:
        return ""
    return (
        f"a program in a virtual machine may have {found:,} stretches of memory here, too few for half a gigabyte, and "
        f"is killed beyond; expected vm.max_map_count = {ENOUGH} (sysctl, as root)"
    )
