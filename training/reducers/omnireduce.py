"""`OmniReduce` encodes the blocks of gradient elements that are not all zero (Fei et al., SIGCOMM '21)."""

from __future__ import annotations

from typing import ClassVar, Literal

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.base import Count
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, group_units, scatter_rows
from gradwire.training.reducers.fields import Ratio, share_count
from gradwire.training.reducers.state import State, flat


class OmniReduce(Reducer):
    """Blocks of `block` elements with a nonzero one, each with its position: exact, and short for sparse gradients.

    With a `ratio` below 1 only that share of a tensor's blocks is sent, those with the largest Euclidean norms: the
    paper's Block Top-k [recalled], which needs error feedback. A unit is a block: 4 bytes and 4 per element; the last
    block of a tensor is filled with zeros. The mean comes back as that of any reducer with positions.
    """

    unit: ClassVar[str] = "4 block + 4"

    kind: Literal["omnireduce"] = "omnireduce"
    block: Count = 256
    """Elements of a block [recalled]; a shorter tensor is one block."""
    ratio: Ratio = 1.0
    """Largest share of a tensor's blocks that is sent, rounded down, at least one block."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        rows = group_units(flat(tensor, info), min(self.block, max(info.numel, 1)))
        indices = rows.any(dim=1).nonzero().view(-1)
        most = share_count(self.ratio, len(rows))
        if len(indices) > most:
            indices = rows.norm(dim=1).topk(most, sorted=False).indices
        return Encoded((rows[indices], indices.to(torch.int32)))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        rows, indices = encoded.fields
        return scatter_rows(rows, indices, info.numel, arrived)

    def elements(self, encoded: Encoded) -> int:
        return encoded.fields[0].shape[1]
