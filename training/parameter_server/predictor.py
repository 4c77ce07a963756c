"""Parameter predictors: a network for blocks (MP2), one for single parameters (WNN), and their files.

A file is an `.npz` with the weights by name and a manifest: its kind, the training runs it was made from, the command
and date, and its error on an unseen training run.
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
from gradwire.training.parameter_server.block_predictor import BlockPredictor
from gradwire.training.parameter_server.predictor_file import expected_file, predictor_path, read_predictor

KINDS = ("conv", "fc", "bias", "norm")
"""Types of parameters: convolutions, matrices, biases, and those of a normalisation."""


class ScalarPredictor(nn.Module):
    """Predicts a single parameter: five values and their four differences, (n, 5), to (n,) in (-1, 1). Two streams, as
    in weight nowcasting [code]; their sizes are our choice. See `nowcast` for the units."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.values, self.differences = nn.Linear(5, width), nn.Linear(4, width)
        self.both, self.out = nn.Linear(2 * width, width), nn.Linear(width, 1)

    def forward(self, values: Tensor) -> Tensor:
        streams = torch.cat([self.values(values), self.differences(values.diff(dim=1))], dim=1)
        return torch.tanh(self.out(torch.relu(self.both(torch.relu(streams))))).squeeze(1)


class WeightNowcaster(nn.Module):
    """A `ScalarPredictor` for each type of parameters, except those of normalisations [code]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.bias = ScalarPredictor(), ScalarPredictor(), ScalarPredictor()

    def of(self, kind: str) -> ScalarPredictor:
        """Return the predictor of a type."""
        return getattr(self, kind)


def normalise(history: Tensor) -> tuple[Tensor, Tensor]:
    """Return ((v - the first) / (2 range), range) of five values of n parameters: (5, n) to (n, 5) and (n,)."""
    spread = history.max(dim=0).values - history.min(dim=0).values
    return ((history - history[0]) / (2 * spread).clamp(min=1e-12)).T, spread


def nowcast(net: ScalarPredictor, history: Tensor) -> Tensor:
    """Return predicted values, (n,): the last one plus the net's output times twice the range."""
    values, spread = normalise(history)
    return history[-1] + 2 * spread * net(values)


def kinds_of(model: nn.Module) -> list[str]:
    """Return the type of each parameter of a model, in the order of `model.parameters()`."""
    norms = {
        id(parameter)
        for module in model.modules()
        if "Norm" in type(module).__name__
        for parameter in module.parameters(recurse=False)
    }
    by_dimension = {0: "bias", 1: "bias", 2: "fc"}
    return ["norm" if id(p) in norms else by_dimension.get(p.dim(), "conv") for p in model.parameters()]


NETS: Mapping[str, type[nn.Module]] = {"mp2": BlockPredictor, "wnn": WeightNowcaster}


def save_predictor(path: Path, net: nn.Module, manifest: Mapping[str, Any]) -> None:
    """Write a predictor with its manifest."""
    arrays = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    with path.open("wb") as file:
        np.savez(file, manifest=np.array(json.dumps(dict(manifest))), **arrays)


def load_predictor(kind: str, name: str | Path = "bundled") -> tuple[nn.Module, dict[str, Any]]:
    """Return (predictor, manifest) by name (`SHIPPED`), or of a file. Raises TraceError if the file is not a predictor
    of this kind."""
    net = NETS[kind]()
    arrays, manifest = read_predictor(kind, name)
    try:
        net.load_state_dict({name: torch.from_numpy(values) for name, values in arrays.items()})
    except (ValueError, TypeError, RuntimeError) as error:
        what = f"is not a predictor ({str(error).splitlines()[0]})"
        raise TraceError(what, str(predictor_path(kind, name)), expected_file(kind)) from None
    return net.eval(), manifest
