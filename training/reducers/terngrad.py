"""`TernGrad` encodes each gradient element as minus one, zero or one, times one scale (Wen et al., NeurIPS '17)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, mask_missing, pack, unpack
from gradwire.training.reducers.state import State, flat


class TernGrad(Reducer):
    """Each element as a sign or zero in two bits, at random and unbiased, and the largest magnitude as scale.

    Elements beyond `clip` standard deviations are clipped first (section 4 of the paper: 2.5), which bounds the scale.
    The deviation is that from the mean, but clipping limits the distance from zero: little is left of elements that are
    nearly alike; if all are alike nothing is clipped. An element x then becomes sign(x) with the probability |x| /
    scale. A unit is a byte of four elements; the scale is the head of every packet.
    """

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["terngrad"] = "terngrad"
    clip: Annotated[float, Field(ge=0, le=100, strict=True)] = 2.5
    """Standard deviations at which elements are clipped; 0: no clipping."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor, info)
        if self.clip and len(values) > 1:
            limit, (smallest, largest) = float(values.std(correction=0)) * self.clip, values.aminmax()
            if limit and bool(smallest != largest):  # the deviation of equal values is zero, or rounding error
                values = values.clamp(-limit, limit)
        scale = values.abs().max().view(1) if len(values) else values.new_zeros(1)
        draws = torch.rand(values.shape, generator=state.generator(values.device), device=values.device)
        signs = values.sign() * (draws * scale < values.abs())
        return Encoded((pack(signs + 1, 2),), (scale,))  # 0, 1, 2 for -1, 0, 1

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        signs = unpack(encoded.fields[0], 2).float()[: info.numel] - 1
        return mask_missing(signs * encoded.head[0], encoded, arrived, 4)

    def elements(self, encoded: Encoded) -> int:
        return 4
