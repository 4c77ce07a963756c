"""`WorkerOperations` lists a worker's operations in an iteration, namely captured compute times, gradients becoming
ready, and waits for the exchange.

Forward goes layer by layer, each when the parameters it needs have arrived; backward goes from one time at which
gradients become ready to the next. The exchange's gates (`ExchangedIteration`) define the waits: after the iteration,
layer by layer or all at once, and, if parameters are gathered for every pass or a pass has communications, inside the
iteration (`RoundAction`). At equal times of the backward pass back layers come first, and within a layer waits come
before the gradient.

With gradient accumulation an iteration has several micro-batches, each a captured forward and backward pass; gradients
are exchanged with the last one, unless the exchange uses those of all. The recorded times of passes are the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.traces.trace import Trace
from gradwire.workload.collectives.common.base import Exchange, ExchangedIteration, RoundAction
from gradwire.workload.csr import starts_of
from gradwire.workload.program import (
    BACKWARD_END,
    COMPUTE,
    END,
    FIRE,
    FORWARD_END,
    NOTE,
    START,
    UNTIL,
    WAIT,
    Ints,
    StepSkip,
)
from gradwire.workload.replay import Timetable

OperationRow = tuple[int, int, int]


class _TimedRows(list[OperationRow]):
    """Operations, and the time in the pass that they have reached if nothing was waited for."""

    def __init__(self, now: int) -> None:
        self._now = now

    def compute_until(self, moment: int) -> None:
        """Append computing up to a time in the pass, if it is still to come."""
        if moment > self._now:
            self.append((COMPUTE, moment - self._now, -1))
            self._now = moment


class WorkerOperations:
    """The courses of a job's workers, iteration by iteration."""

    def __init__(self, table: Any, trace: Trace, exchange: Exchange) -> None:
        """`table` : the scenario's [[job]]."""
        self._table, self._trace, self._exchange = table, trace, exchange
        self._cumulated = starts_of(trace.layer_bytes)  # bytes of the layers before each
        self._layer_of = np.array([tensor.layer for tensor in trace.tensors])
        calls = [(call.turn == "backward", call.layer, n) for n, call in enumerate(trace.communications)]
        self._forward_calls, self._backward_calls = (
            [(layer, n) for is_backward, layer, n in calls if is_backward == back] for back in (False, True)
        )

    def of(
        self,
        worker: int,
        iteration: int,
        plans: Sequence[Timetable],
        exchanged: ExchangedIteration,
        first: int,
        past: GateHistory,
    ) -> Ints:
        """Return a worker's operations in an iteration, whose events are counted from `first`.

        plans : of its micro-batches.
        past : the gates of iterations up to this one.
        """
        rows: list[OperationRow] = []
        if iteration == 0 and self._table.start:
            rows.append((UNTIL, self._table.start, -1))
        rows.append((NOTE, START, iteration))
        for micro, plan in enumerate(plans):
            visit = _Visit(exchanged, worker, micro, first, iteration)
            rows += self._forward(plan, visit, past.before(worker, iteration) if micro == 0 else None)
            if micro == len(plans) - 1:
                rows.append((NOTE, FORWARD_END, iteration))
            rows += self._backward(plan, visit)
        rows.append((NOTE, BACKWARD_END, iteration))
        rows += self._end(worker, iteration, plans[-1].optimizer, exchanged, first, past)
        rows.append((NOTE, END, iteration))
        return np.array(rows, dtype=np.int64)

    def _forward(self, plan: Timetable, visit: _Visit, before: tuple[Ints, int] | None) -> list[OperationRow]:
        rows = _TimedRows(0)
        begin, asked_at = plan.forward.tolist(), plan.asked_at.tolist()
        calls = [call for call in self._forward_calls if visit.call(call[1])]
        for layer in range(len(begin)):
            while calls and calls[0][0] < layer:
                number = calls.pop(0)[1]
                rows.compute_until(asked_at[number])
                rows += visit.call(number)
            if layer == len(begin) - 1:
                break
            gate = -1 if before is None else int(before[0][layer])
            share = 0 if before is None else self.share(before[1], layer)
            asked, fired = visit.at(False, layer), visit.forward(layer, len(begin))
            if gate < 0 and not share and not asked and not fired:
                continue
            rows.compute_until(begin[layer])
            rows += fired
            if gate >= 0:
                rows.append((WAIT, gate, visit.iteration - 1 - self._exchange.staleness))
            if share:
                rows.append((COMPUTE, share, -1))
            rows += asked
        rows.compute_until(begin[-1])
        return rows + visit.forward(len(begin) - 1, len(begin))

    def _backward(self, plan: Timetable, visit: _Visit) -> list[OperationRow]:
        rows = _TimedRows(int(plan.forward[-1]))
        if any(visit.call(number) for _, number in self._backward_calls):  # it waits between gradients
            asked_at, layer_of = plan.asked_at.tolist(), self._layer_of.tolist()
            turns = [(asked_at[number], -layer, 0, n, number) for n, (layer, number) in enumerate(self._backward_calls)]
            for moment, tensors in zip(plan.ready_at.tolist(), plan.ready, strict=True):
                turns += [(moment, -layer_of[tensor], 1, n, tensor) for n, tensor in enumerate(tensors)]
            for moment, _, is_gradient, _, number in sorted(turns):
                rows.compute_until(moment)
                rows += visit.ready(number) if is_gradient else visit.call(number)
        else:
            due = self._places(plan, visit.layers)
            for layer in due.get(-1, ()):
                rows += visit.at(True, layer)
            for number, (moment, tensors) in enumerate(zip(plan.ready_at.tolist(), plan.ready, strict=True)):
                rows.compute_until(moment)
                for tensor in tensors:
                    rows += visit.ready(tensor)
                for layer in due.get(number, ()):
                    rows += visit.at(True, layer)
        rows.compute_until(plan.backward_end)
        return rows

    def _places(self, plan: Timetable, layers: Sequence[int]) -> dict[int, list[int]]:
        """Return after which moment of the backward pass a worker reaches each of `layers`, which rise; -1: the
        beginning.

        It is after the last gradient of the layers behind, and before the first one of the layer itself and of those
        before it, down to the next of `layers`.
        """
        layers_at: dict[int, list[int]] = {}
        if not layers:
            return layers_at
        moment = np.empty(len(self._layer_of), dtype=np.int64)
        for number, tensors in enumerate(plan.ready):
            moment[list(tensors)] = number
        position = -1
        for layer, below in zip(reversed(layers), [*reversed(layers[:-1]), -1], strict=True):
            behind = moment[self._layer_of > layer]
            current = moment[(self._layer_of <= layer) & (self._layer_of > below)]
            candidate = min(int(behind.max(initial=-1)), int(current.min(initial=len(plan.ready))) - 1)
            position = max(position, candidate)
            layers_at.setdefault(position, []).append(layer)
        return layers_at

    def _end(
        self, worker: int, iteration: int, optimizer: int, exchanged: ExchangedIteration, first: int, past: GateHistory
    ) -> list[OperationRow]:
        """Return the operations from the end of the backward pass to that of the iteration."""
        exchange, rows = self._exchange, list[OperationRow]()
        for event, some, whole, fired in [] if exchanged.updates is None else exchanged.updates[worker].tolist():
            rows.append((WAIT, first + event, iteration))
            if share := optimizer * some // whole:
                rows.append((COMPUTE, share, -1))
            if fired >= 0:
                rows.append((FIRE, first + fired, -1))
        last = iteration == self._table.iterations - 1
        stale = exchange.staleness
        for number in range(max(iteration - stale, 0), iteration + 1 if last else iteration - stale + 1):
            gates = past.of(worker, number)
            waits = gates if last else gates[[0 if exchange.layerwise else -1]]
            rows += [(WAIT, gate, number) for gate in waits[waits >= 0].tolist()]
        if stale and (seen := past.seen(worker, iteration - stale)) >= 0:
            rows.append((FIRE, seen, -1))
        if exchange.worker_optimizes and optimizer and (last or not exchange.layerwise):
            rows.append((COMPUTE, optimizer, -1))
        return rows

    def share(self, optimizer: int, layer: int) -> int:
        """Return a layer's share of the time of an optimiser step."""
        whole = int(self._cumulated[-1])
        low, high = (int(self._cumulated[index]) for index in (layer, layer + 1))
        return optimizer * high // whole - optimizer * low // whole


