"""Defines Numba intrinsics and external functions for memory access, system calls and calls by address, which `calls`
wraps.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_RAISED = _I64(-(1 << 62))

_int, _size, _pointer = types.int32, types.intp, types.uintp
read = types.ExternalFunction("read", _size(_int, _pointer, _size))
write = types.ExternalFunction("write", _size(_int, _pointer, _size))
clock_gettime = types.ExternalFunction("clock_gettime", _int(_int, _pointer))
timerfd_settime = types.ExternalFunction("timerfd_settime", _int(_int, _int, _pointer, _pointer))
epoll_wait = types.ExternalFunction("epoll_wait", _int(_int, _pointer, _int, _int))
poll = types.ExternalFunction("poll", _int(_pointer, types.uint64, _int))
recvmmsg = types.ExternalFunction("recvmmsg", _int(_int, _pointer, types.uint32, _int, _pointer))
sendmmsg = types.ExternalFunction("sendmmsg", _int(_int, _pointer, types.uint32, _int))
sched_yield = types.ExternalFunction("sched_yield", _int())
errno_location = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())


def _at(builder, address, bits):  # type: ignore[no-untyped-def]
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


@intrinsic  # type: ignore[misc]
def bytes_at(typing_context, address):  # type: ignore[no-untyped-def]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _at(builder, args[0], 8)

    return types.CPointer(types.uint8)(types.int64), codegen


def _loader(bits, convert):  # type: ignore[no-untyped-def]
    """Return the intrinsic that loads `bits` bits from an address and converts them to a word."""

    @intrinsic  # type: ignore[misc]
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return convert(builder, builder.load(_at(builder, args[0], bits), align=1))

        return types.int64(types.int64), codegen

    return load


byte = _loader(8, lambda builder, value: builder.zext(value, _I64))
half = _loader(32, lambda builder, value: builder.zext(value, _I64))
"""the 32 bits at an address, in the machine's byte order"""
word = _loader(64, lambda builder, value: builder.bswap(value))
"""the 64 bits at an address, in network byte order"""


@intrinsic  # type: ignore[misc]
def put_word(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Write 64 bits to an address, in network byte order."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(builder.bswap(args[1]), _at(builder, args[0], 64), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic  # type: ignore[misc]
def copy(typing_context, target, source, many):  # type: ignore[no-untyped-def]
    """Copy bytes from one address to another; the ranges must not overlap."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        cgutils.raw_memcpy(builder, _at(builder, args[0], 8), _at(builder, args[1], 8), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[misc]
def invoke(typing_context, address, arguments):  # type: ignore[no-untyped-def]
    """Call a machine-code function of integers (`gradwire.jit.machine_code`); return its result or `RAISED`."""
    many = len(arguments)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        values = [
            context.cast(builder, value, kind, types.int64)
            for value, kind in zip(cgutils.unpack_tuple(builder, args[1], many), signature.args[1], strict=True)
        ]
        result = cgutils.alloca_once(builder, _I64)
        raised = cgutils.alloca_once(builder, _I8.as_pointer())
        kind = ir.FunctionType(_I32, [_I64.as_pointer(), _I8.as_pointer().as_pointer(), *[_I64] * many])
        status = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [result, raised, *values])
        good = builder.icmp_signed("==", status, _I32(0))
        return builder.select(good, builder.load(result), _RAISED)

    return types.int64(types.int64, arguments), codegen
