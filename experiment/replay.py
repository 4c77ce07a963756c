"""Which captured iteration a worker replays, and how long its parts take.

A trace may hold the iterations of R ranks.  Worker w replays those of rank w mod R, in its iteration i the
captured iteration (i + w div R) mod n of that rank in the chosen phase: the first R workers are those that
were recorded together, and further ones differ from them as iterations of one worker did.  All its times
are multiplied by the job's `compute_scale` and, with jitter, by a log-normal factor of median 1 that depends
on nothing but (seed, job, worker, iteration). The optimiser step takes what the job says, if it does.

Time that the capture spent between two layers belongs to the earlier one, and what it spent before layer 0
(such as loading the batch) to layer 0 (our choice).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import ScenarioError
from gradwire.traces.trace import Iteration, Trace

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timetable:
    """One iteration's computing as offsets from its start, picoseconds.

    Attributes
    ----------
    forward : int64[layers + 1]
        When each layer's step begins; the last entry is the end of the forward pass.
    ready_at : int64[moments], rising
        When gradients become ready, never before the end of forward ...
    ready : ... and which tensors do so at that moment.
    backward_end : the end of the backward pass.
    optimizer : how long the optimiser takes.
    asked_at : int64[communications]
        When what passes wait for is called.
    """

    forward: Times
    ready_at: Times
    ready: tuple[tuple[int, ...], ...]
    backward_end: int
    optimizer: int
    asked_at: Times

    @classmethod
    def of(cls, captured: Iteration) -> Timetable:
        """The timetable of a captured iteration, unscaled."""
        begin = np.maximum.accumulate(captured.forward_start_ps)
        begin[0] = 0
        end = max(int(captured.forward_end_ps.max()), int(begin[-1]))
        ready_at, moment = np.unique(np.maximum(captured.ready_ps, end), return_inverse=True)
        ready = tuple(tuple(np.flatnonzero(moment == index).tolist()) for index in range(len(ready_at)))
        backward_end = max(captured.backward_end_ps, int(ready_at[-1]))
        asked_at = captured.asked_ps
        return cls(np.append(begin, end), ready_at, ready, backward_end, captured.optimizer_ps, asked_at)

    def scaled(self, factor: float) -> Timetable:
        """All times multiplied.  Offsets are rounded, not durations, so rounding does not add up."""
        if factor == 1.0:
            return self
        return Timetable(
            np.rint(self.forward * factor).astype(np.int64),
            np.rint(self.ready_at * factor).astype(np.int64),
            self.ready,
            round(self.backward_end * factor),
            round(self.optimizer * factor),
            np.rint(self.asked_at * factor).astype(np.int64),
        )


    def held_back(self) -> Timetable:
        """The same with all gradients handed over when the backward pass is over, in the order in which they became
        ready."""
        tensors = tuple(tensor for moment in self.ready for tensor in moment)
        return replace(self, ready_at=np.array([self.backward_end], dtype=np.int64), ready=(tensors,))


class Captured:
    """Which of a trace's iterations each worker replays: those of one rank, in order and again from the first. Where
    there are more workers than ranks, the next ones begin one iteration further on.

    indices : of all that are replayed by anybody.
    """

    def __init__(self, trace: Trace, phase: str | None, where: str = "job") -> None:
        """
        Raises
        ------
        ScenarioError
            The trace has no iteration of the wanted phase.
        """
        self.indices = captured_iterations(trace, phase, where)
        self._by_rank = _by_rank(trace, self.indices)

    def of(self, worker: int, iteration: int, micro: int = -1, micros: int = 1) -> int:
        """Index in the trace of what a worker replays in a micro-batch of an iteration, of which it has `micros`."""
        round_, rank = divmod(worker, len(self._by_rank))
        mine = self._by_rank[rank]
        return mine[(iteration * micros + micro % micros + round_) % len(mine)]

    def period(self, workers: int, micros: int = 1) -> int:
        """After how many iterations all of them replay the same ones again."""
        return lcm(*(len(mine) // gcd(len(mine), micros) for mine in self._by_rank[:workers]))


class Replay:
    """What the workers of one [[job]] replay of its trace."""

    def __init__(self, table: Any, trace: Trace, seed: int, where: str = "job") -> None:
        """`table` : the scenario's [[job]]; `where` : its place in the scenario, for messages.

        Raises
        ------
        ScenarioError
            The trace has no iteration of the wanted phase.
        """
        self.table, self.trace, self.seed = table, trace, seed
        self._captured = Captured(trace, table.phase, where)
        self._timetables = {index: Timetable.of(trace.iterations[index]) for index in self._captured.indices}
        self._first = self._timetables[self._captured.indices[0]]

    def captured(self, worker: int, iteration: int, micro: int = -1) -> int:
        """Index in the trace of the iteration that a worker replays; of several micro-batches the last one, whose
        gradients stand for the sum of all."""
        return self._captured.of(worker, iteration, micro, self.table.accumulate)

    @property
    def period(self) -> int:
        """After how many iterations every worker replays the same ones again."""
        return self._captured.period(self.table.workers, self.table.accumulate)

    @property
    def ready_order(self) -> list[int]:
        """Tensors in the order in which their gradients became ready in the first captured iteration."""
        return [tensor for moment in self._first.ready for tensor in moment]

    def timetable(self, worker: int, iteration: int, micro: int = -1, slowness: float = 1.0) -> Timetable:
        """The timetable of a micro-batch of a worker's iteration. `slowness`: how many times longer computing takes
        besides."""
        table = self.table
        factor = self.factor(worker, iteration) * slowness
        found = self._timetables[self.captured(worker, iteration, micro)].scaled(factor)
        return found if table.optimizer is None else replace(found, optimizer=int(table.optimizer))

    def factor(self, worker: int, iteration: int) -> float:
        """How many times longer computing takes in a worker's iteration than captured."""
        table = self.table
        factor: float = table.compute_scale
        if table.jitter:
            key = (self.seed, zlib.crc32(table.name.encode()), worker, iteration)
            draw = np.random.default_rng(np.random.SeedSequence(key)).standard_normal()
            factor *= float(np.exp(table.jitter * draw))
        return factor


def captured_iterations(trace: Trace, phase: str | None, where: str = "job") -> list[int]:
    """Indices of the trace's iterations of a phase, of all for None.

    Raises
    ------
    ScenarioError
        There is no such phase.
    """
    if phase is None:
        return [iteration.index for iteration in trace.iterations]
    if phase not in trace.phases:
        raise ScenarioError(
            f"trace {trace.name} has no phase {phase!r}",
            where=f"{where}.phase",
            expected=" or ".join(trace.phases),
        )
    return trace.phases[phase]


def _by_rank(trace: Trace, captured: Sequence[int]) -> list[list[int]]:
    """`captured` by rank, ranks rising; each in order of capture."""
    found: dict[int, list[int]] = {}
    for index in captured:
        found.setdefault(trace.iterations[index].rank, []).append(index)
    return [found[rank] for rank in sorted(found)]
