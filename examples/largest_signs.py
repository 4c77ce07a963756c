"""A reducer of one's own: the signs of the largest elements, and how large they are on average.

A packet holds an index of 4 bytes and a sign of one for each element, and the mean once: whichever packets are missing,
the others say all that is needed to decode them.
"""

import torch

from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, scatter
from gradwire.training.reducers.fields import Ratio, share_count
from gradwire.training.reducers.state import flat


class LargestSigns(Reducer):
    ratio: Ratio = 0.05
    """Share of the elements of each tensor that are sent."""

    def compress(self, tensor, info, state):
        values = flat(tensor)
        indices = values.abs().topk(share_count(self.ratio, len(values))).indices
        chosen = values[indices]
        signs = chosen.sign().to(torch.int8)
        return Encoded((indices.to(torch.int32), signs), head=(chosen.abs().mean().reshape(1),))

    def decode(self, encoded, info, arrived=None):
        indices, signs = encoded.fields
        return scatter(signs * encoded.head[0], indices, info.numel, arrived)
