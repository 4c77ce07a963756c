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

import numpy

from gradwire.components.objects import machine


def digest_of(source: str, functions: Iterable[FunctionType], files: Iterable[Path]) -> str:
    """A hash of source text, of the numbers in functions (`reachable`), and of files."""
    digest = hashlib.sha256(source.encode())
    for function in functions:
        digest.update(repr(constants(function)).encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(" ".join((version("numba"), version("llvmlite"), numpy.__version__, sys.version, machine())).encode())
    return digest.hexdigest()[:20]


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
