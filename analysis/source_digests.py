"""Computes digests of version and sources that tie stored Results and figures to the code that made them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from gradwire.scenarios.version import VERSION

ENGINE_PACKAGES = ("jit", "protocols", "result_store", "scenarios", "sim", "topology", "traces", "workload")
"""Packages whose source determines the Result of a run."""
MEASURING_PACKAGES = ("analysis", "studies/reproduce")
"""Packages that, besides those, determine the figures computed from it."""


@cache
def engine_digest() -> str:
    """Return a digest of the simulator's version and sources."""
    return _digest(VERSION, ENGINE_PACKAGES)


@cache
def testbed_digest() -> str:
    """Return a digest of everything that a run on the testbed depends on, but for the kernel."""
    return _digest(engine_digest(), ("emu",))


@cache
def measuring_digest() -> str:
    """Return a digest of everything that figures of stored Results depend on."""
    return _digest(engine_digest(), MEASURING_PACKAGES)


def _digest(begin: str, packages: tuple[str, ...]) -> str:
    root = Path(__file__).parents[1]
    total = hashlib.sha256(begin.encode())
    for package in packages:
        for path in sorted((root / package).resolve().rglob("*.py")):
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()
