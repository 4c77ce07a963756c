"""`FunctionCache` stores functions lowered to LLVM bitcode and reuses them in engines that share them.

Two engines differ in few functions: those of their transports and the callers of these. Three quarters of the time to
compile an engine is Numba's type inference and lowering, function by function, and for most functions the result equals
the last engine's. So the result for a function is stored as LLVM bitcode, before any optimisation, and reused in every
engine with the same function. Each engine is still linked, optimised and translated as a whole
(`gradwire.jit.whole_program`), and is as fast.

**The same function** has the same key: its bytecode and constants, the numbers that its names stand for, and the same
of all functions it calls, recursively (`gradwire.jit.fingerprint.made_of`); its argument types, declared options,
versions, processor, and the sources of the compiler. Its symbol in machine code is derived from that key, so code
lowered in one process links by name with code lowered in another. A function that uses anything else, such as an array
of its module, has no key, nor have its callers: these are lowered every time.

A file holds only what cannot be found without lowering: bitcode, the keys of the called functions, and the result type.
All else follows from the function itself, so no file names anything to import, and none is a pickle. A function whose
result type `_text_of` does not support is lowered every time. A damaged file, or one that calls a missing function,
counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core import codegen, compiler, environment, funcdesc, registry, typing
from numba.core import types as _types

from gradwire.jit.fingerprint import compiler_digest, made_of
from gradwire.jit.object_cache import CacheEntry, key_of, read, write
from gradwire.jit.records.numba_types import RecordType, record_type

DYNAMIC = "numba.dynamic.globals"  # Numba's names of addresses in this process
OWN_NAME = "gradwire_"  # prefix of symbols derived from keys
types: Any = _types  # its type stubs are incomplete
CALLS, RESULT, NO_ALIAS = "calls", "result", "noalias"
"""Keys of a function's metadata: the keys of the called functions, the result type (`_text_of`), and a declared
option."""
PLAIN_TYPES = {
    str(each): each
    for each in (
        types.none,
        types.boolean,
        types.int8,
        types.int16,
        types.int32,
        types.int64,
        types.uint8,
        types.uint16,
        types.uint32,
        types.uint64,
        types.float32,
        types.float64,
    )
}


class FunctionCache:
    """The functions cached in a folder, and those that this process has lowered or loaded. `take`: makes a library from
    bitcode and the libraries that it calls."""

    def __init__(self, folder: Path, take: Callable[[str, llvm.ModuleRef, list[Any]], Any]) -> None:
        self._folder, self._take = folder, take
        self._made_of: dict[Any, str | None] = {}
        self._by = compiler_digest()
        self._keys: dict[Any, str | None] = {}  # of functions that are being lowered
        self._libraries: dict[str, Any] = {}
        self._key_of: dict[Any, str] = {}  # by library
        self._results: dict[str, compiler.CompileResult] = {}

    def key(self, dispatcher: Any, args: tuple[Any, ...]) -> str | None:
        """Return the key of a function for these argument types; None if it cannot have one."""
        known = made_of(dispatcher.py_func, self._made_of)
        if known is None:
            return None
        return key_of(known, str(args), sorted(dispatcher.targetoptions.items()), self._by)

    def find(self, key: str, function: Any, args: tuple[Any, ...]) -> compiler.CompileResult | None:
        """Return the compile result cached under a key for these argument types; None if there is none."""
        if key not in self._results:
            piece = read(self._folder, key)
            library = None if piece is None else self._library(key, piece)
            if piece is None or library is None:
                return None
            try:
                result = _type_of(piece.about[RESULT])
            except KeyError:  # a record that is laid out otherwise now
                return None
            descriptor = _descriptor(function, key, args, result, bool(piece.about[NO_ALIAS]))
            target = registry.cpu_target.target_context
            entry = target.get_executable(library, descriptor, environment.Environment.from_fndesc(descriptor))
            fields = dict.fromkeys(compiler.CR_FIELDS)
            fields |= {
                "target_context": target,
                "typing_context": target.typing_context,
                "library": library,
                "entry_point": entry,
                "fndesc": descriptor,
                "signature": typing.signature(result, *args),
                "objectmode": False,
                "lifted": (),
            }
            self._results[key] = compiler.compile_result(**fields)
            target.insert_user_function(entry, descriptor, [library])
        return self._results[key]._replace(metadata={})  # a fresh dict: Numba writes its timings there once

    def naming(self, function: Any, key: str | None) -> None:
        """Derive the function's symbol from the key from now on, if it has one."""
        self._keys[function] = key

    def name(self, function: Any, descriptor: funcdesc.FunctionDescriptor) -> None:
        """Set the symbol of a function that is being lowered."""
        key = self._keys.get(function)
        if key is not None:
            descriptor.mangled_name, descriptor.env_name = _names(function, key)

    def store(self, key: str, result: compiler.CompileResult) -> None:
        """Store a lowered function and continue with its stored form. An engine is then the same whatever was lowered
        before. Nothing is stored if the disk is full or read-only."""
        self._results[key], self._libraries[key] = result, result.library
        self._key_of[result.library] = key
        module = result.library._final_module.clone()
        calls: dict[str, None] = {}
        self._link_unkeyed(result.library, module, calls, set())
        if any(variable.name.startswith(DYNAMIC) for variable in module.global_variables):
            return
        for symbol in (*module.functions, *module.global_variables):
            if not symbol.is_declaration and symbol.name != result.fndesc.llvm_func_name:
                symbol.linkage = llvm.Linkage.internal  # other modules define the same name
        result.library._final_module = module
        result.library._linking_libraries = [self._libraries[called] for called in calls]
        try:
            returned = _text_of(result.signature.return_type)
        except TypeError:
            return
        about = {CALLS: list(calls), RESULT: returned, NO_ALIAS: bool(result.fndesc.noalias)}
        write(self._folder, key, CacheEntry(about, module.as_bitcode()))

    def _link_unkeyed(self, library: Any, module: llvm.ModuleRef, calls: dict[str, None], seen: set[Any]) -> None:
        """Link called libraries without a key (Numba's helpers) into a module, and collect the keys of the others."""
        for called in library._linking_libraries:
            if called in self._key_of:
                calls[self._key_of[called]] = None
            elif called not in seen:
                seen.add(called)
                fresh = isinstance(called, type(library)) and not called._finalized
                module.link_in(called._final_module if fresh else called._get_module_for_linking(), preserve=True)
                self._link_unkeyed(called, module, calls, seen)

    def _library(self, key: str, piece: CacheEntry | None = None) -> codegen.CodeLibrary | None:
        """Return the library of a key with all that it calls; None if any of them is absent."""
        if key not in self._libraries:
            piece = piece or read(self._folder, key)
            if piece is None:
                return None
            libraries = []
            for called in piece.about[CALLS]:
                library = self._library(called)
                if library is None:
                    return None
                libraries.append(library)
            library = self._take(f"{OWN_NAME}{key}", llvm.parse_bitcode(piece.code), libraries)
            self._libraries[key], self._key_of[library] = library, key
        return self._libraries[key]


