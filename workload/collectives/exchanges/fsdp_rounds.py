"""Builds the messages of fully sharded data parallelism, the parameter gathers and gradient reduce-scatters of an
iteration.

A *round* is one unit of layers that goes through one schedule: a gather of its parameters, or the reduce-scatter of its
gradients. A worker's round begins when the worker requests it (a gather) or all of the unit's gradients are ready (a
reduce-scatter), and its previous round is over. `RoundAction`s say when a worker requests and waits; the rest is that
of staged collectives, once for all gathers of an iteration and once for all reduce-scatters. See
`gradwire.workload.collectives.exchanges.fsdp` for the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gradwire.workload.collectives.common.base import (
    Exchange,
    ExchangedIteration,
    JobContext,
    JobSetting,
    RoundAction,
    partial_updates,
)
from gradwire.workload.collectives.common.buckets import Bucket, TensorRange
from gradwire.workload.collectives.common.half_collectives import grouped_halves
from gradwire.workload.collectives.common.staged import Staged
from gradwire.workload.collectives.common.transfer_schedule import Transfers
from gradwire.workload.csr import CsrLists
from gradwire.workload.program import Ints
from gradwire.workload.steps import add_events, merge_steps

if TYPE_CHECKING:
    from gradwire.workload.collectives.exchanges import fsdp


class Rounds(Staged):
    """Consecutive staged collectives on every worker, without gates."""

    one_by_one = True

    def __init__(self, context: JobContext, plan: Transfers, rounds: Sequence[Bucket]) -> None:
        self._lay_out_buckets(context, plan, [list(rounds)])

    @property
    def is_sequential(self) -> bool:
        return True

    def _gates(self, layout: list[Bucket], first: int, last: bool) -> tuple[Ints, Ints]:
        workers, layers = len(self.context.workers), len(self.context.trace.layers)
        return np.full((workers, layers + 1), -1, dtype=np.int64), np.zeros(0, dtype=np.int64)


class GatherRounds(Rounds):
    """Rounds that begin when a worker requests them."""

    def _starts(self, layout: list[Bucket]) -> Ints:
        return np.ones((len(layout), 1), dtype=np.int64)


class FullyShardedExchange(Exchange):
    """The exchange of one job whose workers store parts of the model."""

    repeats = True

    def __init__(self, context: JobContext, table: fsdp.FullyShardedExchange) -> None:
        super().__init__(context)
        self._prefetch, self._reshard, self._micros = table.prefetch, table.reshard, context.table.accumulate
        self.units = units_of(context, table.unit)
        self._group = table.group or len(context.workers)
        sizes = len(context.workers), context.rails, context.inside, self._group
        gather, scatter = grouped_halves(table.algorithm, *sizes)
        self.passes = self._passes()
        whole = [(info.layer, TensorRange(n, 0, info.numel)) for n, info in enumerate(context.trace.tensors)]
        runs = [tuple(tensor for layer, tensor in whole if layer in layers) for layers in self.units]
        gathered = [runs[unit] for _, _, units in self.passes for unit in units]
        self.gathers = GatherRounds(context, gather, [Bucket.of(context, unit, gather.segments) for unit in gathered])
        scattered = [Bucket.of(context, unit, scatter.segments) for unit in runs[::-1]]
        self.scatters = Rounds(context, scatter, scattered * self._micros)
        self.inside = self._moments()

    def _passes(self) -> list[tuple[int, bool, list[int]]]:
        """Return the units that are gathered in every pass, in order: (micro-batch, True if backward, units)."""
        passes: list[tuple[int, bool, list[int]]] = []
        forward = list(range(len(self.units)))
        for micro in range(self._micros):
            if micro == 0 or self._reshard:
                passes.append((micro, False, forward))
            if self._reshard:
                passes.append((micro, True, forward[-2::-1]))
        return passes

    def _moments(self) -> dict[tuple[int, bool, int], RoundAction]:
        """Return the workers' actions at the first layer of each unit, in the direction of the pass."""
        moments: dict[tuple[int, bool, int], RoundAction] = {}
        begin = 0
        for micro, back, units in self.passes:
            ahead, end = self._prefetch, begin + len(units)
            if ahead and back:  # during the last unit, which was not freed
                moments[micro, True, self.units[-1][-1]] = RoundAction(range(begin, min(begin + ahead, end)))
            for number, unit in enumerate(units, begin):
                asks = range(number, number + 1) if not ahead else range(0)
                if number == begin and ahead and not back:
                    asks = range(begin, min(begin + ahead, end))
                then = range(number + ahead, min(number + ahead + 1, end)) if ahead else range(0)
                moments[micro, back, self.units[unit][-1 if back else 0]] = RoundAction(asks, number, then)
            begin = end
        return moments

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

    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
        gathered = self.gathers.iteration(number, np.zeros_like(ready), last)
        scattered = self.scatters.iteration(number, ready, last)
        buckets = len(self.gathers.buckets)
        rows = scattered.step.messages
        rows = replace(rows, part=rows.part + buckets * self.scatters.plan.segments)
        step, (first_of, second_of) = merge_steps(gathered.step, replace(scattered.step, messages=rows))
        rounds = first_of[self.gathers.rounds[0]], first_of[self.gathers.rounds[1]]
        start, complete = (second_of[events] for events in self.scatters.rounds)
        # every worker updates its part when all its reduce-scatters are over
        nodes = self.context.nodes
        reduced = len(step) + np.arange(len(nodes))
        step = add_events(
            step, nodes, np.full(len(nodes), len(complete)), (complete, np.broadcast_to(reduced, complete.shape))
        )
        fires = [self._fired_starts(start, micro) for micro in range(self._micros)]
        return ExchangedIteration(
            step,
            fires[-1],
            gathered.gates,
            early=fires[:-1],
            inside=self.inside,
            rounds=rounds,
            updates=partial_updates(reduced, self._group),
        )

    def _fired_starts(self, start: Ints, micro: int) -> CsrLists:
        """Return the starts of reduce-scatters that every worker's gradients of a micro-batch fire."""
        rounds = slice(micro * len(self.units), (micro + 1) * len(self.units))
        return self.scatters._fired_starts(self.scatters.buckets[rounds], start[rounds])


def units_of(context: JobSetting, least: int) -> list[tuple[int, ...]]:
    """Return units of consecutive layers of at least `least` bytes; layers without parameters are in none."""
    nbytes = context.trace.layer_bytes
    edges, filled = [0], 0
    used = np.flatnonzero(nbytes).tolist()
    for index, layer in enumerate(used):
        filled += int(nbytes[layer])
        if filled >= least or index == len(used) - 1:
            edges.append(index + 1)
            filled = 0
    return [tuple(used[a:b]) for a, b in pairwise(edges)]
