"""`Reducer` is the base class of gradient encoders such as top-k, which decode any subset of packets that arrives.

A reducer is a table of a scenario (its parameters) with three functions and no state: what it remembers of a worker's
tensor is in a `State`, so one reducer serves all workers, and a checkpoint is a dictionary of tensors. Every reducer
decodes correctly when any subset of its packets is missing: what is missing counts as zero.

Most need one round: `compress`, the network, `decode`, the mean over the workers. A reducer whose workers must agree on
something in between (PowerSGD) has more: `follow` makes the next round's encoding from the mean of the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ValidationError

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.lazily import torch
from gradwire.scenarios.loading.explain import explain_validation_error
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.training.exchange.encoded_tensors import Encoded

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients
    from gradwire.training.reducers.state import State
else:
    ModelMetaclass = type(ScenarioTable)  # has no public name


class ExplainedMeta(ModelMetaclass):
    """Metaclass that explains invalid arguments in Python as those of a loaded scenario. Pydantic makes nested tables
    without calling their class, and so without this."""

    def __call__(cls, *arguments: Any, **keys: Any) -> Any:
        try:
            return super().__call__(*arguments, **keys)
        except ValidationError as error:
            mistakes = explain_validation_error(error, keys, cls)  # type: ignore[arg-type]  # which is a Table
        count = "1 error" if len(mistakes) == 1 else f"{len(mistakes)} errors"
        raise ScenarioError(f"invalid arguments, {count}:", cls.__name__, mistakes=mistakes)


class Reducer(ScenarioTable, metaclass=ExplainedMeta):
    """Base of all reducers. A subclass has a literal `kind` and overrides `compress` and `decode`. Raises ScenarioError
    if a parameter is invalid."""

    rounds: ClassVar[int] = 1
    """Exchanges between workers and server in a step."""
    places: ClassVar[Literal["fixed", "sent"]] = "sent"
    """"fixed" if a receiver knows the elements of a missing packet; "sent" if positions are sent along."""
    adds_up: ClassVar[bool] = False
    """True if a ring can add up its encodings: one field of float32 and no head, at positions that all workers know,
    whose mean decodes to the mean."""
    remembers_error: ClassVar[bool] = False
    """True if it keeps what it did not send, so that error feedback around it would count that twice."""
    unit: ClassVar[str] = ""
    """Size of a unit in terms of its parameters, if these can make it larger than any packet."""
    in_rows: ClassVar[bool] = False
    """True if there is a `whole`."""
    has_momentum: ClassVar[bool] = False
    """True if it has a parameter `momentum` for what it encodes, so that another momentum would be added to it."""
    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The name in scenarios."""

    def without_feedback(self) -> str:
        """Return the reason why error feedback cannot wrap it; empty if it can."""
        return "keeps what it does not send itself" if self.remembers_error else ""

    def without_momentum(self) -> str:
        """Return the reason why momentum correction cannot wrap it; empty if it can."""
        return "has its own momentum" if self.has_momentum else ""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        """Encode a worker's gradient, of any shape, float32. What `flat` refuses is refused."""
        raise NotImplementedError

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        """Decode to flat float32: (numel,) after the last round.

        arrived : the units that arrived, (units,) bool; all if absent. The others count as zero.

        Raises ValueError if `arrived` has another number of units.
        """
        raise NotImplementedError

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        """Compress and decode all tensors of all workers at once, (N, P), to the same bits."""
        raise NotImplementedError

    def settle_whole(self, sent: Tensor, rows: FlatGradients) -> None:
        """Finish a step, given the workers' shares in it, `sent`, (N, P)."""

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        """Return the elements of `decode`'s result that are not lost, bool, of its shape; only if `places` is "fixed".
        An element that was not to be sent is not lost. This default suits units of equally many consecutive
        elements."""
        elements = self.elements(encoded)
        return per_element(arrived, elements, len(arrived) * elements)[: self.decoded(encoded, info)]

    def elements(self, encoded: Encoded) -> int:
        """Return the elements that a unit decodes to."""
        return 1

    def magnitudes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        """Return the mean magnitude of each unit's elements, (units,) float32: the basis of a sender's tags. This
        default takes the first field, if it holds floats; else the decoded values, if a unit is a run of elements; else
        all are alike."""
        if encoded.fields[0].is_floating_point():
            return encoded.magnitudes()
        ones = torch.ones(encoded.units, device=encoded.fields[0].device)
        if self.places != "fixed" or not encoded.units:
            return ones
        rows = group_units(self.decode(encoded, info).abs(), self.elements(encoded))
        counts = rows.new_full((len(rows),), float(rows.shape[1]))
        counts[-1] -= rows.numel() - self.decoded(encoded, info)
        return rows.sum(dim=1) / counts if len(rows) == encoded.units else ones

    def answered(self, encoded: Encoded, info: TensorInfo) -> int | None:
        """Return the bytes with which a server answers one worker, given what the first worker pushed. None means the
        shortest lossless form of the mean (`gradwire.training.exchange.exchange_stats.answer_bytes`)."""
        return None

    def decoded(self, encoded: Encoded, info: TensorInfo) -> int:
        """Return the number of elements that `decode` returns."""
        return info.numel

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        """Encode the next round, given the mean of what was decoded in the round before."""
        raise NotImplementedError

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        """Return the gradient, flat (numel,), from the mean of what was decoded in the last round."""
        return mean

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        """Finish a step, given this worker's share in it, `sent`, flat (numel,)."""


