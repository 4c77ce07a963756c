"""Implements `Record`, base class of memory records, from whose field tables (`Word`, `Reference`, `Array`) views and
layouts follow.

The state of a run is one flat array of 64-bit words, and a record is a stretch of it. A class derived from `Record` is
the table: each entry names a word, with its meaning and unit. Everything else follows from it:

* in Python the class is a view of the words at a base with one attribute per entry, for the oracle, snapshots, tests;
* in compiled code it is a Numba type whose attributes compile to one load or store (`numba_types`);
* the layout: `Port.busy.offset` and `Port.WORDS`, and its documentation: `Port.table()`;
* mypy sees attributes of type `int`, or of the record that a `Reference` leads to.

    class Port(Record):
        busy = Word("end of the transmission in progress", "ps")
        node = Reference(lambda: Node, "the node that sends here")

    port = Port(state, base)
    port.busy = now
    port.node.draws += 1

A derived class adds its entries in the `Space` that the record leaves for them, or behind its last entry. So a
transport declares the words of its flows beside its rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast, overload

if TYPE_CHECKING:
    from gradwire.jit.records.header import State

R = TypeVar("R", bound="Record")


class Entry:
    """An entry of a record's table.

    Attributes
    ----------
    name : the attribute.
    offset : index of its first word in the record.
    count : number of its words.
    meaning, unit : documentation.
    """

    count = 1

    def __init__(self, meaning: str, unit: str = "", *, at: int | None = None) -> None:
        """`at`: the offset, counted from the `Space` in which a derived class lays its entries; by default the entry
        follows the one before. Entries may share a word if only one of them is in use."""
        self.meaning, self.unit, self.name = meaning, unit, ""
        self.at, self.offset = at, 0

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def code(self) -> str:
        """Return all that determines the attribute's machine code."""
        return f"{type(self).__name__} {self.name} {self.offset}"


class Word(Entry):
    """A word that holds an integer."""

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: Record, owner: type) -> int: ...
    def __get__(self, record: Record | None, owner: type) -> Self | int:
        return self if record is None else cast(int, record.words[record.base + self.offset])

    def __set__(self, record: Record, value: int) -> None:
        record.words[record.base + self.offset] = value


class Reference(Entry, Generic[R]):
    """A word that holds the base of another record, 0 for none: the attribute is that record. `.base` is the word, and
    a base may be assigned as well as a record."""

    def __init__(self, target: Callable[[], type[R]], meaning: str, *, at: int | None = None) -> None:
        """`target`: returns the class of the other record, which may be defined later."""
        super().__init__(meaning, at=at)
        self.target = target

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: Record, owner: type) -> R: ...
    def __get__(self, record: Record | None, owner: type) -> Self | R:
        if record is None:
            return self
        return self.target()(record, record.words[record.base + self.offset])

    def __set__(self, record: Record, value: R | int) -> None:
        record.words[record.base + self.offset] = value.base if isinstance(value, Record) else value

    def code(self) -> str:
        """Return all that determines the attribute's machine code."""
        return f"{super().code()} {self.target().__qualname__}"


class WordsClass(type):
    """The class of `Words`, by which Numba recognises it."""


class Words(metaclass=WordsClass):
    """Words of the state from a base on: `words[i]`."""

    __slots__ = ("base", "words")

    def __init__(self, state: Any, base: int) -> None:
        """`state`: as for a `Record`."""
        self.words = state.words if isinstance(state, Record) else state
        self.base = base

    def __getitem__(self, index: int) -> int:
        return cast(int, self.words[self.base + index])

    def __setitem__(self, index: int, value: int) -> None:
        self.words[self.base + index] = value


class Array(Entry):
    """Several words in the record: the attribute is indexed."""

    def __init__(self, count: int, meaning: str, unit: str = "", *, at: int | None = None) -> None:
        super().__init__(meaning, unit, at=at)
        self.count = count

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: Record, owner: type) -> Words: ...
    def __get__(self, record: Record | None, owner: type) -> Self | Words:
        return self if record is None else Words(record.words, record.base + self.offset)


class Pointer(Entry):
    """A word that holds the base of words elsewhere: the attribute is indexed. A base may be assigned."""

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: Record, owner: type) -> Words: ...
    def __get__(self, record: Record | None, owner: type) -> Self | Words:
        return self if record is None else Words(record.words, record.words[record.base + self.offset])

    def __set__(self, record: Record, value: int) -> None:
        record.words[record.base + self.offset] = value


