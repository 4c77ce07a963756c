"""Collectives as nccl-tests measures them: sizes, counts, and factors from algorithm to bus bandwidth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError

TYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"int8": 1, "uint8": 1, "fp8": 1, "half": 2, "bfloat16": 2, "float": 4, "int32": 4, "double": 8, "int64": 8}
)
"""Bytes of an element, by nccl-tests' name of the data type."""
MOST_SIZES = 512
MOST_BYTES = 1 << 44
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Collective:
    """A collective: its name, and what nccl-tests prints for it.

    factor : busbw / algbw by number of ranks [nccl-tests, doc/PERFORMANCE.md].
    parts : by number of ranks, the number of equal parts that a rank sends or receives; a size is rounded down to it.
    reduces : True if data is summed, so that a redop is printed.
    """

    name: str
    factor: Callable[[int], float]
    parts: Callable[[int], int]
    reduces: bool = False

    def count(self, size: int, ranks: int, element_bytes: int) -> int:
        """Return the elements that nccl-tests prints for a size: those of one part, in whole units of 16 bytes if there
        are several [nccl-tests, recalled]."""
        elements = size // element_bytes
        parts = self.parts(ranks)
        if parts == 1:
            return elements
        unit = max(16 // element_bytes, 1)
        return elements // parts // unit * unit

    def actual_size(self, size: int, ranks: int, element_bytes: int) -> int:
        """Return the bytes that are really sent for a size."""
        return self.count(size, ranks, element_bytes) * self.parts(ranks) * element_bytes


COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        each.name: each
        for each in (
            Collective("all_reduce", lambda n: 2 * (n - 1) / n, lambda n: 1, True),
            Collective("all_gather", lambda n: (n - 1) / n, lambda n: n),
            Collective("reduce_scatter", lambda n: (n - 1) / n, lambda n: n, True),
            Collective("alltoall", lambda n: (n - 1) / n, lambda n: n),
            Collective("broadcast", lambda n: 1.0, lambda n: 1),
            Collective("reduce", lambda n: 1.0, lambda n: 1, True),
            Collective("sendrecv", lambda n: 1.0, lambda n: 1),
        )
    }
)
"""Collectives by nccl-tests' names."""


def collective_named(name: str, where: str = "collective") -> Collective:
    """Return a collective by name; `all_reduce_perf` and `all-reduce` are accepted. Raises `ScenarioError`."""
    plain = name.lower().replace("-", "_").removesuffix("_perf")
    plain = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}.get(plain, plain)
    plain = {"all_to_all": "alltoall", "send_recv": "sendrecv"}.get(plain, plain)
    if plain not in COLLECTIVES:
        raise ScenarioError(
            "no such collective", f"{where}: {name}", ", ".join(COLLECTIVES) + nearest(plain, COLLECTIVES)
        )
    return COLLECTIVES[plain]


def parse_test_size(text: str, where: str) -> int:
    """Return the bytes of a size as nccl-tests reads it: K, M and G are powers of 1024, such as "8", "64K" or "1.5G".

    Raises ScenarioError if it is not one.
    """
    match = SIZE.fullmatch(text.strip())
    value = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ") if match else -1.0
    if not isfinite(value) or not 0 <= value <= MOST_BYTES:
        raise ScenarioError("is not a size", f"{where}: {text}", "bytes as in nccl-tests: 8, 64K, 1.5G; at most 16T")
    return int(value)


def sweep_sizes(first: int, last: int, factor: float | None = None, step: int | None = None) -> list[int]:
    """Return the sizes of a sweep from `first` to `last` bytes, multiplied by `factor` or increased by `step`.

    Raises ScenarioError if there are none, or more than 512.
    """
    if first > last:
        raise ScenarioError("begins above its end", f"-b {first} -e {last}", "-b at most -e")
    if factor is not None and not (isfinite(factor) and factor > 1):
        raise ScenarioError("does not grow", f"-f {factor:g}", "a factor above 1, such as 2")
    if step is not None and step <= 0:
        raise ScenarioError("does not grow", f"-i {step}", "a step above 0 bytes")
    sizes: list[int] = []
    size = float(first)
    while size <= last and len(sizes) <= MOST_SIZES:
        sizes.append(int(size))
        grown = size * factor if factor is not None else size + (step or 1)
        size = max(grown, int(size) + 1)
    if len(sizes) > MOST_SIZES:
        raise ScenarioError("has too many sizes", "-b, -e, -f, -i", f"at most {MOST_SIZES}")
    return sizes
