"""A data-parallel training job as a part of a program: its workers replay a captured trace.

A worker is a loop over iterations: forward, layer by layer, each when the parameters it needs are there;
then backward, during which gradients become ready one after the other and go to the job's exchange
(`gradwire.experiment.collectives`). Computing takes the captured time, waiting takes as long as the network makes it;
what follows what is `gradwire.experiment.courses`'.

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
from gradwire.experiment.collectives.base import Exchange, JobContext
from gradwire.experiment.collectives.merged import grown
from gradwire.experiment.courses import Courses, Past
from gradwire.experiment.placement import Places
from gradwire.experiment.program import FIRE, WAIT, Course, Ints, Part, Step, Table
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

    @classmethod
    def of(
        cls, table: Any, trace: Trace, places: Places, cards: Cards, *, number: int = 0, seed: int, payload: int,
        transport: int = 0, source: int = 0, where: str = "job", sums: bool = False,
    ) -> Job:  # fmt: skip
        """`number`: of the table in the program. `payload`: data bytes of a full packet. `sums`: switches can.

        Raises
        ------
        ScenarioError
            The trace has no iteration of the wanted phase.
        """
        replay = Replay(table, trace, seed, where)
        context = job_context(replay, places, cards, number, payload, where, sums)
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
            hosts=np.concatenate((context.nodes, exchange.threads)),
            workers=np.append(np.arange(table.workers), np.full(len(exchange.threads), -1)),
            stations=exchange.stations,
            steps=self._steps,
        )

    def _steps(self) -> Iterator[Step]:
        first, exchange = 0, self.exchange
        last, micros = self.table.iterations - 1, self.table.accumulate
        courses, past = Courses(self.table, self.trace, exchange), Past(exchange)
        for iteration in range(self.table.iterations):
            number = self.begin + iteration
            times = [
                [self._times(worker, number, micro) for micro in range(micros)] for worker in range(self.table.workers)
            ]
            ready = np.stack([_ready(each[-1]) for each in times])
            exchanged = replace(exchange.iteration(number, ready, iteration == last), micros=micros)
            step, seen = exchanged.step, None
            if exchange.staleness and iteration + exchange.staleness <= last:
                nodes = exchange.context.nodes
                seen = first + len(step) + np.arange(len(nodes))
                step = grown(step, nodes, np.ones_like(nodes))
            gates = np.where(exchanged.gates >= 0, exchanged.gates + first, -1)
            past.add(iteration, gates, [plans[-1].optimizer for plans in times], seen)
            rows = [
                courses.of(worker, iteration, plans, exchanged, first, past) for worker, plans in enumerate(times)
            ]
            behind = tuple(_moved(each, first) for each in exchanged.threads)
            yield replace(step, courses=tuple(Course(worker, each) for worker, each in enumerate(rows)) + behind)
            first += len(step)

    def _times(self, worker: int, iteration: int, micro: int) -> Timetable:
        """What a worker does, and when it hands over gradients."""
        plan = self.replay.timetable(worker, iteration, micro)
        return plan.held_back() if self.exchange.context.scheduling.starts == "backward" else plan


def job_context(
    replay: Replay, places: Places, cards: Cards, number: int, payload: int, where: str = "job",
    sums: bool = False,
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
        sums=sums,
    )


def _moved(course: Course, first: int) -> Course:
    """A course whose events were counted from those of its step, counted through."""
    rows = course.operations.copy()
    rows[np.isin(rows[:, 0], (FIRE, WAIT)), 1] += first
    return Course(course.process, rows)


def _ready(plan: Timetable) -> Ints:
    """When every tensor is ready, from the beginning of the iteration and if nothing is waited for."""
    found = np.zeros(sum(map(len, plan.ready)), dtype=np.int64)
    for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
        found[list(tensors)] = moment
    return found
