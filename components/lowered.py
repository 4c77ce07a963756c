"""Functions that were lowered before, found again by what they are made of.

Two engines differ in a few functions: those of their transports, and those that call them. Three quarters of the work
of compiling one is Numba's, which finds types and writes LLVM's code function by function; for most functions that
comes to what it came to for the last engine. So what Numba has made of a function is kept as LLVM's bitcode, before any
optimisation, and taken for every engine that has the same function. Each engine is still linked, optimised and
translated as a whole (`gradwire.components.whole`), and is as fast.

**The same function** is one with the same key: its bytecode and constants, the numbers that its names stand for, and
the same of all that it calls, however deep (`gradwire.components.identity.made_of`); the types of its arguments, the
options of its declaration, versions, the processor, and the sources of what compiles. Its name in machine code is made
of that key, so what was lowered in one process finds by name what was lowered in another. A function that knows
anything else, an array of its module's for example, has no key, nor has what calls it: these are lowered every time.

A file holds what Numba cannot find out again without lowering: bitcode, the keys of what is called, and the type of the
result. All else follows from the function itself, so no file names anything to import, and none is a pickle. A function
whose result has a type that `_text_of` does not know is lowered every time. A file that is not what was written, or
that calls for one that is gone, counts as not there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core import codegen, compiler, environment, funcdesc, registry, typing
from numba.core import types as _types

from gradwire.components.identity import made_by, made_of
from gradwire.components.pieces import Piece, key_of, read, write

DYNAMIC = "numba.dynamic.globals"  # names of Numba's for addresses in this process
OWN_NAME = "gradwire_"  # before names in machine code that are made of keys
types: Any = _types  # its type stubs do not know all of it
CALLS, RESULT, NO_ALIAS = "calls", "result", "noalias"
"""Keys of the JSON before a function's bitcode: the keys of those that it calls, the type of its result
(`_text_of`), and an option of its declaration."""
PLAIN_TYPES = {
    str(each): each
    for each in (
        types.none, types.boolean, types.int8, types.int16, types.int32, types.int64, types.uint8, types.uint16,
        types.uint32, types.uint64, types.float32, types.float64,
    )
}


class Lowered:
    """The functions in a folder, and those that this process has made or taken from there.

    `take`: makes a library of bitcode and the libraries that it calls.
    """

    def __init__(self, folder: Path, take: Callable[[str, llvm.ModuleRef, list[Any]], Any]) -> None:
        self._folder, self._take = folder, take
        self._made_of: dict[Any, str | None] = {}
        self._by = made_by()
        self._keys: dict[Any, str | None] = {}  # of functions that are being lowered
        self._libraries: dict[str, Any] = {}
        self._key_of: dict[Any, str] = {}  # by library
        self._results: dict[str, compiler.CompileResult] = {}

    def key(self, dispatcher: Any, args: tuple[Any, ...]) -> str | None:
        """What a function is known by, for arguments of these types; None if it may not be known."""
        known = made_of(dispatcher.py_func, self._made_of)
        if known is None:
            return None
        return key_of(known, str(args), sorted(dispatcher.targetoptions.items()), self._by)

    def find(self, key: str, function: Any, args: tuple[Any, ...]) -> compiler.CompileResult | None:
        """Return the function under a key, for arguments of these types, as Numba has what it has compiled; None if it
        is not there."""
        if key not in self._results:
            piece = read(self._folder, key)
            library = None if piece is None else self._library(key, piece)
            if piece is None or library is None:
                return None
            result = _type_of(piece.about[RESULT])
            descriptor = _described(function, key, args, result, bool(piece.about[NO_ALIAS]))
            target = registry.cpu_target.target_context
            entry = target.get_executable(
                library, descriptor, environment.Environment.from_fndesc(descriptor)
            )
            fields = dict.fromkeys(compiler.CR_FIELDS)
            fields |= {
                "target_context": target, "typing_context": target.typing_context, "library": library,
                "entry_point": entry, "fndesc": descriptor, "signature": typing.signature(result, *args),
                "objectmode": False, "lifted": (),
            }
            self._results[key] = compiler.compile_result(**fields)
            target.insert_user_function(entry, descriptor, [library])
        return self._results[key]._replace(metadata={})  # in which Numba notes how long it took, once

    def naming(self, function: Any, key: str | None) -> None:
        """From now on the function's name in machine code is made of the key, if it has one."""
        self._keys[function] = key

    def name(self, function: Any, descriptor: funcdesc.FunctionDescriptor) -> None:
        """Give a function that is being lowered its name."""
        key = self._keys.get(function)
        if key is not None:
            descriptor.mangled_name, descriptor.env_name = _names(function, key)

    def keep(self, key: str, result: compiler.CompileResult) -> None:
        """Keep what has been lowered, and go on with what will be found of it, so that an engine is the same whatever
        was lowered before. A disk that is full or cannot be written keeps nothing."""
        self._results[key], self._libraries[key] = result, result.library
        self._key_of[result.library] = key
        module = result.library._final_module.clone()
        calls: dict[str, None] = {}
        self._bring(result.library, module, calls, set())
        if any(each.name.startswith(DYNAMIC) for each in module.global_variables):
            return
        for each in (*module.functions, *module.global_variables):
            if not each.is_declaration and each.name != result.fndesc.llvm_func_name:
                each.linkage = llvm.Linkage.internal  # others have theirs by the same name
        result.library._final_module = module
        result.library._linking_libraries = [self._libraries[each] for each in calls]
        try:
            returned = _text_of(result.signature.return_type)
        except TypeError:
            return
        about = {CALLS: list(calls), RESULT: returned, NO_ALIAS: bool(result.fndesc.noalias)}
        write(self._folder, key, Piece(about, module.as_bitcode()))

    def _bring(self, library: Any, module: llvm.ModuleRef, calls: dict[str, None], seen: set[Any]) -> None:
        """Link what a library calls and has no key, Numba's own helpers, into a module; the keys of the others."""
        for each in library._linking_libraries:
            if each in self._key_of:
                calls[self._key_of[each]] = None
            elif each not in seen:
                seen.add(each)
                fresh = isinstance(each, type(library)) and not each._finalized
                module.link_in(each._final_module if fresh else each._get_module_for_linking(), preserve=True)
                self._bring(each, module, calls, seen)

    def _library(self, key: str, piece: Piece | None = None) -> codegen.CodeLibrary | None:
        """The library of a key, with all that it calls; None if any of them is not there."""
        if key not in self._libraries:
            piece = piece or read(self._folder, key)
            if piece is None:
                return None
            libraries = []
            for each in piece.about[CALLS]:
                library = self._library(each)
                if library is None:
                    return None
                libraries.append(library)
            made = self._take(f"{OWN_NAME}{key}", llvm.parse_bitcode(piece.code), libraries)
            self._libraries[key], self._key_of[made] = made, key
        return self._libraries[key]


