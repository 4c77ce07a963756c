"""A data-parallel training job: its workers as SimPy processes that replay a captured trace.

A worker is a loop over iterations: forward, layer by layer, each when the parameters it needs are there;
then backward, during which gradients become ready one after the other and go to the job's exchange
(`sim.collectives`). Computing takes the captured time, waiting takes as long as the network makes it.

A trace may hold the iterations of R ranks.  Worker w replays those of rank w mod R, in its iteration i the
captured iteration (i + w div R) mod n of that rank in the chosen phase: the first R workers are those that
were recorded together, and further ones differ from them as iterations of one worker did.  All its times
are multiplied by the job's `compute_scale` and, with jitter, by a log-normal factor of median 1 that depends
on nothing but (seed, job, worker, iteration).

What is measured, per worker and iteration:

* `start`: the worker begins the forward step of layer 0 (its parameters are there);
* `forward_end`, `backward_end`: as the words say;
* `end`: the start of the next iteration; of the last one: everything has arrived (and the optimiser has
  run, where workers run it), so the iteration times of a worker add up to its whole run;
* `compute`: captured, scaled time spent computing in between; `exposed` = end - start - compute: time spent
  waiting.

Time that the capture spent between two layers belongs to the earlier one, and what it spent before layer 0
(such as loading the batch) to layer 0 (our choice).
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from scenarios.errors import ScenarioError
from sim.collectives import ALL_LAYERS, Inbox, JobContext, make_exchange
from sim.coupling import Coupling, Message
from sim.placement import Places
from sim.schedulers import SCHEDULERS, Scheduler
from sim.topology import Cards
from traces.trace import Iteration, Trace

Times = NDArray[np.int64]


class IterationRecord(NamedTuple):
    """One row of the Result's table of iterations; times are picoseconds since the start of the
    simulation."""

    job: str
    worker: int
    iteration: int
    start_ps: int
    forward_end_ps: int
    backward_end_ps: int
    end_ps: int
    compute_ps: int
    exposed_ps: int


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
    """

    forward: Times
    ready_at: Times
    ready: tuple[tuple[int, ...], ...]
    backward_end: int
    optimizer: int

    @classmethod
    def of(cls, captured: Iteration) -> Timetable:
        """The timetable of a captured iteration, unscaled."""
        begin = np.maximum.accumulate(captured.forward_start_ps)
        begin[0] = 0
        end = max(int(captured.forward_end_ps.max()), int(begin[-1]))
        ready_at, moment = np.unique(np.maximum(captured.ready_ps, end), return_inverse=True)
        ready = tuple(tuple(np.flatnonzero(moment == index).tolist()) for index in range(len(ready_at)))
        backward_end = max(captured.backward_end_ps, int(ready_at[-1]))
        return cls(np.append(begin, end), ready_at, ready, backward_end, captured.optimizer_ps)

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
        )


