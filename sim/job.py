"""A data-parallel training job: its workers as SimPy processes that replay a captured trace.

A worker is a loop over iterations: forward, layer by layer, each when the parameters it needs are there;
then backward, during which gradients become ready one after the other and go to the job's exchange
(`gradwire.sim.collectives`). Computing takes the captured time, waiting takes as long as the network makes it.

Which captured iteration it replays, and how long that takes, is `gradwire.experiment.replay`'s.

What is measured, per worker and iteration:

* `start`: the worker begins the forward step of layer 0 (its parameters are there);
* `forward_end`, `backward_end`: as the words say;
* `end`: the start of the next iteration; of the last one: everything has arrived (and the optimiser has
  run, where workers run it), so the iteration times of a worker add up to its whole run;
* `compute`: captured, scaled time spent computing in between; `exposed` = end - start - compute: time spent
  waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import simpy

from gradwire.experiment.placement import Places
from gradwire.experiment.replay import Replay, Timetable
from gradwire.experiment.topology import Cards
from gradwire.sim.collectives import ALL_LAYERS, Inbox, JobContext, make_exchange
from gradwire.sim.coupling import Coupling, Message
from gradwire.sim.schedulers import SCHEDULERS, Scheduler
from gradwire.traces.trace import Trace

Slowness = Callable[[int, int], float]
"""(number of a host, picoseconds) -> how many times longer computing takes there"""


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
        slowness: Slowness = lambda host, now: 1.0,
    ) -> None:
        """Nothing runs before `start`. `transport` is the fabric's number of what carries the messages, `payload` its
        bytes of a full packet. `slowness`: how many times longer computing takes on a host (its number) at a time.

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
        self.transport = transport
        self._slowness = slowness
        self.records: list[IterationRecord] = []
        self._ended = [0] * table.workers  # iterations
        self._coupling = coupling
        self._env = coupling.env
        self.replay = Replay(table, trace, seed, where)
        self._blocked: dict[int, tuple[int, int]] = {}  # worker -> (iteration, layer) it waits for
        self._schedulers: dict[int, Scheduler] = {}
        context = job_context(
            self.replay, places, cards, payload, transport, coupling.env, self._post,
            coupling if coupling.programs and table.order == "fifo" else None,
        )  # fmt: skip
        self.exchange = make_exchange(table.exchange.kind, context)
        self._gated = [layer for layer, pieces in enumerate(self.exchange.pieces()) if pieces]

    @property
    def total(self) -> int:
        """Rows that `records` has when the job is done."""
        return self.table.workers * self.table.iterations

    @property
    def done(self) -> bool:
        return len(self.records) == self.total

    @property
    def iterations(self) -> int:
        """Iterations that are over at all workers."""
        return min(self._ended)

    @property
    def expected_bytes(self) -> int:
        """Of the messages of all iterations."""
        return int(self.exchange.bytes_per_iteration * self.table.iterations)

    def start(self) -> None:
        """Make the workers processes of the coupling's environment."""
        for worker in range(self.table.workers):
            self._env.process(self._worker(worker))

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
        slowness = self._slowness(self.places.workers[worker], int(self._env.now))
        return self.replay.timetable(worker, iteration, slowness)

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
            self._ended[worker] += 1
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


def job_context(
    replay: Replay,
    places: Places,
    cards: Cards,
    payload: int,
    transport: int,
    env: Any,
    post: Callable[[Message], None],
    coupling: Coupling | None = None,
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
        name=table.name,
        env=env,
        trace=trace,
        table=table,
        workers=places.workers,
        servers=places.servers,
        cards=cards,
        post=post,
        coupling=coupling,
        priorities=priorities,
        captured=replay.captured,
        ready_order=replay.ready_order,
        tagger=Tagger(trace, tagging, replay.seed) if tagging.magnitude else None,
        payload=payload,
        transport=transport,
    )
