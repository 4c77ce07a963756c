"""Blocks: rows that come about in whatever order, kept small until somebody reads them, in their order.

A long run hands over what is done step by step. Rows are gathered in columns of the types that the table has, texts as
numbers; whenever `ROWS` of them have come together they are ordered among themselves, packed column by column and put
on a shelf: in memory, and what goes beyond `IN_MEMORY` bytes in a temporary file without a name. Reading unpacks the
columns that are asked for, block by block, and merges blocks only where they overlap.

Tried instead: Arrow's own files in memory with LZ4 (twice the bytes of zstd's first level, which takes no longer);
Parquet row groups (smaller, but five times as long to write, while the run is under way).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradwire.scenarios import kept
from gradwire.scenarios.arrays import AnyArray, AnyInts
from gradwire.scenarios.arrow import arrow_array, chosen_texts
from gradwire.scenarios.kept import Kept, Whole
from gradwire.scenarios.result import TABLES, make_table, schema_of

if TYPE_CHECKING:
    import pyarrow

ROWS = 1 << 16
"""Rows of a block."""
IN_MEMORY = 1 << 26
"""Bytes of packed columns that stay in memory: those of a million rows or more."""

TYPES: Mapping[str, type[np.generic]] = {
    "bool": np.bool_, "string": np.int32, "float64": np.float64, "int8": np.int8, "int32": np.int32, "int64": np.int64,
}  # fmt: skip
"""By the type of a table's column; texts are numbers of texts."""

Rows = dict[str, AnyArray]
"""Columns of equal length by name."""


class Shelf:
    """Where packed columns lie. What the file system has no room for stays in memory."""

    def __init__(self) -> None:
        self._held = self._end = 0
        self._file: IO[bytes] | None = None
        self._full = False

    def put(self, data: bytes) -> bytes | tuple[int, int]:
        """What `get` takes to give it back."""
        if self._held + len(data) <= IN_MEMORY or self._full:
            self._held += len(data)
            return data
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0, prefix="gradwire-")  # goes with the shelf
            written = 0
            while written < len(data):
                written += os.pwrite(self._file.fileno(), data[written:], self._end + written)
        except OSError:
            self._full = True
            return data
        self._end += len(data)
        return self._end - len(data), len(data)

    def get(self, place: bytes | tuple[int, int]) -> bytes:
        """What was put there."""
        if isinstance(place, bytes):
            return place
        assert self._file is not None
        return os.pread(self._file.fileno(), place[1], place[0])


class Block(NamedTuple):
    """Rows in order, packed. `first`, `last`: the least and the largest key."""

    rows: int
    first: int
    last: int
    columns: dict[str, bytes | tuple[int, int]]


