"""Raises this machine's limit on memory mappings per process for virtual machines, and advises on a low limit.

The virtual machine maps every touched page of a program inside to the same address, and non-adjacent pages are separate
mappings. A program with half a gigabyte has more of them than Linux's default limit of 65,530 (`vm.max_map_count`), and
is then killed inside without a message.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

LIMIT = Path("/proc/sys/vm/max_map_count")
ENOUGH_MAPPINGS = 1 << 20
"""The current default of many distributions; at 4 KiB each, 4 GiB in the worst case."""


def raise_limit() -> None:
    """Raise the machine's limit, if allowed. It stays raised: it is only a limit, and others may need it too."""
    if 0 < limit() < ENOUGH_MAPPINGS:
        with suppress(OSError):
            LIMIT.write_text(f"{ENOUGH_MAPPINGS}\n", encoding="ascii")


def limit() -> int:
    """Return the limit of mappings per process; 0 if unknown."""
    try:
        return int(LIMIT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def advice() -> str:
    """Return advice about the limit after a program was killed inside; "" if the limit is sufficient."""
    mappings = limit()
    if mappings == 0 or mappings >= ENOUGH_MAPPINGS:
        return ""
    return (
        f"a program in a virtual machine is killed beyond {mappings:,} memory mappings, too few for half a gigabyte; "
        f"expected vm.max_map_count = {ENOUGH_MAPPINGS} (sysctl, as root)"
    )
