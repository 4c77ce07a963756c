"""`check_values` rejects a Result's tables whose columns hold invalid values, when a Result is read.

The rules follow from a column's type in `TABLES`: counts, sizes and times are not negative, shares are finite, ports
join two nodes, texts are not empty. `LEAST` lists the columns whose minimum is not 0, `VOCABULARIES` those with a fixed
set of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.table_schema import CAUSES, KINDS, TABLES
from gradwire.scenarios.errors import ResultError, shorten
from gradwire.scenarios.wire import PACKET_KINDS

if TYPE_CHECKING:
    import pyarrow

ARROW = "->"
"""Separator of the two nodes in a port's name."""
VOCABULARIES: Mapping[tuple[str, str], Sequence[str]] = {
    ("messages", "kind"): KINDS,
    ("drops", "cause"): CAUSES,
    ("packets", "kind"): PACKET_KINDS,
}
UNKNOWN = -1
ANY = -(1 << 62)
LEAST: Mapping[tuple[str, str], int] = {
    # programs of `gradwire exec` may begin before their first mark, which is time 0
    **{("iterations", name): ANY for name in ("start_ps", "forward_end_ps", "backward_end_ps", "end_ps")},
    ("iterations", "exposed_ps"): ANY,  # real clocks may give slightly less than the compute time
    ("flows", "ideal_ps"): 1,
    ("messages", "tensor"): UNKNOWN,
    ("messages", "layer"): UNKNOWN,
    ("messages", "released_ps"): UNKNOWN,
    ("messages", "end_ps"): UNKNOWN,
    ("messages", "timeouts"): UNKNOWN,
    ("messages", "marked"): UNKNOWN,  # the kernel's TCP does not report marks
    ("drops", "message"): UNKNOWN,
    ("drops", "packet"): UNKNOWN,
    ("ports", "control_marks"): UNKNOWN,
    ("ports", "peak_queue_bytes"): UNKNOWN,  # not every testbed backend reports it
    ("packets", "message"): UNKNOWN,
    ("packets", "packet"): UNKNOWN,
    ("packets", "argument"): ANY,
}
"""Minimum of integer columns whose minimum is not 0."""
MOST_PS = 1 << 62
"""Latest time; twice that still fits 64 bits."""


def check_values(name: str, table: pyarrow.Table, path: Path) -> None:
    """Raise `ResultError` for the first invalid value of a table."""
    for column, kind in TABLES[name].items():
        values = table[column]
        if kind == "string":
            _check_texts(name, column, values, path)
        elif kind != "bool" and len(values):
            _check_numbers(name, column, kind, values, path)


def _check_numbers(name: str, column: str, kind: str, values: pyarrow.ChunkedArray, path: Path) -> None:
    import numpy as np

    numbers = to_numpy(values)
    least: float = LEAST.get((name, column), 0)
    most: float = MOST_PS if kind == "int64" else (1 << 31)
    if kind == "float64":
        least, most = 0.0, 1.0
    wrong = ~((numbers >= least) & (numbers <= most))  # also nan
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        words = f"{least} to {most}" if kind == "float64" else f"a number from {least}"
        raise _refused(column, row, numbers[row].item(), words, path)


def _check_texts(name: str, column: str, values: pyarrow.ChunkedArray, path: Path) -> None:
    words = VOCABULARIES.get((name, column))
    for text in values.unique().to_pylist():
        if words is not None:
            right, expected = text in words, f"one of {', '.join(words)}"
        elif column == "port":
            ends = text.split(ARROW)
            right, expected = len(ends) == 2 and all(ends), f"two nodes, such as a{ARROW}b"
        else:
            right, expected = text != "", "a name"
        if not right:
            raise _refused(column, values.to_pylist().index(text), text, expected, path)


def _refused(column: str, row: int, value: Any, expected: str, path: Path) -> ResultError:
    return ResultError(f"{column} is {shorten(value)} in row {row}", str(path), expected)
