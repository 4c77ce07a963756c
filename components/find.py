"""Transports, balancers and queue policies by name: those that come with gradwire, and classes of the user's own.

A class of the user's own is looked at before anything is compiled with it: what the contract asks for and is not there,
or a function that is not compiled, is told with the file and line, and so is whatever stops its module.
"""

from __future__ import annotations

import dis
import inspect
import operator
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from gradwire.components.layout import PARAM_WORDS
from gradwire.scenarios.asked import asked, file_of
from gradwire.scenarios.components import component, components
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.user_classes import user_class
from gradwire.scenarios.wire import WIRES

if TYPE_CHECKING:
    from gradwire.components.transports.base import Context
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.base import Table
    from gradwire.scenarios.schema.transport_base import Transport

A = TypeVar("A", bound="Table")

SENDER_SIDE = ("start", "pull", "on_control", "on_timer", "at_nic", "resume", "forget")
RECEIVER_SIDE = ("on_data", "on_probe", "on_trimmed", "on_late", "forget_received")
BALANCER_SIDE = ("choose", "pick", "heard")
QUEUE_SIDE = ("admit",)
ARGUMENTS = {
    "start": "M, k, f, now",
    "pull": "M, k, f, now",
    "on_control": "M, k, f, kind, sequence, argument, echo, now",
    "on_timer": "M, k, f, now",
    "at_nic": "M, k, f, nbytes",
    "on_data": "M, k, r, sequence, size, ce, now",
    "on_probe": "M, k, r, argument, now",
    "on_trimmed": "M, k, r, sequence, now",
    "on_late": "M, k, r, now",
    "resume": "M, k, f, now",
    "forget": "M, k, f, packets",
    "forget_received": "M, k, r, packets",
    "choose": "M, node, ways, n, A, B, count, now",
    "pick": "M, f, count",
    "heard": "M, f, kind, entropy, echo, now",
    "admit": "M, p, c, A",
}
"""Of every function of a component; M is the state, all else are integers."""

RETURNS = {
    "pull": "a packet number or BLOCKED",
    "at_nic": "0 or 1",
    **dict.fromkeys(("on_data", "on_probe", "on_trimmed", "on_late"), "reply(...) or 0"),
    "choose": "a way",
    "pick": "16 bits",
    "admit": "a verdict",
}
"""What those return that return something."""

PLAIN = "gradwire.testing.Ends runs those of a transport as plain Python (docs/testing.md)"

NUMBERS = ("control_bytes", "data_overhead", "sender_bitmaps", "receiver_bitmaps", "fresh_word", "probe_word")
"""Bytes, counts and offsets of a transport."""

REQUIRED = {
    "transport.kind": (
        (*NUMBERS, "important", "parameters"),
        ("start", "pull", "on_control", "on_data"),
    ),
    "load_balancing": ((), ("choose",)),
    "switch.policy": ((), ("admit",)),
}
"""By where it is named: what a class of the user's own has to have, and which compiled functions."""

SIDES = {
    "transport.kind": SENDER_SIDE + RECEIVER_SIDE,
    "load_balancing": BALANCER_SIDE,
    "switch.policy": QUEUE_SIDE,
}
"""The same: which functions the engine calls, if it has them."""

WHERE = {"transport": "transport.kind", "queue": "switch.policy"}
"""The path of what names a component, where it is not the place itself."""

CONTRACT = {
    "transport.kind": "gradwire.components.transports.base",
    "load_balancing": "gradwire.components.balancers",
    "switch.policy": "gradwire.components.queues",
}


def resolve(place: str, name: str, folder: Path | None = None) -> Any:
    """The class of a component by its kind, or behind "module:Class", a module that may lie in `folder`; `place` is one
    of `gradwire.scenarios.components.PLACES`.

    Raises
    ------
    ScenarioError
        The name is neither known nor importable, or it is not what it is named for; says where and why.
    """
    where = WHERE.get(place, place)
    if ":" not in name:
        found = component(place, name)
        if found is None:
            known = ", ".join(components(place))
            raise ScenarioError(f"{name!r} is not known", where, f"one of {known}, or module:Class")
        return found
    owner = user_class(name, folder, where)
    check_contract(owner, name, where)
    return owner


