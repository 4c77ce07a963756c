"""User-defined models: functions that a scenario names as "module:function", and how they are called.

A function that makes a model is called with the number of classes, or of distinct tokens; one that reads data
(`gradwire.training.user_code.user_data`) with nothing. Further keys of the scenario are passed if the function has
parameters for them; an error in it is reported in one line with its file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.loading.modules import user_module
from gradwire.scenarios.loading.registry import USER_CLASS
from gradwire.scenarios.loading.user_classes import load_user_class
from gradwire.scenarios.loading.user_code_errors import class_file, user_code

if TYPE_CHECKING:
    from torch import nn

    from gradwire.scenarios.schema.job.training import Training
    from gradwire.traces.models import Task

MODEL, DATA = "training.model", "training.data"
A_MODEL = "a function of the number of classes that makes a torch.nn.Module (docs/training.md)"
SOME_DATA = "a function that makes an Images or a Text of gradwire.training.data (docs/training.md)"


_returned_models: WeakSet[nn.Module] = WeakSet()
"""Models already returned, which may have been trained since."""


def is_own(name: str) -> bool:
    """Return True if a model or data set is named as "module:function"."""
    return USER_CLASS.fullmatch(name) is not None


@dataclass(frozen=True)
class UserModel:
    """A user-defined model, the counterpart of `gradwire.traces.models.ModelKind`.

    folder : of its module. task : what it is trained for. size : pixels of a side, or tokens, unless the scenario sets
        it.
    """

    name: str
    folder: Path | None
    task: Task
    size: int
    sizes: tuple[int, int] = (1, 4096)

    def build(self, outputs: int) -> nn.Module:
        """Return a new model for that number of classes or tokens. Raises ScenarioError if the function cannot be
        found, raises an error, or returns something that cannot be trained."""
        from gradwire.training.trainer_validation import check_model

        module = call_user_function(self.name, self.folder, MODEL, A_MODEL, (outputs,), {"size": self.size})
        where = f"{MODEL}: what {self.name} makes"
        model = check_model(module, where)
        if model in _returned_models:
            raise ScenarioError("is a module that it returned before", where, "a new one each time, to be trained")
        if any(parameter.is_meta for parameter in model.parameters()):
            raise ScenarioError("has parameters on the meta device", where, "parameters on the CPU")
        _returned_models.add(model)
        return model

    def takes(self, size: int) -> bool:
        """Return True: sizes are checked with samples later."""
        return True

    def file(self, model: nn.Module) -> str:
        """Return the file that errors of a model are reported with."""
        if type(model).__module__.partition(".")[0] != "torch":
            return class_file(type(model))
        return str(user_module(self.name.partition(":")[0], self.folder))


def user_model_of(table: Training, folder: Path | None) -> UserModel:
    """Return the user-defined model that a table names; its task is pictures unless the table says otherwise."""
    text = table.learns == "text"
    return UserModel(table.model, folder, "next" if text else "images", table.size or (64 if text else 32))


def check_user_function(name: str, folder: Path | None, where: str) -> None:
    """Raise ScenarioError if the function does not exist."""
    function_of(name, folder, where, A_MODEL if where == MODEL else SOME_DATA)


def function_of(name: str, folder: Path | None, where: str, contract: str) -> Callable[..., Any]:
    """Return the function that a scenario names. Raises ScenarioError if there is none; `contract` is what was
    expected."""
    function = load_user_class(name, folder, where, "function")
    if not callable(function):
        raise ScenarioError(f"{name!r} is not a function", where, contract)
    return function  # type: ignore[no-any-return]


def call_user_function(
    name: str, folder: Path | None, where: str, contract: str, given: tuple[Any, ...], offered: Mapping[str, Any]
) -> Any:
    """Call a user-defined function with `given`, and with those of `offered` that it has parameters for."""
    import torch

    function = function_of(name, folder, where, contract)
    options = {key: value for key, value in offered.items() if has_parameter(function, key)}
    file = str(user_module(name.partition(":")[0], folder))
    with user_code(f"{name} stopped", file, where), torch.enable_grad():  # undoes its changes of the gradient mode
        try:
            result = function(*given, **options)
        except GradwireError as error:  # from a gradwire class it uses, such as Images
            raise ScenarioError(f"{name}: {error.where}: {error.what}", where, error.expected) from error
    if inspect.iscoroutine(result):
        result.close()
    return result


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Return True if a function has a parameter of that name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature known to Python
        return False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD or (parameter.name == name and parameter.kind in by_name)
        for parameter in parameters
    )
