"""`match_tensors` matches the gradients of two traces, by name or by order and size.

Names rarely survive a profiler, sizes do. So tensors are matched

* by `name`, if the traces share most of their names, and sizes agree;
* by `order`: the sizes of the tensors in parameter order, runs of equal sizes aligned with each other, the longest run
  first (`difflib`); a tensor in only one of them shifts the rest without harm;
* by `readiness`: the same with the tensors of both in the order in which gradients become ready, from the last one;
* by `layers`: the same with the gradients of a layer taken together, as in PipeDream's profiles.

The first one of these that matches the most units is taken (our choice). A unit is a tensor, or with `layers` a layer
that has tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from gradwire.traces.trace import Trace


@dataclass(frozen=True)
class MatchUnit:
    """Tensors that are matched as one: name, number of elements, and tensor indices."""

    name: str
    numel: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class TensorMatch:
    """Matching of the units of two traces, `a` and `b`.

    by : "name", "order", "readiness" or "layers".
    pairs : (unit of a, unit of b), of the same size.
    resized : pairs of units with the same neighbours but different sizes.
    only_a, only_b : unmatched units.
    """

    by: str
    a: Sequence[MatchUnit]
    b: Sequence[MatchUnit]
    pairs: tuple[tuple[MatchUnit, MatchUnit], ...]
    resized: tuple[tuple[MatchUnit, MatchUnit], ...]
    only_a: tuple[MatchUnit, ...]
    only_b: tuple[MatchUnit, ...]

    @property
    def share(self) -> float:
        """Share of the units of a that have a partner of the same size."""
        return len(self.pairs) / len(self.a)

    @property
    def partners(self) -> dict[int, tuple[int, ...]]:
        """Tensors of b that each tensor of a is matched with, if any."""
        partners: dict[int, tuple[int, ...]] = {}
        for unit_a, unit_b in (*self.pairs, *self.resized):
            is_one_to_one = len(unit_a.tensors) == len(unit_b.tensors)
            for position, tensor in enumerate(unit_a.tensors):
                partners[tensor] = unit_b.tensors[position : position + 1] if is_one_to_one else unit_b.tensors
        return partners


def match_tensors(a: Trace, b: Trace) -> TensorMatch:
    """Return the best match of the tensors of two traces, which may be a poor one."""
    matches = [_by_name(a, b)]
    matches += [_aligned(by, _units(a, by), _units(b, by)) for by in ("order", "readiness", "layers")]
    return max(matches, key=lambda candidate: candidate.share)  # the first of equal ones


def _units(trace: Trace, by: str) -> list[MatchUnit]:
    order = list(range(len(trace.tensors)))
    if by == "layers":
        layers: dict[int, list[int]] = {}
        for number in order:
            layers.setdefault(trace.tensors[number].layer, []).append(number)
        return [
            MatchUnit(trace.layers[layer], sum(trace.tensors[n].numel for n in layers[layer]), tuple(layers[layer]))
            for layer in sorted(layers)
        ]
    if by == "readiness":
        ready = trace.iterations[0].ready_ps
        order = sorted(order, key=lambda number: (-int(ready[number]), number))
    return [MatchUnit(trace.tensors[n].name, trace.tensors[n].numel, (n,)) for n in order]


def _by_name(a: Trace, b: Trace) -> TensorMatch:
    units_a, units_b = _units(a, "name"), _units(b, "name")
    unit_by_name = {unit.name: unit for unit in units_b}
    both = [(unit, unit_by_name[unit.name]) for unit in units_a if unit.name in unit_by_name]
    pairs = tuple(pair for pair in both if pair[0].numel == pair[1].numel)
    resized = tuple(pair for pair in both if pair[0].numel != pair[1].numel)
    names = {unit.name for unit, _ in both}
    only_a, only_b = (tuple(unit for unit in units if unit.name not in names) for units in (units_a, units_b))
    return TensorMatch("name", units_a, units_b, pairs, resized, only_a, only_b)


def _aligned(by: str, a: Sequence[MatchUnit], b: Sequence[MatchUnit]) -> TensorMatch:
    matcher = SequenceMatcher(None, [unit.numel for unit in a], [unit.numel for unit in b], autojunk=False)
    blocks = matcher.get_matching_blocks()  # ends with an empty block behind both
    pairs = tuple((a[block.a + n], b[block.b + n]) for block in blocks for n in range(block.size))
    resized: list[tuple[MatchUnit, MatchUnit]] = []
    only_a: list[MatchUnit] = []
    only_b: list[MatchUnit] = []
    for gap_a, gap_b in _gaps(a, b, [(block.a, block.b, block.size) for block in blocks]):
        if len(gap_a) == len(gap_b):
            resized += zip(gap_a, gap_b, strict=True)
        else:
            only_a += gap_a
            only_b += gap_b
    return TensorMatch(by, a, b, pairs, tuple(resized), tuple(only_a), tuple(only_b))


def _gaps(
    a: Sequence[MatchUnit], b: Sequence[MatchUnit], blocks: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[Sequence[MatchUnit], Sequence[MatchUnit]]]:
    """Yield the units between neighbouring blocks (first of a, first of b, length), of either trace."""
    for (i, j, size), (after_i, after_j, _) in pairwise([(0, 0, 0), *blocks]):
        yield a[i + size : after_i], b[j + size : after_j]
