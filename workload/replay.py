"""`Replay` selects the captured iterations of a trace that workers replay, and scales their compute times.

A trace may hold the iterations of R ranks. Worker w replays those of rank w mod R, in its iteration i the captured
iteration (i + w div R) mod n of that rank in the chosen phase: the first R workers are those that were recorded
together, and further ones are offset by one iteration each. All times are multiplied by the job's `compute_scale` and,
with jitter, by a log-normal factor of median 1 that depends only on (seed, job, worker, iteration). The job can set the
time of the optimiser step.

Time between two layers in the capture belongs to the earlier one, and time before layer 0 (such as loading the batch)
to layer 0 (our choice).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.traces.trace import Iteration, Trace


@dataclass(frozen=True, eq=False)
class Timetable:
    """One iteration's computing as offsets from its start, picoseconds.

    forward : int64[layers + 1], the begin of each layer's step, and last the end of the forward pass.
    ready_at : int64[moments], rising: when gradients become ready, never before the end of forward.
    ready : the tensors that become ready at each time.
    backward_end : the end of the backward pass.
    optimizer : duration of the optimiser step.
    asked_at : int64[communications], the start of those that passes wait for.
    """

    forward: Ints
    ready_at: Ints
    ready: tuple[tuple[int, ...], ...]
    backward_end: int
    optimizer: int
    asked_at: Ints

    @classmethod
    def of(cls, captured: Iteration) -> Timetable:
        """Return the timetable of a captured iteration, unscaled."""
        begin = np.maximum.accumulate(captured.forward_start_ps)
        begin[0] = 0
        end = max(int(captured.forward_end_ps.max()), int(begin[-1]))
        ready_at, moment = np.unique(np.maximum(captured.ready_ps, end), return_inverse=True)
        ready = tuple(tuple(np.flatnonzero(moment == index).tolist()) for index in range(len(ready_at)))
        backward_end = max(captured.backward_end_ps, int(ready_at[-1]))
        asked_at = captured.asked_ps
        return cls(np.append(begin, end), ready_at, ready, backward_end, captured.optimizer_ps, asked_at)

    def scaled(self, factor: float) -> Timetable:
        """Return all times multiplied. Offsets are rounded, not durations, so rounding errors do not add up."""
        if factor == 1.0:
            return self
        forward, ready_at, asked_at = (
            np.rint(times * factor).astype(np.int64) for times in (self.forward, self.ready_at, self.asked_at)
        )
        ends = round(self.backward_end * factor), round(self.optimizer * factor)
        return Timetable(forward, ready_at, self.ready, *ends, asked_at)

    def all_at_end(self) -> Timetable:
        """Return a copy with all gradients ready at the end of the backward pass, in their original order."""
        tensors = tuple(tensor for moment in self.ready for tensor in moment)
        return replace(self, ready_at=np.array([self.backward_end], dtype=np.int64), ready=(tensors,))


class CapturedIterations:
    """Captured iterations by worker: each worker cycles through those of one rank.

    If there are more workers than ranks, each further round of workers begins one iteration later.

    indices : all iterations that are replayed.
    """

    def __init__(self, trace: Trace, phase: str | None, where: str = "job") -> None:
        """Raises ScenarioError if the trace has no iteration of the selected phase."""
        self.indices = captured_iterations(trace, phase, where)
        by_rank: dict[int, list[int]] = {}
        for index in self.indices:
            by_rank.setdefault(trace.iterations[index].rank, []).append(index)
        self._by_rank = [by_rank[rank] for rank in sorted(by_rank)]

    def of(self, worker: int, iteration: int, micro: int = -1, micros: int = 1) -> int:
        """Return the trace's index of a micro-batch of a worker's iteration, which has `micros`."""
        round_, rank = divmod(worker, len(self._by_rank))
        captured = self._by_rank[rank]
        return captured[(iteration * micros + micro % micros + round_) % len(captured)]

    def period(self, workers: int, micros: int = 1) -> int:
        """Return the number of iterations after which all workers repeat."""
        return lcm(*(len(captured) // gcd(len(captured), micros) for captured in self._by_rank[:workers]))


class Replay:
    """Replay of a trace by the workers of one [[job]]."""

    def __init__(self, table: Any, trace: Trace, seed: int, where: str = "job") -> None:
        """`table` : the scenario's [[job]]; `where` : its path in the scenario, for messages.

        Raises ScenarioError if the trace has no iteration of the selected phase.
        """
        self.table, self.trace, self.seed = table, trace, seed
        self._captured = CapturedIterations(trace, table.phase, where)
        self._timetables = {index: Timetable.of(trace.iterations[index]) for index in self._captured.indices}
        self._first = self._timetables[self._captured.indices[0]]

    def captured(self, worker: int, iteration: int, micro: int = -1) -> int:
        """Return the trace's index of a worker's iteration; of several micro-batches the last one, whose gradients
        stand in for the sum."""
        return self._captured.of(worker, iteration, micro, self.table.accumulate)

    @property
    def period(self) -> int:
        """Number of iterations after which every worker repeats."""
        return self._captured.period(self.table.workers, self.table.accumulate)

    @property
    def ready_order(self) -> list[int]:
        """Tensors in the order in which their gradients became ready in the first captured iteration."""
        return [tensor for moment in self._first.ready for tensor in moment]

    def timetable(self, worker: int, iteration: int, micro: int = -1, slowness: float = 1.0) -> Timetable:
        """Return the timetable of a micro-batch of a worker's iteration; `slowness` is an additional compute factor."""
        table = self.table
        factor = self.factor(worker, iteration) * slowness
        timetable = self._timetables[self.captured(worker, iteration, micro)].scaled(factor)
        return timetable if table.optimizer is None else replace(timetable, optimizer=int(table.optimizer))

    def factor(self, worker: int, iteration: int) -> float:
        """Return the compute time of a worker's iteration relative to the capture."""
        table = self.table
        factor: float = table.compute_scale
        if table.jitter:
            key = (self.seed, zlib.crc32(table.name.encode()), worker, iteration)
            draw = np.random.default_rng(np.random.SeedSequence(key)).standard_normal()
            factor *= float(np.exp(table.jitter * draw))
        return factor


def captured_iterations(trace: Trace, phase: str | None, where: str = "job") -> list[int]:
    """Return the indices of the trace's iterations of a phase; None: of all. Raises ScenarioError if it lacks it."""
    if phase is None:
        return [iteration.index for iteration in trace.iterations]
    if phase not in trace.phases:
        raise ScenarioError(
            f"trace {trace.name} has no phase {phase!r}", where=f"{where}.phase", expected=" or ".join(trace.phases)
        )
    return trace.phases[phase]
