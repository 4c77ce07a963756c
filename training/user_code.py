"""Loads and calls the user-defined models, data and reducers that a scenario names, and reports their errors. The names
are "module:function" or "module:Class".

A function that makes a model is called with the number of classes, or of distinct tokens; one that reads data with
nothing. Further keys of the scenario are passed if the function has parameters for them. A reducer's class works
wherever a built-in one does; it is called through `RequestedReducer`. An error in any of them is reported in one line
with its file; return values of reducers are checked where they are used (`gradwire.training.value_checks`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np

from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.lazily import torch
from gradwire.scenarios.loading.modules import user_module
from gradwire.scenarios.loading.registry import USER_CLASS
from gradwire.scenarios.loading.user_classes import load_user_class, validate_user_table
from gradwire.scenarios.loading.user_code_errors import asked, class_file, user_code
from gradwire.scenarios.schema.job.training import Training, UserReducer
from gradwire.traces.models import Task
from gradwire.traces.trace import TensorInfo
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import ReducerWrapper
from gradwire.training.reducers.state import State
from gradwire.training.value_checks import check_model, describe_value, type_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradwire.training.data import Images, Text
    from gradwire.training.trainer import Trainer

MODEL, DATA, REDUCER = "training.model", "training.data", "training.reducer"
A_MODEL = "a function of the number of classes that makes a torch.nn.Module (docs/training.md)"
SOME_DATA = "a function that makes an Images or a Text of gradwire.training.data (docs/training.md)"
A_REDUCER = "a class derived from gradwire.training.reducers.base.Reducer (docs/training.md)"
DATA_KEYS = ("size", "samples", "augment")
"""Table keys about data, which user-defined functions receive if they have parameters for them."""
TRIAL_SAMPLES = 2
"""Samples that a model is tried with."""

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
        module = _call(self.name, self.folder, MODEL, A_MODEL, (outputs,), {"size": self.size})
        where = f"{MODEL}: what {self.name} makes"
        model = check_model(module, where)
        if model in _returned_models:
            raise ScenarioError("is a module that it returned before", where, "a new one each time, to be trained")
        if any(parameter.is_meta for parameter in model.parameters()):
            raise ScenarioError("has parameters on the meta device", where, "parameters on the CPU")
        _returned_models.add(model)
        return model

    def accepts_size(self, size: int) -> bool:
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
    _function_of(name, folder, where, A_MODEL if where == MODEL else SOME_DATA)


def _function_of(name: str, folder: Path | None, where: str, contract: str) -> Callable[..., Any]:
    """Return the function that a scenario names. Raises ScenarioError if there is none; `contract` is what was
    expected."""
    function = load_user_class(name, folder, where, "function")
    if not callable(function):
        raise ScenarioError(f"{name!r} is not a function", where, contract)
    return function  # type: ignore[no-any-return]


def _call(
    name: str, folder: Path | None, where: str, contract: str, given: tuple[Any, ...], offered: Mapping[str, Any]
) -> Any:
    """Call a user-defined function with `given`, and with those of `offered` that it has parameters for."""
    function = _function_of(name, folder, where, contract)
    options = {key: value for key, value in offered.items() if _has_parameter(function, key)}
    file = str(user_module(name.partition(":")[0], folder))
    with user_code(f"{name} stopped", file, where), torch.enable_grad():  # undoes its changes of the gradient mode
        try:
            result = function(*given, **options)
        except GradwireError as error:  # from a gradwire class it uses, such as Images
            raise ScenarioError(f"{name}: {error.where}: {error.what}", where, error.expected) from error
    if inspect.iscoroutine(result):
        result.close()
    return result


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature known to Python
        return False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD or (parameter.name == name and parameter.kind in by_name)
        for parameter in parameters
    )


def load_user_data(table: Training, folder: Path | None) -> Images | Text:
    """Return the data that a user-defined function reads. Raises ScenarioError if the function cannot be found, raises
    an error, lacks a parameter for what the table says of data, returns something else, or nothing that a score can be
    taken of."""
    from gradwire.training.data import Images, Text

    options: dict[str, Any] = {key: getattr(table, key) for key in DATA_KEYS if key in table.model_fields_set}
    function = _function_of(table.data, folder, DATA, SOME_DATA)
    for key, value in options.items():
        if not _has_parameter(function, key):
            what = f"{table.data} has no parameter for it"
            raise ScenarioError(f"is {value}, and {what}", f"training.{key}", f"none, or a parameter {key}")
    data = _call(table.data, folder, DATA, SOME_DATA, (), options)
    if not isinstance(data, Images | Text):
        raise ScenarioError(f"{table.data} makes something of type {type(data).__name__}", DATA, SOME_DATA)
    if isinstance(data, Images) and not data.test[1].numel():
        raise ScenarioError(f"{table.data} makes an Images without held-out samples", DATA, "at least one in test")
    return data


def check_model_and_data(model: nn.Module, data: Images | Text, name: str, file: str, where: str) -> None:
    """Raise ScenarioError unless a model returns a number per class, with gradients, for samples of some data. Two
    samples each of training and held-out data are tried. name : of the model. file : its source file. where : path in
    the scenario that names the user-defined code."""
    from gradwire.training.data import Text

    device, training = next(model.parameters()).device, model.training
    with torch.random.fork_rng(devices=[] if device.type != "cuda" else [device.index or 0]), torch.enable_grad():
        samples, labels = data.validation_batches() if isinstance(data, Text) else data.test
        splits = {
            "": data.batch(np.arange(min(TRIAL_SAMPLES, len(data))), np.random.default_rng(0)),
            "held-out ": ((samples[:TRIAL_SAMPLES],), labels[:TRIAL_SAMPLES]),
        }
        model.eval()  # leaves running means as they are
        try:
            for split, (batch, targets) in splits.items():
                inputs = tuple(tensor.to(device) for tensor in batch)
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
    from gradwire.training.precision import exact, in_precision

    losses_of = exact(trainer.loss)

    def asking(inputs: tuple[Tensor, ...]) -> AbstractContextManager[None]:
        return user_code(f"{name} stopped at samples {_shapes(inputs)}", file, MODEL)

    def losses(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        with asking(inputs):
            return losses_of(model, inputs, targets)

    trainer.asking, trainer.loss = asking, in_precision(losses, trainer.recipe.precision, trainer.device)


def _shapes(tensors: tuple[Tensor, ...]) -> str:
    """Return the shapes of tensors, with their types where these are not float32."""
    kinds = [type_name(tensor) for tensor in tensors]
    suffixes = ["" if kind == "float32" else f" of {kind}" for kind in kinds]
    return ", ".join(f"{tuple(tensor.shape)}{kind}" for tensor, kind in zip(tensors, suffixes, strict=True))


def load_user_reducer(table: UserReducer, folder: Path | None) -> Reducer:
    """Return the reducer behind "module:Class", with the parameters of its table; `folder` holds the module. Raises
    ScenarioError if it cannot be loaded, is not a reducer, lacks a method, or its parameters are wrong."""
    where = f"{REDUCER}.kind"
    owner = load_user_class(table.kind, folder, where)
    if not (inspect.isclass(owner) and issubclass(owner, Reducer)):
        raise ScenarioError(f"{table.kind!r} is not a reducer", where, A_REDUCER)
    required = ["compress", "decode"] + (["follow"] if owner.rounds > 1 else [])
    if missing := [name for name in required if getattr(owner, name) is getattr(Reducer, name)]:
        raise ScenarioError(f"{class_file(owner)}: {owner.__name__} has no {', '.join(missing)}", where, A_REDUCER)
    return RequestedReducer(reducer=cast(Reducer, validate_user_table(owner, table, REDUCER)))  # type: ignore[type-var]


def _reporting(function: str) -> Any:
    """Return a method that calls the inner reducer's, and reports an error with its file, its tensor, and the step."""

    def call(self: RequestedReducer, *arguments: Any) -> Any:
        steps = [f"in step {argument.step}" for argument in arguments if isinstance(argument, State)]
        tensors = [f"at {argument.name}" for argument in arguments if isinstance(argument, TensorInfo)]
        with asked(self.reducer, function, REDUCER, " ".join(steps + tensors)):
            return getattr(self.reducer, function)(*arguments)

    return call


class RequestedReducer(ReducerWrapper):
    """A user-defined reducer whose errors are reported with file and line."""

    @property
    def has_momentum(self) -> bool:  # type: ignore[override]
        return self.reducer.has_momentum

    @property
    def momentum(self) -> float:
        """The momentum of the class, if it has one."""
        return float(getattr(self.reducer, "momentum", 0.0))

    compress, decode, covered, magnitudes, follow, restore, whole, settle = map(
        _reporting, ("compress", "decode", "covered", "magnitudes", "follow", "restore", "whole", "settle")
    )
