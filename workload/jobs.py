"""`Job` builds the program part of a data-parallel training job, whose workers replay a captured trace.

A worker is a loop over iterations: forward, layer by layer, each when the parameters it needs have arrived; then
backward, during which gradients become ready one after the other and go to the job's exchange
(`gradwire.workload.collectives`). Computing takes the captured time (`gradwire.workload.replay`), waiting as long as
the network takes; `gradwire.workload.worker_schedule` defines the order.

Recorded per worker and iteration:

* START: the worker begins the forward step of layer 0 (its parameters have arrived);
* FORWARD_END, BACKWARD_END: the end of each pass;
* END: the start of the next iteration; of the last one: everything has arrived (and the optimiser has run, if workers
  run it), so the iteration times of a worker add up to its whole run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradwire.scenarios.loading.user_code_errors import asked
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import HostCards
from gradwire.topology.placement import HostAssignment
from gradwire.traces.trace import Trace
from gradwire.workload.collectives.common.base import Exchange, JobContext
from gradwire.workload.collectives.common.model_parallel import SplitModel
from gradwire.workload.loss_bounds import JobLossBounds
from gradwire.workload.program import Ints, MessageColumns, ProcessOperations, ProgramPart, Repeats, Step, StepSkip
from gradwire.workload.replay import Replay, Timetable
from gradwire.workload.scheduling import LAYER, scheduling_of
from gradwire.workload.steps import add_events, shift_events
from gradwire.workload.worker_schedule import GateHistory, WorkerOperations


@dataclass(eq=False)
class Job:
    """One [[job]] of a scenario.

    table : the scenario's.
    exchange : its collective, which creates its messages.
    replay : the replayed iterations.
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
    def in_scenario(
        cls,
        scenario: Scenario,
        table: Any,
        trace: Trace,
        assignment: HostAssignment,
        cards: HostCards,
        *,
        number: int = 0,
        source: int = 0,
        where: str = "job",
    ) -> Job:
        """Return the job of a table with the settings of its scenario. `number`: of the table in the program.

        Raises ScenarioError if the trace has no iteration of the selected phase.
        """
        from gradwire.traces.tagging import Tagger, layer_priorities  # only an exchange needs tagging

        seed, tagging = scenario.seed, table.tagging
        replay = Replay(table, trace, seed, where)
        priorities = [0] * len(trace.tensors)
        if tagging.layer_priority:
            priorities = [int(value) for value in layer_priorities(trace, tagging.priorities)]
        context = JobContext(
            number=number,
            table=table,
            trace=trace,
            workers=assignment.workers,
            servers=assignment.servers,
            cards=cards,
            priorities=priorities,
            captured=replay.captured,
            ready_order=replay.ready_order,
            tagger=Tagger(trace, tagging, seed) if tagging.magnitude else None,
            payload=(table.transport or scenario.transport).payload,
            bounds=JobLossBounds(table, trace, replay.captured, number, where),
            seed=seed,
            scheduling=scheduling_of(table, trace),
            sums=scenario.switch.aggregation_slots > 0,
        )
        with asked(table.exchange, "collective", f"{where}.exchange"):
            exchange = table.exchange.collective(context) if table.parallel is None else SplitModel(context, where)
        return cls(table, trace, replay, exchange, scenario.transport_of(table), source)

    @property
    def part(self) -> ProgramPart:
        """The program part of the job."""
        context, table, exchange = self.exchange.context, self.table, self.exchange
        scheduling = context.scheduling
        order, credit, apart = scheduling.order, scheduling.credit_of(exchange.unit_bytes), scheduling.apart
        if exchange.slots:
            order, credit, apart = LAYER, exchange.slots * exchange.unit_bytes, exchange.slots_apart
        widest = max(tensor.element_bytes for tensor in self.trace.tensors)
        kind = (table.name, self.transport, order, credit, True, widest, self.source)
        return ProgramPart(
            MessageColumns(*kind, *exchange.buckets_and_segments, apart=apart, slices=exchange.slices),
            hosts=np.concatenate((context.nodes, exchange.threads)),
            workers=np.append(np.arange(table.workers), np.full(len(exchange.threads), -1)),
            stations=exchange.stations,
            steps=lambda: JobSteps(self),
            repeats=self._repeats,
            reach=1 + exchange.staleness,
        )

    @property
    def _repeats(self) -> Repeats:
        """The job's periodic iterations. The first ones lack predecessors to wait for, and the last ones have no
        successor that waits."""
        table, exchange = self.table, self.exchange
        if not vars(type(exchange)).get("repeats", False):
            return Repeats(why=f"the exchange {table.exchange.kind} does not declare that its iterations repeat")
        stale, varies = exchange.staleness, ""
        if table.jitter:
            varies = "compute times vary (jitter)"
        elif table.bound_per == "step":
            varies = 'each iteration has its own loss budget (bound_per = "step")'
        return Repeats(self.replay.period, 2 + stale, table.iterations - 1 - max(1, stale), varies=varies)


class JobSteps:
    """The steps of a job, one by one."""

    def __init__(self, job: Job) -> None:
        self._job, self._iteration, self._first = job, 0, 0
        self._courses, self._past = WorkerOperations(job.table, job.trace, job.exchange), GateHistory(job.exchange)

    def __iter__(self) -> JobSteps:
        return self

    def jump(self, jump: StepSkip) -> None:
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
            [job.replay.timetable(worker, number, micro) for micro in range(table.accumulate)]
            for worker in range(table.workers)
        ]
        if exchange.context.scheduling.starts == "backward":
            times = [[plan.all_at_end() for plan in plans] for plans in times]
        ready = np.stack([_ready(plans[-1]) for plans in times])
        exchanged = replace(exchange.iteration(number, ready, iteration == last), micros=table.accumulate)
        step, seen = exchanged.step, None
        if exchange.staleness and iteration + exchange.staleness <= last:
            nodes = exchange.context.nodes
            seen = first + len(step) + np.arange(len(nodes))
            step = add_events(step, nodes, np.ones_like(nodes))
        gates = np.where(exchanged.gates >= 0, exchanged.gates + first, -1)
        past.add(iteration, gates, [plans[-1].optimizer for plans in times], seen)
        rows = [
            self._courses.of(worker, iteration, plans, exchanged, first, past) for worker, plans in enumerate(times)
        ]
        self._iteration, self._first = iteration + 1, first + len(step)
        factor = partial(job.replay.factor, iteration=number)
        own = tuple(ProcessOperations(worker, row) for worker, row in enumerate(rows))
        if (others := exchange.courses(iteration, factor, table.start)) is not None:
            own = ()
        else:
            others = exchanged.threads
        counted = (course._replace(operations=shift_events(course.operations, first)) for course in others)
        return replace(step, courses=(*own, *counted))


def _ready(plan: Timetable) -> Ints:
    """Return the ready time of every tensor, from the beginning of the iteration, if nothing is waited for."""
    ready = np.zeros(sum(map(len, plan.ready)), dtype=np.int64)
    for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
        ready[list(tensors)] = moment
    return ready
