"""Operations of overlapped averaging: groups of layers, their exchanged data, and the order of exchanges.

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

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo

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


class Operation(NamedTuple):
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
    return LayerGroup(
        tuple(layers),
        numbers,
        sum(info.numel for info in infos),
        max(info.element_bytes for info in infos),
        _matrix(tensors, of_layer, layers) if activations else None,
    )


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
) -> list[Operation]:
    """Return the operations of an iteration, in the order of requests: forward, backward, and after the update.

    ready_order : tensors in the order in which their gradients become ready. batch : samples of a worker.
    """
    position = {tensor: index for index, tensor in enumerate(ready_order)}
    backward = sorted(range(len(groups)), key=lambda number: max(position[tensor] for tensor in groups[number].tensors))
    operations = []
    for number, group in enumerate(groups):
        if group.matrix is not None:
            operations.append(Operation(ACTIVATIONS, number, batch * group.columns(workers) * group.element_bytes))
    for number in backward:
        group = groups[number]
        part = group.part(workers) * group.element_bytes
        operations.append(
            Operation(GRADIENTS, number, part)
            if group.matrix is None
            else Operation(ERRORS, number, batch * group.matrix[0] * group.element_bytes)
        )
    operations += [
        Operation(PARAMETERS, number, group.part(workers) * group.element_bytes) for number, group in enumerate(groups)
    ]
    return operations
