"""Which gradients of one trace are those of another: by name, or by order and size.

Names rarely survive a profiler, sizes do. So tensors are matched

* by `name`, where the traces share most of their names, and sizes agree;
* by `order`: the sizes of the tensors in parameter order, runs of equal sizes aligned with each other, the longest run
  first (`difflib`); a tensor that only one of them has shifts the rest and harms nothing;
* by `readiness`: the same with the tensors of both in the order in which gradients become ready, from the last one;
* by `layers`: the same with the gradients of a layer taken together, as PipeDream has them.

Of these, the first one that matches the most units is taken (our choice). A unit is a tensor, or with `layers` a layer
that has tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from gradwire.traces.trace import Trace


@dataclass(frozen=True)
class Unit:
    """Tensors that are matched as one: their name, how many elements they have, and their numbers."""

    name: str
    numel: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """How the units of two traces, `a` and `b`, go together.

    by : "name", "order", "readiness" or "layers".
    pairs : (unit of a, unit of b), of the same size.
    resized : pairs of units that have the same neighbours, and another size.
    only_a, only_b : units that have nobody.
    """

    by: str
    a: Sequence[Unit]
    b: Sequence[Unit]
    pairs: tuple[tuple[Unit, Unit], ...]
    resized: tuple[tuple[Unit, Unit], ...]
    only_a: tuple[Unit, ...]
    only_b: tuple[Unit, ...]

    @property
    def share(self) -> float:
        """Of the units of a: how many have a partner of the same size."""
        return len(self.pairs) / len(self.a)

    @property
    def partners(self) -> dict[int, tuple[int, ...]]:
        """Of a's tensors that have any: which tensors of b they are."""
        found: dict[int, tuple[int, ...]] = {}
        for mine, theirs in (*self.pairs, *self.resized):
            one_by_one = len(mine.tensors) == len(theirs.tensors)
            for place, tensor in enumerate(mine.tensors):
                found[tensor] = theirs.tensors[place : place + 1] if one_by_one else theirs.tensors
        return found


def match(a: Trace, b: Trace) -> Match:
    """The best match of the tensors of two traces; it may be a poor one."""
    found = [_by_name(a, b)]
    found += [_aligned(by, _units(a, by), _units(b, by)) for by in ("order", "readiness", "layers")]
    return max(found, key=lambda each: each.share)  # of equal ones the first


def _units(trace: Trace, by: str) -> list[Unit]:
    order = list(range(len(trace.tensors)))
    if by == "layers":
        layers: dict[int, list[int]] = {}
        for number in order:
            layers.setdefault(trace.tensors[number].layer, []).append(number)
        return [
            Unit(trace.layers[layer], sum(trace.tensors[n].numel for n in layers[layer]), tuple(layers[layer]))
            for layer in sorted(layers)
        ]
    if by == "readiness":
        ready = trace.iterations[0].ready_ps
        order = sorted(order, key=lambda number: (-int(ready[number]), number))
    return [Unit(trace.tensors[n].name, trace.tensors[n].numel, (n,)) for n in order]


def _by_name(a: Trace, b: Trace) -> Match:
    mine, theirs = _units(a, "name"), _units(b, "name")
    there = {unit.name: unit for unit in theirs}
    both = [(unit, there[unit.name]) for unit in mine if unit.name in there]
    pairs = tuple(pair for pair in both if pair[0].numel == pair[1].numel)
    resized = tuple(pair for pair in both if pair[0].numel != pair[1].numel)
    names = {unit.name for unit, _ in both}
    only_a, only_b = (tuple(unit for unit in units if unit.name not in names) for units in (mine, theirs))
    return Match("name", mine, theirs, pairs, resized, only_a, only_b)


def _aligned(by: str, a: Sequence[Unit], b: Sequence[Unit]) -> Match:
    matcher = SequenceMatcher(None, [unit.numel for unit in a], [unit.numel for unit in b], autojunk=False)
    blocks = matcher.get_matching_blocks()  # the last one is an empty one behind both ends
    pairs = tuple((a[one.a + n], b[one.b + n]) for one in blocks for n in range(one.size))
    resized: list[tuple[Unit, Unit]] = []
    only_a: list[Unit] = []
    only_b: list[Unit] = []
    for mine, theirs in _gaps(a, b, [(one.a, one.b, one.size) for one in blocks]):
        if len(mine) == len(theirs):
            resized += zip(mine, theirs, strict=True)
        else:
            only_a += mine
            only_b += theirs
    return Match(by, a, b, pairs, tuple(resized), tuple(only_a), tuple(only_b))


def _gaps(
    a: Sequence[Unit], b: Sequence[Unit], blocks: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[Sequence[Unit], Sequence[Unit]]]:
    """What lies between neighbouring blocks (first of a, first of b, length), of either."""
    for (i, j, size), (after_i, after_j, _) in pairwise([(0, 0, 0), *blocks]):
        yield a[i + size : after_i], b[j + size : after_j]
