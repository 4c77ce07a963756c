"""What a trainer is put together from, looked at when it is: a model, a reducer, a network, or a refusal in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import instance_of, unfit
from gradwire.training.network import Network
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import State
from gradwire.training.strangers import answering, check_encoded, is_own

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo

SHOWN = 3
"""Names in a message."""


def model_given(model: Any, where: str) -> nn.Module:
    """A model all of whose parameters are trained, in float32.

    A frozen parameter is refused rather than left out: its gradients would be zeros that are sent, and weight decay
    would move it.

    Raises
    ------
    ScenarioError
        It is none.
    """
    instance_of(model, nn.Module, where, "a torch.nn.Module", ScenarioError)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ScenarioError(f"is a {type(model).__name__} without parameters", where, "a model with some to train")
    if frozen := [name for name, each in parameters.items() if not each.requires_grad]:
        what = f"has frozen parameters, {_listed(frozen)}"
        raise ScenarioError(what, where, "parameters that all require gradients; make buffers of those that do not")
    if other := [name for name, each in parameters.items() if each.dtype != torch.float32]:
        kinds = sorted({str(parameters[name].dtype).removeprefix("torch.") for name in other})
        what = f"has parameters of {', '.join(kinds)}, {_listed(other)}"
        raise ScenarioError(what, where, "float32, as model.float() makes them")
    return model


def reducer_given(reducer: Any, where: str) -> Reducer:
    """A reducer. Raises ScenarioError if it is none, such as its name or its class."""
    return _made(reducer, Reducer, where, "a reducer, such as TopK(ratio=0.01) of gradwire.training.reducers.topk")


def network_given(network: Any, where: str) -> Network:
    """A network. Raises ScenarioError if it is none, such as a class of networks."""
    expected = "a network, such as Ideal() of gradwire.training.network, or an object with carry(pushed)"
    if not callable(getattr(network, "carry", None)):
        raise unfit(network, where, expected, ScenarioError)
    return _made(network, object, where, expected)


def check_units(reducer: Reducer, infos: Sequence[TensorInfo], payload: int) -> None:
    """Raise ScenarioError if a unit of what is sent of a tensor does not fit a packet.

    Zeros are encoded, of each shape once: the largest unit need not be that of the largest tensor.
    """
    others = not is_own(answering(reducer))
    shapes = list({info.shape: info for info in infos}.values())
    for info in shapes if others else sorted(shapes, key=lambda info: info.numel, reverse=True):
        encoded = reducer.compress(torch.zeros(info.shape), info, State(0, 0, 0))
        if others:
            check_encoded(reducer, "compress", encoded, info, payload)
        try:
            encoded.packets(payload)
        except ValueError as error:
            unit = f" ({reducer.unit})" if reducer.unit else ""
            most = f"units of at most {payload - encoded.head_bytes} bytes{unit}, or a larger payload"
            raise ScenarioError(f"{reducer.kind}: {error}", "training.reducer", most) from None


def _made(value: Any, kind: type, where: str, expected: str) -> Any:
    if isinstance(value, type):
        raise ScenarioError(f"is the class {value.__name__}", where, f"{expected}; make one: {value.__name__}(...)")
    return instance_of(value, kind, where, expected, ScenarioError)


def _listed(names: list[str]) -> str:
    """Names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