class GateHistory:
    """Gates of past iterations, numbered through the whole job, and their optimiser times.

    If workers use parameters of s iterations before, an iteration that the network has finished is still waited for. To
    keep it in memory, it has one more event per worker, `seen`, which the worker fires after waiting.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._gates: dict[int, Ints] = {}
        self._optimizer: dict[int, Sequence[int]] = {}
        self._seen: dict[int, Ints] = {}

    def add(self, iteration: int, gates: Ints, optimizer: Sequence[int], seen: Ints | None) -> None:
        """Add an iteration's gates, and the optimiser's picoseconds at every worker."""
        self._gates[iteration], self._optimizer[iteration] = gates, optimizer
        if seen is not None:
            self._seen[iteration] = seen
        for table in (self._gates, self._optimizer, self._seen):
            table.pop(iteration - 2 - self._exchange.staleness, None)

    def jump(self, jump: StepSkip) -> None:
        """Skip iterations: the last known iterations become the last skipped ones."""
        steps, events = jump
        self._gates, self._seen = (
            {iteration + steps: np.where(values >= 0, values + events, -1) for iteration, values in table.items()}
            for table in (self._gates, self._seen)
        )
        self._optimizer = {iteration + steps: values for iteration, values in self._optimizer.items()}

    def of(self, worker: int, iteration: int) -> Ints:
        """Return a worker's gates of an iteration, by layer and for everything; -1 for none."""
        return self._gates[iteration][worker]

    def seen(self, worker: int, iteration: int) -> int:
        """Return the event that a worker fires when it has waited for an iteration; -1 for none."""
        return int(self._seen[iteration][worker]) if iteration in self._seen else -1

    def before(self, worker: int, iteration: int) -> tuple[Ints, int] | None:
        """Return the gates that an iteration's layers wait for, and the optimiser's time, to be shared by layers."""
        number = iteration - 1 - self._exchange.staleness
        if not self._exchange.layerwise or number < 0:
            return None
        spent = self._optimizer[number][worker] if self._exchange.worker_optimizes else 0
        return self._gates[number][worker], spent


