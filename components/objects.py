"""Machine code of engines: what a compilation leaves on disk, and how it is called again without Numba.

A function that Numba has compiled takes two addresses before its arguments, for the result and for what is known of an
exception, and returns a status: 0, or that it has raised. An engine's functions take and return 64-bit integers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradwire.components import elf

_loaded: list[Any] = []
"""What holds the machine code: it may never go while somebody could call it."""


TELLS = "GRADWIRE_PROCESSOR"
"""In the environment: the processor in words, where /proc/cpuinfo is that of a virtual machine of our own."""
TOLD = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT")
"""What one can tell Numba about the processor."""
PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags")
"""Lines of /proc/cpuinfo that LLVM's name and features of a processor follow from [proc(5)]."""


def machine() -> str:
    """What machine code is made for: processor and what it can do, and what one can tell Numba about that."""
    return " ".join((processor(), *(f"{name}={os.environ.get(name, '')}" for name in TOLD)))


def processor() -> str:
    """The processor in words: Linux's, or where it has not all of them, those of LLVM, which takes a while to load."""
    if TELLS in os.environ:
        return os.environ[TELLS]
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        said = {name.strip(): value.strip() for name, _, value in (each.partition(":") for each in first.splitlines())}
        if all(name in said for name in PROCESSOR):
            return " ".join((platform.system(), platform.machine(), *(said[name] for name in PROCESSOR)))
    import llvmlite.binding as llvm

    return " ".join((llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()))


def emitted(function: Any) -> tuple[str, bytes]:
    """The machine code of a function with one signature (`gradwire.components.compiled.Compiled`): its symbol, and the
    object file with all that it calls."""
    (result,) = function.numba.overloads.values()
    symbol = result.fndesc.llvm_func_name
    result.library.get_pointer_to_function(symbol)  # translates it
    return symbol, result.library._get_compiled_object()


def offer_numba() -> None:
    """Make known what code refers to that was compiled in Numba's own way (`refers_to_numba`): helpers that lie in its
    memory."""
    from numba.core import registry
    from numba.core.runtime import rtsys

    rtsys.initialize(registry.cpu_target.target_context)


def refers_to_numba(code: bytes) -> bool:
    """Whether an object file names helpers of Numba. What stands in no library would be called at address zero."""
    return re.search(rb"\0_?(numba|NRT)_", code) is not None


class Raised(RuntimeError):
    """Machine code has raised an exception, which says nothing more."""


class Native:
    """A function of integers in machine code. `address`: where it is, for compiled code that is told. It raises
    Raised."""

    __slots__ = ("_call", "_symbol", "address")

    def __init__(self, address: int, symbol: str, takes: int) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * takes)
        self.address, self._symbol, self._call = address, symbol, kind(address)

    def __call__(self, *arguments: int) -> int:
        result, raised = ctypes.c_int64(), ctypes.c_void_p()
        if self._call(ctypes.byref(result), ctypes.byref(raised), *arguments):
            raise Raised(f"{self._symbol} has raised an exception")
        return result.value


def load(code: bytes, symbol: str, takes: int) -> Native:
    """A function of `takes` integers, out of an object file."""
    numbas = refers_to_numba(code)
    if not numbas and (address := elf.load(code, symbol)) is not None:
        return Native(address, symbol, takes)
    if numbas:
        offer_numba()
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    return Native(engine.get_function_address(symbol), symbol, takes)
