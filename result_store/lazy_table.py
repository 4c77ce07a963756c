"""Defines `LazyTable`, stored rows of a Result's table that are read by column and built whole on first use.

A long run has millions of rows, and most readers need a few columns. Storage of such rows derives from `LazyTable`;
`gradwire.result_store.row_blocks` stores those of the simulator. `InMemoryTable` wraps a table that is in memory
anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.arrays import AnyInts

GROUP = 1 << 20
"""Rows processed together: a row group, by pyarrow's default."""


class LazyTable(ABC):
    """The rows of one table, in order.

    num_rows : number of rows.
    """

    num_rows: int

    @abstractmethod
    def select(self, names: Sequence[str]) -> pyarrow.Table:
        """Return some columns, all rows. Texts may be dictionary-encoded."""

    @abstractmethod
    def parts(self, names: Sequence[str]) -> Iterator[pyarrow.Table]:
        """Yield some columns, `GROUP` rows at a time; nothing if there are no rows."""

    @abstractmethod
    def groups(self) -> Iterator[pyarrow.Table]:
        """Yield all columns with the table's types, `GROUP` rows at a time; one empty table without rows."""

    @abstractmethod
    def table(self) -> pyarrow.Table:
        """Return the whole table, built at the first call and cached."""

    def write(self, path: Path) -> None:
        """Write a Parquet file; the bytes are those of `pyarrow.parquet.write_table` of the whole table."""
        import pyarrow.parquet

        groups = self.groups()
        first = next(groups)
        with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
            writer.write_table(first, row_group_size=GROUP)
            del first
            for group in groups:
                writer.write_table(group, row_group_size=GROUP)


class InMemoryTable(LazyTable):
    """A table in memory."""

    def __init__(self, table: pyarrow.Table) -> None:
        self._table, self.num_rows = table, table.num_rows

    def select(self, names: Sequence[str]) -> pyarrow.Table:
        return self._table.select(list(names))

    def parts(self, names: Sequence[str]) -> Iterator[pyarrow.Table]:
        table = self.select(names)
        for first in range(0, self.num_rows, GROUP):
            yield table.slice(first, GROUP)

    def groups(self) -> Iterator[pyarrow.Table]:
        for first in range(0, max(1, self.num_rows), GROUP):
            yield self._table.slice(first, GROUP)

    def table(self) -> pyarrow.Table:
        return self._table


def dictionary_encoded(column: pyarrow.ChunkedArray) -> tuple[AnyInts, list[str]]:
    """Return a column of texts as indices, int32[n], and the list of distinct texts."""
    import numpy as np

    if not len(column):  # without chunks, pyarrow would convert a list, for which it imports pandas
        return np.zeros(0, dtype=np.int32), []
    from pyarrow.types import is_dictionary

    from gradwire.result_store.arrow import to_numpy

    encoded = column if is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.combine_chunks()
    return to_numpy(encoded.indices), encoded.dictionary.to_pylist()
