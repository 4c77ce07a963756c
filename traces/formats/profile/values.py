"""Parses values in the arguments of profiler events, such as numbers, dtypes, shapes and correlation ids."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

DTYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float64": "float64",
}
_CORRELATIONS = ("correlation", "correlation_id", "correlation id", "correlationid", "Correlation")


class TensorSpec(NamedTuple):
    """Elements, dtype and shape of a tensor."""

    numel: int
    dtype: str
    shape: tuple[int, ...] = ()


def number(value: object) -> float:
    """Return `value` as a float; NaN if it is not a number, not finite, or 2**53 or more."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            converted = float(value)
        except (ValueError, OverflowError):
            return math.nan
        return converted if abs(converted) < 2**53 else math.nan
    return math.nan


def correlation_of(args: dict[str, Any]) -> float:
    """Return the id that joins a launch to its kernel; NaN if there is none."""
    for key in _CORRELATIONS:
        if key in args:
            return number(args[key])
    return math.nan


def type_name(dtype: object) -> str:
    """Return "float" of "c10::Float" or "torch.float"."""
    return str(dtype).rpartition("::")[2].rpartition(".")[2].lower()


def input_tensor(args: dict[str, Any], which: int = 0) -> TensorSpec | None:
    """Return shape and dtype of input `which`, also of a list of one tensor; None if not recorded."""
    dims, types = args.get("Input Dims", args.get("Input dims")), args.get("Input type")
    if not isinstance(dims, list) or len(dims) <= which or not isinstance(types, list) or len(types) <= which:
        return None
    shape, kind = dims[which], type_name(types[which])
    if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], list):
        shape = shape[0]  # a tensor list; its elements' type is not recorded
        kind = "float" if kind == "tensorlist" else kind
    whole = isinstance(shape, list) and all(type(n) is int and 0 < n < 2**48 for n in shape)
    if not whole or kind not in DTYPES or math.prod(shape) >= 2**48:
        return None
    return TensorSpec(math.prod(shape), DTYPES[kind], tuple(shape) or (1,))


def kernel_collective(name: str) -> str:
    """Return "AllReduce" of "ncclKernel_AllReduce_RING_LL_Sum_float(...)" or "ncclDevKernel_AllReduce_..."."""
    parts = name.split("(")[0].split("_")
    return parts[1] if len(parts) > 1 else name


def without_digits(name: str) -> str:
    """Return a name without its numbers, to count similar records together."""
    return re.sub(r"\d+", "N", name)[:60]
