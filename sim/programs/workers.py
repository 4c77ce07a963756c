"""The workers of a job: computing, waiting and gradients that become ready, as `gradwire.sim.job` has it.

An exchange says for every worker, iteration and tensor which events a gradient fires, and which event a layer (or the
end of an iteration) waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
)
from gradwire.experiment.replay import Replay, Timetable
from gradwire.sim.collectives import ALL_LAYERS, Exchange
from gradwire.sim.programs.builder import Builder, Course, Event


@dataclass(eq=False)
class Job:
    """A job under construction.

    Attributes
    ----------
    number : of its table.
    nodes : of its workers.
    fires : (worker, iteration, tensor) -> events that the gradient fires, in order.
    gates : (worker, iteration, layer or ALL_LAYERS) -> what is waited for.
    """

    builder: Builder
    number: int
    table: Any
    exchange: Exchange
    replay: Replay
    nodes: tuple[int, ...]
    fires: dict[tuple[int, int, int], list[Event]] = field(default_factory=dict)
    gates: dict[tuple[int, int, int], Event] = field(default_factory=dict)
    _timetables: dict[tuple[int, int], Timetable] = field(default_factory=dict)

    def fire(self, worker: int, iteration: int, tensor: int, event: Event) -> None:
        """A gradient that is ready counts towards an event."""
        event.needs += 1
        self.fires.setdefault((worker, iteration, tensor), []).append(event)

    def gate(self, worker: int, iteration: int, layer: int) -> Event:
        """What a worker waits for that needs a layer of an iteration's result: the layer itself, or everything."""
        if not self.exchange.layerwise or iteration == self.table.iterations - 1:
            layer = ALL_LAYERS
        key = (worker, iteration, layer)
        if key not in self.gates:
            self.gates[key] = self.builder.event(self.nodes[worker])
        return self.gates[key]

    def timetable(self, worker: int, iteration: int) -> Timetable:
        """`Replay.timetable`, remembered."""
        key = (worker, iteration)
        if key not in self._timetables:
            self._timetables[key] = self.replay.timetable(worker, iteration)
        return self._timetables[key]

    def ready_ps(self, worker: int, iteration: int) -> dict[int, int]:
        """When every tensor is ready, from the beginning of the iteration and if nothing is waited for."""
        plan = self.timetable(worker, iteration)
        moments = zip(plan.ready_at.tolist(), plan.ready, strict=True)
        return {tensor: moment for moment, tensors in moments for tensor in tensors}

    def add_workers(self) -> None:
        """Write the processes down: when the exchange has said all that it has to say."""
        for worker, node in enumerate(self.nodes):
            steps = list(self._steps(worker))
            compute = tuple(
                self._compute(self.timetable(worker, iteration)) for iteration in range(self.table.iterations)
            )
            self.builder.process(node, self.number, worker, steps, compute)

    def _compute(self, plan: Timetable) -> int:
        return plan.backward_end + (plan.optimizer if self.exchange.worker_optimizes else 0)

    def _steps(self, worker: int) -> Iterator[Course]:
        if self.table.start:
            yield (UNTIL, self.table.start)
        last = self.table.iterations - 1
        for iteration in range(self.table.iterations):
            plan = self.timetable(worker, iteration)
            yield (NOTE, START, iteration)
            yield from self._forward(worker, iteration, plan)
            yield (NOTE, FORWARD_END, iteration)
            yield from self._backward(worker, iteration, plan)
            yield (NOTE, BACKWARD_END, iteration)
            layer = 0 if self.exchange.layerwise and iteration < last else ALL_LAYERS
            yield from self._wait(worker, iteration, layer)
            if self.exchange.worker_optimizes and plan.optimizer:
                yield (COMPUTE, plan.optimizer)
            yield (NOTE, END, iteration)

    def _wait(self, worker: int, iteration: int, layer: int) -> Iterator[Course]:
        gate = self.gates.get((worker, iteration, layer))
        if gate is not None:
            yield (WAIT, gate, iteration)

    def _forward(self, worker: int, iteration: int, plan: Timetable) -> Iterator[Course]:
        begin, done = plan.forward.tolist(), 0
        if iteration and self.exchange.layerwise:
            for layer, pieces in enumerate(self.exchange.pieces()):
                if not pieces:
                    continue
                if begin[layer] > done:
                    yield (COMPUTE, begin[layer] - done)
                    done = begin[layer]
                yield from self._wait(worker, iteration - 1, layer)
        if begin[-1] > done:
            yield (COMPUTE, begin[-1] - done)

    def _backward(self, worker: int, iteration: int, plan: Timetable) -> Iterator[Course]:
        done = int(plan.forward[-1])
        for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
            if moment > done:
                yield (COMPUTE, moment - done)
                done = moment
            for tensor in tensors:
                for event in self.fires.get((worker, iteration, tensor), ()):
                    yield (FIRE, event)
        if plan.backward_end > done:
            yield (COMPUTE, plan.backward_end - done)
