"""signSGD: one bit per element (Bernstein et al., ICML '18; with error feedback Karimireddy et al., ICML '19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, grouped, per_element
from gradwire.training.reducers.state import State, flat

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo


class SignSGD(Reducer):
    """The sign of each element in one bit; zero counts as plus.

    With `scale = "mean"` signs are multiplied by the mean magnitude of the tensor, the head of every packet, which
    makes them a contraction as error feedback wants it (EF-signSGD). With `scale = "none"` they are plus and minus
    one, as in signSGD, whose learning rate is smaller by as much. A unit is a byte of eight elements.
    """

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["signsgd"] = "signsgd"
    scale: Literal["mean", "none"] = "mean"
    """What signs are multiplied by."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        import torch

        values = flat(tensor)
        bits = grouped((values >= 0).float(), 8).to(torch.uint8)
        shifts = torch.arange(8, dtype=torch.uint8, device=values.device)
        head = (values.abs().mean().view(1),) if self.scale == "mean" else ()
        return Encoded(((bits << shifts).sum(dim=1, dtype=torch.uint8),), head)

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        import torch

        packed = encoded.fields[0]
        shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
        values = ((packed[:, None] >> shifts) & 1).float().view(-1)[: info.numel] * 2 - 1
        if encoded.head:
            values = values * encoded.head[0]
        return values if arrived is None else values * per_element(arrived, 8, info.numel)

    def elements(self, encoded: Encoded) -> int:
        return 8
