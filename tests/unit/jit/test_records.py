"""Records: the layout of their tables, and attributes in Python and in compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.jit.compiled import njit
from gradwire.jit.records import (
    Array,
    Bitmap,
    Pointer,
    Record,
    Reference,
    Space,
    Word,
    Words,
    flows,
    header,
    network,
    programs,
    view,
)
from gradwire.protocols.transports.base import bit, set_bit
from gradwire.sim.engine.memory.atomics import words_at


class Node(Record):
    """A record that another one leads to."""

    count = Word("a count")
    history = Array(3, "three numbers")


class Port(Record):
    """A record with an entry of every kind."""

    busy = Word("a time", "ps")
    node = Reference(lambda: Node, "its node")
    own = Space(4, "fields of derived classes")
    listed = Pointer("a list elsewhere")
    bitmaps_base = Word("base of the bitmaps")
    bitmap_words = Word("words of a bitmap")
    bitmaps = Pointer("the bitmaps", at=7)


class Fast(Port):
    """A derived record."""

    speed = Word("a speed", "bit/s")
    last = Word("the last field of the space", at=3)
    seen = Bitmap(1, "packets seen")


def test_record_entries_are_consecutive_and_derived_ones_use_the_space() -> None:
    offsets = {name: offset for name, offset, *_ in Fast.table()}
    assert offsets == {
        "busy": 0, "node": 1, "own": 2, "listed": 6, "bitmaps_base": 7, "bitmap_words": 8, "bitmaps": 7, "speed": 2,
        "last": 5, "seen": 6,
    }  # fmt: skip
    assert (Port.WORDS, Fast.WORDS, Node.WORDS) == (9, 9, 4)
    assert Fast.speed.unit == "bit/s" and Fast.speed.meaning == "a speed"


def test_record_entries_beyond_the_space_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Full\.e does not fit into the record"):
        type("Full", (Port,), {name: Word("a field") for name in "abcde"})


def test_redeclared_record_entry_keeps_its_offset() -> None:
    class Other(Fast):
        speed = Reference(lambda: Node, "another node")  # type: ignore[assignment]
        more = Word("the field behind it")

    assert (Other.speed.offset, Other.more.offset, Other.last.offset) == (2, 3, 5)


@pytest.mark.parametrize("module", [flows, network, programs, header])
def test_engine_record_entries_overlap_only_where_declared(module: object) -> None:
    """A pointer may share its word with the base; nodes, connections and messages share words by kind."""
    shared = {
        ("Sender", "open_packets"), ("Host", "is_paused"), ("Host", "ps_per_byte"), ("Host", "timer_heap"),
        ("Sender", "una"), ("Sender", "nxt"), ("Receiver", "cumulative"), ("Sender", "ties_since"),
    }  # fmt: skip
    for record in vars(module).values():
        if not (isinstance(record, type) and issubclass(record, Record)):
            continue
        taken: dict[int, str] = {}
        for entry in record.ENTRIES.values():
            if isinstance(entry, (Pointer, Bitmap, Space)):
                continue
            for word in range(entry.offset, entry.offset + entry.count):
                clash = taken.setdefault(word, entry.name)
                pair = {(record.__name__, clash), (record.__name__, entry.name)}
                assert clash == entry.name or pair & shared, f"{record.__name__}: {clash} and {entry.name}"
            assert entry.offset + entry.count <= record.WORDS


@njit
def _change(port, now):
    """Use every kind of entry."""
    port.busy = now
    port.node.count += 1
    port.node.history[2] = port.listed[1] + port.speed
    port.last = 7
    other = Port(port, port.base)
    if other == port and other.node:
        other.busy += 1
    if other.node != Node(port, 0):
        other.busy += 10
    set_bit(port.seen, 33)
    port.speed = bit(port.seen, 33) + 2 * bit(port.seen, 32)
    Words(port, 60)[0] = Port.WORDS
    port.node = Node(port, 44)
    return port.node.base


@njit("int64(int64)")
def _enter(address):
    return _change(Fast(words_at(address), 10), 5)


def _state() -> np.ndarray:
    words = np.zeros(64, dtype=np.int64)
    words[11], words[16], words[17], words[18], words[31], words[12] = 20, 30, 50, 2, 9, 100
    return words


def test_compiled_record_access_equals_python_access() -> None:
    compiled, plain = _state(), _state()
    assert _enter(compiled.ctypes.data) == 44
    change = _change.py_func
    namespace = {**change.__globals__, "set_bit": set_bit.py_func, "bit": bit.py_func}
    assert type(change)(change.__code__, namespace)(Fast(plain, 10), 5) == 44
    assert (compiled == plain).all()
    port = Fast(compiled, 10)
    assert (port.busy, port.last, port.speed, compiled[60]) == (16, 7, 1, 9)
    assert (Node(compiled, 20).count, Node(compiled, 20).history[2]) == (1, 109)
    assert compiled[53] == 2  # bit 33: the second word of the second bitmap, which begins at 52


def test_unknown_record_entry_is_refused() -> None:
    with pytest.raises(AttributeError, match="bussy"):
        Port([0] * 20, 0).bussy = 1  # type: ignore[attr-defined]


def test_compiled_code_refuses_a_float_in_a_record() -> None:
    from numba.core.errors import TypingError

    @njit
    def write(address):
        Node(words_at(address), 0).count = 0.5

    with pytest.raises(TypingError, match="a float is written into a record"):
        write(_state().ctypes.data)


def test_view_of_several_records_reads_and_writes_columns() -> None:
    words = np.arange(40)
    nodes = view(Node, words, np.array([4, 12]))
    assert nodes.count.tolist() == [4, 12] and nodes.history[1].tolist() == [6, 14]
    nodes.count = [1, 2]
    assert words[[4, 12]].tolist() == [1, 2]


def test_record_code_covers_referenced_records() -> None:
    def port_of(count: int) -> type[Record]:
        node = type("N", (Record,), {"history": Array(count, "numbers"), "last": Word("the last")})
        return type("P", (Record,), {"node": Reference(lambda: node, "its node")})

    assert port_of(3).code() == port_of(3).code() != port_of(4).code()
