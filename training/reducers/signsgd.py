"""`SignSGD` encodes each gradient element as one bit (Bernstein et al., ICML '18). With error feedback it is that of
Karimireddy et al., ICML '19."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.base import Flag, single_mistake
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, mask_missing, pack, unpack
from gradwire.training.reducers.state import State, flat


class SignSGD(Reducer):
    """The sign of each element in one bit; zero counts as plus.

    With `scale = "mean"` signs are multiplied by the mean magnitude of the tensor, the head of every packet, which
    makes them a contraction as error feedback needs it (EF-signSGD). With `scale = "none"` they are plus and minus one,
    as in signSGD, whose learning rate is accordingly smaller. A unit is a byte of eight elements. A bit cannot
    represent NaN: without a scale one extra unit marks the tensor, all of which is NaN then.

    The result is the mean of the workers' signs, or with `vote` their majority, plus or minus one again (algorithm 3 of
    the paper), which comes back as one bit per element. A tie is plus, as zero is when encoded; and so is an element
    for which no vote has arrived.
    """

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["signsgd"] = "signsgd"
    scale: Literal["mean", "none"] = "mean"
    """Factor on the signs."""
    vote: Flag = False
    """Take the majority's sign instead of the mean of signs; with `scale = "none"`."""

    @model_validator(mode="after")
    def _signs_only(self) -> SignSGD:
        if self.vote and self.scale != "none":
            raise single_mistake("vote", "needs signs without a scale", self.scale, 'scale = "none"')
        return self

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor, info)
        signs = pack((values >= 0).float(), 1)
        if self.scale == "mean":
            return Encoded((signs,), (values.abs().mean().view(1),))
        return Encoded((torch.cat([signs, signs.new_zeros(1)]) if bool(values.isnan().any()) else signs,))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        packed = encoded.fields[0]
        values = unpack(packed, 1).float()[: info.numel] * 2 - 1
        if encoded.head:
            values = values * encoded.head[0]
        values = mask_missing(values, encoded, arrived, 8)
        one_more = len(packed) > -(-info.numel // 8) and (arrived is None or bool(arrived[-1]))
        return torch.full_like(values, torch.nan) if one_more else values

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        if not self.vote:
            return mean
        return torch.where(mean.isnan(), mean, torch.where(mean >= 0, 1.0, -1.0))

    def answered(self, encoded: Encoded, info: TensorInfo) -> int | None:
        return -(-info.numel // 8) if self.vote else None

    def elements(self, encoded: Encoded) -> int:
        return 8