def check_contract(owner: object, name: str, where: str) -> None:
    """Raise ScenarioError if a class of the user's own is not what it is named for."""
    kind = where if where in REQUIRED else "transport.kind"
    fields, functions = REQUIRED[kind]
    expected = f"a class as {CONTRACT[kind]} describes it (docs/extending.md)"
    if not inspect.isclass(owner):
        raise ScenarioError(f"{name!r} is no class", where, expected)
    missing = [name for name in fields if not hasattr(owner, name)]
    missing += [name for name in functions if getattr(owner, name, None) is None]
    if missing:
        raise ScenarioError(f"{name!r} has no {', '.join(missing)}", where, expected)
    for field in NUMBERS:
        value = getattr(owner, field, 0) if field in fields else 0
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            raise ScenarioError(f"{field} of {name!r} is {value!r}", where, "a whole number from 0")
    wire = getattr(owner, "wire", "tcp")
    if fields and wire not in WIRES:
        raise ScenarioError(f"wire of {name!r} is {wire!r}", where, f"one of {', '.join(WIRES)}")
    for side in SIDES[kind]:
        function = getattr(owner, side, None)
        if function is not None:
            _check_function(function, side, name, where)


def _check_function(function: object, side: str, name: str, where: str) -> None:
    """Raise ScenarioError if one of a class's functions cannot be compiled into an engine."""
    if not hasattr(function, "py_func"):
        line = f"{place_of(function)}: " if inspect.isfunction(function) else ""
        what = f"{line}{side} of {name!r} is not compiled"
        raise ScenarioError(what, where, f"@njit above `def {side}({ARGUMENTS[side]})`")
    code = function.py_func.__code__
    taken, wanted = code.co_argcount, len(ARGUMENTS[side].split(", "))
    if taken != wanted:
        what = f"{place_of(function.py_func)}: {side} of {name!r} takes {taken} arguments, not {wanted}"
        raise ScenarioError(what, where, f"def {side}({ARGUMENTS[side]})")
    if "<locals>" in function.py_func.__qualname__:
        what = f"{place_of(function.py_func)}: {side} of {name!r} is defined inside another function"
        raise ScenarioError(what, where, "a function of the module, or of the class")


def parameters_of(owner: type[Transport], settings: JsonView, context: Context) -> list[int]:
    """The parameters of a transport for flows of one kind, by its own rule: at most `PARAM_WORDS` integers of 64 bits.

    Raises
    ------
    ScenarioError
        Its rule was stopped, or what it gives is something else; says which number, and where the rule is.
    """
    with asked(owner, "parameters", "transport"):
        given: object = owner.parameters(dict(settings), context)
    rule = getattr(owner.parameters, "__wrapped__", owner.parameters)
    rule = getattr(rule, "__func__", rule)
    line = place_of(rule) if inspect.isfunction(rule) else file_of(owner)
    expected = f"at most {PARAM_WORDS} integers of 64 bits"
    values = list(given) if isinstance(given, Iterable) else []
    if len(values) > PARAM_WORDS or not isinstance(given, Iterable):
        many = f"{len(values)} numbers" if values else repr(given)
        what = f"{line}: parameters of {owner.__name__} gives {many}"
        raise ScenarioError(what, "transport", f"a list of {expected}")
    for place, value in enumerate(values):
        wrong = "" if hasattr(value, "__index__") else "is no integer"
        if not wrong and not -(1 << 63) <= operator.index(value) < 1 << 63:
            wrong = "does not fit 64 bits"
        if wrong:
            what = f"{line}: parameters of {owner.__name__} gives {value!r} as number {place}, which {wrong}"
            raise ScenarioError(what, "transport", expected)
    return [operator.index(value) for value in values]


