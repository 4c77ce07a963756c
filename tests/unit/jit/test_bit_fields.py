"""Fields of packed words: the same in Python, on arrays and in compiled code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.jit.compiled import njit
from gradwire.jit.fingerprint import made_of
from gradwire.jit.records import packets, replies
from gradwire.jit.records.bit_fields import BitField

kind_of = BitField(32, 3, "three bits in the middle")
with_kind = kind_of.replaced
is_last = BitField(60, 1, "the highest flag")
with_last = is_last.replaced


@njit
def _compiled(word, kind):
    return kind_of(word), with_kind(word, kind), is_last(word), with_last(word, kind > 3)


@given(st.integers(0, (1 << 61) - 1), st.integers(0, 7))
def test_compiled_bit_fields_equal_python_ones(word: int, kind: int) -> None:
    expected = kind_of(word), with_kind(word, kind), is_last(word), with_last(word, kind > 3)
    assert tuple(_compiled(word, kind)) == expected
    assert (kind_of(expected[1]), is_last(expected[3])) == (kind, kind > 3)
    assert expected[1] ^ word < 1 << 35  # the fields above are as before


def test_bit_fields_of_arrays_are_elementwise() -> None:
    words = np.array([5 << 32, 2 << 32 | 9])
    assert kind_of(words).tolist() == [5, 2]
    assert with_kind(words, 1).tolist() == [1 << 32, 1 << 32 | 9]


@pytest.mark.parametrize("module", [packets, replies])
def test_bit_fields_of_a_word_do_not_overlap(module: object) -> None:
    fields = [field for field in vars(module).values() if isinstance(field, BitField)]
    words = ["body" if (field.shift in (20, 42) and field.bits > 16) or field.bits == 20 else "one" for field in fields]
    for word in {*words}:
        taken = 0
        for field, its_word in zip(fields, words, strict=True):
            if its_word == word and field.bits < 44:  # 44 bits: sequence and argument together
                assert not taken & field.mask << field.shift, field.meaning
                taken |= field.mask << field.shift


def test_bit_field_position_changes_the_fingerprint() -> None:
    def of(shift: int) -> str | None:
        field = BitField(shift, 3, "a field")
        function = type(made_of)(kind.__code__, {"field": field}, "kind")
        function.__module__ = "gradwire.sim.x"
        return made_of(function, {})

    def kind(word):  # type: ignore[no-untyped-def]
        return field(word)  # type: ignore[name-defined]  # noqa: F821

    assert of(3) == of(3) != of(4)
    assert of(3) is not None
