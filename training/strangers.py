"""What networks and reducers that are not gradwire's own answer, looked at before anything is made of it.

Either may be a class of the user's. Unlooked at, an answer of a wrong shape becomes an AttributeError in the middle of
an exchange, or a clock that is no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.asked import file_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.feedback import Around

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.reducers.base import Reducer

REDUCER = "reducer"


class Unfit(Exception):
    """(what, expected) of an answer."""


def is_own(component: object) -> bool:
    """Whether it is of a class of gradwire's."""
    return type(component).__module__.partition(".")[0] == "gradwire"


@contextmanager
def answers(component: object, function: str, where: str) -> Iterator[None]:
    """In here an answer of a component's function is looked at.

    Raises
    ------
    ScenarioError
        It is `Unfit`; with the class, and the file and line of the function.
    """
    try:
        yield
    except Unfit as error:
        owner = type(component)
        code = getattr(getattr(owner, function, None), "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else file_of(owner)
        what, expected = error.args
        raise ScenarioError(f"{function} of {owner.__name__} ({place}) {what}", where, expected) from None


@contextmanager
def in_step(number: int) -> Iterator[None]:
    """In here what is said of a reducer's answer says in which step that was, but in the first one."""
    try:
        yield
    except ScenarioError as error:
        if not number or error.where != REDUCER:
            raise
        raise ScenarioError(f"{error.what}, in step {number}", error.where, error.expected) from None


def shown(value: Any) -> str:
    """An answer in a few words."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"something of type {type(value).__name__}"


def innermost(reducer: Reducer) -> Reducer:
    """What error feedback and the like are around, or a reducer itself."""
    while isinstance(reducer, Around):
        reducer = reducer.reducer
    return reducer


def answering(reducer: Reducer) -> Reducer:
    """Whose answers a reducer's are: of it and what it is around, what is innermost and not gradwire's, if any."""
    found = innermost(reducer)
    while is_own(found) and isinstance(reducer, Around):
        found, reducer = (found if is_own(reducer) else reducer), reducer.reducer
    return found


def check_encoded(reducer: Reducer, function: str, found: Any, info: TensorInfo, payload: int) -> None:
    """Look at what a reducer's function has made of a tensor to be sent.

    Raises
    ------
    ScenarioError
        It is no `Encoded` whose fields are tensors of equally many units, each of which fits a packet.
    """
    import torch

    with answers(answering(reducer), function, REDUCER):
        if not isinstance(found, Encoded):
            raise Unfit(f"answers {shown(found)} for {info.name}", "a gradwire.training.encoded.Encoded")
        for name, tensors in (("fields", found.fields), ("head", found.head)):
            if not isinstance(tensors, list | tuple) or not all(isinstance(each, torch.Tensor) for each in tensors):
                raise Unfit(f"answers with {name} = {shown(tensors)} for {info.name}", "a tuple of tensors")
        units = [len(each) if each.dim() else None for each in found.fields]
        if not units or None in units or len(set(units)) > 1:
            said = ", ".join(str(tuple(each.shape)) for each in found.fields) or "none"
            raise Unfit(f"answers with fields {said} for {info.name}", "fields of equally many units, (U, ...) each")
        if not isinstance(found.known, Mapping):
            raise Unfit(f"answers with known = {shown(found.known)} for {info.name}", "tensors by name")
        try:
            found.packets(payload)
        except ValueError as error:
            what = f"answers for {info.name} what cannot be sent: {error}"
            raise Unfit(what, "smaller units, or larger packets") from None


def check_values(reducer: Reducer, found: Encoded, info: TensorInfo) -> None:
    """Look at what a reducer that says that its encodings add up has made of a tensor.

    Raises
    ------
    ScenarioError
        It is not one field of float32, and no head.
    """
    import torch

    with answers(answering(reducer), "compress", REDUCER):
        if found.head or [each.dtype for each in found.fields] != [torch.float32]:
            said = ", ".join(str(each.dtype).removeprefix("torch.") for each in (*found.fields, *found.head))
            raise Unfit(f"adds up, and answers with {said} for {info.name}", "one field of float32, and no head")


def check_magnitudes(reducer: Reducer, found: Any, units: int, info: TensorInfo) -> None:
    """Look at what a reducer says of its units' magnitudes.

    Raises
    ------
    ScenarioError
        It is not a float for each.
    """
    import torch

    with answers(answering(reducer), "magnitudes", REDUCER):
        if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.shape != (units,):
            raise Unfit(f"answers {shown(found)} for {info.name}", f"a tensor of float32, ({units},)")


def check_decoded(reducer: Reducer, function: str, found: Any, info: TensorInfo) -> None:
    """Look at a gradient that a reducer's function has made of what arrived.

    Raises
    ------
    ScenarioError
        It is no flat tensor of float32 with all elements.
    """
    import torch

    with answers(answering(reducer), function, REDUCER):
        if not isinstance(found, torch.Tensor) or found.dtype != torch.float32 or found.shape != (info.numel,):
            raise Unfit(f"answers {shown(found)} for {info.name}", f"a tensor of float32, ({info.numel},)")


def check_lost(reducer: Reducer, encoded: Sequence[Encoded], infos: Sequence[TensorInfo]) -> None:
    """Look at what a reducer makes of a tensor of which nothing has arrived: of the first one that has several units.
    Where that is not nothing, losses would be counted and not felt.

    Raises
    ------
    ScenarioError
        It is something.
    """
    import torch

    for mine, info in zip(encoded, infos, strict=True):
        if mine.units < 2:
            continue
        nothing = torch.zeros(mine.units, dtype=torch.bool, device=mine.fields[0].device)
        found = reducer.decode(mine, info, nothing)
        if reducer.rounds == 1:
            check_decoded(reducer, "decode", found, info)
        with answers(answering(reducer), "decode", REDUCER):
            # a gradient that is no number may show, arrived or not
            if isinstance(found, torch.Tensor) and bool((found.isfinite() & (found != 0)).any()):
                what = f"answers with values of units that have not arrived, of {info.name}"
                raise Unfit(what, "zero instead of what has not arrived")
        return


def check_unchanged(reducer: Reducer, before: Tensor, gradient: Tensor, info: TensorInfo) -> None:
    """Look whether a gradient, float32, is bit by bit what it was before a reducer was given it to compress: others,
    such as error feedback around it, go on with it.

    Raises
    ------
    ScenarioError
        It is not.
    """
    import torch

    if not torch.equal(before.view(torch.int32), gradient.view(torch.int32)):
        with answers(answering(reducer), "compress", REDUCER):
            what = f"changes the gradient of {info.name} that it is given"
            raise Unfit(what, "one that stays as it is; a copy, tensor.clone(), may be changed")
