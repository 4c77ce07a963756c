"""Converts between Arrow arrays and NumPy arrays or lists, without slow imports.

`pyarrow.array` and `to_numpy` import pandas, if installed, to check whether values are its own: a quarter of a second
of a one-second run. Functions that take rows or encode import `pyarrow.compute`, which wraps every Arrow function in
Python and takes as long as 100,000 rows. So plain values are converted through their buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.arrays import AnyInts

FEW_BYTES = 1 << 20
"""Maximum bytes of texts gathered here; Arrow is faster for more."""
NUMBERS = {"int8": np.int8, "int32": np.int32, "int64": np.int64, "float64": np.float64}


class CodedTexts(Sequence[str]):
    """Texts of a column as codes, int64[n], into a short list of texts: a pointer per row is as large as the code."""

    def __init__(self, texts: Sequence[str], codes: AnyInts) -> None:
        self.texts, self.codes = texts, codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> CodedTexts: ...
    def __getitem__(self, row: int | slice) -> str | CodedTexts:
        return CodedTexts(self.texts, self.codes[row]) if isinstance(row, slice) else self.texts[self.codes[row]]


def arrow_array(values: Any, kind: str) -> pyarrow.Array:
    """Return values as an Arrow array of a named type: bool, string, float64, int8, int32 or int64. None in a list
    becomes null. An array of that numeric type is not copied. Raises as `pyarrow.array`."""
    import pyarrow

    if isinstance(values, CodedTexts):
        return take_texts(values.texts, values.codes)
    if isinstance(values, list) and None in values:
        return _with_nulls(values, kind)
    name = kind if kind != "bool" else "bool_"
    array = _texts(values) if kind == "string" else _numbers(values, kind)
    return pyarrow.array(values, type=getattr(pyarrow, name)()) if array is None else array


def to_numpy(column: pyarrow.Array | pyarrow.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return a column's values as one NumPy array, read-only if not copied; objects for texts. Equal to Arrow's
    `to_numpy(zero_copy_only=False)`."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    plain = NUMBERS.get(str(column.type).replace("double", "float64"))
    if plain is None or column.null_count:
        return column.to_numpy(zero_copy_only=False)
    arrays = [
        np.frombuffer(chunk.buffers()[1], dtype=plain)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in chunks
        if len(chunk)
    ]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays or [np.zeros(0, dtype=plain)])


def take_texts(texts: Sequence[str], codes: AnyInts) -> pyarrow.Array:
    """Return the texts at the given indices of a list, int32[n], as an Arrow array of strings."""
    import pyarrow

    encoded = [each.encode() for each in texts]
    longest = max([1, *map(len, encoded)])
    if len(codes) * longest > FEW_BYTES:
        encoding = pyarrow.DictionaryArray.from_arrays(arrow_array(codes, "int32"), arrow_array(texts, "string"))
        return encoding.dictionary_decode()
    padded = np.frombuffer(b"".join(each.ljust(longest, b"\0") for each in encoded), np.uint8).reshape(-1, longest)
    lengths = np.array([len(each) for each in encoded], dtype=np.int32)
    ends = np.zeros(len(codes) + 1, dtype=np.int32)
    np.cumsum(lengths[codes], out=ends[1:])
    data = padded[codes][(np.arange(longest) < lengths[:, None])[codes]]
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(codes), buffers)


def _with_nulls(values: list[Any], kind: str) -> pyarrow.Array:
    """Return an Arrow array of a list that contains None."""
    import pyarrow

    is_valid = np.array([each is not None for each in values])
    filler = {"string": "", "bool": False}.get(kind, 0)
    filled = arrow_array([filler if each is None else each for each in values], kind)
    valid = pyarrow.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pyarrow.Array.from_buffers(filled.type, len(values), [valid, *filled.buffers()[1:]])


def _numbers(values: Any, kind: str) -> pyarrow.Array | None:
    """Return an Arrow array of numbers or booleans; None if the values need Arrow's own conversion."""
    import pyarrow

    if not isinstance(values, (list, tuple, np.ndarray)):
        return None
    array = np.asarray(values) if len(values) else np.zeros(0, dtype=NUMBERS.get(kind, np.bool_))
    if kind == "bool":
        if array.dtype != np.bool_ or array.ndim != 1:
            return None
        packed = np.packbits(array, bitorder="little")
        return pyarrow.Array.from_buffers(pyarrow.bool_(), len(array), [None, pyarrow.py_buffer(packed)])
    dtype = np.dtype(NUMBERS[kind])
    whole = np.issubdtype(array.dtype, np.signedinteger)
    if array.ndim != 1 or not (whole or array.dtype == dtype):
        return None
    if whole and dtype.kind == "i" and len(array) and dtype.itemsize < array.dtype.itemsize:
        most = 1 << 8 * dtype.itemsize - 1
        if array.min() < -most or array.max() >= most:
            return None
    if whole and dtype.kind == "f" and len(array) and np.abs(array).max() > 1 << 53:
        return None
    array = np.ascontiguousarray(array, dtype=dtype)
    return pyarrow.Array.from_buffers(getattr(pyarrow, kind)(), len(array), [None, pyarrow.py_buffer(array)])


def _texts(values: Any) -> pyarrow.Array | None:
    """Return an Arrow array of strings; None if values are not all strings, or too long in total."""
    import pyarrow

    if not isinstance(values, Sequence) or not all(type(each) is str for each in values):
        return None
    encoded = [each.encode() for each in values]
    ends = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in encoded], out=ends[1:])
    if ends[-1] >= 1 << 31:
        return None
    buffers = [None, pyarrow.py_buffer(ends.astype(np.int32)), pyarrow.py_buffer(b"".join(encoded))]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(encoded), buffers)