class Blocks:
    """The rows of one table as they come.

    Attributes
    ----------
    num_rows : how many there are.
    """

    def __init__(self, shelf: Shelf, types: Mapping[str, type[np.generic]], key: Sequence[str]) -> None:
        """`key`: the columns by which rows are ordered, the first before the others; whole numbers. Rows of one `add`
        whose keys are equal stay in their order."""
        self._shelf, self._types, self._key = shelf, dict(types), tuple(key)
        self._blocks: list[Block] = []
        self._loose: list[Rows] = []
        self._waiting = 0
        self.num_rows = 0

    @cached_property
    def _codec(self) -> pyarrow.Codec:
        import pyarrow

        return pyarrow.Codec("zstd", compression_level=1)

    def add(self, rows: Mapping[str, AnyArray]) -> None:
        """Take rows: all columns, of one length."""
        count = len(next(iter(rows.values())))
        if not count:
            return
        self._loose.append({name: np.asarray(rows[name], dtype=kind) for name, kind in self._types.items()})
        self._waiting += count
        self.num_rows += count
        if self._waiting >= ROWS:
            self._pack()

    def _pack(self) -> None:
        rows = self._ordered(joined(self._loose))
        self._loose, count, self._waiting = [], self._waiting, 0
        for first in range(0, count, ROWS):
            piece = {name: column[first : first + ROWS] for name, column in rows.items()}
            self._blocks.append(self._packed(piece))

    def _packed(self, rows: Rows) -> Block:
        keys = rows[self._key[0]]
        columns = {
            name: self._shelf.put(self._codec.compress(np.ascontiguousarray(column).tobytes(), asbytes=True))
            for name, column in rows.items()
        }
        return Block(len(keys), int(keys[0]), int(keys[-1]), columns)

    def _unpacked(self, block: Block, names: Iterable[str]) -> Rows:
        found: Rows = {}
        for name in names:
            size = block.rows * np.dtype(self._types[name]).itemsize
            data = self._codec.decompress(self._shelf.get(block.columns[name]), size)
            found[name] = np.frombuffer(data, dtype=self._types[name])
        return found

    def _ordered(self, rows: Rows) -> Rows:
        """Rows in the order of their keys."""
        first = rows[self._key[0]]
        if len(self._key) == 1 and np.greater_equal(first[1:], first[:-1]).all():
            return rows
        order = np.lexsort([rows[name] for name in reversed(self._key)])
        return {name: column[order] for name, column in rows.items()}

    def batches(self, names: Sequence[str]) -> Iterator[Rows]:
        """Some columns of all rows in order, about a block at a time."""
        key = self._key[0]
        blocks = sorted(self._blocks, key=lambda block: block.first)
        loose = self._ordered(joined(self._loose)) if self._loose else None
        begins = [block.first for block in blocks]
        sources: list[Block | Rows] = [*blocks]
        if loose is not None:
            place = int(np.searchsorted(begins, int(loose[key][0]), side="right"))  # type: ignore[call-overload]
            begins.insert(place, int(loose[key][0]))
            sources.insert(place, loose)
        ends = [each.last if isinstance(each, Block) else int(each[key][-1]) for each in sources]  # type: ignore[call-overload]
        apart = all(end < begin for end, (_, begin) in zip(ends, pairwise(begins), strict=False))
        wanted = list(dict.fromkeys(names if apart else [*names, *self._key]))
        held: Rows | None = None
        for source, beyond in zip(sources, [*begins[1:], None], strict=False):  # without any source none
            rows = self._unpacked(source, wanted) if isinstance(source, Block) else {n: source[n] for n in wanted}
            if held is not None:
                rows = self._ordered(joined([held, rows]))
            cut = None if apart or beyond is None else int(np.searchsorted(rows[key], beyond, side="left"))
            held = None if cut is None or cut == len(rows[key]) else {n: column[cut:] for n, column in rows.items()}
            yield {name: rows[name][:cut] for name in names}


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several, one after the other."""
    return dict(parts[0]) if len(parts) == 1 else {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


class KeptBlocks(Kept):
    """A table of a Result in blocks.

    Blocks may have columns besides that only order rows.
    """

    def __init__(self, name: str, blocks: Blocks, texts: Mapping[str, Sequence[str]]) -> None:
        """`name`: of the table. `texts`: by column, what its numbers stand for; a text may be there twice."""
        self.name, self._blocks, self.num_rows = name, blocks, blocks.num_rows
        self._texts = {column: _distinct(entries) for column, entries in texts.items()}
        self._table: pyarrow.Table | None = None

    def select(self, names: Sequence[str]) -> pyarrow.Table:
        if self._table is not None:
            return self._table.select(list(names))
        if not self.num_rows:
            return make_table(self.name, {}).select(list(names))
        return next(self._parts(names, self.num_rows))

    def parts(self, names: Sequence[str]) -> Iterator[pyarrow.Table]:
        return self._parts(names, kept.GROUP)

    def _parts(self, names: Sequence[str], rows: int) -> Iterator[pyarrow.Table]:
        import pyarrow

        for columns in _regrouped(self._blocks.batches(names), rows):
            yield pyarrow.table({name: self._array(name, columns[name]) for name in names})

    def groups(self) -> Iterator[pyarrow.Table]:
        import pyarrow

        schema = schema_of(self.name)
        for columns in _regrouped(self._blocks.batches(schema.names), kept.GROUP):
            arrays = [self._array(name, columns.pop(name), encoded=False) for name in schema.names]
            yield pyarrow.Table.from_arrays(arrays, schema=schema)
        if not self.num_rows:
            yield make_table(self.name, {})

    def table(self) -> pyarrow.Table:
        import pyarrow

        if self._table is None:
            self._table = pyarrow.concat_tables(self.groups()).combine_chunks()
        return self._table

    def __reduce__(self) -> tuple[type[Whole], tuple[pyarrow.Table]]:
        return Whole, (self.table(),)  # in another process there is no file of ours

    def _array(self, name: str, values: AnyArray, encoded: bool = True) -> Any:
        import pyarrow

        if TABLES[self.name][name] != "string":
            return arrow_array(values, TABLES[self.name][name])
        texts, codes = self._texts[name]
        if not encoded:
            return chosen_texts(texts, codes[values])
        return pyarrow.DictionaryArray.from_arrays(arrow_array(codes[values], "int32"), arrow_array(texts, "string"))


def _distinct(texts: Sequence[str]) -> tuple[list[str], AnyInts]:
    """The distinct ones of some texts, and of each its place among them."""
    places: dict[str, int] = {}
    codes = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(codes, dtype=np.int32)


def _regrouped(batches: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """The same rows, so many at a time but for the last."""
    held: list[Rows] = []
    count = 0
    for batch in batches:
        size = len(next(iter(batch.values())))
        while count + size >= rows:
            cut = rows - count
            held.append({name: column[:cut] for name, column in batch.items()})
            yield _taken(held)
            batch, size, count = {name: column[cut:] for name, column in batch.items()}, size - cut, 0
        if size:
            held.append(batch)
            count += size
    if held:
        yield _taken(held)


def _taken(parts: list[Rows]) -> Rows:
    """All rows of some parts, which are gone then, column by column: so there are never two of all of them."""
    found: Rows = {}
    for name in list(parts[0]):
        found[name] = np.concatenate([part.pop(name) for part in parts])
    parts.clear()
    return found
