"""Whole-program compilation: all functions of an engine linked, optimised and translated once.

Numba makes a library of every function that it compiles: all that it calls is linked in, the whole is optimised and
translated to machine code, and two wrappers are written to call it from Python and from C. Of the hundred functions of
an engine one is called from Python, so nearly all of that work is thrown away: a combination takes 17 to 25 s of one
core. Here a function stays as it was lowered until the outermost one needs it; then everything is linked into one
module, all but the outermost is marked internal, and it is optimised and translated once, to code that runs a tenth
faster, because the optimiser sees who calls whom. Nobody calls the outermost from Python in that process either: what
is wanted is its machine code, without wrappers, so that it can be loaded without Numba. And what an operator means for
its operands is looked up once, and not in each of the ten thousand places that have it, a third of the time otherwise:
3.6 s for DCTCP where it was 5.4 s (by turns, one core of two), and up to 6 s with everything. What was lowered for an
earlier engine is taken from there (`gradwire.components.lowered`).

Tried instead: lower levels of optimisation (little gained, slower code), compiled engines shipped with the
package (unsound: they depend on processor and versions), function pointers between transports and engine (slower), one
engine for all transports (8 % slower).

This replaces inner parts of Numba, so it is done for the versions that it is known to work with (`KNOWN`), and only in
a process that does nothing else: the child of `gradwire.components.engines`. Elsewhere everything compiles the stock
way, to the same results.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import _dynfunc
from numba.core import codegen, compiler, cpu, funcdesc, registry, types
from numba.core import dispatcher as _dispatcher
from numba.core.compiler_machinery import CompilerPass, PassManager
from numba.core.types import functions

from gradwire.components.compiled import forget_compiled
from gradwire.components.lowered import OWN_NAME, Lowered

Libraries = dict[codegen.CodeLibrary, None]
"""In the order in which they were found."""
KNOWN = ("0.68",)
"""Versions of Numba, major and minor, with which this is tested."""

OURS = ("gradwire.sim.", "gradwire.components.", "gradwire.emu.")
"""Modules whose functions use nothing that the shortened list of passes leaves out (closures, array expressions,
generators, object mode)."""

FUNCTIONS = ("Compiled", "CPUDispatcher")
"""Types of objects that stand for functions."""

PLAIN = (types.Number, types.Boolean, types.Array)
"""Types of operands for which the meaning of an operator is looked up once."""


def is_known() -> bool:
    """Whether this can be done with the Numba that is installed."""
    return ".".join(numba.__version__.split(".")[:2]) in KNOWN


class Part(codegen.JITCodeLibrary):
    """A library that is put together when it is needed, with everything it links to."""

    linked = 0
    """How many libraries were put together."""

    def add_linking_library(self, library: codegen.CodeLibrary) -> None:
        """Note that functions of `library` are called; linking waits."""
        self._linking_libraries.append(library)

    def _optimize_functions(self, module: llvm.ModuleRef) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _reachable(self, found: Libraries) -> Libraries:
        for library in self._linking_libraries:
            if library not in found:
                found[library] = None
                if isinstance(library, Part):
                    library._reachable(found)
        return found

    def finalize(self) -> None:
        """Link everything that is called, however deep, and make machine code of it."""
        self._raise_if_finalized()
        own = {function.name for function in self._final_module.functions if not function.is_declaration}
        reachable = self._reachable({})
        for library in reachable:
            fresh = isinstance(library, Part) and not library._finalized
            module = library._final_module if fresh else library._get_module_for_linking()
            self._final_module.link_in(module, preserve=True)
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in own:
                function.linkage = llvm.Linkage.internal
        self._optimize_final_module()
        self._final_module.verify()
        missing = [each.name for each in self._final_module.functions if each.is_declaration and OWN_NAME in each.name]
        if missing:
            raise LookupError(f"{', '.join(missing)}: called, and not linked")
        self._finalize_final_module()
        Part.linked += 1 + len(reachable)


def taken(name: str, module: llvm.ModuleRef, calls: list[codegen.CodeLibrary]) -> Part:
    """A library of what was lowered before, and of those that it calls."""
    part: Part = registry.cpu_target.target_context.codegen().create_library(name)
    part._final_module = module
    part._linking_libraries = calls
    return part


def whole_program(folder: Path) -> None:
    """From now on, in this process, functions compile as one program, and cannot be called from Python. What is lowered
    is kept in `folder`, and what lies there is not lowered once more (`gradwire.components.lowered`)."""
    gc.disable()  # what is made is kept to the end
    forget_compiled()  # what the parent has compiled is not part of it, and has wrappers that ask for Numba
    untyped = compiler.DefaultPassBuilder.define_untyped_pipeline
    typed = compiler.DefaultPassBuilder.define_typed_pipeline
    dispatcher: Any = _dispatcher  # its type stubs know public names only
    flags_of = dispatcher._FunctionCompiler._customize_flags
    executable_of = cpu.CPUContext.get_executable

    def customize_flags(self: object, flags: compiler.Flags) -> compiler.Flags:
        flags = flags_of(self, flags)
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        return flags

    def get_executable(
        self: cpu.CPUContext, library: codegen.CodeLibrary, fndesc: funcdesc.FunctionDescriptor, env: object
    ) -> object:
        if not isinstance(library, Part):
            return executable_of(self, library, fndesc, env)
        return _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))

    def is_ours(state: compiler.StateDict) -> bool:
        return bool(state.func_id.func.__module__.startswith(OURS))

    def passes(name: str, several: Sequence[type[CompilerPass]]) -> PassManager:
        manager = PassManager(name)
        for one in several:
            manager.add_pass(one, one._name)
        manager.finalize()
        return manager

    def define_untyped(state: compiler.StateDict, name: str = "untyped") -> PassManager:
        if not is_ours(state):
            return untyped(state, name)
        several = (
            compiler.TranslateByteCode, compiler.FixupArgs, compiler.IRProcessing,
            compiler.RewriteSemanticConstants, compiler.DeadBranchPrune, compiler.ReconstructSSA,
        )  # fmt: skip
        return passes(name, list(several))

    def define_typed(state: compiler.StateDict, name: str = "typed") -> PassManager:
        if not is_ours(state):
            return typed(state, name)
        return passes(name, [compiler.NopythonTypeInference, compiler.PreLowerStripPhis])

    operators: Any = functions.BaseFunction
    resolve = operators.get_call_type
    known: dict[tuple[int, tuple[Any, ...]], Any] = {}
    kept: list[functions.BaseFunction] = []  # what is known by its address may not go

    def get_call_type(self: Any, context: object, args: tuple[Any, ...], kws: dict[str, Any]) -> object:
        if kws or not all(isinstance(each, PLAIN) for each in args):
            return resolve(self, context, args, kws)
        key = id(self), args
        found = known.get(key)
        if found is None:
            kept.append(self)
            found = known[key] = resolve(self, context, args, kws)
        return found

    lowered = Lowered(folder, taken)
    lower = dispatcher._FunctionCompiler._compile_core
    describe = funcdesc.PythonFunctionDescriptor.from_specialized_function

    def compile_core(self: Any, args: tuple[Any, ...], return_type: Any) -> Any:
        key = lowered.key(self, args)
        outermost = return_type is not None
        result = None if key is None or outermost else lowered.find(key, self.py_func, args)
        if result is None:
            lowered.naming(self.py_func, key)
            result = lower(self, args, return_type)
            if key is not None and not outermost:
                lowered.keep(key, result)
        return result

    def from_specialized_function(func_ir: Any, *args: Any, **kws: Any) -> funcdesc.FunctionDescriptor:
        descriptor = describe(func_ir, *args, **kws)
        lowered.name(func_ir.func_id.func, descriptor)
        return descriptor

    address_of = cpu.CPUContext.add_dynamic_addr

    def add_dynamic_addr(self: cpu.CPUContext, builder: Any, address: int, info: str) -> Any:
        if info in FUNCTIONS:  # where a function's name is read; it is called by its symbol
            return self.get_constant_null(types.voidptr)
        return address_of(self, builder, address, info)

    cpu.CPUContext.add_dynamic_addr = add_dynamic_addr
    dispatcher._FunctionCompiler._compile_core = compile_core
    funcdesc.PythonFunctionDescriptor.from_specialized_function = from_specialized_function
    operators.get_call_type = get_call_type
    dispatcher._FunctionCompiler._customize_flags = customize_flags
    cpu.CPUContext.get_executable = get_executable
    compiler.DefaultPassBuilder.define_untyped_pipeline = staticmethod(define_untyped)
    compiler.DefaultPassBuilder.define_typed_pipeline = staticmethod(define_typed)
    registry.cpu_target.target_context.codegen()._library_class = Part
