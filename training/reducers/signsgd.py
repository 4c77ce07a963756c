"""signSGD: one bit per element (Bernstein et al., ICML '18; with error feedback Karimireddy et al., ICML '19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from gradwire.scenarios.schema.base import Flag, refuse
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, grouped, masked
from gradwire.training.reducers.state import State, flat

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo


class SignSGD(Reducer):
    """The sign of each element in one bit; zero counts as plus.

    With `scale = "mean"` signs are multiplied by the mean magnitude of the tensor, the head of every packet, which
    makes them a contraction as error feedback wants it (EF-signSGD). With `scale = "none"` they are plus and minus
    one, as in signSGD, whose learning rate is smaller by as much. A unit is a byte of eight elements. A bit cannot say
    that an element is no number: without a scale one more unit says so of the tensor, all of which is NaN then.

    The mean of the workers' signs is what everybody gets, or with `vote` what most of them say, plus or minus one again
    (algorithm 3 of the paper), which comes back as one bit an element. A tie is plus, as zero is where it is encoded;
    and so is what no worker's vote has arrived of.
    """

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["signsgd"] = "signsgd"
    scale: Literal["mean", "none"] = "mean"
    """What signs are multiplied by."""
    vote: Flag = False
    """Take the majority's sign instead of the mean of signs; with `scale = "none"`."""

    @model_validator(mode="after")
    def _of_signs_alone(self) -> SignSGD:
        if self.vote and self.scale != "none":
            raise refuse("vote", "is of signs alone, and these have a scale", self.scale, 'scale = "none"')
        return self

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        import torch

        values = flat(tensor, info)
        bits = grouped((values >= 0).float(), 8).to(torch.uint8)
        shifts = torch.arange(8, dtype=torch.uint8, device=values.device)
        signs = (bits << shifts).sum(dim=1, dtype=torch.uint8)
        if self.scale == "mean":
            return Encoded((signs,), (values.abs().mean().view(1),))
        return Encoded((torch.cat([signs, signs.new_zeros(1)]) if bool(values.isnan().any()) else signs,))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        import torch

        packed = encoded.fields[0]
        shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
        values = ((packed[:, None] >> shifts) & 1).float().view(-1)[: info.numel] * 2 - 1
        if encoded.head:
            values = values * encoded.head[0]
        values = masked(values, encoded, arrived, 8)
        one_more = len(packed) > -(-info.numel // 8) and (arrived is None or bool(arrived[-1]))
        return torch.full_like(values, torch.nan) if one_more else values

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        import torch

        if not self.vote:
            return mean
        return torch.where(mean.isnan(), mean, torch.where(mean >= 0, 1.0, -1.0))

    def answered(self, encoded: Encoded, info: TensorInfo) -> int | None:
        return -(-info.numel // 8) if self.vote else None

    def elements(self, encoded: Encoded) -> int:
        return 8
