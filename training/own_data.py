"""Data of the user's own, and whether a model and data go together where either is: two samples are tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.scenarios.asked import stopped
from gradwire.scenarios.errors import ScenarioError
from gradwire.training.data import Images, Text
from gradwire.training.own_model import DATA, MODEL, SOME_DATA, function_of, made_by, takes
from gradwire.training.strangers import shown

if TYPE_CHECKING:
    from gradwire.scenarios.schema.training import Training
    from gradwire.training.precision import Loss

OF_DATA = ("size", "samples", "augment")
"""What a table says of data that gradwire reads, and of others where they have parameters for it."""
TRIED = 2
"""Samples that a model is tried with."""


def own_data(table: Training, folder: Path | None) -> Images | Text:
    """What the function of the user's own that a table names has read.

    Raises
    ------
    ScenarioError
        It cannot be found, is stopped by an error, has no parameter for what the table says of data, or makes
        something else, or nothing that a score can be taken of.
    """
    said: dict[str, Any] = {key: getattr(table, key) for key in OF_DATA if key in table.model_fields_set}
    function = function_of(table.data, folder, DATA, SOME_DATA)
    for key, value in said.items():
        if not takes(function, key):
            what = f"{table.data} has no parameter for it"
            raise ScenarioError(f"is {value}, and {what}", f"training.{key}", f"none, or a parameter {key}")
    made = made_by(table.data, folder, DATA, SOME_DATA, (), said)
    if not isinstance(made, Images | Text):
        raise ScenarioError(f"{table.data} makes something of type {type(made).__name__}", DATA, SOME_DATA)
    if isinstance(made, Images) and not made.test[1].numel():
        raise ScenarioError(f"{table.data} makes an Images without held-out samples", DATA, "at least one in test")
    return made


def try_out(model: nn.Module, data: Images | Text, name: str, file: str, where: str) -> None:
    """Whether a model takes samples of some data, and answers with a number for each class: it is asked of two.

    name : of the model. file : where its mistakes are to be found. where : the scenario names what is the user's own.

    Raises
    ------
    ScenarioError
        It does not.
    """
    device = next(model.parameters()).device
    training = model.training
    count = min(TRIED, len(data))
    with torch.random.fork_rng(devices=[] if device.type != "cuda" else [device.index or 0]), torch.no_grad():
        inputs, targets = data.batch(np.arange(count), np.random.default_rng(0))
        inputs = tuple(each.to(device) for each in inputs)
        model.eval()  # nothing is kept of it, such as running means
        try:
            with stopped(f"{name} stopped at samples {_shapes(inputs)}", file, where):
                found = model(*inputs)
        finally:
            model.train(training)
    wanted = tuple(targets.shape)
    fits = isinstance(found, torch.Tensor) and found.is_floating_point() and found.shape[:-1] == wanted
    if not fits or found.shape[-1] < data.classes:
        expected = f"numbers for each of {data.classes} classes, {(*wanted, data.classes)}"
        raise ScenarioError(f"{name} answers {shown(found)} for samples {_shapes(inputs)}", where, expected)


def watched(loss: Loss, name: str, file: str) -> Loss:
    """A loss of a model of the user's own: what stops the model in the middle of a training is told with its file."""

    def losses(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        with stopped(f"{name} stopped at samples {_shapes(inputs)}", file, MODEL):
            return loss(model, inputs, targets)

    return losses


def _shapes(tensors: tuple[Tensor, ...]) -> str:
    return ", ".join(str(tuple(each.shape)) for each in tensors)
