"""Nets, data and comparisons of trainings that several tests share. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.traces.models.resnet import CifarResNet
from gradwire.traces.trace import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.exchange.ring_allreduce import RingLayout
from gradwire.training.networks.builtin_networks import Pushed


def resnet() -> nn.Module:
    """The smallest residual network, the same every time."""
    torch.manual_seed(1)
    return CifarResNet(1, 10)


def plain() -> nn.Module:
    """A net without batch norms, the same every time: 216 + 8 + 2880 + 10 parameters."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 10))


def parameters(of: nn.Module) -> list[Tensor]:
    """Copies of a net's parameters."""
    return [each.detach().clone() for each in of.parameters()]


def close(one: nn.Module, other: nn.Module, atol: float = 1e-6) -> bool:
    """Whether two nets have the same parameters, to rounding."""
    return all(torch.allclose(a, b, atol=atol) for a, b in zip(parameters(one), parameters(other), strict=True))


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two nets have the same parameters and statistics, bit by bit."""
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def resumes_exactly(make: Callable[[], Any], steps: int, stop: int, folder: Path) -> tuple[Any, Any]:
    """Train without and with an interruption after `stop` steps, through a file, and compare rows and parameters.
    Returns both trainers."""
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(steps)]
    assert [first.step() for _ in range(stop)] == rows[:stop]
    torch.save(first.state_dict(), folder / "checkpoint.pt")
    second.load_state_dict(torch.load(folder / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(steps - stop)] == rows[stop:]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))
    return whole, second


class Points:
    """Data of one sample for each worker, the same ones in every step; there is nothing to be scored."""

    def __init__(self, *points: list[float]) -> None:
        self.points = torch.tensor(points)

    def __len__(self) -> int:
        return len(self.points)

    def batch(self, indices: Any, draws: Any) -> tuple[tuple[Tensor], Tensor]:
        """All of them, whatever is asked for."""
        return (self.points,), torch.zeros(len(self.points))


def pushed_round(layout: RingLayout, step: int = 0) -> Pushed:
    """What the workers of a ring send in a step: ones, of tensors of the layout's sizes."""
    infos = [TensorInfo(f"t{n}", (numel,), numel, "float32", n) for n, numel in enumerate(layout.numels)]
    encoded = [[Encoded((torch.ones(info.numel),)) for info in infos] for _ in range(layout.workers)]
    return Pushed(step, 0, layout.payload, infos, encoded, layout)


def with_loss(trainer, loss):
    """The trainer with another loss: (model, inputs, targets) -> the loss of each sample."""
    trainer.loss = loss
    return trainer
