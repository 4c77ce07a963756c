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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradwire.experiment.bounds import Bounds
from gradwire.experiment.collectives.base import Exchange, JobContext
from gradwire.experiment.collectives.merged import grown
from gradwire.experiment.collectives.parallel import SplitModel
from gradwire.experiment.courses import Courses, Past
from gradwire.experiment.placement import Places
from gradwire.experiment.program import FIRE, WAIT, Course, Ints, Jump, Part, Repeats, Step, Table
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
            exchange = table.exchange.collective(context) if table.parallel is None else SplitModel(context, where)
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
            steps=lambda: Iterations(self),
            repeats=self._repeats,
            reach=1 + exchange.staleness,
        )

    @property
    def _repeats(self) -> Repeats:
        """Which of its iterations are alike. The first ones find nothing there of those before, and behind the last
        ones there is nothing to wait for."""
        table, exchange = self.table, self.exchange
        if not vars(type(exchange)).get("repeats", False):
            return Repeats(why=f"nobody says that iterations of the exchange {table.exchange.kind} repeat themselves")
        stale, varies = exchange.staleness, ""
        if table.jitter:
            varies = "compute times vary (jitter)"
        elif table.bound_per == "step":
            varies = 'each iteration has a budget of losses of its own (bound_per = "step")'
        return Repeats(self.replay.period, 2 + stale, table.iterations - 1 - max(1, stale), varies=varies)


class Iterations:
    """The steps of a job, one by one."""

    def __init__(self, job: Job) -> None:
        self._job, self._iteration, self._first = job, 0, 0
        self._courses, self._past = Courses(job.table, job.trace, job.exchange), Past(job.exchange)

    def __iter__(self) -> Iterations:
        return self

    def jump(self, jump: Jump) -> None:
        self._iteration += jump.steps
        self._first += jump.events
        self._past.jump(jump)

    def __next__(self) -> Step:
        job, iteration, first, past = self._job, self._iteration, self._first, self._past
        table, exchange, number = job.table, job.exchange, job.begin + iteration
        last = table.iterations - 1
        if iteration > last:
            raise StopIteration
        times = [
            [self._times(worker, number, micro) for micro in range(table.accumulate)] for worker in range(table.workers)
        ]
        ready = np.stack([_ready(each[-1]) for each in times])
        exchanged = replace(exchange.iteration(number, ready, iteration == last), micros=table.accumulate)
        step, seen = exchanged.step, None
        if exchange.staleness and iteration + exchange.staleness <= last:
            nodes = exchange.context.nodes
            seen = first + len(step) + np.arange(len(nodes))
            step = grown(step, nodes, np.ones_like(nodes))
        gates = np.where(exchanged.gates >= 0, exchanged.gates + first, -1)
        past.add(iteration, gates, [plans[-1].optimizer for plans in times], seen)
        rows = [
            self._courses.of(worker, iteration, plans, exchanged, first, past) for worker, plans in enumerate(times)
        ]
        self._iteration, self._first = iteration + 1, first + len(step)
        factor = partial(job.replay.factor, iteration=number)
        if (own := exchange.courses(iteration, factor, table.start)) is not None:
            return replace(step, courses=tuple(_moved(each, first) for each in own))
        behind = tuple(_moved(each, first) for each in exchanged.threads)
        return replace(step, courses=tuple(Course(worker, each) for worker, each in enumerate(rows)) + behind)

    def _times(self, worker: int, iteration: int, micro: int) -> Timetable:
        """What a worker does, and when it hands over gradients."""
        plan = self._job.replay.timetable(worker, iteration, micro)
        return plan.held_back() if self._job.exchange.context.scheduling.starts == "backward" else plan


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
