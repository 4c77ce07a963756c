"""`njit` as in Numba, only later: a function is handed to Numba when somebody compiles or calls it.

Numba takes a fifth of a second to load and 60 MB, and a run whose engine is kept on disk needs nothing of it: the
engine is loaded as machine code (`gradwire.components.objects`). So the simulator's own functions are declared with
this decorator. Numba's own works as well, for components of the user's own, and either may call the other: Numba asks
an object that it does not know for its `_numba_type_`.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
"""A function that an engine is compiled with, of the state and integers: `ARGUMENTS` in `gradwire.components.find`."""


_declared: weakref.WeakSet[Compiled] = weakref.WeakSet()
_intrinsics = {"gradwire.components.intrinsics"}


class Compiled:
    """A function that Numba compiles when it is needed. `py_func`: the function as it was written."""

    def __init__(self, py_func: Rule, signature: str | None, options: dict[str, object]) -> None:
        functools.update_wrapper(self, py_func)
        self.py_func = py_func
        self._declared = signature, options
        _declared.add(self)

    @property
    def declared(self) -> str:
        """Its signature and options."""
        return repr(self._declared)

    @functools.cached_property
    def numba(self) -> Any:
        """Numba's dispatcher for the function; with a signature it is compiled now."""
        import numba

        for module in sorted(_intrinsics):  # Numba takes note of new ones before it begins
            importlib.import_module(module)
        signature, options = self._declared
        return numba.njit(signature, **options)(self.py_func) if signature else numba.njit(**options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return self.numba._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.numba(*arguments)


def njit(signature: Any = None, **options: Any) -> Any:
    """Declare a function of the engine, as `numba.njit` does: `@njit`, or `@njit("int64(int64)", nogil=True)`."""
    if callable(signature):
        return Compiled(signature, None, options)
    return lambda py_func: Compiled(py_func, signature, options)


def forget_compiled() -> None:
    """From now on every function that is declared here is compiled anew when it is needed."""
    for each in list(_declared):
        vars(each).pop("numba", None)


def intrinsics_files() -> list[str]:
    """The source files of intrinsics."""
    return [str(importlib.import_module(module).__file__) for module in sorted(_intrinsics)]


class Intrinsic:
    """Something of `gradwire.components.intrinsics`, or of another module of that kind, by name; it is imported when
    a function that uses it is compiled."""

    def __init__(self, name: str, module: str = "gradwire.components.intrinsics") -> None:
        self.name, self.module = name, module
        _intrinsics.add(module)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.name} is for compiled functions")

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        found = getattr(importlib.import_module(self.module), self.name)
        return cpu_target.typing_context.resolve_value_type(found)
