"""Validation of a trainer's parts: model, reducer and network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.validation.argument_checks import require_instance, wrong_type_error
from gradwire.training.networks.builtin_networks import Network
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State
from gradwire.training.user_code.return_value_checks import check_encoded, is_own, source_of_values

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo

SHOWN = 3
"""Names listed in a message."""


def check_model(model: Any, where: str) -> nn.Module:
    """Return a model; raise ScenarioError unless all of its parameters are trained, in float32. A frozen parameter is
    refused rather than skipped: its gradients would be zeros that are sent, and weight decay would move it."""
    require_instance(model, nn.Module, where, "a torch.nn.Module", ScenarioError)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ScenarioError(f"is a {type(model).__name__} without parameters", where, "a model with some to train")
    if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
        what = f"has frozen parameters, {_listed(frozen)}"
        raise ScenarioError(what, where, "parameters that all require gradients; make buffers of those that do not")
    if not_float32 := [name for name, parameter in parameters.items() if parameter.dtype != torch.float32]:
        kinds = sorted({str(parameters[name].dtype).removeprefix("torch.") for name in not_float32})
        what = f"has parameters of {', '.join(kinds)}, {_listed(not_float32)}"
        raise ScenarioError(what, where, "float32, as model.float() makes them")
    return model


def check_reducer(reducer: Any, where: str) -> Reducer:
    """Return a reducer. Raise ScenarioError if it is not one, such as its name or its class."""
    return _instance(reducer, Reducer, where, "a reducer, such as TopK(ratio=0.01) of gradwire.training.reducers.topk")


def check_network(network: Any, where: str) -> Network:
    """Return a network. Raise ScenarioError if it is not one, such as a class of networks."""
    expected = (
        "a network, such as Ideal() of gradwire.training.networks.builtin_networks, or an object with carry(pushed)"
    )
    if not callable(getattr(network, "carry", None)):
        raise wrong_type_error(network, where, expected, ScenarioError)
    return _instance(network, object, where, expected)


def check_units(reducer: Reducer, infos: Sequence[TensorInfo], payload: int) -> None:
    """Raise ScenarioError if a unit of a tensor's encoding does not fit a packet. Zeros are encoded, once per shape:
    the largest unit need not be that of the largest tensor."""
    is_user_defined = not is_own(source_of_values(reducer))
    shapes = list({info.shape: info for info in infos}.values())
    for info in shapes if is_user_defined else sorted(shapes, key=lambda info: info.numel, reverse=True):
        encoded = reducer.compress(torch.zeros(info.shape), info, State(0, 0, 0))
        if is_user_defined:
            check_encoded(reducer, "compress", encoded, info, payload)
        try:
            encoded.packets(payload)
        except ValueError as error:
            unit = f" ({reducer.unit})" if reducer.unit else ""
            expected = f"units of at most {payload - encoded.head_bytes} bytes{unit}, or a larger payload"
            raise ScenarioError(f"{reducer.kind}: {error}", "training.reducer", expected) from None


def _instance(value: Any, kind: type, where: str, expected: str) -> Any:
    if isinstance(value, type):
        raise ScenarioError(f"is the class {value.__name__}", where, f"{expected}; make one: {value.__name__}(...)")
    return require_instance(value, kind, where, expected, ScenarioError)


def _listed(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
