"""A data-parallel training job as a part of a program: its workers replay a captured trace.

A worker is a loop over iterations: forward, layer by layer, each when the parameters it needs are there;
then backward, during which gradients become ready one after the other and go to the job's exchange
(`gradwire.experiment.collectives`). Computing takes the captured time, waiting takes as long as the network makes it.

Which captured iteration it replays, and how long that takes, is `gradwire.experiment.replay`'s.

What is noted, per worker and iteration:

* START: the worker begins the forward step of layer 0 (its parameters are there);
* FORWARD_END, BACKWARD_END: as the words say;
* END: the start of the next iteration; of the last one: everything has arrived (and the optimiser has
  run, where workers run it), so the iteration times of a worker add up to its whole run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradwire.experiment.bounds import Bounds
from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext
from gradwire.experiment.placement import Places
from gradwire.experiment.program import (
    BACKWARD_END,
    COMPUTE,
    END,
    FIRE,
    FORWARD_END,
    NOTE,
    START,
    UNTIL,
    WAIT,
    Course,
    Ints,
    Part,
    Step,
    Table,
)
from gradwire.experiment.replay import Replay, Timetable
from gradwire.experiment.scheduling import LAYER, scheduling_of
from gradwire.experiment.topology import Cards
from gradwire.scenarios.asked import asked
from gradwire.traces.trace import Trace


@dataclass(eq=False)
class Job:
    """One [[job]] of a scenario.

    Attributes
    ----------
    table : the scenario's.
    exchange : its collective, which knows its messages.
    replay : what its workers replay.
    """

    table: Any
    trace: Trace
    replay: Replay
    exchange: Exchange
    transport: int
    source: int
    """number of the trace among those of the program"""
    begin: int = 0
    """number of its first iteration"""

    def __post_init__(self) -> None:
        nbytes = np.zeros(len(self.trace.layers) + 1, dtype=np.int64)
        for tensor in self.trace.tensors:
            nbytes[tensor.layer + 1] += tensor.bytes
        self._cumulated = np.cumsum(nbytes)  # bytes of the layers before each
        self._optimizer: list[int] = []  # of every worker, in the iteration before

    @classmethod
    def of(
        cls, table: Any, trace: Trace, places: Places, cards: Cards, *, number: int = 0, seed: int, payload: int,
        transport: int = 0, source: int = 0, where: str = "job",
    ) -> Job:  # fmt: skip
        """`number`: of the table in the program. `payload`: data bytes of a full packet.

        Raises
        ------
        ScenarioError
            The trace has no iteration of the wanted phase.
        """
        replay = Replay(table, trace, seed, where)
        context = job_context(replay, places, cards, number, payload, where)
        with asked(table.exchange, "collective", f"{where}.exchange"):
            exchange = table.exchange.collective(context)
        return cls(table, trace, replay, exchange, transport, source)

    @property
    def part(self) -> Part:
        """What it does."""
        context, table, exchange = self.exchange.context, self.table, self.exchange
        scheduling = context.scheduling
        order, credit, apart = scheduling.order, scheduling.credit_of(exchange.unit_bytes), scheduling.apart
        if exchange.slots:
            order, credit, apart = LAYER, exchange.slots * exchange.unit_bytes, exchange.slots_apart
        widest = max(tensor.element_bytes for tensor in self.trace.tensors)
        buckets, segments = exchange.buckets_and_segments
        return Part(
            Table(
                table.name, self.transport, order, credit, True, widest, self.source, buckets, segments,
                apart=apart, slices=exchange.slices,
            ),
            hosts=context.nodes,
            workers=np.arange(table.workers),
            stations=exchange.stations,
            steps=self._steps,
        )

    def _steps(self) -> Iterator[Step]:
        first, before = 0, None
        last = self.table.iterations - 1
        for iteration in range(self.table.iterations):
            number = self.begin + iteration
            times = [self._times(worker, number) for worker in range(self.table.workers)]
            ready = np.stack([_ready(each) for each in times])
            exchanged = self.exchange.iteration(number, ready, iteration == last)
            courses = tuple(
                Course(worker, self._course(worker, iteration, plan, exchanged, first, before))
                for worker, plan in enumerate(times)
            )
            yield replace(exchanged.step, courses=courses)
            self._optimizer = [plan.optimizer for plan in times]
            before = np.where(exchanged.gates >= 0, exchanged.gates + first, -1)
            first += len(exchanged.step)

    def _times(self, worker: int, iteration: int) -> Timetable:
        """What a worker does, and when it hands over gradients."""
        plan = self.replay.timetable(worker, iteration)
        return plan.held_back() if self.exchange.context.scheduling.starts == "backward" else plan

    def _course(
        self, worker: int, iteration: int, plan: Timetable, exchanged: Exchanged, first: int, before: Ints | None
    ) -> Ints:
        """What a worker does in an iteration, whose events are counted from `first`. `before`: the gates of the one
        before, counted through."""
        last, exchange = self.table.iterations - 1, self.exchange
        rows: list[tuple[int, int, int]] = []
        if iteration == 0 and self.table.start:
            rows.append((UNTIL, self.table.start, -1))
        rows.append((NOTE, START, iteration))
        begin, done = plan.forward.tolist(), 0
        if before is not None and exchange.layerwise:
            for layer, gate in enumerate(before[worker, :-1].tolist()):
                if gate < 0:
                    continue
                if begin[layer] > done:
                    rows.append((COMPUTE, begin[layer] - done, -1))
                    done = begin[layer]
                rows.append((WAIT, gate, iteration - 1))
                if exchange.worker_optimizes and (share := self._optimizer_share(worker, layer)):
                    rows.append((COMPUTE, share, -1))
        if begin[-1] > done:
            rows.append((COMPUTE, begin[-1] - done, -1))
        rows.append((NOTE, FORWARD_END, iteration))
        done = begin[-1]
        place, events = exchanged.fires[0][worker * len(self.trace.tensors) :], exchanged.fires[1]
        for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
            if moment > done:
                rows.append((COMPUTE, moment - done, -1))
                done = moment
            for tensor in tensors:
                rows += [(FIRE, first + event, -1) for event in events[place[tensor] : place[tensor + 1]].tolist()]
        if plan.backward_end > done:
            rows.append((COMPUTE, plan.backward_end - done, -1))
        rows.append((NOTE, BACKWARD_END, iteration))
        layer = 0 if exchange.layerwise and iteration < last else -1
        if (gate := int(exchanged.gates[worker, layer])) >= 0:
            rows.append((WAIT, first + gate, iteration))
        if exchange.worker_optimizes and plan.optimizer and layer < 0:
            rows.append((COMPUTE, plan.optimizer, -1))
        rows.append((NOTE, END, iteration))
        return np.array(rows, dtype=np.int64)

    def _optimizer_share(self, worker: int, layer: int) -> int:
        """How long a layer takes of the optimiser step of the iteration before."""
        whole, time = self._cumulated[-1], self._optimizer[worker]
        low, high = (int(self._cumulated[each]) for each in (layer, layer + 1))
        return time * high // int(whole) - time * low // int(whole)


def job_context(
    replay: Replay, places: Places, cards: Cards, number: int, payload: int, where: str = "job"
) -> JobContext:
    """What the exchange of a job is given; see `JobContext`."""
    # Imported here: tagging is not needed to know what a job is.
    from gradwire.traces.messages import Tagger, layer_priorities

    table, trace = replay.table, replay.trace
    tagging = table.tagging
    priorities: Sequence[int] = [0] * len(trace.tensors)
    if tagging.layer_priority:
        priorities = [int(value) for value in layer_priorities(trace, tagging.priorities)]
    return JobContext(
        number=number,
        table=table,
        trace=trace,
        workers=places.workers,
        servers=places.servers,
        cards=cards,
        priorities=priorities,
        captured=replay.captured,
        ready_order=replay.ready_order,
        tagger=Tagger(trace, tagging, replay.seed) if tagging.magnitude else None,
        payload=payload,
        bounds=Bounds(table, trace, replay.captured, number, where),
        seed=replay.seed,
        scheduling=scheduling_of(table, trace),
    )


def _ready(plan: Timetable) -> Ints:
    """When every tensor is ready, from the beginning of the iteration and if nothing is waited for."""
    found = np.zeros(sum(map(len, plan.ready)), dtype=np.int64)
    for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
        found[list(tensors)] = moment
    return found
