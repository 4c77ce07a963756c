"""Implements records in compiled code, by Numba types whose attributes lower to one load or store.

In compiled code a record is two registers: the pointer to the state, and the record's base.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, cast

from llvmlite import ir
from numba.core import types
from numba.core.base import BaseContext as BaseTargetContext
from numba.core.datamodel.packer import ArgPacker
from numba.core.errors import NumbaTypeError
from numba.core.imputils import lower_builtin, lower_cast, lower_constant, lower_getattr_generic, lower_setattr_generic
from numba.core.typing.context import BaseContext
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import models, register_model, typeof_impl

import gradwire.jit.records.numba_bit_fields  # noqa: F401 - registers the types of fields of packed words
from gradwire.jit.intrinsics import NO_FLOATS, WORDS
from gradwire.jit.records.header import State
from gradwire.jit.records.table import Array, Bitmap, Pointer, Record, RecordClass, Reference, Word, Words, WordsClass

_I64: Any = types.int64


class RecordType(types.Type):
    """The type of a record. `record`: its class."""

    def __init__(self, record: type[Record]) -> None:
        self.record = record
        super().__init__(f"{record.__qualname__}#{record.code()}")

    def type_of(self, attribute: str) -> types.Type | None:
        """Return the type of an attribute; None if there is none of that name."""
        if attribute == "base":
            return _I64
        if attribute == "words":
            return WORDS
        if attribute == "state":
            return record_type_of(cast(Any, State))
        entry = self.record.ENTRIES.get(attribute)
        if isinstance(entry, Word):
            return _I64
        if isinstance(entry, Reference):
            return record_type_of(cast(Any, entry.target()))
        return WORDS if isinstance(entry, (Array, Bitmap, Pointer)) else None


@cache
def record_type_of(record: Any) -> RecordType:
    return RecordType(record)


@cache
def _class_type_of(record: Any) -> RecordClassType:
    return RecordClassType(record)


@register_model(RecordType)
class RecordModel(models.StructModel):
    """Data model: pointer and base."""

    def __init__(self, manager: Any, kind: RecordType) -> None:
        super().__init__(manager, kind, [("words", WORDS), ("base", _I64)])


class RecordClassType(types.Callable, types.Opaque):
    """The type of a record's class, which constructs records: `Port(state, base)`."""

    def __init__(self, record: type[Record] | type[Words]) -> None:
        self.result: Any = record_type_of(record) if issubclass(record, Record) else WORDS
        super().__init__(f"class({self.result})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call: state (words or a record), and base."""
        if kws or len(args) != 2 or not isinstance(args[1], types.Integer):
            return None
        if args[0] != WORDS and not isinstance(args[0], RecordType):
            return None
        return signature(self.result, args[0], _I64)

    def get_call_signatures(self) -> tuple[tuple[()], bool]:
        return (), True

    def get_impl_key(self, sig: Any) -> type:
        return type(self)


register_model(RecordClassType)(models.OpaqueModel)


@typeof_impl.register(RecordClass)
@typeof_impl.register(WordsClass)
def _typeof_class(value: Any, context: Any) -> RecordClassType:
    return _class_type_of(value)


@lower_constant(RecordClassType)
def _constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


WORDS_PART, BASE_PART = 0, 1  # positions in the model


def _make(context: Any, builder: Any, kind: Any, words: Any, base: Any) -> Any:
    record = ir.Constant(context.get_value_type(kind), ir.Undefined)
    return builder.insert_value(builder.insert_value(record, words, WORDS_PART), base, BASE_PART)


class RecordArgPacker(ArgPacker):
    """Arguments of a compiled function. Of records in the same memory (`Record.MEMORY`) only the first is passed with
    its pointer, the others as bases: one register each, as if the state and integers were passed."""

    def __init__(self, manager: Any, kinds: Any) -> None:
        self._first_of: dict[int, int] = {}
        first: dict[str, int] = {}
        passed = list(kinds)
        for index, kind in enumerate(kinds):
            if isinstance(kind, RecordType) and kind.record.MEMORY:
                if kind.record.MEMORY in first:
                    self._first_of[index] = first[kind.record.MEMORY]
                    passed[index] = _I64
                first.setdefault(kind.record.MEMORY, index)
        super().__init__(manager, passed)

    def as_arguments(self, builder: Any, values: Any) -> Any:
        passed = list(values)
        for index in self._first_of:
            passed[index] = builder.extract_value(values[index], BASE_PART)
        return super().as_arguments(builder, passed)

    def from_arguments(self, builder: Any, args: Any) -> Any:
        values = super().from_arguments(builder, args)
        for index, first in self._first_of.items():
            values[index] = builder.insert_value(values[first], values[index], BASE_PART)
        return values


BaseTargetContext.get_arg_packer = lambda self, kinds: RecordArgPacker(self.data_model_manager, kinds)


@lower_builtin(RecordClassType, types.Any, types.Integer)
def _construct(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    source, base = args
    if isinstance(sig.args[0], RecordType):
        source = builder.extract_value(source, WORDS_PART)
    base = context.cast(builder, base, sig.args[1], _I64)
    if sig.return_type == WORDS:
        return builder.gep(source, [base])
    return _make(context, builder, sig.return_type, source, base)


@infer_getattr
class RecordAttributes(AttributeTemplate):
    """Attributes of records."""

    key = RecordType

    def generic_resolve(self, kind: RecordType, attribute: str) -> types.Type | None:
        return kind.type_of(attribute)


_any_attribute = BaseContext.resolve_setattr


def _no_floats(self: Any, target: Any, attr: str, value: Any) -> Any:
    """Return the signature of `record.attribute = value`; refuse floats, which Numba would truncate."""
    kind = getattr(value, "type", value)  # of an optional value
    if isinstance(target, RecordType) and isinstance(kind, types.Float):
        raise NumbaTypeError(NO_FLOATS)
    return _any_attribute(self, target, attr, value)


BaseContext.resolve_setattr = _no_floats


@lower_getattr_generic(RecordType)
def _get(context: Any, builder: Any, kind: RecordType, value: Any, attribute: str) -> Any:
    words = builder.extract_value(value, WORDS_PART)
    if attribute == "words":
        return words
    if attribute == "state":
        return _make(context, builder, kind.type_of(attribute), words, context.get_constant(_I64, 0))
    base = builder.extract_value(value, BASE_PART)
    if attribute == "base":
        return base
    entries = kind.record.ENTRIES
    entry = entries[attribute]

    def address(offset: int) -> Any:
        return builder.gep(words, [builder.add(base, context.get_constant(_I64, offset))])

    if isinstance(entry, Bitmap):
        first, length = (builder.load(address(entries[name].offset)) for name in ("bitmaps", "bitmap_words"))
        index = builder.add(first, builder.mul(length, context.get_constant(_I64, entry.index)))
        return builder.gep(words, [index])
    pointer = address(entry.offset)
    if isinstance(entry, Array):
        return pointer
    word = builder.load(pointer)
    if isinstance(entry, Pointer):
        return builder.gep(words, [word])
    return word if isinstance(entry, Word) else _make(context, builder, kind.type_of(attribute), words, word)


@lower_setattr_generic(RecordType)
def _set(context: Any, builder: Any, sig: Any, args: Any, attribute: str) -> None:
    kind, value_kind = sig.args
    words, base = (builder.extract_value(args[0], part) for part in (WORDS_PART, BASE_PART))
    value = builder.extract_value(args[1], BASE_PART) if isinstance(value_kind, RecordType) else args[1]
    index = builder.add(base, context.get_constant(_I64, kind.record.ENTRIES[attribute].offset))
    builder.store(value, builder.gep(words, [index]))


@lower_cast(types.Integer, RecordType)
def _from_base(context: Any, builder: Any, source: Any, kind: RecordType, value: Any) -> Any:
    """A base that is assigned to a reference."""
    null = context.get_constant_null(WORDS)
    return _make(context, builder, kind, null, context.cast(builder, value, source, _I64))


@infer_global(operator.truth)
class RecordTruth(AbstractTemplate):
    """Truth of records."""

    def generic(self, args: Any, kws: Any) -> Any:
        return signature(types.boolean, *args) if isinstance(args[0], RecordType) else None


@lower_builtin(bool, RecordType)
@lower_builtin(operator.truth, RecordType)
def _truth(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    base = builder.extract_value(args[0], BASE_PART)
    return builder.icmp_signed("!=", base, context.get_constant(_I64, 0))


@infer_global(operator.eq)
@infer_global(operator.ne)
class RecordEquality(AbstractTemplate):
    """Equality of records: the same base."""

    def generic(self, args: Any, kws: Any) -> Any:
        return signature(types.boolean, *args) if all(isinstance(kind, RecordType) for kind in args) else None


def _compare(operation: str) -> Any:
    def compare(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one, other = (builder.extract_value(record, BASE_PART) for record in args)
        return builder.icmp_signed(operation, one, other)

    return compare


lower_builtin(operator.eq, RecordType, RecordType)(_compare("=="))
lower_builtin(operator.ne, RecordType, RecordType)(_compare("!="))


def record_type(name: str) -> RecordType:
    """Return the type of a record by its name. Raises KeyError if no class of that name and layout is loaded."""
    waiting: list[type[Record]] = [Record]
    while waiting:
        record = waiting.pop()
        if name.startswith(f"{record.__qualname__}#") and str(record_type_of(record)) == name:
            return record_type_of(record)
        waiting += record.__subclasses__()
    raise KeyError(name)


@infer_getattr
class RecordClassAttributes(AttributeTemplate):
    """Attributes of records' classes."""

    key = RecordClassType

    def resolve_WORDS(self, kind: RecordClassType) -> types.Type:
        return _I64


@lower_getattr_generic(RecordClassType)
def _get_class_attribute(context: Any, builder: Any, kind: RecordClassType, value: Any, attribute: str) -> Any:
    return context.get_constant(_I64, kind.result.record.WORDS)
