"""Data of the user's own, and whether a model and data go together where either is: two samples are tried."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.scenarios.asked import stopped
from gradwire.scenarios.errors import ScenarioError
from gradwire.training.data import Images, Text
from gradwire.training.own_model import DATA, MODEL, SOME_DATA, function_of, made_by, takes
from gradwire.training.precision import in_precision
from gradwire.training.strangers import shown
from gradwire.training.trainer import losses_of

if TYPE_CHECKING:
    from gradwire.scenarios.schema.training import Training
    from gradwire.training.trainer import Trainer

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
    """Whether a model takes samples of some data, those that are held out, too, and answers with a number for each
    class, of which gradients can be had: it is asked of two.

    name : of the model. file : where its mistakes are to be found. where : the scenario names what is the user's own.

    Raises
    ------
    ScenarioError
        It does not.
    """
    device = next(model.parameters()).device
    training = model.training
    with torch.random.fork_rng(devices=[] if device.type != "cuda" else [device.index or 0]), torch.enable_grad():
        learned = data.batch(np.arange(min(TRIED, len(data))), np.random.default_rng(0))
        held = data.held_out() if isinstance(data, Text) else data.test
        splits = [learned, ((held[0][:TRIED],), held[1][:TRIED])]
        model.eval()  # nothing is kept of it, such as running means
        try:
            for split, (samples, targets) in zip(("", "held-out "), splits, strict=True):
                inputs = tuple(each.to(device) for each in samples)
                of = f"{split}samples {_shapes(inputs)}"
                with stopped(f"{name} stopped at {of}", file, where):
                    found = model(*inputs)
                _check_answer(found, tuple(targets.shape), data.classes, f"{name} answers", of, where)
        finally:
            model.train(training)


def _check_answer(found: Any, wanted: tuple[int, ...], classes: int, who: str, of: str, where: str) -> None:
    fits = isinstance(found, torch.Tensor) and found.is_floating_point() and found.shape[:-1] == wanted
    if not fits or found.shape[-1] < classes:
        expected = f"numbers for each of {classes} classes, {(*wanted, classes)}, as there are targets {wanted}"
        raise ScenarioError(f"{who} {shown(found)} for {of}", where, expected)
    if not found.requires_grad:
        what = f"{who} something that no gradients can be had of for {of}"
        raise ScenarioError(what, where, "an answer that hangs on its parameters, not detached")


def watch(trainer: Trainer, name: str, file: str) -> None:
    """What stops a trainer's model, which is of the user's own, in the midst of a training is told with its file."""

    def asking(inputs: tuple[Tensor, ...]) -> AbstractContextManager[None]:
        return stopped(f"{name} stopped at samples {_shapes(inputs)}", file, MODEL)

    def losses(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        with asking(inputs):
            return losses_of(model, inputs, targets)

    trainer.asking, trainer.loss = asking, in_precision(losses, trainer.recipe.precision, trainer.device)


def _shapes(tensors: tuple[Tensor, ...]) -> str:
    """Their shapes, and what they hold where that is not float32."""
    kinds = [str(each.dtype).removeprefix("torch.") for each in tensors]
    of = ["" if kind == "float32" else f" of {kind}" for kind in kinds]
    return ", ".join(f"{tuple(each.shape)}{kind}" for each, kind in zip(tensors, of, strict=True))
