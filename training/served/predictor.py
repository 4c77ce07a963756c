"""Predictors of parameters: a network for blocks of them (MP2), one for each by itself (WNN), and their files.

A file is an `.npz` with the weights by name and a manifest: what it predicts, from which trainings it was made, by
which command and when, and how well it predicts a training that it has not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import TraceError
from gradwire.training.served.predictor_file import expected_of, place_of, read_predictor

BLOCK = 32
"""Parameters of a block."""
PERIOD = 8
"""Steps in which every parameter of a block is pushed once: an eighth of them in each."""
CHANNELS = 6
LAST = 3
"""Of a block's features (see `features`): how many there are, and which one says how far each parameter moved last."""
KINDS = ("conv", "fc", "bias", "norm")
"""Types of layers' parameters: convolutions, matrices, biases, and what belongs to a normalisation."""


class BlockPredictor(nn.Module):
    """How far a block of parameters moves: (blocks, CHANNELS, BLOCK) to (blocks, BLOCK).

    Two convolutions along the block, attention over channels (squeeze and excitation, Hu et al., CVPR '18), the larger
    of every two places, and a linear layer, whose answer is added to how far each parameter moved when it was pushed
    last. [abstract] of MP2 names convolution, channel attention and max pooling; sizes, order and the sum are ours.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(CHANNELS, width, 3, padding=1), nn.Conv1d(width, width, 3, padding=1)
        self.squeeze, self.excite = nn.Linear(width, width // 4), nn.Linear(width // 4, width)
        self.out = nn.Linear(width * BLOCK // 2, BLOCK)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        attention = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean(dim=2)))))
        return x[:, LAST] + self.out(nn.functional.max_pool1d(y * attention[:, :, None], 2).flatten(1))


class ScalarPredictor(nn.Module):
    """Where a single parameter will be: five values and their four differences, (n, 5), to (n,) in (-1, 1).

    Two streams, as weight nowcasting has them [code]; their sizes are our choice. See `nowcast` for the units.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.values, self.differences = nn.Linear(5, width), nn.Linear(4, width)
        self.both, self.out = nn.Linear(2 * width, width), nn.Linear(width, 1)

    def forward(self, values: Tensor) -> Tensor:
        streams = torch.cat([self.values(values), self.differences(values.diff(dim=1))], dim=1)
        return torch.tanh(self.out(torch.relu(self.both(torch.relu(streams))))).squeeze(1)


class WeightNowcaster(nn.Module):
    """A `ScalarPredictor` for each type of parameters; those of normalisations are left alone [code]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.bias = ScalarPredictor(), ScalarPredictor(), ScalarPredictor()

    def of(self, kind: str) -> ScalarPredictor:
        """The one of a type."""
        return getattr(self, kind)


def normalised(history: Tensor) -> tuple[Tensor, Tensor]:
    """(values as (v - the first) / (2 range), range) of five values of n parameters, (5, n) to (n, 5) and (n,)."""
    spread = history.max(dim=0).values - history.min(dim=0).values
    return ((history - history[0]) / (2 * spread).clamp(min=1e-12)).T, spread


def nowcast(net: ScalarPredictor, history: Tensor) -> Tensor:
    """Predicted values, (n,): the last one plus the answer times twice the range."""
    values, spread = normalised(history)
    return history[-1] + 2 * spread * net(values)


def features(
    observed: Tensor, age: Tensor, values: Tensor, last: Tensor, scale: Tensor, spread: Tensor, conv: Tensor
) -> Tensor:
    """What a block predictor sees, (blocks, CHANNELS, BLOCK); `last` and `observed` in units of `scale`.

    observed : how far pushed parameters have moved in this step, zero elsewhere, (blocks, BLOCK).
    age : steps since each place was pushed last, 0 for now, (blocks, BLOCK) or (BLOCK,).
    values : the server's previous block. last : how far each moved when it was pushed last.
    scale, spread : mean magnitude of the tensor's moves in this step, deviation of its values, (blocks,).
    conv : whether the block is of a convolution, (blocks,).
    """
    shape = values.shape
    kind = conv.to(values.dtype)[:, None].expand(shape)
    return torch.stack([
        observed / scale[:, None], (age / PERIOD).expand(shape), values / spread[:, None], last / scale[:, None],
        kind, 1 - kind,
    ], dim=1)  # fmt: skip


def kinds_of(model: nn.Module) -> list[str]:
    """The type of each parameter of a model, in the order of `model.parameters()`."""
    norms = {
        id(each) for module in model.modules() if "Norm" in type(module).__name__
        for each in module.parameters(recurse=False)
    }  # fmt: skip
    return [
        "norm" if id(each) in norms else "bias" if each.dim() < 2 else "fc" if each.dim() == 2 else "conv"
        for each in model.parameters()
    ]


NETS: Mapping[str, type[nn.Module]] = {"mp2": BlockPredictor, "wnn": WeightNowcaster}


def save_predictor(path: Path, net: nn.Module, manifest: Mapping[str, Any]) -> None:
    """Write a predictor with its manifest."""
    arrays = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    with path.open("wb") as file:
        np.savez(file, manifest=np.array(json.dumps(dict(manifest))), **arrays)


def load_predictor(kind: str, name: str | Path = "bundled") -> tuple[nn.Module, dict[str, Any]]:
    """(a predictor, its manifest) by name (`SHIPPED`), or of a file.

    Raises
    ------
    TraceError
        It is no such file.
    """
    net = NETS[kind]()
    arrays, manifest = read_predictor(kind, name)
    try:
        net.load_state_dict({name: torch.from_numpy(found) for name, found in arrays.items()})
    except (ValueError, TypeError, RuntimeError) as error:
        what = f"is no predictor ({str(error).splitlines()[0]})"
        raise TraceError(what, str(place_of(kind, name)), expected_of(kind)) from None
    return net.eval(), manifest