class TrainingJob:
    """The workers of one [[job]] and what they exchange.

    Attributes
    ----------
    records : a row per finished iteration of a worker, in order of finishing.
    exchange : the job's `Exchange`.
    """

    def __init__(
        self,
        table: Any,
        trace: Trace,
        coupling: Coupling,
        places: Places,
        cards: Cards,
        *,
        seed: int,
        payload: int,
        transport: int = 0,
        where: str = "job",
    ) -> None:
        """Nothing runs before `start`. `transport` is the fabric's number of what carries the messages, `payload` its
        bytes of a full packet.

        Raises
        ------
        ScenarioError
            The trace has no iteration of the wanted phase.
        """
        self.table = table
        self.name: str = table.name
        self.trace = trace
        self.places = places
        self.cards = cards
        self.seed = seed
        self.transport = transport
        self.records: list[IterationRecord] = []
        self._coupling = coupling
        self._env = coupling.env
        self._captured = captured_iterations(trace, table.phase, where)
        self._by_rank = _by_rank(trace, self._captured)
        self._timetables = {index: Timetable.of(trace.iterations[index]) for index in self._captured}
        self._blocked: dict[int, tuple[int, int]] = {}  # worker -> (iteration, layer) it waits for
        self._schedulers: dict[int, Scheduler] = {}
        self.exchange = make_exchange(table.exchange.kind, self._context(payload))
        self._gated = [layer for layer, pieces in enumerate(self.exchange.pieces()) if pieces]

    @property
    def total(self) -> int:
        """Rows that `records` has when the job is done."""
        return self.table.workers * self.table.iterations

    @property
    def done(self) -> bool:
        return len(self.records) == self.total

    @property
    def share(self) -> float:
        """0 to 1: how many of the results of all iterations have reached their workers."""
        return max(len(self.records), self.exchange.received) / self.total

    def start(self) -> None:
        """Make the workers processes of the coupling's environment."""
        for worker in range(self.table.workers):
            self._env.process(self._worker(worker))

    def captured(self, worker: int, iteration: int) -> int:
        """Index in the trace of the iteration that a worker replays."""
        round_, rank = divmod(worker, len(self._by_rank))
        mine = self._by_rank[rank]
        return mine[(iteration + round_) % len(mine)]

    def waiting(self) -> list[str]:
        """For the report of a stall: one line per worker that waits."""
        lines = []
        for worker, (iteration, layer) in sorted(self._blocked.items()):
            what = "all layers" if layer == ALL_LAYERS else f"layer {layer} ({self.trace.layers[layer]})"
            reasons = self.exchange.explain(worker, iteration, layer)
            more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            lines.append(
                f"job {self.name}: worker {worker} on {self._host(worker)} waits for {what} of iteration "
                f"{iteration}: {'; '.join(reasons[:3])}{more}"
            )
        return lines

    def _host(self, worker: int) -> str:
        return self.cards.hosts[self.places.workers[worker]]

    def _context(self, payload: int) -> JobContext:
        # Imported here: tagging is not needed to know what a job is.
        from traces.messages import Tagger, layer_priorities

        tagging = self.table.tagging
        priorities: Sequence[int] = [0] * len(self.trace.tensors)
        if tagging.layer_priority:
            priorities = [int(value) for value in layer_priorities(self.trace, tagging.priorities)]
        first = self._timetables[self._captured[0]]
        return JobContext(
            name=self.name,
            env=self._env,
            trace=self.trace,
            table=self.table,
            workers=self.places.workers,
            servers=self.places.servers,
            cards=self.cards,
            post=self._post,
            coupling=self._coupling if self._coupling.programs and self.table.order == "fifo" else None,
            priorities=priorities,
            captured=self.captured,
            ready_order=[tensor for moment in first.ready for tensor in moment],
            tagger=Tagger(self.trace, tagging, self.seed) if tagging.magnitude else None,
            payload=payload,
            transport=self.transport,
        )

    def _post(self, message: Message) -> None:
        """A message is ready: note the time and let the scheduler of its host's network card release it."""
        message.start_ps = int(self._env.now)
        message.transport = self.transport
        scheduler = self._schedulers.get(message.src)
        if scheduler is None:
            kind = SCHEDULERS[self.table.order]
            scheduler = self._schedulers[message.src] = kind(self._coupling.send, self.exchange.unit_bytes)
        scheduler.offer(message)

    def _timetable(self, worker: int, iteration: int) -> Timetable:
        factor = self.table.compute_scale
        if self.table.jitter:
            key = (self.seed, zlib.crc32(self.name.encode()), worker, iteration)
            draw = np.random.default_rng(np.random.SeedSequence(key)).standard_normal()
            factor *= float(np.exp(self.table.jitter * draw))
        return self._timetables[self.captured(worker, iteration)].scaled(factor)

    def _worker(self, worker: int) -> Generator[simpy.Event, Any, None]:
        """The life of one worker."""
        env, exchange = self._env, self.exchange
        last = self.table.iterations - 1
        inbox: Inbox | None = None
        if self.table.start:
            yield env.timeout(self.table.start)
        for iteration in range(self.table.iterations):
            plan = self._timetable(worker, iteration)
            start = int(env.now)
            yield from self._forward(worker, iteration, plan, inbox)
            exchange.forget(worker, iteration - 1)
            forward_end = int(env.now)
            yield from self._backward(worker, iteration, plan)
            backward_end = int(env.now)
            inbox = exchange.inbox(worker, iteration)
            layer = 0 if exchange.layerwise and iteration < last else ALL_LAYERS
            yield from self._await(worker, iteration, inbox, layer)
            compute = plan.backward_end
            if exchange.worker_optimizes and plan.optimizer:
                yield env.timeout(plan.optimizer)
                compute += plan.optimizer
            end = int(env.now)
            exposed = end - start - compute
            times = (start, forward_end, backward_end, end, compute, exposed)
            self.records.append(IterationRecord(self.name, worker, iteration, *times))
        exchange.forget(worker, last)

    def _forward(
        self, worker: int, iteration: int, plan: Timetable, inbox: Inbox | None
    ) -> Generator[simpy.Event, Any, None]:
        """All layers; each waits for its own parameters, if the exchange is layer-wise."""
        env, begin = self._env, plan.forward.tolist()
        done = 0
        if inbox is not None and self.exchange.layerwise:
            for layer in self._gated:
                if not inbox.total:
                    break  # everything is here: the rest of the layers is one stretch of time
                if begin[layer] > done:
                    yield env.timeout(begin[layer] - done)
                    done = begin[layer]
                yield from self._await(worker, iteration - 1, inbox, layer)
        if begin[-1] > done:
            yield env.timeout(begin[-1] - done)

    def _backward(self, worker: int, iteration: int, plan: Timetable) -> Generator[simpy.Event, Any, None]:
        """From the end of forward: gradients become ready and are handed to the exchange."""
        env, done = self._env, int(plan.forward[-1])
        for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
            if moment > done:
                yield env.timeout(moment - done)
                done = moment
            for tensor in tensors:
                self.exchange.gradient_ready(worker, iteration, tensor)
        if plan.backward_end > done:
            yield env.timeout(plan.backward_end - done)

    def _await(
        self, worker: int, iteration: int, inbox: Inbox, layer: int
    ) -> Generator[simpy.Event, Any, None]:
        if inbox.lacks(layer):
            self._blocked[worker] = (iteration, layer)
            yield inbox.wait(self._env, layer)
            del self._blocked[worker]


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