def scatter(values: Tensor, indices: Tensor, numel: int, arrived: Tensor | None) -> Tensor:
    """Return values at their positions in a flat tensor (numel,) of zeros, without those that did not arrive. A unit is
    a value, of which `arrived` is as in `Reducer.decode`."""
    return scatter_rows(values[:, None], indices, numel, arrived)


def scatter_rows(rows: Tensor, indices: Tensor, numel: int, arrived: Tensor | None) -> Tensor:
    """Return rows of elements, (units, elements), as those of a flat tensor (numel,) of zeros. `indices`: row numbers,
    (units,). `arrived` is as in `Reducer.decode`."""
    if arrived is not None:
        _fit(arrived, len(rows))
        rows, indices = rows[arrived], indices[arrived]
    dense = rows.new_zeros(-(-numel // rows.shape[1]), rows.shape[1])
    dense[indices.long()] = rows
    return dense.view(-1)[:numel]


def mask_missing(values: Tensor, encoded: Encoded, arrived: Tensor | None, elements: int = 1) -> Tensor:
    """Return values, flat (numel,), with zeros for those that did not arrive, `elements` per unit. `arrived` is as in
    `Reducer.decode`."""
    if arrived is None:
        return values
    _fit(arrived, encoded.units)
    return values * per_element(arrived, elements, len(values))


def _fit(arrived: Tensor, units: int) -> None:
    if arrived.shape != (units,):
        raise ValueError(f"a mask of {tuple(arrived.shape)} for {units} units")


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return flat codes below 2^bits as bytes, the first code of each in its lowest bits."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (group_units(codes, 8 // bits).to(torch.uint8) << shifts).sum(dim=1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return codes as packed by `pack`, uint8, and those that filled the last byte."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return ((packed.reshape(-1, 1) >> shifts) & (2**bits - 1)).view(-1)


def per_element(arrived: Tensor, elements: int, numel: int) -> Tensor:
    """Return the elements that arrived, (numel,) bool, given the units that did, each of `elements` elements."""
    return arrived.repeat_interleave(elements)[:numel]


def group_units(values: Tensor, elements: int) -> Tensor:
    """Return a flat tensor as rows of `elements` elements, (units, elements), the last one zero-padded."""
    return torch.nn.functional.pad(values, (0, -len(values) % elements)).view(-1, elements)
