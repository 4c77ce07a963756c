"""Declares functions for compilation lazily (`njit`), so that Numba is loaded only when one is compiled or called.

Loading Numba takes 0.2 s and 60 MB, and a run whose engine is cached does not need it: the engine is loaded as machine
code (`gradwire.jit.machine_code`). So the simulator's own functions are declared with this decorator. Numba's decorator
works as well, for user-defined components, and functions of either kind may call the other: Numba asks an object of an
unknown type for its `_numba_type_`.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
"""A function compiled into an engine; it takes the state and integers (`ARGUMENTS` in
`gradwire.protocols.registry`)."""


_declared: weakref.WeakSet[Compiled] = weakref.WeakSet()
_intrinsics = {"gradwire.jit.intrinsics", "gradwire.jit.records.numba_bit_fields", "gradwire.jit.records.numba_types"}


class Compiled:
    """A function that Numba compiles on first use. `py_func`: the original Python function."""

    def __init__(self, py_func: Rule, signature: str | None, options: dict[str, object]) -> None:
        functools.update_wrapper(self, py_func)
        self.py_func = py_func
        self._declared = signature, options
        _declared.add(self)

    @property
    def declared(self) -> str:
        """The function's signature and options."""
        return repr(self._declared)

    @functools.cached_property
    def numba(self) -> Any:
        """Numba's dispatcher for the function; compiles now if a signature was declared."""
        import numba

        for module in sorted(_intrinsics):  # they must be registered before compilation starts
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


def discard_compiled() -> None:
    """Recompile every function declared here when it is next needed."""
    for function in list(_declared):
        vars(function).pop("numba", None)


def intrinsics_files() -> list[str]:
    return [str(importlib.import_module(module).__file__) for module in sorted(_intrinsics)]


class Intrinsic:
    """An intrinsic of `gradwire.jit.intrinsics` or a similar module, by name; imported when a function that uses it is
    compiled. `python` does the same in an engine that is not compiled."""

    def __init__(self, name: str, module: str = "gradwire.jit.intrinsics", python: Rule | None = None) -> None:
        self.name, self.module, self.python = name, module, python
        _intrinsics.add(module)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.name} can be called from compiled functions only")

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        intrinsic = getattr(importlib.import_module(self.module), self.name)
        return cpu_target.typing_context.resolve_value_type(intrinsic)
