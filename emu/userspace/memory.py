"""Memory as compiled code sees it: bare pointers.

`W[i]` is one load, without a test for wrapping round and without counting references; passing the state as arrays costs
ten times what the rules themselves do (measured).
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WORDS = types.CPointer(types.int64)
BYTES = types.CPointer(types.uint8)


@intrinsic  # type: ignore[misc]
def words_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Words of 64 bits from an address on."""
    return WORDS(types.int64), _pointer(64)


@intrinsic  # type: ignore[misc]
def bytes_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Bytes from an address on."""
    return BYTES(types.int64), _pointer(8)


def _pointer(bits):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = context.cast(builder, arguments[0], signature.args[0], types.int64)
        return builder.inttoptr(address, ir.IntType(bits).as_pointer())

    return code
