"""Writes and loads files of parameter predictors (MP2's and WNN's networks), and names the types of a model's
parameters. `predictor_file` reads the files without torch.

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
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.training.parameter_server.block_predictor import BlockPredictor
from gradwire.training.parameter_server.predictor_file import expected_file, predictor_path, read_predictor
from gradwire.training.parameter_server.weight_nowcaster import WeightNowcaster

KINDS = ("conv", "fc", "bias", "norm")
"""Types of parameters: convolutions, matrices, biases, and those of a normalisation."""


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
