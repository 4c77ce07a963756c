"""Error feedback and momentum correction: what a worker did not send is not forgotten, around any reducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SerializeAsAny, model_validator

from gradwire.scenarios.schema.base import Flag, refuse
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State, finite, flat

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.rows import Rows, Whole


class Around(Reducer):
    """Base of what is wrapped around another reducer, whose every word it passes on."""

    reducer: SerializeAsAny[Reducer]
    """What is wrapped."""

    @property
    def kind(self) -> str:
        """That of what is wrapped."""
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

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
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


class ErrorFeedback(Around):
    """What was not sent is added to the next gradient (Stich et al., NeurIPS '18; Karimireddy et al., ICML '19).

    A worker encodes x = g + e, and keeps e = x - (what was sent of it). In all steps together, what was sent and what
    is kept is the sum of the gradients. What is no finite number is not kept.
    """

    decay: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Factor on what was kept, below 1 to forget what is old."""

    @model_validator(mode="after")
    def _once(self) -> ErrorFeedback:
        if why := self.reducer.without_feedback():
            raise refuse("reducer", f"{self.reducer.kind} {why}", None, "no error feedback around it")
        return self

    def without_feedback(self) -> str:
        return "has error feedback around it already"

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.compress(self._corrected(flat(tensor, info), state.values), info, state)

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        return self.reducer.whole(self._corrected(gradients, rows.values), rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self._keep(sent, state.values)
        super().settle(sent, info, state)

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
        self._keep(sent, rows.values)
        super().settle_whole(sent, rows)

    def _corrected(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        """x."""
        if (residual := remembered.get("residual")) is not None:
            gradient = gradient + self.decay * residual
        remembered["corrected"] = gradient
        return gradient

    def _keep(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        remembered["residual"] = finite(remembered.pop("corrected") - sent)


class MomentumCorrection(Around):
    """Momentum before the reduction instead of in the optimiser (Lin et al., ICLR '18, section 3.1).

    A worker encodes u = m u + g. Around error feedback, what is kept has its momentum in it; with `masking` the
    momentum of sent elements is cleared (section 3.3). The optimiser must have no momentum of its own. What is no
    finite number is not kept.
    """

    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """m."""
    masking: Flag = False
    """Clear the momentum of elements that were sent."""

    @model_validator(mode="after")
    def _once(self) -> MomentumCorrection:
        if why := self.reducer.without_momentum():
            raise refuse("reducer", f"{self.reducer.kind} {why}", None, "no momentum correction around it")
        return self

    def without_momentum(self) -> str:
        return "has momentum correction around it already"

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.compress(self._moved(flat(tensor, info), state.values), info, state)

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        return self.reducer.whole(self._moved(gradients, rows.values), rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self._mask(sent, state.values)
        super().settle(sent, info, state)

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
        self._mask(sent, rows.values)
        super().settle_whole(sent, rows)

    def _moved(self, gradient: Tensor, remembered: dict[str, Tensor]) -> Tensor:
        """u."""
        if (momentum := remembered.get("momentum")) is not None:
            gradient = gradient + self.momentum * momentum
        remembered["momentum"] = gradient
        return gradient

    def _mask(self, sent: Tensor, remembered: dict[str, Tensor]) -> None:
        momentum = remembered["momentum"]
        remembered["momentum"] = finite(momentum * (sent == 0) if self.masking else momentum)
