"""Predicts the iteration time of overlapped averaging from nodes' compute times and line rate, without the simulator.

Every operation takes a latency and its bytes over the line rate, one after the other in the order of requests, as on a
network whose only bottleneck is each node's own line. Nodes wait for the slowest one: with log-normal jitter its
compute time is that of the largest of N draws, by Blom's approximation.
"""

from __future__ import annotations

from collections import defaultdict
from math import exp
from statistics import NormalDist

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.traces.trace import Trace
from gradwire.workload.collectives.exchanges.overlapped_steps import (
    ACTIVATIONS,
    ERRORS,
    PARAMETERS,
    LayerGroup,
    StepOperation,
    groups_of,
    operations_of,
)
from gradwire.workload.replay import Timetable

STEADY_ITERATIONS = 3
"""Iterations until the time of one repeats."""


def slowest_factor(nodes: int, jitter: float) -> float:
    """Return the expected slowness of the slowest of some nodes. `jitter`: standard deviation of log compute times."""
    return exp(jitter * NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25)))


class LineModel:
    """Overlapped averaging of one model on nodes with a line each.

    trace : a trace whose timetable is scaled to the compute time.
    nodes, pictures : number of nodes, and pictures of each in a step.
    line_rate : bytes per second. latency_ps : of an operation, in picoseconds.
    """

    def __init__(self, trace: Trace, nodes: int, pictures: int, line_rate: float, latency_ps: float) -> None:
        self._captured = Timetable.of(trace.iterations[trace.phases["early"][0]])
        self._ready_order = [tensor for moment in self._captured.ready for tensor in moment]
        self._groups = groups_of(trace.tensors, activations=True)
        operations = operations_of(self._groups, self._ready_order, nodes, pictures)
        self._before_update = [operation for operation in operations if operation.kind != PARAMETERS]
        self._gathers = [operation for operation in operations if operation.kind == PARAMETERS]
        self._nodes, self._latency_ps = nodes, latency_ps
        self._ps_per_byte = (nodes - 1) * 1e12 / line_rate

    def iteration_ps(self, compute_ps: float, optimizer_ps: float) -> float:
        """Return the time of an iteration in picoseconds, in the steady state.

        compute_ps : forward and backward pass of a node. optimizer_ps : the update of all parameters by one node.
        """
        times = self._captured.scaled(compute_ps / self._captured.backward_end)
        layers = len(times.forward) - 1
        gates, now, thread_free = np.zeros(layers), 0.0, 0.0
        begin = now
        for _ in range(STEADY_ITERATIONS):
            begin = now
            starts = self._forward(times, gates, now)
            over: dict[int, float] = defaultdict(float)  # by group, the end of what its update needs
            for operation in self._before_update:
                thread_free = self._end(operation, max(thread_free, self._request(operation, times, starts)))
                over[operation.group] = max(over[operation.group], thread_free)
            now = starts[layers] - times.forward[layers] + times.backward_end
            gates = np.zeros(layers)
            for operation in self._gathers:
                group = self._groups[operation.group]
                now = max(now, over[operation.group]) + optimizer_ps * self._share(group) / self._nodes
                thread_free = self._end(operation, max(thread_free, now))
                gates[group.layers[0]] = thread_free
        return now - begin

    def _forward(self, times: Timetable, gates: Floats, begin: float) -> Floats:
        """Return the start of each layer, which waits for its parameters, and the end of the pass."""
        starts, now = np.zeros(len(times.forward)), begin
        for layer, duration in enumerate(np.diff(times.forward)):
            starts[layer] = max(now, gates[layer])
            now = starts[layer] + duration
        starts[-1] = now
        return starts

    def _request(self, operation: StepOperation, times: Timetable, starts: Floats) -> float:
        """Return the time at which a worker asks for an operation, before its update."""
        group, end = self._groups[operation.group], starts[-1] - times.forward[-1]
        if operation.kind == ACTIVATIONS:
            return float(starts[group.layers[0]])
        ready = {tensor: at for at, tensors in zip(times.ready_at, times.ready, strict=True) for tensor in tensors}
        if operation.kind == ERRORS:  # once the backward pass has reached the layer's output
            before = min(self._ready_order.index(tensor) for tensor in group.tensors) - 1
            return float(starts[-1] if before < 0 else end + ready[self._ready_order[before]])
        return float(end + max(ready[tensor] for tensor in group.tensors))

    def _end(self, operation: StepOperation, begin: float) -> float:
        return begin + self._latency_ps + operation.nbytes * self._ps_per_byte

    def _share(self, group: LayerGroup) -> float:
        return group.elements / sum(other.elements for other in self._groups)
