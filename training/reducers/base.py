"""Reducers: what a worker sends instead of a gradient, and what a receiver makes of what has arrived.

A reducer is a table of a scenario (its parameters) with three functions, and no state of its own: what it remembers
of a worker's tensor is in a `State`, so one reducer serves all workers, and a checkpoint is a dictionary of tensors.
Every reducer decodes correctly when any subset of its packets is missing: what is missing counts as zero.

Most need one round: `compress`, the network, `decode`, the mean over the workers. One whose workers have to agree on
something in between (PowerSGD) has more: `follow` makes the next round's encoding of the mean of the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ValidationError

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.explain import explain
from gradwire.scenarios.schema.base import Table
from gradwire.training.encoded import Encoded

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.reducers.state import State
    from gradwire.training.rows import Rows, Whole
else:
    ModelMetaclass = type(Table)  # which has no public name


class Explained(ModelMetaclass):
    """Of classes whose mistakes are explained where an object is made in Python, as a scenario's are when it is loaded.

    Pydantic makes tables inside others without calling their class, and so without coming by here.
    """

    def __call__(cls, *arguments: Any, **keys: Any) -> Any:
        try:
            return super().__call__(*arguments, **keys)
        except ValidationError as error:
            mistakes = explain(error, keys, cls)  # type: ignore[arg-type]  # which is a Table
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise ScenarioError(f"cannot be made, {count}:", cls.__name__, mistakes=mistakes)


class Reducer(Table, metaclass=Explained):
    """Base of all reducers. A subclass has a literal `kind` and overrides `compress` and `decode`.

    Raises
    ------
    ScenarioError
        A parameter cannot be used.
    """

    rounds: ClassVar[int] = 1
    """How often workers and server exchange something in a step."""
    places: ClassVar[Literal["fixed", "sent"]] = "sent"
    """Whether a receiver knows which elements a packet is about that has not arrived, or these are sent along."""
    adds_up: ClassVar[bool] = False
    """Whether a ring can add its encodings up: float32 values alone, one field and no head, at places that all workers
    know, whose mean decodes to the mean."""
    remembers_error: ClassVar[bool] = False
    """Whether it keeps by itself what it did not send, so that error feedback around it would count that twice."""
    unit: ClassVar[str] = ""
    """How large a unit is, in terms of its parameters, where these make it larger than any packet."""
    has_momentum: ClassVar[bool] = False
    """Whether it has a parameter `momentum`, of what it encodes, so that another one would come on top of it."""
    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """By which it is chosen."""

    def without_feedback(self) -> str:
        """Why there is no error feedback around it; nothing if there can be."""
        return "remembers by itself what it does not send" if self.remembers_error else ""

    def without_momentum(self) -> str:
        """Why there is no momentum correction around it; nothing if there can be."""
        return "has a momentum by itself" if self.has_momentum else ""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        """What a worker sends of its gradient, any shape, float32. What `flat` refuses is refused."""
        raise NotImplementedError

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        """What a receiver makes of it, flat float32: (numel,) after the last round.

        arrived : which units are there, (units,) bool; all of them if absent. The others count as zero.

        Raises
        ------
        ValueError
            `arrived` is not of as many units.
        """
        raise NotImplementedError

    @property
    def in_rows(self) -> bool:
        """Whether there is a `whole`."""
        return False

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        """What `compress` and `decode` come to of all tensors of all workers at once, (N, P), bit by bit."""
        raise NotImplementedError

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
        """The step is over, and `sent`, (N, P), is what the workers' shares in it came to."""

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        """Which elements of `decode`'s answer are not lost, bool, of its shape; only where `places` are fixed.

        An element that was not to be sent is not lost. Here for units of equally many elements, one after the other.
        """
        elements = self.elements(encoded)
        return per_element(arrived, elements, len(arrived) * elements)[: self.decoded(encoded, info)]

    def elements(self, encoded: Encoded) -> int:
        """How many elements a unit decodes to."""
        return 1

    def magnitudes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        """The mean magnitude of the elements that each unit stands for, (units,) float32: what a sender tags by.

        Here the first field's, if that holds floats; else of what is decoded, if a unit is a run of elements; and if
        neither is so, all are alike.
        """
        import torch

        if encoded.fields[0].is_floating_point():
            return encoded.magnitudes()
        alike = torch.ones(encoded.units, device=encoded.fields[0].device)
        if self.places != "fixed" or not encoded.units:
            return alike
        rows = grouped(self.decode(encoded, info).abs(), self.elements(encoded))
        counts = rows.new_full((len(rows),), float(rows.shape[1]))
        counts[-1] -= rows.numel() - self.decoded(encoded, info)
        return rows.sum(dim=1) / counts if len(rows) == encoded.units else alike

    def answered(self, encoded: Encoded, info: TensorInfo) -> int | None:
        """Bytes with which a server answers one worker, given what the first has pushed; None where that is the mean in
        the shortest form that keeps it as it is (`gradwire.training.exchange.answer_bytes`)."""
        return None

    def decoded(self, encoded: Encoded, info: TensorInfo) -> int:
        """How many elements `decode` answers with."""
        return info.numel

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        """What a worker sends next, given the mean of what was decoded in the round before."""
        raise NotImplementedError

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        """The gradient, flat (numel,), out of the mean of what was decoded in the last round."""
        return mean

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        """The step is over, and `sent`, flat (numel,), is what this worker's share in it came to."""


def scattered(values: Tensor, indices: Tensor, numel: int, arrived: Tensor | None) -> Tensor:
    """Values at their places in a flat tensor (numel,) of zeros; those that have not arrived are left out.

    A unit is a value, of which `arrived` is as in `Reducer.decode`.
    """
    if arrived is not None:
        _fit(arrived, len(values))
        values, indices = values[arrived], indices[arrived]
    dense = values.new_zeros(numel)
    dense[indices.long()] = values
    return dense


def masked(values: Tensor, encoded: Encoded, arrived: Tensor | None, elements: int = 1) -> Tensor:
    """Values, flat (numel,), and zero instead of those that have not arrived, `elements` to a unit.

    `arrived` is as in `Reducer.decode`.
    """
    if arrived is None:
        return values
    _fit(arrived, encoded.units)
    return values * per_element(arrived, elements, len(values))


def _fit(arrived: Tensor, units: int) -> None:
    if arrived.shape != (units,):
        raise ValueError(f"a mask of {tuple(arrived.shape)} for {units} units")


def per_element(arrived: Tensor, elements: int, numel: int) -> Tensor:
    """Which elements have arrived, (numel,) bool, given which units of so many elements each have."""
    return arrived.repeat_interleave(elements)[:numel]


def grouped(values: Tensor, elements: int) -> Tensor:
    """A flat tensor as rows of so many elements, (units, elements), the last one filled with zeros."""
    from torch.nn.functional import pad

    return pad(values, (0, -len(values) % elements)).view(-1, elements)
