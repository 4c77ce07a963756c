"""Stores a Result table's rows compressed, in blocks that take rows in any order and are read in key order.

A long run delivers completed rows step by step. Rows are collected in columns of the table's types, texts as indices;
every `ROWS` rows are sorted, compressed column by column and put on a shelf: in memory, and beyond `IN_MEMORY` bytes in
an anonymous temporary file. Reading decompresses the requested columns, block by block, and merges blocks only where
they overlap.

Rejected alternatives: Arrow's own files in memory with LZ4 (twice the bytes of zstd's first level, which takes no
longer); Parquet row groups (smaller, but five times as long to write, during the run).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradwire.result_store import lazy_table
from gradwire.result_store.arrow import arrow_array, take_texts
from gradwire.result_store.lazy_table import InMemoryTable, LazyTable
from gradwire.result_store.table_schema import TABLES, make_table, schema_of
from gradwire.scenarios.arrays import AnyArray, AnyInts

if TYPE_CHECKING:
    import pyarrow

ROWS = 1 << 16
"""Rows of a block."""
IN_MEMORY = 1 << 26
"""Bytes of compressed columns that stay in memory: those of a million rows or more."""

TYPES: Mapping[str, type[np.generic]] = {
    "bool": np.bool_,
    "string": np.int32,
    "float64": np.float64,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
}
"""NumPy type by type of a table's column; texts are indices."""

Rows = dict[str, AnyArray]
"""Columns of equal length by name."""


class ColumnStore:
    """Storage of compressed columns. Data that the file system has no space for stays in memory."""

    def __init__(self) -> None:
        self._held = self._end = 0
        self._file: IO[bytes] | None = None
        self._full = False

    def put(self, data: bytes) -> bytes | tuple[int, int]:
        """Store data; return the reference that `get` takes."""
        if self._held + len(data) <= IN_MEMORY or self._full:
            self._held += len(data)
            return data
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0, prefix="gradwire-")  # deleted with the shelf
            written = 0
            while written < len(data):
                written += os.pwrite(self._file.fileno(), data[written:], self._end + written)
        except OSError:
            self._full = True
            return data
        self._end += len(data)
        return self._end - len(data), len(data)

    def get(self, place: bytes | tuple[int, int]) -> bytes:
        """Return the data behind a reference."""
        if isinstance(place, bytes):
            return place
        assert self._file is not None
        return os.pread(self._file.fileno(), place[1], place[0])


class RowBlock(NamedTuple):
    """Sorted, compressed rows. `first`, `last`: the smallest and the largest key."""

    rows: int
    first: int
    last: int
    columns: dict[str, bytes | tuple[int, int]]


