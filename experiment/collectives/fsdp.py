"""Fully sharded data parallelism: what is gathered and scattered when, in rounds of staged collectives.

A *round* is one unit of layers that goes through one schedule: a gather of its parameters, or the reduce-scatter of its
gradients. A worker's round begins when the worker asks for it (a gather) or all of the unit's gradients are ready (a
reduce-scatter), and its round before is over. When a worker asks and waits is what `Moment`s say; the rest is that of
staged collectives, once for all gathers of an iteration and once for all reduce-scatters. See
`gradwire.experiment.collectives.kinds.fsdp` for the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext, Moment, own_updates
from gradwire.experiment.collectives.buckets import Bucket, Run
from gradwire.experiment.collectives.halves import in_groups
from gradwire.experiment.collectives.kinds import fsdp
from gradwire.experiment.collectives.merged import grown, merged
from gradwire.experiment.collectives.schedule import Transfers
from gradwire.experiment.collectives.setting import JobSetting
from gradwire.experiment.collectives.staged import Staged
from gradwire.experiment.program import Ints, Lists


class Rounds(Staged):
    """Staged collectives, one after the other on every worker, that nothing waits for by itself."""

    one_by_one = True

    def __init__(self, context: JobContext, plan: Transfers, rounds: Sequence[Bucket]) -> None:
        self._lay(context, plan, [list(rounds)])

    @property
    def in_turn(self) -> bool:
        return True

    def _gates(self, layout: list[Bucket], first: int, last: bool) -> tuple[Ints, Ints]:
        workers, layers = len(self.context.workers), len(self.context.trace.layers)
        return np.full((workers, layers + 1), -1, dtype=np.int64), np.zeros(0, dtype=np.int64)


class Gathers(Rounds):
    """Those that begin when a worker asks for them."""

    def _starts(self, layout: list[Bucket]) -> Ints:
        return np.ones((len(layout), 1), dtype=np.int64)


class FullySharded(Exchange):
    """The exchange of one job whose workers keep parts of the model."""

    repeats = True

    def __init__(self, context: JobContext, table: fsdp.FullySharded) -> None:
        super().__init__(context)
        self._prefetch, self._reshard, self._micros = table.prefetch, table.reshard, context.table.accumulate
        self.units = units_of(context, table.unit)
        self._group = table.group or len(context.workers)
        gather, scatter = in_groups(
            table.algorithm, len(context.workers), context.rails, context.inside, self._group
        )
        self.passes = self._passes()
        runs = [self._runs(layers) for layers in self.units]
        gathered = [runs[unit] for _, _, units in self.passes for unit in units]
        self.gathers = Gathers(context, gather, [Bucket.of(context, each, gather.segments) for each in gathered])
        scattered = [Bucket.of(context, each, scatter.segments) for each in runs[::-1]]
        self.scatters = Rounds(context, scatter, scattered * self._micros)
        self.inside = self._moments()

    def _runs(self, layers: Sequence[int]) -> tuple[Run, ...]:
        tensors = self.context.trace.tensors
        return tuple(Run(n, 0, info.numel) for n, info in enumerate(tensors) if info.layer in layers)

    def _passes(self) -> list[tuple[int, bool, list[int]]]:
        """The units that are gathered in every pass, in their order: (micro-batch, whether back, units)."""
        found: list[tuple[int, bool, list[int]]] = []
        forth = list(range(len(self.units)))
        for micro in range(self._micros):
            if micro == 0 or self._reshard:
                found.append((micro, False, forth))
            if self._reshard:
                found.append((micro, True, forth[-2::-1]))
        return found

    def _moments(self) -> dict[tuple[int, bool, int], Moment]:
        """What workers do at the first layer of a unit, on their way there."""
        found: dict[tuple[int, bool, int], Moment] = {}
        begin = 0
        for micro, back, units in self.passes:
            ahead, behind = self._prefetch, begin + len(units)
            if ahead and back:  # while the unit is computed that is there still
                found[micro, True, self.units[-1][-1]] = Moment(range(begin, min(begin + ahead, behind)))
            for place, unit in enumerate(units, begin):
                asks = range(place, place + 1) if not ahead else range(0)
                if place == begin and ahead and not back:
                    asks = range(begin, min(begin + ahead, behind))
                then = range(place + ahead, min(place + ahead + 1, behind)) if ahead else range(0)
                found[micro, back, self.units[unit][-1 if back else 0]] = Moment(asks, place, then)
            begin = behind
        return found

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        gathers, scatters = self.gathers.buckets_and_segments, self.scatters.buckets_and_segments
        return gathers[0] + scatters[0], gathers[1]

    @property
    def parameter_buckets(self) -> int:
        return len(self.gathers.buckets)

    @property
    def buckets(self) -> list[Bucket]:
        return self.gathers.buckets + self.scatters.buckets

    @property
    def unit_bytes(self) -> int:
        return max(self.gathers.unit_bytes, self.scatters.unit_bytes)

    @property
    def bytes_per_iteration(self) -> int:
        return self.gathers.bytes_per_iteration + self.scatters.bytes_per_iteration

    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        gathered = self.gathers.iteration(number, np.zeros_like(ready), last)
        scattered = self.scatters.iteration(number, ready, last)
        buckets = len(self.gathers.buckets)
        rows = scattered.step.messages
        part = rows.part + buckets * self.scatters.plan.segments
        second = replace(scattered.step, messages=replace(rows, part=part))
        step, (first_of, second_of) = merged(gathered.step, second)
        rounds = first_of[self.gathers.rounds[0]], first_of[self.gathers.rounds[1]]
        start, complete = (second_of[events] for events in self.scatters.rounds)
        # every worker updates its part when all its reduce-scatters are over
        nodes = self.context.nodes
        reduced = len(step) + np.arange(len(nodes))
        step = grown(
            step, nodes, np.full(len(nodes), len(complete)), (complete, np.broadcast_to(reduced, complete.shape))
        )
        fires = [self._fires(start, micro) for micro in range(self._micros)]
        return Exchanged(
            step, fires[-1], gathered.gates, early=fires[:-1], inside=self.inside, rounds=rounds,
            updates=own_updates(reduced, self._group),
        )  # fmt: skip

    def _fires(self, start: Ints, micro: int) -> Lists:
        """The starts of reduce-scatters that every worker's gradients of a micro-batch fire."""
        mine = slice(micro * len(self.units), (micro + 1) * len(self.units))
        return self.scatters._fires(self.scatters.buckets[mine], start[mine])


def units_of(context: JobSetting, least: int) -> list[tuple[int, ...]]:
    """Layers in units of at least so many bytes, front layers first; layers without parameters are in none."""
    nbytes = np.zeros(len(context.trace.layers), dtype=np.int64)
    for tensor in context.trace.tensors:
        nbytes[tensor.layer] += tensor.bytes
    edges, filled = [0], 0
    used = np.flatnonzero(nbytes).tolist()
    for place, layer in enumerate(used):
        filled += int(nbytes[layer])
        if filled >= least or place == len(used) - 1:
            edges.append(place + 1)
            filled = 0
    return [tuple(used[a:b]) for a, b in pairwise(edges)]
