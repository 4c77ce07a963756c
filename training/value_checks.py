"""Checks a trainer's model, reducer and network, and the values that user-defined reducers return.

Unchecked, a wrong shape becomes an AttributeError in the middle of an exchange, or a clock that is not a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.lazily import torch
from gradwire.scenarios.loading.user_code_errors import class_file
from gradwire.scenarios.validation.argument_checks import require_instance, wrong_type_error
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import ReducerWrapper
from gradwire.training.reducers.state import State

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradwire.training.networks.network_interface import Network

REDUCER = "reducer"
SHOWN = 3
"""Names listed in a message."""


def check_model(model: Any, where: str) -> nn.Module:
    """Return a model; raise ScenarioError unless all of its parameters are trained, in float32. A frozen parameter is
    refused rather than skipped: its gradients would be zeros that are sent, and weight decay would move it."""
    require_instance(model, torch.nn.Module, where, "a torch.nn.Module", ScenarioError)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ScenarioError(f"is a {type(model).__name__} without parameters", where, "a model with some to train")
    if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
        what = f"has frozen parameters, {_listed(frozen)}"
        raise ScenarioError(what, where, "parameters that all require gradients; make buffers of those that do not")
    if not_float32 := [name for name, parameter in parameters.items() if parameter.dtype != torch.float32]:
        kinds = sorted({type_name(parameters[name]) for name in not_float32})
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


def _instance(value: Any, kind: type, where: str, expected: str) -> Any:
    if isinstance(value, type):
        raise ScenarioError(f"is the class {value.__name__}", where, f"{expected}; make one: {value.__name__}(...)")
    return require_instance(value, kind, where, expected, ScenarioError)


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def check_units(reducer: Reducer, infos: Sequence[TensorInfo], payload: int) -> None:
    """Raise ScenarioError if a unit of a tensor's encoding does not fit a packet. Zeros are encoded, once per shape:
    the largest unit need not be that of the largest tensor."""
    is_checked, shapes = is_user_defined(reducer), list({info.shape: info for info in infos}.values())
    for info in shapes if is_checked else sorted(shapes, key=lambda info: info.numel, reverse=True):
        encoded = reducer.compress(torch.zeros(info.shape), info, State(0, 0, 0))
        if is_checked:
            check_encoded(reducer, "compress", encoded, info, payload)
        try:
            encoded.packets(payload)
        except ValueError as error:
            unit = f" ({reducer.unit})" if reducer.unit else ""
            expected = f"units of at most {payload - encoded.head_bytes} bytes{unit}, or a larger payload"
            raise ScenarioError(f"{reducer.kind}: {error}", "training.reducer", expected) from None


def is_builtin(component: object) -> bool:
    """Return True if a component's class is built in."""
    return type(component).__module__.partition(".")[0] == "gradwire"


def invalid_value_error(component: object, function: str, where: str, what: str, expected: str) -> ScenarioError:
    """Return the error of an invalid return value, with class, file and line of the function."""
    owner = type(component)
    code = getattr(getattr(owner, function, None), "__code__", None)
    location = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else class_file(owner)
    return ScenarioError(f"{function} of {owner.__name__} ({location}) {what}", where, expected)


def _invalid(reducer: Reducer, function: str, what: str, expected: str) -> ScenarioError:
    return invalid_value_error(source_of_values(reducer), function, REDUCER, what, expected)


@contextmanager
def in_step(number: int) -> Iterator[None]:
    """Add the step number to messages about a reducer, except in the first step."""
    try:
        yield
    except ScenarioError as error:
        if not number or error.where != REDUCER:
            raise
        raise ScenarioError(f"{error.what}, in step {number}", error.where, error.expected) from None


