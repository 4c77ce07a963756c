"""How the functions of the userspace switch are compiled, and where that is kept.

Numba checks only the file of a function itself before it takes compiled code from its cache, not the files of what
that function calls. So the folder of the cache carries a hash of all files of this package and of the rules of the
wire: what is outdated is never found.

Compiling takes seconds, inside a virtual machine much longer, and the switch must not be late because of it: whoever
wants a switch calls `make_ready` first, which compiles in a process of its own if nothing is there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import gradwire
from gradwire.emu.switches.base import TestbedError
from gradwire.scenarios.cache import cache_folder

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

FOLDER = "GRADWIRE_SWITCH_CACHE"
"""In the environment: the folder, where somebody else has made it ready."""
COMPILE_S = 300.0
"""The longest that compiling may take (our choice)."""
DONE = "compiled"
"""A file that is there when everything is."""


@cache
def folder() -> Path:
    """Where the compiled functions of these sources are or will be."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    from importlib.metadata import version

    here = Path(__file__).parent
    digest = hashlib.sha256(f"{version('numba')} {sys.version} {platform.machine()}".encode())
    others = here.parent / "system" / "turns.py", here.parents[1] / "scenarios" / "wire.py"
    for path in (*sorted(here.glob("*.py")), *others):
        digest.update(path.name.encode() + path.read_bytes())
    return cache_folder() / f"switch-{digest.hexdigest()[:20]}"


def compiled(function: Callable[..., object]) -> Dispatcher:
    """Decorator: machine code, from the cache or made at the first call."""
    import numba

    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder())
    try:
        return numba.njit(cache=True)(function)
    finally:
        numba.config.CACHE_DIR = before


def make_ready() -> Path:
    """The folder, with everything compiled in it. TestbedError if that cannot be done."""
    done = folder() / DONE
    if done.exists():
        return folder()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        root = str(Path(gradwire.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        ran = subprocess.run(
            [sys.executable, "-m", "gradwire.emu.userspace.compiled"],
            env=environment, capture_output=True, text=True, timeout=COMPILE_S, check=False,
        )  # fmt: skip
        if ran.returncode:
            said = ran.stderr.strip().splitlines()
            raise TestbedError(
                f"cannot be compiled: {said[-1] if said else ran.returncode}", "userspace switch", usage=False
            )
        done.touch()
    except OSError as error:
        raise TestbedError(
            f"cannot write {folder()}: {error.strerror}",
            "userspace switch",
            "GRADWIRE_CACHE=FOLDER with room",
        ) from None
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"is not compiled after {COMPILE_S:g} s", "userspace switch", usage=False
        ) from None
    return folder()


def main() -> None:
    """Compile everything that is called from Python."""
    from gradwire.emu.userspace import loop

    loop.compile_all()


if __name__ == "__main__":
    main()
