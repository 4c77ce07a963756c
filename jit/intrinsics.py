"""Numba intrinsics emit LLVM code for atomics, prefetch and bit counts; a patch rejects floats written to the state."""

from llvmlite import ir
from numba import types
from numba.core.errors import NumbaTypeError
from numba.core.typing.builtins import SetItemCPointer
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


WORDS = types.CPointer(types.int64)
"""The type of the state, `M`."""
NO_FLOATS = (
    "a float is written into a record, which holds integers only; use int(...) to truncate or round(...) to round"
)

_any_value = SetItemCPointer.generic


def _no_floats(self, args, kws):
    """Return the type of `pointer[index] = value`; refuse floats, which Numba would truncate for a pointer to
    integers."""
    pointer, _, value = args
    if isinstance(value, types.Optional):
        value = value.type
    if pointer == WORDS and isinstance(value, types.Float):
        raise NumbaTypeError(NO_FLOATS)
    return _any_value(self, args, kws)


SetItemCPointer.generic = _no_floats


@intrinsic
def words_at(typing_context, address):
    """Return the state at a machine address as a bare pointer.

    Reading an entry is then one load: no test for a negative index, no reference count that two threads contend for.
    """

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], _I64.as_pointer())

    return WORDS(types.int64), codegen


def _address(context, builder, kind, record, index_kind, index):
    """Return the pointer to word `index` of a record, or of words."""
    index64 = context.cast(builder, index, index_kind, types.int64)
    if kind == WORDS:
        return builder.gep(record, [index64])
    words, base = builder.extract_value(record, 0), builder.extract_value(record, 1)  # see `numba_types`
    return builder.gep(words, [builder.add(base, index64)])


@intrinsic
def load_acquire(typing_context, record, index):
    """Load word `index` of a record before any later access of this thread."""
    if not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, signature, args):
        pointer = _address(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(record, index), codegen


@intrinsic
def store_release(typing_context, record, index, value):
    """Store `value` in word `index` of a record after every earlier access of this thread."""

    def codegen(context, builder, signature, args):
        value64 = context.cast(builder, args[2], signature.args[2], types.int64)
        pointer = _address(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        builder.store_atomic(value64, pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(record, index, value), codegen


@intrinsic
def fetch_add(typing_context, record, index, value):
    """Add `value` to word `index` of a record atomically; return the value before."""

    def codegen(context, builder, signature, args):
        value64 = context.cast(builder, args[2], signature.args[2], types.int64)
        pointer = _address(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        return builder.atomic_rmw("add", pointer, value64, "seq_cst")

    return types.int64(record, index, value), codegen


@intrinsic
def prefetch(typing_context, record, index):
    """Prefetch the cache line of word `index` of a record."""

    def codegen(context, builder, signature, args):
        word = _address(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        pointer = builder.bitcast(word, _I8.as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), function_type)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(record, index), codegen


@intrinsic
def count_trailing_zeros(typing_context, value):
    """Return the index of the lowest set bit; 64 for zero."""

    def codegen(context, builder, signature, args):
        value64 = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.cttz(value64, ir.Constant(ir.IntType(1), 0))

    return types.int64(value), codegen


@intrinsic
def bit_length(typing_context, value):
    """Return the number of bits of a value; 0 for zero."""

    def codegen(context, builder, signature, args):
        value64 = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.sub(_I64(64), builder.ctlz(value64, ir.Constant(ir.IntType(1), 0)))

    return types.int64(value), codegen


sched_yield = types.ExternalFunction("sched_yield", types.int32())
