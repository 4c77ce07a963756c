"""Kept rows: a table of a Result that is not there as a whole until somebody asks for all of it.

A long run has millions of rows, and most who read them want a few columns. What holds such rows derives from `Kept`;
`gradwire.scenarios.blocks` has those of the simulator. `Whole` is the same for a table that is in memory anyway.
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
"""Rows that are looked at together: those of a row group, by pyarrow's default."""


class Kept(ABC):
    """The rows of one table, in their order.

    Attributes
    ----------
    num_rows : how many.
    """

    num_rows: int

    @abstractmethod
    def select(self, names: Sequence[str]) -> pyarrow.Table:
        """Some columns, all rows. Texts may be encoded by dictionary."""

    @abstractmethod
    def parts(self, names: Sequence[str]) -> Iterator[pyarrow.Table]:
        """The same, `GROUP` rows at a time; nothing where there are none."""

    @abstractmethod
    def groups(self) -> Iterator[pyarrow.Table]:
        """All columns with the table's own types, `GROUP` rows at a time; one table without rows if there are none."""

    @abstractmethod
    def table(self) -> pyarrow.Table:
        """All of it; it is made when it is asked for first, and stays."""

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


class Whole(Kept):
    """A table that is in memory."""

    def __init__(self, table: pyarrow.Table) -> None:
        self._table, self.num_rows = table, table.num_rows

    def select(self, names: Sequence[str]) -> pyarrow.Table:
        return self._table.select(list(names))

    def parts(self, names: Sequence[str]) -> Iterator[pyarrow.Table]:
        chosen = self.select(names)
        for first in range(0, self.num_rows, GROUP):
            yield chosen.slice(first, GROUP)

    def groups(self) -> Iterator[pyarrow.Table]:
        for first in range(0, max(1, self.num_rows), GROUP):
            yield self._table.slice(first, GROUP)

    def table(self) -> pyarrow.Table:
        return self._table


def numbered(column: pyarrow.ChunkedArray) -> tuple[AnyInts, list[str]]:
    """A column of texts as numbers, int32[n], and the texts that they stand for: each once, as texts are few."""
    import numpy as np

    if not len(column):  # of no chunks, pyarrow would make an array from a list, for which it imports pandas
        return np.zeros(0, dtype=np.int32), []
    from pyarrow.types import is_dictionary

    from gradwire.scenarios.arrow import numpy_of

    encoded = column if is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.combine_chunks()
    return numpy_of(encoded.indices), encoded.dictionary.to_pylist()
