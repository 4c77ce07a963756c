"""The book of messages: what is entered stays what it was until it is forgotten, and then takes no memory any more."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.jit.records import constants as at
from gradwire.jit.records.header import State
from gradwire.jit.records.programs import LogRow
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.engine.memory.message_log import RELEASE_BYTES, MessageLog

COLUMNS = [LogRow.src.offset, LogRow.end.offset]
PAGE = RELEASE_BYTES // (8 * LogRow.WORDS) + 1
"""Messages of which one more page than any before can be given back."""


def new() -> MessageLog:
    return MessageLog(SimpleNamespace(state=np.zeros(State.WORDS, dtype=np.int64)))


def of(book: MessageLog, number: int) -> list[int]:
    return book.row(number, COLUMNS)


def resident(book: MessageLog) -> int:
    """Bytes of memory that it takes."""
    found, inside = 0, False
    address = int(book._memory.state[State.message_log.offset])
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                low, high = (int(each, 16) for each in words[0].split("-"))
                inside = low <= address < high
            elif inside and words[0] == "Rss:":
                found += int(words[1]) << 10
    return found


DOES = st.one_of(
    st.tuples(st.just("enter"), st.integers(1, 2 * PAGE)),
    st.tuples(st.just("forget"), st.integers(0, 5)),
    st.tuples(st.just("jump"), st.integers(1, 1000)),
)


@given(st.lists(DOES, max_size=12))
def test_message_log_behaves_like_a_dictionary(steps: list[tuple[str, int]]):
    """The first, middle and last message of every range are compared."""
    book, kept = new(), {}  # first of a stretch -> (how many, what was written)
    for turn, (what, value) in enumerate(steps):
        if what == "enter":
            first = book.enter(value)
            assert (book.rows(first, value)[:, [LogRow.flow.offset, LogRow.end.offset]] == -1).all()
            rest = [word for word in range(LogRow.WORDS) if word not in (LogRow.flow.offset, LogRow.end.offset)]
            assert not book.rows(first, value)[:, rest].any()
            book.rows(first, value)[:, LogRow.src.offset] = turn
            book.rows(first, value)[::2, LogRow.end.offset] = 10
            kept[first] = value, turn, 10
        elif what == "forget" and kept:
            first = sorted(kept)[value % len(kept)]
            book.forget(first, kept.pop(first)[0])
        elif what == "jump":
            book.jump(value, 7)
            kept = {first + value: (many, said, end + 7) for first, (many, said, end) in kept.items()}
        assert book.first == min(kept, default=book.count)
        for first, (many, said, end) in kept.items():
            for place in (0, many // 2, many - 1):
                assert of(book, first + place) == [said, -1 if place % 2 else end]


def test_message_log_releases_memory_of_forgotten_messages():
    book, many = new(), 10 * PAGE
    for turn in range(20):
        first = book.enter(many)
        book.rows(first, many)[:, LogRow.src.offset] = turn
        if turn:
            book.forget(first - many, many)
    size = many * LogRow.WORDS * 8
    assert size <= resident(book) <= size + 2 * RELEASE_BYTES + size // 10
    assert of(book, book.count - 1) == [19, -1]


def test_message_log_rejects_too_many_messages():
    book = new()
    book.jump(at.MASK_KEY_NUMBER - 5, 0)
    with pytest.raises(GradwireError, match="more than"):
        book.enter(6)
    assert book.enter(5) == at.MASK_KEY_NUMBER - 5