class Bitmap(Entry):
    """A bitmap with one bit per packet of the flow, behind the record: 32 bits to a word. `index`: its number among the
    record's bitmaps (`bitmaps` and `bitmap_words` in `gradwire.jit.records.flows`)."""

    count = 0

    def __init__(self, index: int, meaning: str) -> None:
        super().__init__(meaning)
        self.index = index

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...
    @overload
    def __get__(self, record: Record, owner: type) -> Words: ...
    def __get__(self, record: Record | None, owner: type) -> Self | Words:
        if record is None:
            return self
        flow: Any = record
        return Words(record.words, flow.bitmaps.base + self.index * flow.bitmap_words)

    def code(self) -> str:
        """Return all that determines the attribute's machine code."""
        return f"{super().code()} {self.index}"


class Space(Array):
    """Words for the entries of derived classes, which are zero in a new record."""


class RecordClass(type):
    """The class of records' classes, by which Numba recognises them."""

    ENTRIES: dict[str, Entry]
    """The entries by name, those of base classes first."""
    WORDS: int
    """Number of words."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> RecordClass:
        """Make the class; its records have no attributes beside the entries, so that a typing error shows."""
        return super().__new__(cls, name, bases, {"__slots__": (), **namespace}, **options)

    @cache  # noqa: B019 - classes are few and live as long as the process
    def code(cls) -> str:
        """Return a hash of all that determines the machine code of the attributes."""
        lines: dict[RecordClass, str] = {}
        _collect(cls, lines)
        text = "\n".join(f"{record.__qualname__}: {line}" for record, line in lines.items())
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Record(metaclass=RecordClass):
    """A view of the words of one record.

    Attributes
    ----------
    words : the state, or any other sequence of words.
    base : index of the record's first word.
    """

    __slots__ = ("base", "words")
    words: Any
    base: int
    ENTRIES: ClassVar[dict[str, Entry]] = {}
    """The entries by name, those of base classes first."""
    WORDS: ClassVar[int] = 0
    """Number of words."""
    state_class: ClassVar[type[State]]  # set by `gradwire.jit.records.header`
    MEMORY: ClassVar[str] = ""
    """Records with the same value lie in the same words, so compiled code passes the pointer to these only once."""
    _next: ClassVar[int] = 0  # offset of the next entry of a derived class

    def __init__(self, state: Any, base: int) -> None:
        """`state`: the words, or a record of the same state."""
        self.words = state.words if isinstance(state, Record) else state
        self.base = base

    def __init_subclass__(cls, words: int = 0, space: str = "own", memory: str = "") -> None:
        """`words`: the number of words, if some at the end are unused. `memory`: see `MEMORY`. `space`: name of the
        inherited `Space` that the entries use, if there is one. Raises TypeError if they do not fit. An entry that is
        declared again, with another type, keeps its place."""
        super().__init_subclass__()
        cls.MEMORY = memory or cls.MEMORY
        entries, position, limit = dict(cls.ENTRIES), cls._next, cls.WORDS
        around = entries.get(space)
        if around is not None and space != "own":
            position = around.offset
        for entry in [entry for entry in vars(cls).values() if isinstance(entry, Entry)]:
            earlier = entries.get(entry.name)
            entries[entry.name] = entry
            if earlier is not None and entry.at is None:
                entry.offset = earlier.offset
                if around is not None and around.offset <= entry.offset < around.offset + around.count:
                    position = entry.offset + entry.count
                continue
            entry.offset = position if entry.at is None else (around.offset if around else 0) + entry.at
            position = entry.offset + entry.count
            if around is not None and position > around.offset + around.count:
                raise TypeError(f"{cls.__name__}.{entry.name} does not fit into the record")
            limit = max(limit, position)
        own = next((entry for entry in vars(cls).values() if isinstance(entry, Space)), None)
        cls.ENTRIES, cls.WORDS, cls._next = entries, max(limit, words), position if own is None else own.offset

    @property
    def state(self) -> State:
        """The header of the state."""
        return Record.state_class(self.words, 0)

    def __bool__(self) -> bool:
        """Return True unless this is no record (base 0)."""
        return bool(self.base != 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and bool(self.base == other.base)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def table(cls) -> Iterator[tuple[str, int, str, str]]:
        """Yield (name, offset, unit, meaning) of every entry."""
        for entry in cls.ENTRIES.values():
            yield entry.name, entry.offset, entry.unit, entry.meaning


def _collect(record: RecordClass, lines: dict[RecordClass, str]) -> None:
    """Add the entries of a record, and of those it leads to."""
    if record in lines:
        return
    lines[record] = "; ".join([str(record.WORDS), *(entry.code() for entry in record.ENTRIES.values())])
    for entry in record.ENTRIES.values():
        if isinstance(entry, Reference):
            _collect(cast(RecordClass, entry.target()), lines)


def view(record: type[Record], state: Any, bases: Any) -> Any:
    """Return a view of several records at once: an attribute is int64[n], the word of every record. `bases` :
    int64[n]."""
    return record(state, bases)
