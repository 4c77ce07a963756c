"""`TopK` encodes the largest gradient elements with their indices (Aji and Heafield, EMNLP '17; Lin et al., ICLR
'18)."""

from __future__ import annotations

from typing import ClassVar, Literal

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.traces.parts import TensorInfo
from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, scatter
from gradwire.training.reducers.fields import Ratio, share_count
from gradwire.training.reducers.state import State, flat


class TopK(Reducer):
    """The `ratio` of the elements that are largest in magnitude, each with a 32-bit index: 8 bytes per element."""

    in_rows: ClassVar[bool] = True

    kind: Literal["topk"] = "topk"
    ratio: Ratio = 0.01
    """Share of the elements of each tensor that are sent, rounded down, at least one."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor, info)
        indices = values.abs().topk(share_count(self.ratio, len(values)), sorted=False).indices
        return Encoded((values[indices], indices.to(torch.int32)))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        values, indices = encoded.fields
        return scatter(values, indices, info.numel, arrived)

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        counts = [share_count(self.ratio, info.numel) for info in rows.infos]
        positions = rows.largest(gradients.abs(), counts)
        values = gradients.reshape(-1)
        sent = values.new_zeros(len(values))
        sent[positions] = values[positions]
        return EncodedModels(sent.view_as(gradients), [2 * gradients.element_size() * sum(counts)] * len(gradients))
