"""Provides the userspace switch's machine code, compiled or loaded from `gradwire.emu.native.code_cache`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.emu.native import code_cache

if TYPE_CHECKING:
    from gradwire.jit.engine_cache import CompileTask

SWITCH = "userspace switch"


@cache
def core() -> code_cache.Natives:
    """Return the compiled loop (`gradwire.emu.switches.userspace_switch.loop.serve`)."""
    return code_cache.load(SWITCH, work)


@cache
def work() -> CompileTask:
    from gradwire.emu.switches.userspace_switch import loop
    from gradwire.jit.engine_cache import CompileTask
    from gradwire.jit.fingerprint import digest_of, reachable_functions

    files = {*Path(__file__).parent.glob("*.py"), *code_cache.files()}
    identity = digest_of("switch", reachable_functions([loop.serve.py_func]), sorted(files))
    about = {"features": ["userspace switch of the testbed"]}
    return CompileTask(identity, lambda: {"serve": loop.serve}, about, str)
