"""Models and data of the user's own: functions that a scenario names as "module:function".

A function that makes a model is called with the number of classes, or of distinct tokens; one that reads data with
nothing. Of what a scenario says besides they get what they have parameters for. What they make is tried before it is
trained, and what stops them is one line with their file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.asked import file_of, stopped
from gradwire.scenarios.components import USER_CLASS
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.modules import user_module
from gradwire.scenarios.user_classes import user_class

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradwire.scenarios.schema.training import Training
    from gradwire.traces.models import Task
    from gradwire.training.data import Images, Text
    from gradwire.training.precision import Loss

MODEL, DATA = "training.model", "training.data"
A_MODEL = "a function of the number of classes that makes a torch.nn.Module (docs/training.md)"
SOME_DATA = "a function that makes an Images or a Text of gradwire.training.data (docs/training.md)"
OF_DATA = ("size", "samples", "augment")
"""What a table says of data that gradwire reads, and of others where they have parameters for it."""
TRIED = 2
"""Samples that a model is tried with."""


def is_own(name: str) -> bool:
    """Whether a model or data are named as "module:function"."""
    return USER_CLASS.fullmatch(name) is not None


@dataclass(frozen=True)
class OwnModel:
    """A model of the user's own, as `gradwire.traces.models.ModelKind` has gradwire's.

    folder : where its module is. task : what it learns. size : pixels of a side, or tokens, unless the scenario says.
    """

    name: str
    folder: Path | None
    task: Task
    size: int
    sizes: tuple[int, int] = (1, 4096)

    def build(self, outputs: int) -> nn.Module:
        """A new model for so many classes or tokens.

        Raises
        ------
        ScenarioError
            The function cannot be found, is stopped by an error, or makes something that cannot be trained.
        """
        from gradwire.training.parts import model_given

        made = _made(self.name, self.folder, MODEL, A_MODEL, (outputs,), {"size": self.size})
        return model_given(made, f"{MODEL}: what {self.name} makes")

    def takes(self, size: int) -> bool:
        """It is tried when there are samples."""
        return True

    def file(self, model: nn.Module) -> str:
        """Where the mistakes of one that was made are to be found."""
        if type(model).__module__.partition(".")[0] != "torch":
            return file_of(type(model))
        return str(user_module(self.name.partition(":")[0], self.folder))


def own_model(table: Training, folder: Path | None) -> OwnModel:
    """The model of the user's own that a table names; what it learns is pictures unless it says otherwise."""
    text = table.learns == "text"
    return OwnModel(table.model, folder, "next" if text else "images", table.size or (64 if text else 32))


def check_own(name: str, folder: Path | None, where: str) -> None:
    """Whether there is such a function; ScenarioError if not."""
    _function(name, folder, where, A_MODEL if where == MODEL else SOME_DATA)


def own_data(table: Training, folder: Path | None) -> Images | Text:
    """What the function of the user's own that a table names has read.

    Raises
    ------
    ScenarioError
        It cannot be found, is stopped by an error, has no parameter for what the table says of data, or makes
        something else, or nothing that a score can be taken of.
    """
    from gradwire.training.data import Images, Text

    said: dict[str, Any] = {key: getattr(table, key) for key in OF_DATA if key in table.model_fields_set}
    function = _function(table.data, folder, DATA, SOME_DATA)
    for key, value in said.items():
        if not _takes(function, key):
            what = f"{table.data} has no parameter for it"
            raise ScenarioError(f"is {value}, and {what}", f"training.{key}", f"none, or a parameter {key}")
    made = _made(table.data, folder, DATA, SOME_DATA, (), said)
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
    import numpy as np
    import torch

    from gradwire.training.strangers import shown

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


def _function(name: str, folder: Path | None, where: str, contract: str) -> Callable[..., Any]:
    found = user_class(name, folder, where)
    if not callable(found):
        raise ScenarioError(f"{name!r} is no function", where, contract)
    return found  # type: ignore[no-any-return]


def _made(
    name: str, folder: Path | None, where: str, contract: str, given: tuple[Any, ...], offered: Mapping[str, Any]
) -> Any:
    """What a function of the user's own makes of what it is given, and of what is offered that it has parameters
    for."""
    function = _function(name, folder, where, contract)
    taken = {key: value for key, value in offered.items() if _takes(function, key)}
    with stopped(f"{name} stopped", str(user_module(name.partition(":")[0], folder)), where):
        return function(*given, **taken)


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of that name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # none that Python knows of
        return False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(
        each.kind is inspect.Parameter.VAR_KEYWORD or (each.name == name and each.kind in by_name)
        for each in parameters
    )


def _shapes(tensors: tuple[Tensor, ...]) -> str:
    return ", ".join(str(tuple(each.shape)) for each in tensors)
