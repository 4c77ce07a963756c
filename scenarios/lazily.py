"""Lazy imports load a package's names from its modules (PEP 562), and NumPy and torch, each at its first use.

Checks of scenarios, which read the tables of all kinds, must not load NumPy or torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any


def lazy_getattr(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`; `modules` maps each module, relative to the package, to its public names."""
    module_of = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return get


if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
else:

    class _LazyModule:
        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self._module), name)
            setattr(self, name, value)  # not searched again: encoding time counts
            return value

    np, torch = _LazyModule("numpy"), _LazyModule("torch")
    Tensor = Any

__all__ = ["Tensor", "lazy_getattr", "np", "torch"]
