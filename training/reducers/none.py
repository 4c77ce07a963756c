"""`Dense` encodes every gradient element as float32, without reduction."""

from __future__ import annotations

from typing import ClassVar, Literal

from gradwire.scenarios.lazily import Tensor
from gradwire.traces.parts import TensorInfo
from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, mask_missing
from gradwire.training.reducers.state import State, flat


class Dense(Reducer):
    """Every element as float32."""

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"
    adds_up: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True

    kind: Literal["none"] = "none"

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return Encoded((flat(tensor, info),))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        (values,) = encoded.fields
        return values.clone() if arrived is None else mask_missing(values, encoded, arrived)

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        workers, numel = gradients.shape
        return EncodedModels(gradients, [gradients.element_size() * numel] * workers, gradients.element_size() * numel)
