"""The machine code of the userspace switch (`gradwire.emu.native.kept`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.emu.native import kept

if TYPE_CHECKING:
    from gradwire.components.engines import Work

SWITCH = "userspace switch"


@cache
def core() -> kept.Natives:
    """What its process does all the time (`gradwire.emu.userspace.loop.serve`)."""
    return kept.load(SWITCH, work)


@cache
def work() -> Work:
    """What has to be compiled for it."""
    from gradwire.components.engines import Work
    from gradwire.components.identity import digest_of, reachable
    from gradwire.emu.userspace import loop

    files = {*Path(__file__).parent.glob("*.py"), *kept.files()}
    identity = digest_of("switch", reachable([loop.serve.py_func]), sorted(files))
    about = {"features": ["userspace switch of the testbed"]}
    return Work(identity, lambda: {"serve": loop.serve}, about, str)