def _names(function: Any, key: str) -> tuple[str, str]:
    """Return the names in machine code of a function and of its environment."""
    return f"{OWN_NAME}{function.__name__}_{key}", f"_ZN08NumbaEnv_{OWN_NAME}{key}"


def _described(
    function: Any, key: str, args: tuple[Any, ...], result: Any, noalias: bool
) -> funcdesc.FunctionDescriptor:
    """Return what Numba notes of a function that it has compiled, but for the types inside of it."""
    name, environment_name = _names(function, key)
    code = function.__code__
    return funcdesc.PythonFunctionDescriptor(
        native=True, modname=function.__module__, qualname=function.__qualname__,
        unique_name=f"{function.__qualname__}${key}", doc="", typemap=None, restype=result, calltypes=None,
        args=code.co_varnames[: code.co_argcount], kws=(), mangler=lambda *_, **__: name, argtypes=args,
        noalias=noalias, env_name=environment_name,
    )


def _text_of(kind: Any) -> object:
    """Return a type as JSON: the name of a plain one, else what it is of. Raise TypeError if it is another one."""
    if isinstance(kind, (types.IntegerLiteral, types.BooleanLiteral)):
        return {"literal": kind.literal_value}
    if isinstance(kind, types.CPointer) and kind.addrspace is None:
        return {"pointer": _text_of(kind.dtype)}
    if isinstance(kind, (types.UniTuple, types.Tuple)):
        return {"tuple": [_text_of(each) for each in kind.types]}
    if PLAIN_TYPES.get(str(kind)) == kind:
        return str(kind)
    raise TypeError(f"{kind} is not written down")


def _type_of(text: Any) -> Any:
    """Return the type that `_text_of` has written down."""
    if isinstance(text, str):
        return PLAIN_TYPES[text]
    ((what, inner),) = text.items()
    if what == "literal":
        return types.literal(inner)
    if what == "pointer":
        return types.CPointer(_type_of(inner))
    return types.Tuple([_type_of(each) for each in inner])