def place_of(function: FunctionType) -> str:
    """file:line of a Python function."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def functions_of(owner: type) -> list[FunctionType]:
    """The Python functions of a component, as far as it has them."""
    names = (*SENDER_SIDE, *RECEIVER_SIDE, *BALANCER_SIDE, *QUEUE_SIDE)
    return [getattr(owner, name).py_func for name in names if hasattr(owner, name)]


def is_users(owner: type) -> bool:
    """Whether a component is not gradwire's own."""
    return not owner.__module__.startswith("gradwire.components.")


def type_check(owners: Sequence[type]) -> str:
    """What Numba has against the functions of the user's own among `owners`, "file:line: why"; empty if nothing.

    Types are inferred, and nothing is translated, so it takes a moment. Only for a process that does nothing else.
    """
    from numba import int64
    from numba.core.errors import NumbaError
    from numba.core.types import Boolean, Integer, none
    from numba.core.types.misc import Optional

    from gradwire.components.intrinsics import WORDS

    for owner in owners:
        for side in ARGUMENTS:
            function = getattr(owner, side, None)
            if not is_users(owner) or function is None:
                continue
            printing = _printing(function.py_func)
            if printing:
                return printing
            kinds = (WORDS, *(int64 for _ in ARGUMENTS[side].split(", ")[1:]))
            compiled = getattr(function, "numba", function)
            try:
                compiled.get_call_template(kinds, {})
            except NumbaError as error:
                return _reason(error, function.py_func)
            given = compiled.overloads[kinds].signature.return_type
            if side in RETURNS and not isinstance(given, (Integer, Boolean)):
                found = "nothing" if given is none else "sometimes nothing" if isinstance(given, Optional) else given
                what = f"{side} of {owner.__name__} returns {found}, which is not {RETURNS[side]}"
                return f"{place_of(function.py_func)}: {what}"
    return ""


def _printing(function: FunctionType) -> str:
    """Where a rule, or what it calls, prints: machine code runs without the lock that Python's output needs, and would
    wait for it for ever."""
    from gradwire.components.identity import reachable

    for each in reachable([function]):
        for found in dis.get_instructions(each):
            if found.opname == "LOAD_GLOBAL" and found.argval == "print" and "print" not in each.__globals__:
                line = found.positions.lineno if found.positions else each.__code__.co_firstlineno
                return f"{each.__code__.co_filename}:{line}: compiled rules cannot print; {PLAIN}"
    return ""


PLACE = re.compile(r'File "([^"]+)", line (\d+)|at (/\S+?\.py) \((\d+)\)')
NOISE = ("File ", "During:", "Failed in", "<source", ">>>", "There are", "- Of which", "Overload", "* ")


def _reason(error: Exception, function: FunctionType) -> str:
    """The line that Numba objects to, and why, in one line: the innermost place that lies in the function's file."""
    from gradwire.components.intrinsics import NO_FLOATS

    own = Path(function.__code__.co_filename)
    line = function.__code__.co_firstlineno
    for found in PLACE.finditer(str(error)):
        file, number = (found[1], found[2]) if found[1] else (found[3], found[4])
        if Path(file).name == own.name:
            line = int(number)
            break
    unknown = re.search(r"name '(\w+)' is not defined", str(error))
    if unknown:  # Numba names the function only
        uses = [each for each in dis.get_instructions(function) if each.argval == unknown[1] and each.positions]
        line = next((each.positions.lineno for each in uses if each.positions and each.positions.lineno), line)
    if NO_FLOATS in str(error):  # of the candidates the only one that says something
        return f"{own}:{line}: {NO_FLOATS}"
    said = [text.strip() for text in str(error).splitlines()]
    said = [text[:-1] if text.endswith(":") else text for text in said]
    reasons = [text for text in said if len(text) > 8 and not text.startswith(NOISE) and not text.startswith("def ")]
    return f"{own}:{line}: {reasons[0] if reasons else type(error).__name__}"


def bound_to(owner: type, function: str, name: str) -> str:
    """The line that binds `name` to a component's function: one of its module, or of the class itself."""
    found = getattr(owner, function).py_func
    outer, _, inner = found.__qualname__.rpartition(".")
    if not outer:
        return f"from {found.__module__} import {inner} as {name}"
    return f"import sys; {name} = sys.modules[{found.__module__!r}].{outer}.{inner}"
