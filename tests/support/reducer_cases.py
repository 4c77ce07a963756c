"""Tensors, single exchanges and a convex problem on which tests try reducers. Needs torch."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradwire.traces.trace import TensorInfo
from gradwire.training.exchange.exchange import Exchange
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State

SHAPES = st.sampled_from([(1,), (7,), (130,), (3, 5), (16, 16, 3, 3), (10, 64), (129, 2)])


def info_of(*shape: int) -> TensorInfo:
    """A tensor's manifest."""
    return TensorInfo("t", shape, math.prod(shape), "float32", 0)


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    """A tensor with a heavy tail, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 4


def one(reducer: Reducer, tensor: Tensor, state: State | None = None, seed: int = 0) -> Tensor:
    """What becomes of a tensor of a single worker without loss."""
    exchange = Exchange(reducer, [info_of(*tensor.shape)], 1, seed)
    if state is not None:
        exchange.states = [[state]]
    return exchange.step([[tensor]], 0)[0][0]


def distance_after(reducer: Reducer, steps: int = 400) -> float:
    """Least squares of four workers with an optimum each: how far the answer is from their mean, relative to it.

    A worker's gradient is large where the mean of all is zero, so that what a reducer drops for good is missing.
    """
    goals = [drawn((12, 10), 50 + worker) * 3 for worker in range(4)]
    mean = torch.stack(goals).mean(dim=0)
    exchange, x = Exchange(reducer, [info_of(12, 10)], 4, seed=2), torch.zeros(12, 10)
    for step in range(steps):
        rate = 0.1 / (1 + step / 40)
        x = x - rate * exchange.step([[x - goal] for goal in goals], step)[0][0]
    return float((x - mean).norm() / mean.norm())
