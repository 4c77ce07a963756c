"""`OverlappedAveraging` builds the messages, operations and communication threads of overlapped averaging in an
iteration.

`gradwire.workload.collectives.exchanges.overlapped` describes the method. As events, per iteration, operation and
worker: the worker's request -> asked; the thread, which waits for that, -> begun: its messages; begun, all deliveries
to the worker -> over, for which the thread waits before its next operation. A worker waits for `owned` before it
updates a group (everything that its part is computed from is over), and for a layer's gate before its forward (the
layer's parameters are over).

A *group* is a layer with a matrix or a kernel, and the layers of vectors alone after it; every worker owns an N-th of
it. Each operation on a group sends data from every worker to every other one:

    ACTIVATIONS  of a fully connected layer: to each worker the input columns of the part that it owns
    ERRORS       of a fully connected layer: all derivatives of the loss by its output, to each worker
    GRADIENTS    to each worker the part that it owns and sums
    PARAMETERS   to each worker the updated part that the sender owns
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.workload.collectives.common.base import (
    Exchange,
    ExchangedIteration,
    JobContext,
    make_messages,
    refuse_long,
)
from gradwire.workload.csr import CsrLists, csr_lists, empty_lists
from gradwire.workload.program import FIRE, WAIT, Ints, Messages, PacketImportance, ProcessOperations, Step

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo
    from gradwire.workload.collectives.exchanges.overlapped import Overlapped

ACTIVATIONS, ERRORS, GRADIENTS, PARAMETERS = "activations", "errors", "reduce_scatter", "parameters"
"""Operations, by the kinds of their messages in a Result."""


class LayerGroup(NamedTuple):
    """Layers that travel together.

    layers : in forward order. tensors : of all of them.
    elements : of all of them; `element_bytes` each, which is the widest.
    matrix : (n_out, n_in) of a fully connected layer whose activations and errors are exchanged, or None.
    """

    layers: tuple[int, ...]
    tensors: tuple[int, ...]
    elements: int
    element_bytes: int
    matrix: tuple[int, int] | None

    def columns(self, workers: int) -> int:
        """Return the columns of the weight matrix that a worker owns, rounded up."""
        assert self.matrix is not None
        return -(-self.matrix[1] // workers)

    def part(self, workers: int) -> int:
        """Return the elements that a worker owns, rounded up: the last part is padded. Of a fully connected layer they
        are whole columns without bias: all errors determine the bias' gradient at every worker."""
        return -(-self.elements // workers) if self.matrix is None else self.columns(workers) * self.matrix[0]


class StepOperation(NamedTuple):
    """One operation: one of the four kinds, the number of its group, and bytes of each of its N (N - 1) messages."""

    kind: str
    group: int
    nbytes: int


def groups_of(tensors: Sequence[TensorInfo], activations: bool) -> list[LayerGroup]:
    """Return groups in forward order. `activations`: True if those of fully connected layers are exchanged."""
    of_layer: list[list[int]] = [[] for _ in range(1 + max(info.layer for info in tensors))]
    for number, info in enumerate(tensors):
        of_layer[info.layer].append(number)
    groups: list[list[int]] = []
    for layer, numbers in enumerate(of_layer):
        if not numbers:
            continue
        infos = [tensors[number] for number in numbers]
        vectors = all(len(info.shape) < 2 for info in infos)
        joinable = groups and not (activations and _matrix(tensors, of_layer, groups[-1]))
        if vectors and joinable:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return [_group(tensors, of_layer, layers, activations) for layers in groups]


def _group(
    tensors: Sequence[TensorInfo], of_layer: Sequence[Sequence[int]], layers: Sequence[int], activations: bool
) -> LayerGroup:
    numbers = tuple(number for layer in layers for number in of_layer[layer])
    infos = [tensors[number] for number in numbers]
    elements, element_bytes = sum(info.numel for info in infos), max(info.element_bytes for info in infos)
    matrix = _matrix(tensors, of_layer, layers) if activations else None
    return LayerGroup(tuple(layers), numbers, elements, element_bytes, matrix)


def _matrix(
    tensors: Sequence[TensorInfo], of_layer: Sequence[Sequence[int]], layers: Sequence[int]
) -> tuple[int, int] | None:
    """Return the shape of the weight matrix of a fully connected layer; None for other layers."""
    shapes = [tensors[number].shape for number in of_layer[layers[0]]]
    matrices = [shape for shape in shapes if len(shape) == 2]
    if len(matrices) != 1 or any(len(shape) > 2 for shape in shapes):
        return None
    return int(matrices[0][0]), int(matrices[0][1])


def operations_of(
    groups: Sequence[LayerGroup], ready_order: Sequence[int], workers: int, batch: int
) -> list[StepOperation]:
    """Return the operations of an iteration, in the order of requests: forward, backward, and after the update.

    ready_order : tensors in the order in which their gradients become ready. batch : samples of a worker.
    """
    position = {tensor: index for index, tensor in enumerate(ready_order)}
    backward = sorted(range(len(groups)), key=lambda number: max(position[tensor] for tensor in groups[number].tensors))
    operations = [
        StepOperation(ACTIVATIONS, number, batch * group.columns(workers) * group.element_bytes)
        for number, group in enumerate(groups)
        if group.matrix is not None
    ]
    parts = [group.part(workers) * group.element_bytes for group in groups]
    for number in backward:
        matrix, width = groups[number].matrix, groups[number].element_bytes
        gradients = StepOperation(GRADIENTS, number, parts[number])
        operations.append(gradients if matrix is None else StepOperation(ERRORS, number, batch * matrix[0] * width))
    return operations + [StepOperation(PARAMETERS, number, part) for number, part in enumerate(parts)]


class OperationEvents(NamedTuple):
    """Events of a step: deliveries first, then these. K operations, N workers, G groups.

    asked, begun, over : [K, N]. owned : [G, N]. gates : [N, layers + 1], -1 for none.
    """

    asked: Ints
    begun: Ints
    over: Ints
    owned: Ints
    gates: Ints
    total: int


class OverlappedAveraging(Exchange):
    """The exchange of one job by overlapped averaging."""

    repeats = True

    def __init__(self, context: JobContext, table: Overlapped) -> None:
        super().__init__(context)
        self.layerwise = (context.scheduling.forward or "layerwise") == "layerwise"
        self.batch, workers = table.batch, len(context.workers)
        self.groups = groups_of(context.trace.tensors, table.dense == "activations")
        self.operations = operations_of(self.groups, context.ready_order, workers, table.batch)
        refuse_long(self.unit_bytes, context.payload, "job.exchange.batch")
        # the pairs of an operation: each worker sends to the next one first
        distance = np.arange(1, workers)[:, None]
        self._src = np.broadcast_to(np.arange(workers), (workers - 1, workers)).ravel()
        self._dst = ((np.arange(workers) + distance) % workers).ravel()
        self._node = np.array(context.nodes)
        self._deliveries = np.arange(len(self.operations) * len(self._src)).reshape(len(self.operations), -1)

    @property
    def threads(self) -> Ints:
        return self._node

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        return tuple(group.tensors for group in self.groups), len(self.context.workers)

    @property
    def unit_bytes(self) -> int:
        return max(operation.nbytes for operation in self.operations)

    @property
    def bytes_per_iteration(self) -> int:
        return len(self._src) * sum(operation.nbytes for operation in self.operations)

    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
        numbers, needs, host = self._events(last)
        step = Step(
            messages=self._messages(number),
            needs=needs,
            host=host,
            after=self._events_after(numbers, len(needs)),
            posts=csr_lists([(numbers.begun[:, self._src], self._deliveries)], len(needs)),
            contents=self._contents,
        )
        fires, forward = self._fired_events(numbers)
        return ExchangedIteration(step, fires, numbers.gates, forward, self._updates(numbers), self._threads(numbers))

    def _operations_of(self, *kinds: str) -> list[tuple[int, int]]:
        """Return (operation, group) of the operations of these kinds."""
        return [(k, operation.group) for k, operation in enumerate(self.operations) if operation.kind in kinds]

    def _events(self, last: bool) -> tuple[OperationEvents, Ints, Ints]:
        """Return the numbers of events, the firings that each needs, and its node."""
        workers, layers, pairs = len(self._node), len(self.context.trace.layers), len(self._src)
        operations, groups = len(self.operations), len(self.groups)
        n = operations * pairs
        asked = n + np.arange(operations * workers).reshape(operations, workers)
        begun, over = asked + asked.size, asked + 2 * asked.size
        owned = n + 3 * asked.size + np.arange(groups * workers).reshape(groups, workers)
        first_gate = n + 3 * asked.size + owned.size
        # layers of a group are consecutive: the gate of the first one covers the others
        used = [group.layers[0] for group in self.groups] if self.layerwise and not last else [layers]
        gates = np.full((workers, layers + 1), -1, dtype=np.int64)
        gates[:, used] = first_gate + np.arange(workers * len(used)).reshape(workers, len(used))
        total = first_gate + workers * len(used)
        needs, host = np.ones(total, dtype=np.int64), np.empty(total, dtype=np.int64)
        host[:n] = np.tile(self._node[self._dst], operations)
        for events in (asked, begun, over, owned):
            host[events] = self._node
        host[first_gate:] = np.repeat(self._node, len(used))
        needs[over] = workers
        for k, group in self._operations_of(GRADIENTS):
            needs[asked[k]] = len(self.groups[group].tensors)
        for _, group in self._operations_of(ACTIVATIONS):
            needs[owned[group]] = 2
        if used == [layers]:
            needs[first_gate:] = groups
        return OperationEvents(asked, begun, over, owned, gates, total), needs, host

    def _events_after(self, numbers: OperationEvents, count: int) -> CsrLists:
        _, begun, over, owned, gates, _ = numbers
        after = [(self._deliveries, over[:, self._dst]), (begun, over)]
        after += [(over[k], owned[group]) for k, group in self._operations_of(ACTIVATIONS, ERRORS, GRADIENTS)]
        for k, group in self._operations_of(PARAMETERS):
            column = self.groups[group].layers[0] if gates[0, -1] < 0 else -1
            after.append((over[k], gates[:, column]))
        return csr_lists(after, count)

    def _fired_events(self, numbers: OperationEvents) -> tuple[CsrLists, CsrLists]:
        """Return the events fired by gradients, per worker and tensor, and by forward, per worker and layer.

        The last entry of a worker's layers is the end of forward. Errors of a layer are ready when backward of the
        layers after it is over.
        """
        workers, layers = len(self._node), len(self.context.trace.layers)
        tensors = len(self.context.trace.tensors)
        worker, order = np.arange(workers), list(self.context.ready_order)
        of_tensor: list[tuple[Ints, Ints]] = []
        of_layer: list[tuple[Ints, Ints]] = []
        for k, group in self._operations_of(GRADIENTS):
            of_tensor += [(worker * tensors + tensor, numbers.asked[k]) for tensor in self.groups[group].tensors]
        for k, group in self._operations_of(ERRORS):
            before = min(order.index(tensor) for tensor in self.groups[group].tensors) - 1
            if before < 0:
                of_layer.append((worker * (layers + 1) + layers, numbers.asked[k]))
            else:
                of_tensor.append((worker * tensors + order[before], numbers.asked[k]))
        for k, group in self._operations_of(ACTIVATIONS):
            of_layer.append((worker * (layers + 1) + self.groups[group].layers[0], numbers.asked[k]))
        return csr_lists(of_tensor, workers * tensors), csr_lists(of_layer, workers * (layers + 1))

    def _updates(self, numbers: OperationEvents) -> Ints:
        """Return int64[N, G, 4] (`ExchangedIteration`): a worker updates an N-th of each group, from the input on."""
        whole = sum(group.elements for group in self.groups) * len(self._node)
        rows = [
            np.broadcast_arrays(numbers.owned[group], self.groups[group].elements, whole, numbers.asked[k])
            for k, group in self._operations_of(PARAMETERS)
        ]
        return np.array(rows).transpose(2, 0, 1)

    def _threads(self, numbers: OperationEvents) -> tuple[ProcessOperations, ...]:
        """Return the communication threads: serial operations, with events counted from the step's first."""
        threads = []
        for worker in range(len(self._node)):
            kinds = np.tile([WAIT, FIRE, WAIT], len(self.operations))
            events = np.stack([row[:, worker] for row in (numbers.asked, numbers.begun, numbers.over)], axis=1)
            rows = np.stack((kinds, events.ravel(), np.full(len(kinds), -1)), axis=1)
            threads.append(ProcessOperations(len(self._node) + worker, rows.astype(np.int64)))
        return tuple(threads)

    def _messages(self, iteration: int) -> Messages:
        context, operations, pairs = self.context, self.operations, len(self._src)
        workers = len(self._node)
        kinds = np.array([operation.kind for operation in operations])
        group = np.array([operation.group for operation in operations])
        to_owner = np.isin(kinds, (GRADIENTS, ACTIVATIONS))
        segment = np.where(to_owner[:, None], self._dst, self._src)
        parts = np.array([item.part(workers) for item in self.groups])[group]
        parts = np.where(np.isin(kinds, (GRADIENTS, PARAMETERS)), parts, 0)
        front = np.array([item.layers[0] for item in self.groups])[group]
        priority = [min(context.priorities[tensor] for tensor in item.tensors) for item in self.groups]
        captured = np.array([context.captured(worker, iteration) for worker in range(workers)])[self._src]
        which = np.repeat(front, pairs)
        sender, reducing = np.tile(self._src, len(operations)), np.repeat(kinds == GRADIENTS, pairs)
        layers = [(layer,) for layer in range(len(context.trace.layers))]
        return make_messages(
            context,
            np.repeat(kinds, pairs),
            PacketImportance((), np.full(len(which), PacketImportance.AS_SENT)),
            iteration=iteration,
            tensor=-1,
            layer=-1,
            part=(group[:, None] * workers + segment).ravel(),
            src=self._node[sender],
            dst=np.tile(self._node[self._dst], len(operations)),
            nbytes=np.repeat([operation.nbytes for operation in operations], pairs),
            priority=np.repeat(np.array(priority)[group], pairs),
            loss=context.bounds.of(iteration, ~reducing, sender, layers, which),
            rank=which,
            captured=np.where(reducing, np.tile(captured, len(operations)), -1),
            first=(parts[:, None] * segment).ravel(),
        )

    def _contents(self) -> tuple[CsrLists, Flags]:
        """Gradients are the sender's own; activations, errors and parameters are none."""
        kinds = np.array([operation.kind for operation in self.operations])
        own = np.repeat(kinds == GRADIENTS, len(self._src))
        return empty_lists(len(own)), own
