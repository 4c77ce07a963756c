"""What `gradwire.sim.fabric.atomics` names, in the words of LLVM; and that the state takes no floats."""

from llvmlite import ir
from numba import types
from numba.core.errors import NumbaTypeError
from numba.core.typing.builtins import SetItemCPointer
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


WORDS = types.CPointer(types.int64)
"""The type of the state, `M`."""
NO_FLOATS = "a float is written into M, where only integers are kept; int(...) cuts it off, round(...) rounds it"

_any_value = SetItemCPointer.generic


def _no_floats(self, args, kws):
    """The type of `pointer[index] = value`: Numba takes any value, and cuts off floats for a pointer to integers."""
    pointer, _, value = args
    if isinstance(value, types.Optional):
        value = value.type
    if pointer == WORDS and isinstance(value, types.Float):
        raise NumbaTypeError(NO_FLOATS)
    return _any_value(self, args, kws)


SetItemCPointer.generic = _no_floats


@intrinsic
def words_at(typing_context, address):
    """The state at a machine address, as compiled code sees it: a bare pointer. `M[i]` is one load, without a test for
    wrapping round and without counting references, which two threads would otherwise fight over."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], _I64.as_pointer())

    return WORDS(types.int64), codegen


@intrinsic
def load_acquire(typing_context, array, index):
    """`array[index]`, before any later access of this thread."""
    if not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, signature, args):
        index64 = context.cast(builder, args[1], signature.args[1], types.int64)
        pointer = builder.gep(args[0], [index64])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(array, index), codegen


@intrinsic
def store_release(typing_context, array, index, value):
    """`array[index] = value`, after every earlier access of this thread."""

    def codegen(context, builder, signature, args):
        index64 = context.cast(builder, args[1], signature.args[1], types.int64)
        value64 = context.cast(builder, args[2], signature.args[2], types.int64)
        pointer = builder.gep(args[0], [index64])
        builder.store_atomic(value64, pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


@intrinsic
def fetch_add(typing_context, array, index, value):
    """Add `value` to `array[index]` in one step; the value before."""

    def codegen(context, builder, signature, args):
        index64 = context.cast(builder, args[1], signature.args[1], types.int64)
        value64 = context.cast(builder, args[2], signature.args[2], types.int64)
        pointer = builder.gep(args[0], [index64])
        return builder.atomic_rmw("add", pointer, value64, "seq_cst")

    return types.int64(array, index, value), codegen


@intrinsic
def prefetch(typing_context, array, index):
    """Ask the cache for the line of `array[index]`, to be read soon."""

    def codegen(context, builder, signature, args):
        index64 = context.cast(builder, args[1], signature.args[1], types.int64)
        pointer = builder.bitcast(builder.gep(args[0], [index64]), _I8.as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), function_type)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, index), codegen


@intrinsic
def count_trailing_zeros(typing_context, value):
    """Index of the lowest set bit; 64 for zero."""

    def codegen(context, builder, signature, args):
        value64 = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.cttz(value64, ir.Constant(ir.IntType(1), 0))

    return types.int64(value), codegen


@intrinsic
def bit_length(typing_context, value):
    """How many bits a value takes; 0 for zero."""

    def codegen(context, builder, signature, args):
        value64 = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.sub(_I64(64), builder.ctlz(value64, ir.Constant(ir.IntType(1), 0)))

    return types.int64(value), codegen


sched_yield = types.ExternalFunction("sched_yield", types.int32())