def _names(function: Any, key: str) -> tuple[str, str]:
    return f"{OWN_NAME}{function.__name__}_{key}", f"_ZN08NumbaEnv_{OWN_NAME}{key}"


def _descriptor(
    function: Any, key: str, args: tuple[Any, ...], result: Any, noalias: bool
) -> funcdesc.FunctionDescriptor:
    """Return Numba's descriptor of a compiled function, without the types inside it."""
    name, environment_name = _names(function, key)
    code = function.__code__
    return funcdesc.PythonFunctionDescriptor(
        native=True,
        modname=function.__module__,
        qualname=function.__qualname__,
        unique_name=f"{function.__qualname__}${key}",
        doc="",
        typemap=None,
        restype=result,
        calltypes=None,
        args=code.co_varnames[: code.co_argcount],
        kws=(),
        mangler=lambda *_, **__: name,
        argtypes=args,
        noalias=noalias,
        env_name=environment_name,
    )


def _text_of(kind: Any) -> object:
    """Return a type as JSON: the name of a plain type, else its structure. Raise TypeError if it is not supported."""
    if isinstance(kind, (types.IntegerLiteral, types.BooleanLiteral)):
        return {"literal": kind.literal_value}
    if isinstance(kind, types.CPointer) and kind.addrspace is None:
        return {"pointer": _text_of(kind.dtype)}
    if isinstance(kind, (types.UniTuple, types.Tuple)):
        return {"tuple": [_text_of(inner) for inner in kind.types]}
    if PLAIN_TYPES.get(str(kind)) == kind:
        return str(kind)
    if isinstance(kind, RecordType):
        return {"record": str(kind)}
    raise TypeError(f"cannot store a result of type {kind}")


def _type_of(text: Any) -> Any:
    """Return the type from its JSON form (`_text_of`)."""
    if isinstance(text, str):
        return PLAIN_TYPES[text]
    ((what, inner),) = text.items()
    if what == "literal":
        return types.literal(inner)
    if what == "pointer":
        return types.CPointer(_type_of(inner))
    if what == "record":
        return record_type(inner)
    return types.Tuple([_type_of(element) for element in inner])