class _Visit:
    """One micro-batch of a worker, with the actions that its exchange requests."""

    def __init__(self, exchanged: ExchangedIteration, worker: int, micro: int, first: int, iteration: int) -> None:
        self._exchanged, self._worker, self._micro, self._first = exchanged, worker, micro, first
        self.iteration = iteration
        fires = exchanged.early[micro] if micro < len(exchanged.early) else exchanged.fires
        several = len(exchanged.gates)
        tensors = (len(exchanged.fires[0]) - 1) // several
        ready = micro == exchanged.micros - 1 or exchanged.early
        self._place, self._events = fires[0][worker * tensors :], fires[1] if ready else fires[1][:0]

    def ready(self, tensor: int) -> list[OperationRow]:
        """Return the operations when a gradient is ready."""
        events = self._events[self._place[tensor] : self._place[tensor + 1]].tolist()
        return [(FIRE, self._first + event, -1) for event in events]

    def forward(self, position: int, places: int) -> list[OperationRow]:
        """Return the operations at index `position` of `places` of the forward pass."""
        if self._micro < self._exchanged.micros - 1:
            return []
        events = self._exchanged.at_forward(self._worker * places + position)
        return [(FIRE, self._first + event, -1) for event in events]

    @property
    def layers(self) -> list[int]:
        """The layers with actions in the backward pass."""
        return sorted(layer for micro, back, layer in self._exchanged.inside if back and micro == self._micro)

    def at(self, back: bool, layer: int) -> list[OperationRow]:
        """Return the operations at a layer, forward or back."""
        return self._rows(self._exchanged.inside.get((self._micro, back, layer)))

    def call(self, number: int) -> list[OperationRow]:
        """Return the operations at a communication of the trace."""
        return self._rows(self._exchanged.called.get((self._micro, number)))

    def _rows(self, moment: RoundAction | None) -> list[OperationRow]:
        if moment is None:
            return []
        start, end = (self._first + events[:, self._worker] for events in self._exchanged.rounds)
        wait = [(WAIT, int(end[moment.waits]), self.iteration)] if moment.waits >= 0 else []
        asks, then_asks = ([(FIRE, int(start[n]), -1) for n in some] for some in (moment.asks, moment.then_asks))
        return [*asks, *wait, *then_asks]
