"""Error feedback and momentum correction around any reducer: what a worker did not send is not forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SerializeAsAny, model_validator

from gradwire.scenarios.schema.base import Flag, single_mistake
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State, flat, zero_nonfinite

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients


class ReducerWrapper(Reducer):
    """Base of wrappers around another reducer; passes on all calls."""

    reducer: SerializeAsAny[Reducer]
    """The wrapped reducer."""

    @property
    def kind(self) -> str:
        """The kind of the wrapped reducer."""
        return self.reducer.kind

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.reducer.rounds

    @property
    def places(self) -> str:  # type: ignore[override]
        return self.reducer.places

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.reducer.adds_up

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self.reducer.unit

    @property
    def in_rows(self) -> bool:
        return self.reducer.in_rows

    def without_feedback(self) -> str:
        return self.reducer.without_feedback()

    def without_momentum(self) -> str:
        return self.reducer.without_momentum()

    def settle_whole(self, sent: Tensor, rows: FlatGradients) -> None:
        self.reducer.settle_whole(sent, rows)

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        return self.reducer.covered(encoded, info, arrived)

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        return self.reducer.decode(encoded, info, arrived)

    def magnitudes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        return self.reducer.magnitudes(encoded, info)

    def elements(self, encoded: Encoded) -> int:
        return self.reducer.elements(encoded)

    def answered(self, encoded: Encoded, info: TensorInfo) -> int | None:
        return self.reducer.answered(encoded, info)

    def decoded(self, encoded: Encoded, info: TensorInfo) -> int:
        return self.reducer.decoded(encoded, info)

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.follow(mean, info, state)

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        return self.reducer.restore(mean, info, state)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self.reducer.settle(sent, info, state)


class ErrorFeedback(ReducerWrapper):
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

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.compress(self._corrected(flat(tensor, info), state.values), info, state)

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        return self.reducer.whole(self._corrected(gradients, rows.values), rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self._keep(sent, state.values)
        super().settle(sent, info, state)

    def settle_whole(self, sent: Tensor, rows: FlatGradients) -> None:
        self._keep(sent, rows.values)
        super().settle_whole(sent, rows)

    def _corrected(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        """Return x."""
        if (residual := remembered.get("residual")) is not None:
            gradient = gradient + self.decay * residual
        remembered["corrected"] = gradient
        return gradient

    def _keep(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        remembered["residual"] = zero_nonfinite(remembered.pop("corrected") - sent)


class MomentumCorrection(ReducerWrapper):
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

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.compress(self._with_momentum(flat(tensor, info), state.values), info, state)

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        return self.reducer.whole(self._with_momentum(gradients, rows.values), rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self._mask(sent, state.values)
        super().settle(sent, info, state)

    def settle_whole(self, sent: Tensor, rows: FlatGradients) -> None:
        self._mask(sent, rows.values)
        super().settle_whole(sent, rows)

    def _with_momentum(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        """Return u."""
        if (momentum := remembered.get("momentum")) is not None:
            gradient = gradient + self.momentum * momentum
        remembered["momentum"] = gradient
        return gradient

    def _mask(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        momentum = remembered["momentum"]
        remembered["momentum"] = zero_nonfinite(momentum * (sent == 0) if self.masking else momentum)
