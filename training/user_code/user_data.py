"""User-defined data, and the check that a user-defined model and data match, made with two samples."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.user_code_errors import user_code
from gradwire.training.data import Images, Text
from gradwire.training.precision import in_precision
from gradwire.training.trainer import losses_of
from gradwire.training.user_code.return_value_checks import describe_value
from gradwire.training.user_code.user_model import (
    DATA,
    MODEL,
    SOME_DATA,
    call_user_function,
    function_of,
    has_parameter,
)

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.training import Training
    from gradwire.training.trainer import Trainer

DATA_KEYS = ("size", "samples", "augment")
"""Table keys about data, which user-defined functions receive if they have parameters for them."""
TRIAL_SAMPLES = 2
"""Samples that a model is tried with."""


def load_user_data(table: Training, folder: Path | None) -> Images | Text:
    """Return the data that a user-defined function reads. Raises ScenarioError if the function cannot be found, raises
    an error, lacks a parameter for what the table says of data, returns something else, or nothing that a score can be
    taken of."""
    options: dict[str, Any] = {key: getattr(table, key) for key in DATA_KEYS if key in table.model_fields_set}
    function = function_of(table.data, folder, DATA, SOME_DATA)
    for key, value in options.items():
        if not has_parameter(function, key):
            what = f"{table.data} has no parameter for it"
            raise ScenarioError(f"is {value}, and {what}", f"training.{key}", f"none, or a parameter {key}")
    data = call_user_function(table.data, folder, DATA, SOME_DATA, (), options)
    if not isinstance(data, Images | Text):
        raise ScenarioError(f"{table.data} makes something of type {type(data).__name__}", DATA, SOME_DATA)
    if isinstance(data, Images) and not data.test[1].numel():
        raise ScenarioError(f"{table.data} makes an Images without held-out samples", DATA, "at least one in test")
    return data


def check_model_and_data(model: nn.Module, data: Images | Text, name: str, file: str, where: str) -> None:
    """Raise ScenarioError unless a model returns a number per class, with gradients, for samples of some data. Two
    samples each of training and held-out data are tried. name : of the model. file : its source file. where : path in
    the scenario that names the user-defined code."""
    device = next(model.parameters()).device
    training = model.training
    with torch.random.fork_rng(devices=[] if device.type != "cuda" else [device.index or 0]), torch.enable_grad():
        train_samples = data.batch(np.arange(min(TRIAL_SAMPLES, len(data))), np.random.default_rng(0))
        held_out = data.held_out() if isinstance(data, Text) else data.test
        splits = [train_samples, ((held_out[0][:TRIAL_SAMPLES],), held_out[1][:TRIAL_SAMPLES])]
        model.eval()  # leaves running means as they are
        try:
            for split, (samples, targets) in zip(("", "held-out "), splits, strict=True):
                inputs = tuple(tensor.to(device) for tensor in samples)
                of = f"{split}samples {_shapes(inputs)}"
                with user_code(f"{name} stopped at {of}", file, where):
                    answer = model(*inputs)
                _check_answer(answer, tuple(targets.shape), data.classes, f"{name} returns", of, where)
        finally:
            model.train(training)


def _check_answer(answer: Any, shape: tuple[int, ...], classes: int, who: str, subject: str, where: str) -> None:
    fits = isinstance(answer, torch.Tensor) and answer.is_floating_point() and answer.shape[:-1] == shape
    if not fits or answer.shape[-1] < classes:
        expected = f"numbers for each of {classes} classes, {(*shape, classes)}, as there are targets {shape}"
        raise ScenarioError(f"{who} {describe_value(answer)} for {subject}", where, expected)
    if not answer.requires_grad:
        what = f"{who} something without gradients for {subject}"
        raise ScenarioError(what, where, "an output that depends on its parameters, not detached")


def report_model_errors(trainer: Trainer, name: str, file: str) -> None:
    """Report errors of a trainer's user-defined model during training with its file."""

    def asking(inputs: tuple[Tensor, ...]) -> AbstractContextManager[None]:
        return user_code(f"{name} stopped at samples {_shapes(inputs)}", file, MODEL)

    def losses(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        with asking(inputs):
            return losses_of(model, inputs, targets)

    trainer.asking, trainer.loss = asking, in_precision(losses, trainer.recipe.precision, trainer.device)


def _shapes(tensors: tuple[Tensor, ...]) -> str:
    """Return the shapes of tensors, with their types where these are not float32."""
    kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    suffixes = ["" if kind == "float32" else f" of {kind}" for kind in kinds]
    return ", ".join(f"{tuple(tensor.shape)}{kind}" for tensor, kind in zip(tensors, suffixes, strict=True))
