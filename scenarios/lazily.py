"""Lazy imports of a package's names from its modules at first use (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_getattr(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`; `modules` maps each module, relative to the package, to its public names."""
    module_of = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return get
