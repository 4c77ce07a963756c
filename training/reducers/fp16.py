"""`Half` encodes every gradient element in 16 bits, as float16 or bfloat16."""

from __future__ import annotations

from typing import ClassVar, Literal

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, mask_missing
from gradwire.training.reducers.state import State, flat


class Half(Reducer):
    """Every element in 16 bits. Values beyond the range of float16 become its largest one, 65504, and so does infinity,
    which hides that a training run diverges; NaN stays. Magnitudes of at most 2.98e-8, half of the smallest one, become
    zero. bfloat16 has the range of float32 and 8 bits of precision, and hides infinity as well."""

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["fp16"] = "fp16"
    format: Literal["float16", "bfloat16"] = "float16"
    """Layout of the 16 bits: 5 of exponent (IEEE 754), or 8."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        dtype = torch.float16 if self.format == "float16" else torch.bfloat16
        largest = torch.finfo(dtype).max
        return Encoded((flat(tensor, info).clamp(-largest, largest).to(dtype),))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        return mask_missing(encoded.fields[0].float(), encoded, arrived)
