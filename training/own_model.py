"""Models of the user's own: functions that a scenario names as "module:function", and how such are called.

One that makes a model is called with the number of classes, or of distinct tokens; one that reads data
(`gradwire.training.own_data`) with nothing. Of what a scenario says besides they get what they have parameters for, and
what stops them is one line with their file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gradwire.scenarios.asked import file_of, stopped
from gradwire.scenarios.components import USER_CLASS
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.modules import user_module
from gradwire.scenarios.user_classes import user_class

if TYPE_CHECKING:
    from torch import nn

    from gradwire.scenarios.schema.training import Training
    from gradwire.traces.models import Task

MODEL, DATA = "training.model", "training.data"
A_MODEL = "a function of the number of classes that makes a torch.nn.Module (docs/training.md)"
SOME_DATA = "a function that makes an Images or a Text of gradwire.training.data (docs/training.md)"


_handed_out: WeakSet[nn.Module] = WeakSet()
"""What has been made, and may have been trained since."""


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

        made = made_by(self.name, self.folder, MODEL, A_MODEL, (outputs,), {"size": self.size})
        where = f"{MODEL}: what {self.name} makes"
        model = model_given(made, where)
        if model in _handed_out:
            raise ScenarioError("is the module that it has made before", where, "a new one each time, to be trained")
        if any(each.is_meta for each in model.parameters()):
            raise ScenarioError("has parameters without values, on meta", where, "parameters on the processor")
        _handed_out.add(model)
        return model

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
    function_of(name, folder, where, A_MODEL if where == MODEL else SOME_DATA)


def function_of(name: str, folder: Path | None, where: str, contract: str) -> Callable[..., Any]:
    """The function that a scenario names there.

    Raises
    ------
    ScenarioError
        There is none; `contract` is what was expected.
    """
    found = user_class(name, folder, where, "function")
    if not callable(found):
        raise ScenarioError(f"{name!r} is no function", where, contract)
    return found  # type: ignore[no-any-return]


def made_by(
    name: str, folder: Path | None, where: str, contract: str, given: tuple[Any, ...], offered: Mapping[str, Any]
) -> Any:
    """What a function of the user's own makes of what it is given, and of what is offered that it has parameters
    for."""
    import torch

    function = function_of(name, folder, where, contract)
    taken = {key: value for key, value in offered.items() if takes(function, key)}
    file = str(user_module(name.partition(":")[0], folder))
    with stopped(f"{name} stopped", file, where), torch.enable_grad():  # whatever it says of gradients ends here
        try:
            made = function(*given, **taken)
        except GradwireError as error:  # of something of gradwire's that it makes, such as an Images
            raise ScenarioError(f"{name}: {error.where}: {error.what}", where, error.expected) from error
    if inspect.iscoroutine(made):
        made.close()
    return made


def takes(function: Callable[..., Any], name: str) -> bool:
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
