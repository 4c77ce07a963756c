"""Error feedback and momentum correction: what a worker did not send is not forgotten, around any reducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SerializeAsAny, model_validator

from gradwire.scenarios.schema.base import Flag, refuse
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State, flat

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
    def in_rows(self) -> bool:
        return self.reducer.in_rows

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
        self.reducer.settle_whole(sent, rows)

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        return self.reducer.covered(encoded, info, arrived)

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        return self.reducer.decode(encoded, info, arrived)

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self.reducer.follow(mean, info, state)

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        return self.reducer.restore(mean, info, state)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        self.reducer.settle(sent, info, state)


class ErrorFeedback(Around):
    """What was not sent is added to the next gradient (Stich et al., NeurIPS '18; Karimireddy et al., ICML '19).

    A worker encodes x = g + e, and keeps e = x - (what was sent of it). In all steps together, what was sent and what
    is kept is the sum of the gradients.
    """

    decay: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Factor on what was kept, below 1 to forget what is old."""

    @model_validator(mode="after")
    def _once(self) -> ErrorFeedback:
        if self.reducer.remembers_error or getattr(self.reducer, "unbiased", False):
            what = "remembers by itself what it does not send" if self.reducer.remembers_error else "is unbiased"
            raise refuse("error_feedback", f"{self.reducer.kind} {what}", True, "no error feedback")
        return self

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor)
        if (residual := state.values.get("residual")) is not None:
            values = values + self.decay * residual
        state.values["corrected"] = values
        return self.reducer.compress(values, info, state)

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        if (residual := rows.values.get("residual")) is not None:
            gradients = gradients + self.decay * residual
        rows.values["corrected"] = gradients
        return self.reducer.whole(gradients, rows)

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
        rows.values["residual"] = rows.values.pop("corrected") - sent
        super().settle_whole(sent, rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        state.values["residual"] = state.values.pop("corrected") - sent
        super().settle(sent, info, state)


class MomentumCorrection(Around):
    """Momentum before the reduction instead of in the optimiser (Lin et al., ICLR '18, section 3.1).

    A worker encodes u = m u + g. Around error feedback, what is kept has its momentum in it; with `masking` the
    momentum of sent elements is cleared (section 3.3). The optimiser must have no momentum of its own.
    """

    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """m."""
    masking: Flag = False
    """Clear the momentum of elements that were sent."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor)
        if (momentum := state.values.get("momentum")) is not None:
            values = values + self.momentum * momentum
        state.values["momentum"] = values
        return self.reducer.compress(values, info, state)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        if self.masking:
            state.values["momentum"] = state.values["momentum"] * (sent == 0)
        super().settle(sent, info, state)

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        if (momentum := rows.values.get("momentum")) is not None:
            gradients = gradients + self.momentum * momentum
        rows.values["momentum"] = gradients
        return self.reducer.whole(gradients, rows)

    def settle_whole(self, sent: Tensor, rows: Rows) -> None:
        if self.masking:
            rows.values["momentum"] = rows.values["momentum"] * (sent == 0)
        super().settle_whole(sent, rows)
