"""Top-k: the largest elements with their indices (Aji and Heafield, EMNLP '17; Lin et al., ICLR '18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, scattered
from gradwire.training.reducers.fields import Ratio, kept
from gradwire.training.reducers.state import State, flat
from gradwire.training.rows import Whole

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.rows import Rows


class TopK(Reducer):
    """The `ratio` of the elements that are largest in magnitude, each with a 32-bit index: 8 bytes an element."""

    kind: Literal["topk"] = "topk"
    ratio: Ratio = 0.01
    """Share of the elements of each tensor that are sent, rounded down, at least one."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        import torch

        values = flat(tensor, info)
        indices = values.abs().topk(kept(self.ratio, len(values)), sorted=False).indices
        return Encoded((values[indices], indices.to(torch.int32)))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        values, indices = encoded.fields
        return scattered(values, indices, info.numel, arrived)

    @property
    def in_rows(self) -> bool:
        return True

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        counts = [kept(self.ratio, info.numel) for info in rows.infos]
        places = rows.largest(gradients.abs(), counts)
        values = gradients.reshape(-1)
        sent = values.new_zeros(len(values))
        sent[places] = values[places]
        return Whole(sent.view_as(gradients), [2 * gradients.element_size() * sum(counts)] * len(gradients))
