"""Computes fingerprints of compiled code, hashes of everything that it depends on.

The fingerprints cover the source, the numbers compiled into the functions that are called, the files that hold these,
the versions, and the processor. So an outdated engine is never loaded.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import cast

import numpy

from gradwire.jit.compiled import Compiled, Intrinsic, intrinsics_files
from gradwire.jit.machine_code import target_description
from gradwire.jit.records import RecordClass, WordsClass
from gradwire.jit.records.bit_fields import BitField, BitFieldSetter

PLAIN = (int, float, bool, str, bytes, type(None))
"""Types whose `repr` determines the value."""
DECLARED = (RecordClass, BitField, BitFieldSetter)
"""Types of declarations, whose `code()` determines the compiled code."""


def digest_of(source: str, functions: Iterable[FunctionType], files: Iterable[Path]) -> str:
    """Return a hash of source text, of the numbers in `functions` (`constants`), and of files."""
    digest = hashlib.sha256(source.encode())
    for function in functions:
        digest.update(repr(constants(function)).encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(_versions().encode())
    return digest.hexdigest()[:20]


def _versions() -> str:
    return " ".join((version("numba"), version("llvmlite"), numpy.__version__, sys.version, target_description()))


def compiler_digest() -> str:
    """Return a hash of the compiler: versions, processor, and the modules of this package, intrinsics included."""
    digest = hashlib.sha256(_versions().encode())
    for path in sorted({*Path(__file__).parent.rglob("*.py"), *map(Path, intrinsics_files())}):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def made_of(function: FunctionType, known: dict[FunctionType, str | None]) -> str | None:
    """Return a hash of all that determines a compiled function: its bytecode and, recursively, the values of its names.
    None if a name has a value of an unknown kind, or if the function calls itself. `known`: the hashes found so far."""
    if function not in known:
        known[function] = None  # if it calls itself
        content = _content(function, known)
        known[function] = None if content is None else hashlib.sha256(repr(content).encode()).hexdigest()
    return known[function]


def _content(function: FunctionType, known: dict[FunctionType, str | None]) -> object:
    code = function.__code__
    plain = *code.co_consts, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    if function.__closure__ or not all(map(_is_plain, plain)):
        return None
    meanings = []
    for name, value in global_values(function):
        meaning = _meaning(function, name, value, known)
        if meaning is None:
            return None
        meanings.append((name, meaning))
    signature = code.co_argcount, code.co_kwonlyargcount, code.co_flags
    package = function.__module__.split(".")[:2]  # some packages are compiled with fewer of Numba's passes
    return (
        function.__name__,
        package,
        signature,
        code.co_names,
        code.co_varnames,
        code.co_code,
        code.co_exceptiontable,
        repr(plain),
        meanings,
    )


def _meaning(function: FunctionType, name: str, value: object, known: dict[FunctionType, str | None]) -> object:
    if isinstance(value, Compiled):
        inner = made_of(cast(FunctionType, value.py_func), known)
        return inner and (inner, value.declared)
    if isinstance(value, Intrinsic):
        return value.module, value.name
    if isinstance(value, DECLARED):
        return value.code()
    if isinstance(value, WordsClass):
        return value.__name__
    if isinstance(value, types.BuiltinFunctionType):
        return str(value.__module__), value.__qualname__
    if isinstance(value, types.ModuleType):  # its attributes are among the names
        module = value.__name__
        return module if function.__globals__.get(name) is value else None
    return repr(value) if _is_plain(value) else None


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in PLAIN


def reachable_functions(functions: Sequence[FunctionType]) -> list[FunctionType]:
    """Return these functions and all compiled functions that they call, recursively, each once."""
    functions_found: dict[FunctionType, None] = {}
    waiting = list(functions[::-1])
    while waiting:
        function = waiting.pop()
        if function not in functions_found:
            functions_found[function] = None
            waiting += [value.py_func for _, value in global_values(function) if hasattr(value, "py_func")]
    return list(functions_found)


def global_values(function: FunctionType) -> list[tuple[str, object]]:
    """Return the values of a function's global names, attributes of modules included. An attribute of a record may have
    the name of a global, so the bytecode distinguishes them."""
    steps = dis.get_instructions(function)
    names = sorted({str(step.argval) for step in steps if step.opname == "LOAD_GLOBAL"})
    around = function.__globals__
    modules = [around[name] for name in names if isinstance(around.get(name), types.ModuleType)]
    attributes = sorted(function.__code__.co_names) if modules else []
    found = [(name, around[name]) for name in names if name in around]
    return found + [(name, vars(module)[name]) for module in modules for name in attributes if name in vars(module)]


def constants(function: FunctionType) -> list[tuple[str, object]]:
    """Return the numbers and the layouts that are compiled into a function, whatever module defines them."""
    values = global_values(function)
    numbers: list[tuple[str, object]] = [
        (name, value) for name, value in values if isinstance(value, (int, float, tuple))
    ]
    return numbers + [(name, value.code()) for name, value in values if isinstance(value, DECLARED)]
