"""`uncompiled` rebuilds a compiled function as plain Python that calls only Python functions.

A compiled function keeps its source function in `.py_func`, but the names in it still refer to compiled functions,
which do not take a Python list as state. So each function is rebuilt over a copy of its module's names in which every
compiled function is replaced by its rebuilt one, recursively. Code is shared: breakpoints in the source work.
"""

from __future__ import annotations

import types
from typing import Any

from gradwire.jit.compiled import Intrinsic, Rule

_rebuilt: dict[int, types.FunctionType] = {}


def uncompiled(function: Any) -> Rule:
    """Return the Python function behind a compiled one, which calls only Python functions."""
    source = function.py_func
    known = _rebuilt.get(id(source))
    if known is not None:
        return known
    if source.__closure__:
        raise TypeError(f"{source.__qualname__} is a closure: its compiled callees cannot be replaced")
    names: dict[str, Any] = {}
    rebuilt = types.FunctionType(source.__code__, names, source.__name__, source.__defaults__)
    _rebuilt[id(source)] = rebuilt  # before the recursion: functions may call each other
    for name, value in source.__globals__.items():
        names[name] = _plain(value)
    return rebuilt


def _plain(value: object) -> object:
    if isinstance(value, Intrinsic):
        return value.python or value
    if hasattr(value, "py_func"):
        return uncompiled(value)
    if isinstance(value, types.ModuleType) and not value.__name__.startswith(("numba", "numpy")):
        return _Module(value)
    return value


class _Module:
    """A module whose compiled functions appear uncompiled: for `module.function(...)`."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _plain(getattr(self._module, name))