class RowBlocks:
    """The rows of one table as they arrive.

    num_rows : number of rows.
    """

    def __init__(self, store: ColumnStore, types: Mapping[str, type[np.generic]], key: Sequence[str]) -> None:
        """`key`: integer columns that rows are sorted by, the first before the others. Rows of one `add` with equal
        keys keep their order."""
        self._shelf, self._types, self._key = store, dict(types), tuple(key)
        self._blocks: list[RowBlock] = []
        self._loose: list[Rows] = []
        self._waiting = 0
        self.num_rows = 0

    @cached_property
    def _codec(self) -> pyarrow.Codec:
        import pyarrow

        return pyarrow.Codec("zstd", compression_level=1)

    def add(self, rows: Mapping[str, AnyArray]) -> None:
        """Add rows: all columns, of equal length."""
        count = len(next(iter(rows.values())))
        if not count:
            return
        self._loose.append({name: np.asarray(rows[name], dtype=kind) for name, kind in self._types.items()})
        self._waiting += count
        self.num_rows += count
        if self._waiting >= ROWS:
            self._pack()

    def _pack(self) -> None:
        rows = self._sort_rows(concatenate_rows(self._loose))
        self._loose, count, self._waiting = [], self._waiting, 0
        for first in range(0, count, ROWS):
            piece = {name: column[first : first + ROWS] for name, column in rows.items()}
            self._blocks.append(self._packed(piece))

    def _packed(self, rows: Rows) -> RowBlock:
        keys = rows[self._key[0]]
        columns = {
            name: self._shelf.put(self._codec.compress(np.ascontiguousarray(column).tobytes(), asbytes=True))
            for name, column in rows.items()
        }
        return RowBlock(len(keys), int(keys[0]), int(keys[-1]), columns)

    def _unpacked(self, block: RowBlock, names: Iterable[str]) -> Rows:
        rows: Rows = {}
        for name in names:
            size = block.rows * np.dtype(self._types[name]).itemsize
            data = self._codec.decompress(self._shelf.get(block.columns[name]), size)
            rows[name] = np.frombuffer(data, dtype=self._types[name])
        return rows

    def _sort_rows(self, rows: Rows) -> Rows:
        """Return rows sorted by their keys."""
        first = rows[self._key[0]]
        if len(self._key) == 1 and np.greater_equal(first[1:], first[:-1]).all():
            return rows
        order = np.lexsort([rows[name] for name in reversed(self._key)])
        return {name: column[order] for name, column in rows.items()}

    def batches(self, names: Sequence[str]) -> Iterator[Rows]:
        """Yield some columns of all rows in order, about a block at a time."""
        key = self._key[0]
        blocks = sorted(self._blocks, key=lambda block: block.first)
        loose = self._sort_rows(concatenate_rows(self._loose)) if self._loose else None
        begins = [block.first for block in blocks]
        sources: list[RowBlock | Rows] = [*blocks]
        if loose is not None:
            index = int(np.searchsorted(begins, int(loose[key][0]), side="right"))  # type: ignore[call-overload]
            begins.insert(index, int(loose[key][0]))
            sources.insert(index, loose)
        ends = [each.last if isinstance(each, RowBlock) else int(each[key][-1]) for each in sources]  # type: ignore[call-overload]
        disjoint = all(end < begin for end, (_, begin) in zip(ends, pairwise(begins), strict=False))
        columns = list(dict.fromkeys(names if disjoint else [*names, *self._key]))
        pending: Rows | None = None
        for source, beyond in zip(sources, [*begins[1:], None], strict=False):  # nothing without sources
            rows = self._unpacked(source, columns) if isinstance(source, RowBlock) else {n: source[n] for n in columns}
            if pending is not None:
                rows = self._sort_rows(concatenate_rows([pending, rows]))
            cut = None if disjoint or beyond is None else int(np.searchsorted(rows[key], beyond, side="left"))
            pending = None if cut is None or cut == len(rows[key]) else {n: column[cut:] for n, column in rows.items()}
            yield {name: rows[name][:cut] for name in names}


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
    """Return the concatenated rows."""
    return dict(parts[0]) if len(parts) == 1 else {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


class BlockTable(LazyTable):
    """A table of a Result in blocks. Blocks may have extra columns that only determine the order."""

    def __init__(self, name: str, blocks: RowBlocks, texts: Mapping[str, Sequence[str]]) -> None:
        """`name`: of the table. `texts`: by column, the texts of its indices; a text may be repeated."""
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
        return self._parts(names, lazy_table.GROUP)

    def _parts(self, names: Sequence[str], rows: int) -> Iterator[pyarrow.Table]:
        import pyarrow

        for columns in _regrouped(self._blocks.batches(names), rows):
            yield pyarrow.table({name: self._array(name, columns[name]) for name in names})

    def groups(self) -> Iterator[pyarrow.Table]:
        import pyarrow

        schema = schema_of(self.name)
        for columns in _regrouped(self._blocks.batches(schema.names), lazy_table.GROUP):
            arrays = [self._array(name, columns.pop(name), encoded=False) for name in schema.names]
            yield pyarrow.Table.from_arrays(arrays, schema=schema)
        if not self.num_rows:
            yield make_table(self.name, {})

    def table(self) -> pyarrow.Table:
        import pyarrow

        if self._table is None:
            self._table = pyarrow.concat_tables(self.groups()).combine_chunks()
        return self._table

    def __reduce__(self) -> tuple[type[InMemoryTable], tuple[pyarrow.Table]]:
        return InMemoryTable, (self.table(),)  # another process does not have the file

    def _array(self, name: str, values: AnyArray, encoded: bool = True) -> Any:
        import pyarrow

        if TABLES[self.name][name] != "string":
            return arrow_array(values, TABLES[self.name][name])
        texts, codes = self._texts[name]
        if not encoded:
            return take_texts(texts, codes[values])
        return pyarrow.DictionaryArray.from_arrays(arrow_array(codes[values], "int32"), arrow_array(texts, "string"))


def _distinct(texts: Sequence[str]) -> tuple[list[str], AnyInts]:
    """Return the distinct texts, and for each text its index among them."""
    indices: dict[str, int] = {}
    codes = [indices.setdefault(text, len(indices)) for text in texts]
    return list(indices), np.array(codes, dtype=np.int32)


def _regrouped(batches: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Yield the same rows in batches of `rows`, the last one smaller."""
    pending: list[Rows] = []
    count = 0
    for batch in batches:
        size = len(next(iter(batch.values())))
        while count + size >= rows:
            cut = rows - count
            pending.append({name: column[:cut] for name, column in batch.items()})
            yield _drained(pending)
            batch, size, count = {name: column[cut:] for name, column in batch.items()}, size - cut, 0
        if size:
            pending.append(batch)
            count += size
    if pending:
        yield _drained(pending)


def _drained(parts: list[Rows]) -> Rows:
    """Return the concatenated rows of some parts, emptying the parts column by column to limit memory."""
    rows = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    parts.clear()
    return rows
