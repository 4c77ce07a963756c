"""Emits compiled engine functions as object files, and loads and calls them without Numba.

A function compiled by Numba takes two addresses before its arguments, for the result and for the exception, and returns
a status: 0, or an exception was raised. An engine's functions take and return 64-bit integers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

_loaded: list[Any] = []
"""The loaded machine code; never freed, since it may be called at any time."""


PROCESSOR_VARIABLE = "GRADWIRE_PROCESSOR"
"""Environment variable that describes the processor where /proc/cpuinfo is that of one of our virtual machines."""
NUMBA_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT")
"""Numba's environment variables about the processor."""
CPUINFO_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "flags")
"""Lines of /proc/cpuinfo that determine LLVM's name and features of a processor [proc(5)]."""


def target_description() -> str:
    """Return the target of machine code: the processor, its features, and Numba's settings for it."""
    return " ".join((processor(), *(f"{name}={os.environ.get(name, '')}" for name in NUMBA_VARIABLES)))


def processor() -> str:
    """Describe the processor by /proc/cpuinfo or, if that is incomplete, by LLVM, which takes a while to load."""
    if PROCESSOR_VARIABLE in os.environ:
        return os.environ[PROCESSOR_VARIABLE]
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        fields = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in first.splitlines())}
        if all(name in fields for name in CPUINFO_FIELDS):
            return " ".join((platform.system(), platform.machine(), *(fields[name] for name in CPUINFO_FIELDS)))
    import llvmlite.binding as llvm

    return " ".join((llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()))


def emit(function: Any) -> tuple[str, bytes]:
    """Return the symbol and object file of a function with one signature, with all that it calls. `function`: a
    `gradwire.jit.compiled.Compiled`."""
    (result,) = function.numba.overloads.values()
    symbol = result.fndesc.llvm_func_name
    result.library.get_pointer_to_function(symbol)  # translates it
    return symbol, result.library._get_compiled_object()


def refers_to_numba(code: bytes) -> bool:
    """Return True if an object file names helpers of Numba. Symbols found in no library would be called at address
    zero."""
    return re.search(rb"\0_?(numba|NRT)_", code) is not None


class MachineCodeError(RuntimeError):
    """Machine code has raised an exception, of unknown kind."""


class NativeFunction:
    """A machine-code function of integers; raises Raised. `address`: for compiled code that calls it."""

    __slots__ = ("_call", "_symbol", "address")

    def __init__(self, address: int, symbol: str, takes: int) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * takes)
        self.address, self._symbol, self._call = address, symbol, kind(address)

    def __call__(self, *arguments: int) -> int:
        result, raised = ctypes.c_int64(), ctypes.c_void_p()
        if self._call(ctypes.byref(result), ctypes.byref(raised), *arguments):
            raise MachineCodeError(f"{self._symbol} raised an exception")
        return result.value


def load(code: bytes, symbol: str, takes: int) -> NativeFunction:
    """Load a function of `takes` integers from an object file."""
    if refers_to_numba(code):  # as code compiled in the stock way does
        from numba.core import registry
        from numba.core.runtime import rtsys

        rtsys.initialize(registry.cpu_target.target_context)
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    return NativeFunction(engine.get_function_address(symbol), symbol, takes)