def type_name(tensor: Tensor) -> str:
    """Return the name of a tensor's element type, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")


def describe_value(value: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {type_name(value)}, {tuple(value.shape)}"
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"something of type {type(value).__name__}"


def innermost(reducer: Reducer) -> Reducer:
    """Return the reducer inside of error feedback and the like, or the reducer itself."""
    while isinstance(reducer, ReducerWrapper):
        reducer = reducer.reducer
    return reducer


def source_of_values(reducer: Reducer) -> Reducer:
    """Return the reducer that a return value comes from: the innermost user-defined one, if any."""
    source = innermost(reducer)
    while is_builtin(source) and isinstance(reducer, ReducerWrapper):
        source, reducer = (source if is_builtin(reducer) else reducer), reducer.reducer
    return source


def is_user_defined(reducer: Reducer) -> bool:
    """Return True if a reducer, or one inside of it, is user-defined."""
    return not is_builtin(source_of_values(reducer))


def check_encoded(reducer: Reducer, function: str, value: Any, info: TensorInfo, payload: int) -> None:
    """Raise ScenarioError unless a reducer's encoding is an `Encoded` whose fields are tensors of equally many units,
    each of which fits a packet."""

    def invalid(what: str, expected: str) -> ScenarioError:
        return _invalid(reducer, function, f"returns {what}", expected)

    if not isinstance(value, Encoded):
        expected = "a gradwire.training.exchange.encoded_tensors.Encoded"
        raise invalid(f"{describe_value(value)} for {info.name}", expected)
    for name, tensors in (("fields", value.fields), ("head", value.head)):
        if not isinstance(tensors, list | tuple) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise invalid(f"{name} = {describe_value(tensors)} for {info.name}", "a tuple of tensors")
    units = [len(tensor) if tensor.dim() else None for tensor in value.fields]
    if not units or None in units or len(set(units)) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in value.fields) or "none"
        raise invalid(f"fields {shapes} for {info.name}", "fields of equally many units, (U, ...) each")
    if not isinstance(value.known, Mapping):
        raise invalid(f"known = {describe_value(value.known)} for {info.name}", "tensors by name")
    try:
        value.packets(payload)
    except ValueError as error:
        what = f"an encoding of {info.name} that cannot be sent: {error}"
        raise invalid(what, "smaller units, or larger packets") from None


def check_values(reducer: Reducer, encoded: Encoded, info: TensorInfo) -> None:
    """Raise ScenarioError unless the encoding of a reducer that adds up is one field of float32 without a head."""
    types = [type_name(tensor) for tensor in (*encoded.fields, *encoded.head)]
    if encoded.head or types != ["float32"]:
        what = f"adds up, and returns {', '.join(types)} for {info.name}"
        raise _invalid(reducer, "compress", what, "one field of float32, and no head")


def check_magnitudes(reducer: Reducer, value: Any, units: int, info: TensorInfo) -> None:
    """Raise ScenarioError unless a reducer's magnitudes are one float per unit."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.shape != (units,):
        what = f"returns {describe_value(value)} for {info.name}"
        raise _invalid(reducer, "magnitudes", what, f"a tensor of float32, ({units},)")


def check_decoded(reducer: Reducer, function: str, value: Any, info: TensorInfo) -> None:
    """Raise ScenarioError unless a decoded gradient is a flat float32 tensor with all elements."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.shape != (info.numel,):
        what = f"returns {describe_value(value)} for {info.name}"
        raise _invalid(reducer, function, what, f"a tensor of float32, ({info.numel},)")


def check_lost(reducer: Reducer, encoded: Sequence[Encoded], infos: Sequence[TensorInfo]) -> None:
    """Raise ScenarioError unless a reducer decodes a tensor to zeros if nothing arrived. The first tensor with several
    units is checked; otherwise losses would be counted without an effect."""
    for encoding, info in zip(encoded, infos, strict=True):
        if encoding.units < 2:
            continue
        nothing = torch.zeros(encoding.units, dtype=torch.bool, device=encoding.fields[0].device)
        decoded = reducer.decode(encoding, info, nothing)
        if reducer.rounds == 1:
            check_decoded(reducer, "decode", decoded, info)
        # NaN and infinity may show even if nothing arrived
        if isinstance(decoded, torch.Tensor) and bool((decoded.isfinite() & (decoded != 0)).any()):
            what = f"returns values for units that have not arrived, of {info.name}"
            raise _invalid(reducer, "decode", what, "zeros for what has not arrived")
        return


def check_unchanged(reducer: Reducer, before: Tensor, gradient: Tensor, info: TensorInfo) -> None:
    """Raise ScenarioError if a reducer changed the gradient (float32) it was given: wrappers such as error feedback
    still use it."""
    if not torch.equal(before.view(torch.int32), gradient.view(torch.int32)):
        what = f"changes the gradient of {info.name} that it is given"
        raise _invalid(reducer, "compress", what, "an unchanged gradient; change a copy, tensor.clone()")
