"""No reduction: float32 as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, masked
from gradwire.training.reducers.state import State, flat
from gradwire.training.rows import Whole

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.rows import Rows


class Dense(Reducer):
    """Every element as float32."""

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"
    adds_up: ClassVar[bool] = True

    kind: Literal["none"] = "none"

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return Encoded((flat(tensor, info),))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        (values,) = encoded.fields
        return values.clone() if arrived is None else masked(values, encoded, arrived)

    @property
    def in_rows(self) -> bool:
        return True

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        workers, numel = gradients.shape
        return Whole(
            gradients, [gradients.element_size() * numel] * workers, gradients.element_size() * numel
        )
