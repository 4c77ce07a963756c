"""Patches Numba to link, optimise and translate all functions of an engine once, as one program.

Numba makes a library of every function it compiles: it links all callees, optimises, translates to machine code, and
adds two wrappers for calls from Python and C. Of the hundred functions of an engine only one is called from Python, so
nearly all of that work is wasted: a combination takes 17 to 25 s of one core.

Here a function stays lowered until the outermost function needs it. Then everything is linked into one module, all but
the outermost function is marked internal, and the module is optimised and translated once, to code that runs 10 %
faster because the optimiser sees all calls. The outermost function is not called from Python in that process either:
only its machine code is needed, without wrappers, so that it can be loaded without Numba. The meaning of an operator
for its operand types is looked up once instead of at each of ten thousand uses, which took a third of the time: 3.6 s
for DCTCP instead of 5.4 s (alternating runs, one core of two), up to 6 s with all features. Functions lowered for an
earlier engine are reused (`gradwire.jit.function_cache`).

Rejected alternatives: lower optimisation levels (little gain, slower code), compiled engines shipped with the package
(unsound: they depend on processor and versions), function pointers between transports and engine (slower), one engine
for all transports (8 % slower).

This replaces inner parts of Numba, so it is enabled only for tested versions (`SUPPORTED_VERSIONS`), and only in a
process that does nothing else: the child of `gradwire.jit.engine_cache`. Elsewhere functions compile the stock way,
with the same results.
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

from gradwire.jit.compiled import discard_compiled
from gradwire.jit.function_cache import OWN_NAME, FunctionCache

Libraries = dict[codegen.CodeLibrary, None]
"""Libraries in the order in which they were found."""
SUPPORTED_VERSIONS = ("0.68",)
"""Versions of Numba, major and minor, with which this is tested."""

OWN_PACKAGES = ("gradwire.sim.", "gradwire.protocols.", "gradwire.jit.", "gradwire.emu.")
"""Modules whose functions use nothing that the shortened list of passes leaves out (closures, array expressions,
generators, object mode)."""

FUNCTIONS = ("Compiled", "CPUDispatcher")
"""Types of objects that stand for functions."""

PLAIN = (types.Number, types.Boolean, types.Array)
"""Types of operands for which the meaning of an operator is looked up once."""


def is_supported() -> bool:
    return ".".join(numba.__version__.split(".")[:2]) in SUPPORTED_VERSIONS


class CompilationUnit(codegen.JITCodeLibrary):
    """A library whose linking is deferred until it is needed."""

    linked = 0
    """Number of libraries linked so far."""

    def add_linking_library(self, library: codegen.CodeLibrary) -> None:
        """Record that functions of `library` are called; linking is deferred."""
        self._linking_libraries.append(library)

    def _optimize_functions(self, module: llvm.ModuleRef) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _reachable(self, reached: Libraries) -> Libraries:
        for library in self._linking_libraries:
            if library not in reached:
                reached[library] = None
                if isinstance(library, CompilationUnit):
                    library._reachable(reached)
        return reached

    def finalize(self) -> None:
        """Link everything that is called, recursively, and translate it to machine code."""
        self._raise_if_finalized()
        own = {function.name for function in self._final_module.functions if not function.is_declaration}
        reachable = self._reachable({})
        for library in reachable:
            fresh = isinstance(library, CompilationUnit) and not library._finalized
            module = library._final_module if fresh else library._get_module_for_linking()
            self._final_module.link_in(module, preserve=True)
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in own:
                function.linkage = llvm.Linkage.internal
        self._optimize_final_module()
        self._final_module.verify()
        functions = self._final_module.functions
        missing = [function.name for function in functions if function.is_declaration and OWN_NAME in function.name]
        if missing:
            raise LookupError(f"functions called but not linked: {', '.join(missing)}")
        self._finalize_final_module()
        CompilationUnit.linked += 1 + len(reachable)


def deferred_library(name: str, module: llvm.ModuleRef, calls: list[codegen.CodeLibrary]) -> CompilationUnit:
    """Return a library of code that was lowered before, with the libraries that it calls."""
    part: CompilationUnit = registry.cpu_target.target_context.codegen().create_library(name)
    part._final_module = module
    part._linking_libraries = calls
    return part


def enable_whole_program(folder: Path) -> None:
    """Make functions compile as one program in this process from now on; they cannot be called from Python. Lowered
    functions are cached in `folder` and reused from there (`gradwire.jit.function_cache`)."""
    gc.disable()  # all objects live until the process ends
    discard_compiled()  # the parent's compiled functions have wrappers that need Numba
    untyped = compiler.DefaultPassBuilder.define_untyped_pipeline
    typed = compiler.DefaultPassBuilder.define_typed_pipeline
    dispatcher: Any = _dispatcher  # its type stubs list public names only
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
        if not isinstance(library, CompilationUnit):
            return executable_of(self, library, fndesc, env)
        return _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))

    def is_ours(state: compiler.StateDict) -> bool:
        return bool(state.func_id.func.__module__.startswith(OWN_PACKAGES))

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
            compiler.TranslateByteCode,
            compiler.FixupArgs,
            compiler.IRProcessing,
            compiler.RewriteSemanticConstants,
            compiler.DeadBranchPrune,
            compiler.ReconstructSSA,
        )
        return passes(name, list(several))

    def define_typed(state: compiler.StateDict, name: str = "typed") -> PassManager:
        if not is_ours(state):
            return typed(state, name)
        return passes(name, [compiler.NopythonTypeInference, compiler.PreLowerStripPhis])

    operators: Any = functions.BaseFunction
    resolve = operators.get_call_type
    known: dict[tuple[int, tuple[Any, ...]], Any] = {}
    referenced: list[functions.BaseFunction] = []  # keeps the addresses in `known` valid

    def get_call_type(self: Any, context: object, args: tuple[Any, ...], kws: dict[str, Any]) -> object:
        if kws or not all(isinstance(operand, PLAIN) for operand in args):
            return resolve(self, context, args, kws)
        key = id(self), args
        signature = known.get(key)
        if signature is None:
            referenced.append(self)
            signature = known[key] = resolve(self, context, args, kws)
        return signature

    template_of = dispatcher._DispatcherBase.get_call_template

    def get_call_template(self: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        """Return the template for any integers in place of constants: the optimiser sees the constants anyway."""
        any_integers = [types.int64 if isinstance(kind, types.IntegerLiteral) else kind for kind in args]
        return template_of(self, tuple(any_integers), kws)

    lowered = FunctionCache(folder, deferred_library)
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
                lowered.store(key, result)
        return result

    def from_specialized_function(func_ir: Any, *args: Any, **kws: Any) -> funcdesc.FunctionDescriptor:
        descriptor = describe(func_ir, *args, **kws)
        lowered.name(func_ir.func_id.func, descriptor)
        return descriptor

    address_of = cpu.CPUContext.add_dynamic_addr

    def add_dynamic_addr(self: cpu.CPUContext, builder: Any, address: int, info: str) -> Any:
        if info in FUNCTIONS:  # only read for the name; the function is called by its symbol
            return self.get_constant_null(types.voidptr)
        return address_of(self, builder, address, info)

    cpu.CPUContext.add_dynamic_addr = add_dynamic_addr
    dispatcher._FunctionCompiler._compile_core = compile_core
    funcdesc.PythonFunctionDescriptor.from_specialized_function = from_specialized_function
    operators.get_call_type = get_call_type
    dispatcher._DispatcherBase.get_call_template = get_call_template
    dispatcher._FunctionCompiler._customize_flags = customize_flags
    cpu.CPUContext.get_executable = get_executable
    compiler.DefaultPassBuilder.define_untyped_pipeline = staticmethod(define_untyped)
    compiler.DefaultPassBuilder.define_typed_pipeline = staticmethod(define_typed)
    registry.cpu_target.target_context.codegen()._library_class = CompilationUnit
