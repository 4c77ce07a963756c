"""No reduction: float32 as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, State, flat

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo


class Dense(Reducer):
    """Every element as float32."""

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["none"] = "none"

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return Encoded((flat(tensor),))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        (values,) = encoded.fields
        return values.clone() if arrived is None else values * arrived
