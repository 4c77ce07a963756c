"""Arrow arrays from NumPy's and lists, and back.

`pyarrow.array` asks pandas whether the values are its own, and imports it for that where it is installed, and so does
`to_numpy`: a quarter of a second of a run of one. Whatever takes rows or encodes imports `pyarrow.compute`, which makes
a function of Python of each of Arrow's, for as long as 100,000 rows take. So what is plain is made of its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.arrays import AnyInts

FEW_BYTES = 1 << 20
"""Texts that are gathered here; Arrow is faster with more."""
NUMBERS = {"int8": np.int8, "int32": np.int32, "int64": np.int64, "float64": np.float64}


def arrow_array(values: Any, kind: str) -> pyarrow.Array:
    """Values as an Arrow array of a type by name: bool, string, float64, int8, int32 or int64; None in a list is null.
    An array of numbers of that type is not copied. Raises as `pyarrow.array`."""
    import pyarrow

    if isinstance(values, list) and None in values:
        return _with_nulls(values, kind)
    name = kind if kind != "bool" else "bool_"
    made = _texts(values) if kind == "string" else _numbers(values, kind)
    return pyarrow.array(values, type=getattr(pyarrow, name)()) if made is None else made


def numpy_of(column: pyarrow.Array | pyarrow.ChunkedArray) -> np.ndarray[Any, Any]:
    """A column's values as one NumPy array, read-only where nothing had to be copied; objects for texts, as
    `to_numpy(zero_copy_only=False)` of Arrow's."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    plain = NUMBERS.get(str(column.type).replace("double", "float64"))
    if plain is None or column.null_count:
        return column.to_numpy(zero_copy_only=False)
    found = [
        np.frombuffer(each.buffers()[1], dtype=plain)[each.offset : each.offset + len(each)]
        for each in chunks if len(each)
    ]  # fmt: skip
    return found[0] if len(found) == 1 else np.concatenate(found or [np.zeros(0, dtype=plain)])


def chosen_texts(texts: Sequence[str], codes: AnyInts) -> pyarrow.Array:
    """The texts at some places of a list, int32[n], as an Arrow array of strings."""
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
    """The same where some are None."""
    import pyarrow

    there = np.array([each is not None for each in values])
    filler = {"string": "", "bool": False}.get(kind, 0)
    filled = arrow_array([filler if each is None else each for each in values], kind)
    valid = pyarrow.py_buffer(np.packbits(there, bitorder="little"))
    return pyarrow.Array.from_buffers(filled.type, len(values), [valid, *filled.buffers()[1:]])


def _numbers(values: Any, kind: str) -> pyarrow.Array | None:
    """Numbers or truth values; None where it is not plain what they are."""
    import pyarrow

    if not isinstance(values, (list, tuple, np.ndarray)):
        return None
    found = np.asarray(values) if len(values) else np.zeros(0, dtype=NUMBERS.get(kind, np.bool_))
    if kind == "bool":
        if found.dtype != np.bool_ or found.ndim != 1:
            return None
        packed = np.packbits(found, bitorder="little")
        return pyarrow.Array.from_buffers(pyarrow.bool_(), len(found), [None, pyarrow.py_buffer(packed)])
    wanted = np.dtype(NUMBERS[kind])
    whole = np.issubdtype(found.dtype, np.signedinteger)
    if found.ndim != 1 or not (whole or found.dtype == wanted):
        return None
    if whole and wanted.kind == "i" and len(found) and wanted.itemsize < found.dtype.itemsize:
        most = 1 << 8 * wanted.itemsize - 1
        if found.min() < -most or found.max() >= most:
            return None
    if whole and wanted.kind == "f" and len(found) and np.abs(found).max() > 1 << 53:
        return None
    found = np.ascontiguousarray(found, dtype=wanted)
    return pyarrow.Array.from_buffers(getattr(pyarrow, kind)(), len(found), [None, pyarrow.py_buffer(found)])


def _texts(values: Any) -> pyarrow.Array | None:
    """Texts; None where something else is among them, or they are too long together."""
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
