"""`BitField` reads and `BitFieldSetter` replaces a few bits of a 64-bit word, in compiled code and Python.

    kind_of = BitField(32, 3, "DATA, ACK, ...")
    with_kind = kind_of.replaced

    kind_of(header), with_kind(header, ACK)

Both can be called in compiled code, where they are two or three instructions, and in Python, with integers or arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from gradwire.scenarios.arrays import Ints

    N = TypeVar("N", int, Ints)


class BitField:
    """A field of a packed word. `shift` : its lowest bit. `bits` : its width, at most 62."""

    def __init__(self, shift: int, bits: int, meaning: str) -> None:
        self.shift, self.bits, self.meaning = shift, bits, meaning
        self.mask = (1 << bits) - 1
        self.replaced = BitFieldSetter(self)

    def __call__(self, word: N) -> N:
        return (word >> self.shift) & self.mask

    def code(self) -> tuple[str, int, int]:
        """Return all that the field's compiled code depends on."""
        return type(self).__name__, self.shift, self.bits


class BitFieldSetter:
    """A function that replaces a field of a packed word; the value must fit."""

    def __init__(self, field: BitField) -> None:
        self.field = field

    def __call__(self, word: N, value: N | int) -> N:
        return (word & ~(self.field.mask << self.field.shift)) | (value << self.field.shift)

    def code(self) -> tuple[str, int, int]:
        """Return all that the function's compiled code depends on."""
        return type(self).__name__, self.field.shift, self.field.bits
