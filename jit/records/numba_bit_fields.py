"""Implements calls of `BitField` in compiled code, by Numba types that lower them to a few instructions."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.imputils import lower_builtin, lower_constant
from numba.core.typing.templates import signature
from numba.extending import models, register_model, typeof_impl

from gradwire.jit.records.bit_fields import BitField, BitFieldSetter

_I64: Any = types.int64


class BitFieldType(types.Callable, types.Opaque):
    """The type of a field: `field(word)`."""

    NAME, OPERANDS = "BitField", 1

    def __init__(self, field: BitField) -> None:
        self.field = field
        super().__init__(f"{self.NAME}({field.shift}, {field.bits})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call: integers to an integer."""
        integers = (types.Integer, types.Boolean)
        if kws or len(args) != self.OPERANDS or not all(isinstance(kind, integers) for kind in args):
            return None
        return signature(_I64, *[_I64] * self.OPERANDS)

    def get_call_signatures(self) -> tuple[tuple[()], bool]:
        return (), True

    def get_impl_key(self, sig: Any) -> Any:
        """Return the key under which the call is lowered: one per field, as its function knows the field."""
        key = type(self).__name__, self.field.shift, self.field.bits
        if key not in _lowered:
            _lowered.add(key)
            lower_builtin(key, *[types.Integer] * self.OPERANDS)(self.implementation())
        return key

    def implementation(self) -> Any:
        shift, mask = self.field.shift, self.field.mask

        def read(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.and_(builder.ashr(args[0], _number(context, shift)), _number(context, mask))

        return read


class BitFieldSetterType(BitFieldType):
    """The type of a function that replaces a field: `setter(word, value)`."""

    NAME, OPERANDS = "BitFieldSetter", 2

    def implementation(self) -> Any:
        shift, mask = self.field.shift, self.field.mask

        def replace(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            others = builder.and_(args[0], _number(context, ~(mask << shift)))
            return builder.or_(others, builder.shl(args[1], _number(context, shift)))

        return replace


_lowered: set[tuple[str, int, int]] = set()


def _number(context: Any, value: int) -> Any:
    return context.get_constant(_I64, value)


for _kind in (BitFieldType, BitFieldSetterType):
    register_model(_kind)(models.OpaqueModel)


@lower_constant(BitFieldType)
@lower_constant(BitFieldSetterType)
def _constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@typeof_impl.register(BitField)
def _typeof_field(value: BitField, context: Any) -> BitFieldType:
    return BitFieldType(value)


@typeof_impl.register(BitFieldSetter)
def _typeof_setter(value: BitFieldSetter, context: Any) -> BitFieldSetterType:
    return BitFieldSetterType(value.field)
