"""Engines of tests: they are compiled, or run as plain Python, with the same results."""

from __future__ import annotations

import functools
import os
from typing import Any

MODE = "GRADWIRE_TEST_ENGINES"
"""Names the environment variable: "plain" compiles no engine, and has one thread; "all" compiles them all."""


def install() -> None:
    """Apply the mode to all engines that this process builds from now on."""
    if os.environ.get(MODE) != "plain":
        return
    from gradwire.sim.engine.fabric import Fabric

    build = Fabric.__init__

    @functools.wraps(build)
    def build_plain(self: Fabric, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options | {"compiled": False})

    Fabric.__init__ = build_plain  # type: ignore[method-assign]
