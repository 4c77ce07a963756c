"""What compiled code is known by: a hash of everything that it is made of.

Its own source, the numbers that are compiled into the functions that it calls, the files in which these lie, and
versions and processor that it was compiled by and for. So what is outdated is never found.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import cast

import numpy

from gradwire.components.compiled import Compiled, Intrinsic, intrinsics_files
from gradwire.components.objects import machine

PLAIN = (int, float, bool, str, bytes, type(None))
"""Types of which a value is what it looks like."""


def digest_of(source: str, functions: Iterable[FunctionType], files: Iterable[Path]) -> str:
    """A hash of source text, of the numbers in functions (`reachable`), and of files."""
    digest = hashlib.sha256(source.encode())
    for function in functions:
        digest.update(repr(constants(function)).encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(_versions().encode())
    return digest.hexdigest()[:20]


def _versions() -> str:
    return " ".join((version("numba"), version("llvmlite"), numpy.__version__, sys.version, machine()))


def made_by() -> str:
    """A hash of what lowers functions: versions, processor, and the modules of this room, intrinsics among them."""
    digest = hashlib.sha256(_versions().encode())
    for path in sorted({*Path(__file__).parent.glob("*.py"), *map(Path, intrinsics_files())}):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def made_of(function: FunctionType, known: dict[FunctionType, str | None]) -> str | None:
    """A hash of all that decides what a compiled function does: its bytecode, and what its names mean, however deep;
    None where a name means something that this does not know, and for functions that call themselves. `known`: of
    others that were asked for before."""
    if function not in known:
        known[function] = None  # if it calls itself
        told = _told(function, known)
        known[function] = None if told is None else hashlib.sha256(repr(told).encode()).hexdigest()
    return known[function]


def _told(function: FunctionType, known: dict[FunctionType, str | None]) -> object:
    code = function.__code__
    plain = *code.co_consts, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    if function.__closure__ or not all(map(_is_plain, plain)):
        return None
    means = []
    for name, value in names_in(function):
        told = _meaning(function, name, value, known)
        if told is None:
            return None
        means.append((name, told))
    takes = code.co_argcount, code.co_kwonlyargcount, code.co_flags
    room = function.__module__.split(".")[:2]  # in some of ours fewer of Numba's passes are made
    return (
        function.__name__, room, takes, code.co_names, code.co_varnames, code.co_code, code.co_exceptiontable,
        repr(plain), means,
    )  # fmt: skip


def _meaning(function: FunctionType, name: str, value: object, known: dict[FunctionType, str | None]) -> object:
    if isinstance(value, Compiled):
        inner = made_of(cast(FunctionType, value.py_func), known)
        return inner and (inner, value.declared)
    if isinstance(value, Intrinsic):
        return value.module, value.name
    if isinstance(value, types.BuiltinFunctionType):
        return str(value.__module__), value.__qualname__
    if isinstance(value, types.ModuleType):  # what is behind its name is among the names
        module = value.__name__
        return module if function.__globals__.get(name) is value else None
    return repr(value) if _is_plain(value) else None


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in PLAIN


def reachable(functions: Sequence[FunctionType]) -> list[FunctionType]:
    """These functions and all compiled ones that they call, however deep, each once."""
    found: dict[FunctionType, None] = {}
    waiting = list(functions[::-1])
    while waiting:
        function = waiting.pop()
        if function not in found:
            found[function] = None
            waiting += [value.py_func for _, value in names_in(function) if hasattr(value, "py_func")]
    return list(found)


def names_in(function: FunctionType) -> list[tuple[str, object]]:
    """What the names in a function mean outside of it, those behind the name of a module included."""
    names, around = sorted(function.__code__.co_names), function.__globals__
    modules = [around[name] for name in names if isinstance(around.get(name), types.ModuleType)]
    spaces = [around, *(vars(module) for module in modules)]
    return [(name, space[name]) for space in spaces for name in names if name in space]


def constants(function: FunctionType) -> list[tuple[str, object]]:
    """The numbers that are compiled into a function, wherever they are from."""
    return [(name, value) for name, value in names_in(function) if isinstance(value, (int, float, tuple))]
