"""Provides advice for error messages, install commands (checkout or installed package) and most similar names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def is_checkout() -> bool:
    """Return True if this is a checkout of the repository, with its Makefile, and no installed package."""
    root = Path(__file__).resolve().parents[1]
    return (root / "Makefile").is_file() and (root / "pyproject.toml").is_file()


def install(extra: str) -> str:
    """Return the command that installs an optional dependency."""
    if is_checkout():
        return f"pip install -e '.[{extra}]' (in the folder of gradwire)"
    return f"pip install 'gradwire[{extra}]'"


def build_kernel() -> str:
    """Return the command that builds the kernel for virtual time."""
    return "make uml" if is_checkout() else "python -m gradwire.emu.virtual_time.kernel_build"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the most similar names, or "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
