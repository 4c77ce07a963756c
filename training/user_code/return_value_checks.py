"""Checks of what user-defined networks and reducers return.

Unchecked, a wrong shape becomes an AttributeError in the middle of an exchange, or a clock that is not a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.user_code_errors import class_file
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.feedback import ReducerWrapper

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.reducers.base import Reducer

REDUCER = "reducer"


class InvalidValue(Exception):
    """A return value is invalid: (what, expected)."""


def is_own(component: object) -> bool:
    """Return True if a component's class is built in."""
    return type(component).__module__.partition(".")[0] == "gradwire"


@contextmanager
def explain_invalid_value(component: object, function: str, where: str) -> Iterator[None]:
    """Turn an `InvalidValue` raised inside into a ScenarioError with class, file and line of the function."""
    try:
        yield
    except InvalidValue as error:
        owner = type(component)
        code = getattr(getattr(owner, function, None), "__code__", None)
        location = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else class_file(owner)
        what, expected = error.args
        raise ScenarioError(f"{function} of {owner.__name__} ({location}) {what}", where, expected) from None


@contextmanager
def in_step(number: int) -> Iterator[None]:
    """Add the step number to messages about a reducer, except in the first step."""
    try:
        yield
    except ScenarioError as error:
        if not number or error.where != REDUCER:
            raise
        raise ScenarioError(f"{error.what}, in step {number}", error.where, error.expected) from None


def describe_value(value: Any) -> str:
    """Describe a value in a few words."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
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
    while is_own(source) and isinstance(reducer, ReducerWrapper):
        source, reducer = (source if is_own(reducer) else reducer), reducer.reducer
    return source


def check_encoded(reducer: Reducer, function: str, found: Any, info: TensorInfo, payload: int) -> None:
    """Raise ScenarioError unless a reducer's encoding is an `Encoded` whose fields are tensors of equally many units,
    each of which fits a packet."""
    import torch

    with explain_invalid_value(source_of_values(reducer), function, REDUCER):
        if not isinstance(found, Encoded):
            raise InvalidValue(
                f"returns {describe_value(found)} for {info.name}",
                "a gradwire.training.exchange.encoded_tensors.Encoded",
            )
        for name, tensors in (("fields", found.fields), ("head", found.head)):
            if not isinstance(tensors, list | tuple) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
                raise InvalidValue(f"returns {name} = {describe_value(tensors)} for {info.name}", "a tuple of tensors")
        units = [len(tensor) if tensor.dim() else None for tensor in found.fields]
        if not units or None in units or len(set(units)) > 1:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in found.fields) or "none"
            raise InvalidValue(
                f"returns fields {shapes} for {info.name}", "fields of equally many units, (U, ...) each"
            )
        if not isinstance(found.known, Mapping):
            raise InvalidValue(f"returns known = {describe_value(found.known)} for {info.name}", "tensors by name")
        try:
            found.packets(payload)
        except ValueError as error:
            what = f"returns an encoding of {info.name} that cannot be sent: {error}"
            raise InvalidValue(what, "smaller units, or larger packets") from None


def check_values(reducer: Reducer, found: Encoded, info: TensorInfo) -> None:
    """Raise ScenarioError unless the encoding of a reducer that adds up is one field of float32 without a head."""
    import torch

    with explain_invalid_value(source_of_values(reducer), "compress", REDUCER):
        if found.head or [tensor.dtype for tensor in found.fields] != [torch.float32]:
            types = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in (*found.fields, *found.head))
            raise InvalidValue(f"adds up, and returns {types} for {info.name}", "one field of float32, and no head")


def check_magnitudes(reducer: Reducer, found: Any, units: int, info: TensorInfo) -> None:
    """Raise ScenarioError unless a reducer's magnitudes are one float per unit."""
    import torch

    with explain_invalid_value(source_of_values(reducer), "magnitudes", REDUCER):
        if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.shape != (units,):
            raise InvalidValue(f"returns {describe_value(found)} for {info.name}", f"a tensor of float32, ({units},)")


def check_decoded(reducer: Reducer, function: str, found: Any, info: TensorInfo) -> None:
    """Raise ScenarioError unless a decoded gradient is a flat float32 tensor with all elements."""
    import torch

    with explain_invalid_value(source_of_values(reducer), function, REDUCER):
        if not isinstance(found, torch.Tensor) or found.dtype != torch.float32 or found.shape != (info.numel,):
            raise InvalidValue(
                f"returns {describe_value(found)} for {info.name}", f"a tensor of float32, ({info.numel},)"
            )


def check_lost(reducer: Reducer, encoded: Sequence[Encoded], infos: Sequence[TensorInfo]) -> None:
    """Raise ScenarioError unless a reducer decodes a tensor to zeros if nothing arrived. The first tensor with several
    units is checked; otherwise losses would be counted without an effect."""
    import torch

    for encoding, info in zip(encoded, infos, strict=True):
        if encoding.units < 2:
            continue
        nothing = torch.zeros(encoding.units, dtype=torch.bool, device=encoding.fields[0].device)
        decoded = reducer.decode(encoding, info, nothing)
        if reducer.rounds == 1:
            check_decoded(reducer, "decode", decoded, info)
        with explain_invalid_value(source_of_values(reducer), "decode", REDUCER):
            # NaN and infinity may show even if nothing arrived
            if isinstance(decoded, torch.Tensor) and bool((decoded.isfinite() & (decoded != 0)).any()):
                what = f"returns values for units that have not arrived, of {info.name}"
                raise InvalidValue(what, "zeros for what has not arrived")
        return


def check_unchanged(reducer: Reducer, before: Tensor, gradient: Tensor, info: TensorInfo) -> None:
    """Raise ScenarioError if a reducer changed the gradient (float32) it was given: wrappers such as error feedback
    still use it."""
    import torch

    if not torch.equal(before.view(torch.int32), gradient.view(torch.int32)):
        with explain_invalid_value(source_of_values(reducer), "compress", REDUCER):
            what = f"changes the gradient of {info.name} that it is given"
            raise InvalidValue(what, "an unchanged gradient; change a copy, tensor.clone()")
