"""Tables of messages, as Python writes them and compiled code reads them."""

from __future__ import annotations

import random

import pytest

from gradwire.emu.agent.core.layout import TableEntry
from gradwire.emu.agent.core.receiving import find
from gradwire.emu.agent.shared_words import WordBlock, WordTable
from gradwire.emu.native.calls import words_at
from gradwire.jit.compiled import njit


@njit
def found(index, mask, number):
    return find(TableEntry(words_at(8 * index), 0), mask, number)


@pytest.mark.parametrize("seed", range(4))
def test_compiled_lookup_finds_exactly_the_stored_entries(seed):
    """Entries with near and distant numbers are added, changed and removed. `put` reports a new index."""
    rng, table, known = random.Random(seed), WordTable(8), {}
    index, mask = table.index, table.mask
    for _ in range(600):
        number = rng.choice([rng.randrange(300), rng.randrange(1 << 32), *list(known)[-3:]])
        known[number] = rng.choice([0, rng.randrange(1, 1 << 44)])
        if table.put(number, known[number]):
            index, mask = table.index, table.mask
        asked = [number, rng.choice(list(known)), rng.randrange(1 << 32)]
        assert [found(index, mask, each) for each in asked] == [known.get(each, 0) for each in asked]
    assert all(found(index, mask, each) == record == table.get(each) for each, record in known.items())


def test_resized_block_preserves_words_and_appends_zeros():
    block = WordBlock(3)
    block.words[:] = WordBlock(3).words
    block.words[1] = -(1 << 63)
    made = block.resized(5)
    assert made.words.tolist() == [0, -(1 << 63), 0, 0, 0] and made.index * 8 == made.address != block.address
