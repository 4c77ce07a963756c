"""`ErrorFeedback` and `MomentumCorrection` wrap a reducer, and add unsent gradients or momentum to a gradient before it
is encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializeAsAny, model_validator

from gradwire.scenarios.lazily import Tensor
from gradwire.scenarios.schema.base import Flag, single_mistake
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State, flat, zero_nonfinite

if TYPE_CHECKING:
    from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients


def _attribute_of_inner(name: str) -> Any:
    return property(lambda self: getattr(self.reducer, name))


def _method_of_inner(name: str) -> Any:
    def call(self: ReducerWrapper, *arguments: Any) -> Any:
        return getattr(self.reducer, name)(*arguments)

    return call


class ReducerWrapper(Reducer):
    """Base of wrappers around another reducer; passes on all calls."""

    reducer: SerializeAsAny[Reducer]
    """The wrapped reducer."""

    kind, rounds, places, adds_up, unit, in_rows = map(
        _attribute_of_inner, ("kind", "rounds", "places", "adds_up", "unit", "in_rows")
    )
    without_feedback, without_momentum, decode, covered, magnitudes, elements, answered, decoded = map(
        _method_of_inner,
        ("without_feedback", "without_momentum", "decode", "covered", "magnitudes", "elements", "answered", "decoded"),
    )
    follow, restore, settle, settle_whole = map(_method_of_inner, ("follow", "restore", "settle", "settle_whole"))


class Memory(ReducerWrapper):
    """Base of wrappers that change a gradient before its reduction, and remember something for the next step."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.compress(self._with_residual(flat(tensor, info), state.values), info, state)

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        return self.reducer.whole(self._with_residual(gradients, rows.values), rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self._remember(sent, state.values)
        self.reducer.settle(sent, info, state)

    def settle_whole(self, sent: Tensor, rows: FlatGradients) -> None:
        self._remember(sent, rows.values)
        self.reducer.settle_whole(sent, rows)

    def _with_residual(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        """Return the gradient to reduce."""
        raise NotImplementedError

    def _remember(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        """Finish a step in which `sent` was sent."""
        raise NotImplementedError


class ErrorFeedback(Memory):
    """Adds what was not sent to the next gradient (Stich et al., NeurIPS '18; Karimireddy et al., ICML '19). A worker
    encodes x = g + e, and keeps e = x - (what was sent of it). Over all steps, what was sent plus what is kept is the
    sum of the gradients. Values that are not finite are not kept."""

    decay: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Factor on what was kept; below 1 it forgets old errors."""

    @model_validator(mode="after")
    def _once(self) -> ErrorFeedback:
        if why := self.reducer.without_feedback():
            raise single_mistake("reducer", f"{self.reducer.kind} {why}", None, "no error feedback around it")
        return self

    def without_feedback(self) -> str:
        return "already has error feedback"

    def _with_residual(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        if (residual := remembered.get("residual")) is not None:
            gradient = gradient + self.decay * residual
        remembered["corrected"] = gradient
        return gradient

    def _remember(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        remembered["residual"] = zero_nonfinite(remembered.pop("corrected") - sent)


class MomentumCorrection(Memory):
    """Applies momentum before the reduction instead of in the optimiser (Lin et al., ICLR '18, section 3.1). A worker
    encodes u = m u + g. Around error feedback, the error contains momentum; with `masking` the momentum of sent
    elements is cleared (section 3.3). The optimiser must have no momentum. Values that are not finite are not kept."""

    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """m."""
    masking: Flag = False
    """Clear the momentum of elements that were sent."""

    @model_validator(mode="after")
    def _once(self) -> MomentumCorrection:
        if why := self.reducer.without_momentum():
            raise single_mistake("reducer", f"{self.reducer.kind} {why}", None, "no momentum correction around it")
        return self

    def without_momentum(self) -> str:
        return "already has momentum correction"

    def _with_residual(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        if (momentum := remembered.get("momentum")) is not None:
            gradient = gradient + self.momentum * momentum
        remembered["momentum"] = gradient
        return gradient

    def _remember(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        momentum = remembered["momentum"]
        remembered["momentum"] = zero_nonfinite(momentum * (sent == 0) if self.masking else momentum)
