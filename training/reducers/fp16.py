"""Half precision: every element in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State, flat

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo


class Half(Reducer):
    """Every element in 16 bits.

    A value beyond the range of float16, 65504, becomes the largest one; below 6e-8 it becomes zero. bfloat16 has the
    range of float32 and 8 bits of precision.
    """

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["fp16"] = "fp16"
    format: Literal["float16", "bfloat16"] = "float16"
    """How the 16 bits are shared out: 5 of exponent (IEEE 754), or 8."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        import torch

        dtype = torch.float16 if self.format == "float16" else torch.bfloat16
        most = torch.finfo(dtype).max
        return Encoded((flat(tensor).clamp(-most, most).to(dtype),))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        values = encoded.fields[0].float()
        return values if arrived is None else values * arrived
