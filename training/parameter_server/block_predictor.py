"""`BlockPredictor`, MP2's network, predicts how far parameters have moved since their last exchange, from features of
their history.

[abstract] of MP2 (Computer Networks 255, 2024, 110883) names convolution, channel attention and max pooling, and layers
that resemble each other. Sizes, features and the form of the output are our choice: parameters are taken in blocks of
consecutive elements of a tensor; the network sees the last two velocities of each, its age and value, and how
persistent velocities are in its own tensor and in the others. It says which share of its last velocity an element has
kept, and what is to be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradwire.training.parameter_server.move_history import MoveHistory
from gradwire.training.reducers.base import group_units

BLOCK = 32
"""Parameters of a block."""
CHANNELS = 8
"""Features of a parameter (see `features`)."""
BLOCKED = ("conv", "fc")
"""Types of tensors that are predicted; all others are small and exchanged whole."""


class BlockPredictor(nn.Module):
    """Predicts velocities, in units of their tensor's: (blocks, CHANNELS, BLOCK) to (blocks, BLOCK). Two convolutions
    along the block, attention over channels (squeeze and excitation, Hu et al., CVPR '18), max pooling of pairs, and a
    linear layer. At first it predicts that velocities stay as they are."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(CHANNELS, width, 3, padding=1), nn.Conv1d(width, width, 3, padding=1)
        self.squeeze, self.excite = nn.Linear(width, width // 4), nn.Linear(width // 4, width)
        self.out = nn.Linear(width * BLOCK // 2, 2 * BLOCK)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        attention = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean(dim=2)))))
        share, more = self.out(nn.functional.max_pool1d(y * attention[:, :, None], 2).flatten(1)).chunk(2, dim=1)
        return (1 + share) * x[:, 0] + more


class Blocks(NamedTuple):
    """Parameters of tensors that are predicted, in blocks; B of them.

    x : (B, CHANNELS, BLOCK), see `features`. scale : (B, 1), velocity that counts as 1. passed : (B, BLOCK), the sum of
    the learning rates since each element's last exchange.
    """

    x: Tensor
    scale: Tensor
    passed: Tensor


def features(history: MoveHistory, kinds: Sequence[str]) -> Blocks:
    """Return what a block predictor sees, of all tensors that are predicted, padded to whole blocks.

    kinds : types of the tensors, see `gradwire.training.parameter_server.predictor.kinds_of`.

    Channels: the last velocity and the one before it, in units of the tensor's mean magnitude; the age, in units of the
    oldest; the value, in units of the tensor's deviation; whether it is a convolution; the persistence of the tensor,
    and the mean of all tensors before it, and of all after it.
    """
    sizes, passed = history.sizes, history.passed()
    columns = [column.split(sizes) for column in (history.velocity, history.earlier, passed, history.values)]
    predicted = [tensor for tensor, kind in enumerate(kinds) if kind in BLOCKED]
    persistence = history.persistence.tolist()
    xs, scales, ages, oldest = [], [], [], passed.max().clamp(min=1e-30)
    for place, tensor in enumerate(predicted):
        velocity, earlier, age, value = (group_units(column[tensor], BLOCK) for column in columns)
        scale = columns[0][tensor].abs().mean().clamp(min=1e-12)
        spread = columns[3][tensor].std(correction=0).clamp(min=1e-12)
        before, after = predicted[:place] or [tensor], predicted[place + 1 :] or [tensor]
        scalars = [fmean(persistence[at] for at in tensors) for tensors in ([tensor], before, after)]
        x = [velocity / scale, earlier / scale, age / oldest, value / spread]
        x += [torch.full_like(velocity, scalar) for scalar in (float(kinds[tensor] == "conv"), *scalars)]
        xs.append(torch.stack(x, dim=1))
        scales.append(scale.expand(len(velocity), 1))
        ages.append(age)
    return Blocks(torch.cat(xs), torch.cat(scales), torch.cat(ages))


def predicted(net: nn.Module, history: MoveHistory, kinds: Sequence[str]) -> Tensor:
    """Return the predicted values of all parameters, (n,); of tensors that are not predicted, the last known ones."""
    blocks = features(history, kinds)
    moves = net(blocks.x) * blocks.scale * blocks.passed
    parts, first = list(history.values.split(history.sizes)), 0
    for tensor, kind in enumerate(kinds):
        if kind in BLOCKED:
            count = -(-history.sizes[tensor] // BLOCK)
            parts[tensor] = parts[tensor] - moves[first : first + count].view(-1)[: history.sizes[tensor]]
            first += count
    return torch.cat(parts)
