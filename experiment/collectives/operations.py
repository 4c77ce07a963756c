"""Operations of overlapped averaging: which layers travel together, what is exchanged of them, and in which order.

A *group* is a layer with a matrix or a kernel, and the layers of vectors alone behind it; every worker owns an N-th of
it. What is done with a group are operations, each of which sends something from every worker to every other one:

    ACTIVATIONS  of a fully connected layer: to each the columns of its input that belong to what that one owns
    ERRORS       of a fully connected layer: to each all of them, the derivatives of the loss by its output
    GRADIENTS    to each the part that it owns, which adds them up
    PARAMETERS   to each the updated part that the sender owns
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo

ACTIVATIONS, ERRORS, GRADIENTS, PARAMETERS = "activations", "errors", "reduce_scatter", "parameters"
"""By the names that their messages have in a Result."""


class Group(NamedTuple):
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
        """Columns of the weight matrix that a worker owns, rounded up."""
        assert self.matrix is not None
        return -(-self.matrix[1] // workers)

    def part(self, workers: int) -> int:
        """Elements of what a worker owns, rounded up: the last part is filled up. Of a fully connected layer it is
        whole columns, and no bias: whoever has all errors has that one's gradient, too."""
        return -(-self.elements // workers) if self.matrix is None else self.columns(workers) * self.matrix[0]


class Operation(NamedTuple):
    """One operation. `kind` is one of the four above, `nbytes` of each of its N (N - 1) messages; `group` is the number
    of what it is about."""

    kind: str
    group: int
    nbytes: int


def groups_of(tensors: Sequence[TensorInfo], activations: bool) -> list[Group]:
    """Groups in forward order. `activations`: whether those of fully connected layers are exchanged."""
    of_layer: list[list[int]] = [[] for _ in range(1 + max(info.layer for info in tensors))]
    for number, info in enumerate(tensors):
        of_layer[info.layer].append(number)
    found: list[list[int]] = []
    for layer, mine in enumerate(of_layer):
        if not mine:
            continue
        infos = [tensors[each] for each in mine]
        vectors = all(len(info.shape) < 2 for info in infos)
        behind = found and not (activations and _matrix(tensors, of_layer, found[-1]))
        if vectors and behind:
            found[-1].append(layer)
        else:
            found.append([layer])
    return [_group(tensors, of_layer, layers, activations) for layers in found]


def _group(
    tensors: Sequence[TensorInfo], of_layer: Sequence[Sequence[int]], layers: Sequence[int], activations: bool
) -> Group:
    mine = tuple(each for layer in layers for each in of_layer[layer])
    infos = [tensors[each] for each in mine]
    return Group(
        tuple(layers), mine, sum(info.numel for info in infos), max(info.element_bytes for info in infos),
        _matrix(tensors, of_layer, layers) if activations else None,
    )  # fmt: skip


def _matrix(
    tensors: Sequence[TensorInfo], of_layer: Sequence[Sequence[int]], layers: Sequence[int]
) -> tuple[int, int] | None:
    """The shape of the weight matrix of a fully connected layer; None where it is none."""
    shapes = [tensors[each].shape for each in of_layer[layers[0]]]
    matrices = [shape for shape in shapes if len(shape) == 2]
    if len(matrices) != 1 or any(len(shape) > 2 for shape in shapes):
        return None
    return int(matrices[0][0]), int(matrices[0][1])


def operations_of(groups: Sequence[Group], ready_order: Sequence[int], workers: int, batch: int) -> list[Operation]:
    """Those of an iteration, in the order in which they are asked for: forward, backward, and behind the update.

    ready_order : tensors in the order in which their gradients become ready. batch : samples of a worker.
    """
    place = {tensor: place for place, tensor in enumerate(ready_order)}
    backward = sorted(range(len(groups)), key=lambda number: max(place[each] for each in groups[number].tensors))
    found = []
    for number, group in enumerate(groups):
        if group.matrix is not None:
            found.append(Operation(ACTIVATIONS, number, batch * group.columns(workers) * group.element_bytes))
    for number in backward:
        group = groups[number]
        part = group.part(workers) * group.element_bytes
        found.append(
            Operation(GRADIENTS, number, part)
            if group.matrix is None
            else Operation(ERRORS, number, batch * group.matrix[0] * group.element_bytes)
        )
    found += [
        Operation(PARAMETERS, number, group.part(workers) * group.element_bytes) for number, group in enumerate(groups)
    ]
    return found
