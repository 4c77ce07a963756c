"""Finds transports, load balancers and queue policies by name or user-defined class, and checks user-defined classes
before compilation.

A user-defined class is checked before anything is compiled with it: missing parts of the contract, functions that are
not compiled, and errors in its module are reported with file and line.
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

from gradwire.jit.records import Bitmap, Record
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.jit.records.network import Port, QueueClass, Switch
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.registry import component, components
from gradwire.scenarios.loading.user_classes import load_user_class
from gradwire.scenarios.loading.user_code_errors import asked, class_file
from gradwire.scenarios.wire import WIRES

if TYPE_CHECKING:
    from gradwire.protocols.transports.base import Context
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.base import ScenarioTable
    from gradwire.scenarios.schema.network.transport_base import Transport

A = TypeVar("A", bound="ScenarioTable")

SENDER_SIDE = ("start", "pull", "on_control", "on_timer", "at_nic", "resume", "forget")
RECEIVER_SIDE = ("on_data", "on_probe", "on_trimmed", "on_late", "forget_received")
BALANCER_SIDE = ("select", "pick_path", "on_feedback")
QUEUE_SIDE = ("admit",)
ARGUMENTS = {
    "start": "params, flow, now",
    "pull": "params, flow, now",
    "on_control": "params, flow, kind, sequence, argument, echo, now",
    "on_timer": "params, flow, now",
    "at_nic": "params, flow, nbytes",
    "on_data": "params, receiver, sequence, size, ce, now",
    "on_probe": "params, receiver, argument, now",
    "on_trimmed": "params, receiver, sequence, now",
    "on_late": "params, receiver, now",
    "resume": "params, flow, now",
    "forget": "params, flow, packets",
    "forget_received": "params, receiver, packets",
    "select": "switch, next_hops, hop_count, header, body, draws, now",
    "pick_path": "flow, draws",
    "on_feedback": "flow, kind, entropy, echo, now",
    "admit": "port, waiting, header",
}
"""Arguments of every function of a component: records, then integers; `next_hops` is a list of words."""

RECORDS: dict[str, type[Record]] = {
    "params": Parameters,
    "flow": Sender,
    "receiver": Receiver,
    "switch": Switch,
    "port": Port,
    "waiting": QueueClass,
}
"""Classes of the arguments that are records; a component's function may declare one derived from them."""

RETURNS = {
    "pull": "a packet number or BLOCKED",
    "at_nic": "0 or 1",
    **dict.fromkeys(("on_data", "on_probe", "on_trimmed", "on_late"), "reply(...) or 0"),
    "select": "the index of a next hop",
    "pick_path": "16 bits",
    "admit": "a verdict",
}
"""Return values of the functions that have one."""

DEBUG_HINT = "gradwire run --uncompiled runs them as plain Python (docs/testing.md)"

NUMBER_ATTRIBUTES = ("control_bytes", "data_overhead", "sender_bitmaps", "receiver_bitmaps", "fresh_word", "probe_word")
"""Class attributes of a transport: bytes, counts and offsets."""

REQUIRED = {
    "transport.kind": ((*NUMBER_ATTRIBUTES, "important", "parameters"), ("start", "pull", "on_control", "on_data")),
    "load_balancing": ((), ("select",)),
    "switch.policy": ((), ("admit",)),
}
"""Attributes and compiled functions that a user-defined class must have, by the path that names it."""

OPTIONAL_FUNCTIONS = {
    "transport.kind": SENDER_SIDE + RECEIVER_SIDE,
    "load_balancing": BALANCER_SIDE,
    "switch.policy": QUEUE_SIDE,
}
"""Functions that the engine calls if the class has them, by the same path."""

PATHS = {"transport": "transport.kind", "queue": "switch.policy"}
"""Path of the key that names a component, if it differs from the place."""

CONTRACT = {
    "transport.kind": "gradwire.protocols.transports.base",
    "load_balancing": "gradwire.protocols.load_balancers",
    "switch.policy": "gradwire.protocols.queues",
}


RENAMED = {"choose": "select", "pick": "pick_path", "heard": "on_feedback"}
"""Former names of a load balancer's functions, from before rules took records."""


def resolve_component(table: str, name: str, folder: Path | None = None) -> Any:
    """Return the class of a component by its kind, or by "module:Class" from a module that may lie in `folder`.

    `table` is one of `gradwire.scenarios.loading.registry.COMPONENT_PACKAGES`.

    Raises
    ------
    ScenarioError
        If the name is neither known nor importable, or the class does not fulfil the contract.
    """
    where = PATHS.get(table, table)
    if ":" not in name:
        builtin = component(table, name)
        if builtin is None:
            known = ", ".join(components(table))
            raise ScenarioError(f"{name!r} is not known", where, f"one of {known}, or module:Class")
        return builtin
    owner = load_user_class(name, folder, where)
    check_contract(owner, name, where)
    return owner


def check_contract(owner: object, name: str, where: str) -> None:
    """Raise ScenarioError if a user-defined class does not fulfil the contract."""
    kind = where if where in REQUIRED else "transport.kind"
    fields, functions = REQUIRED[kind]
    expected = f"a class as {CONTRACT[kind]} describes it (docs/extending.md)"
    if not inspect.isclass(owner):
        raise ScenarioError(f"{name!r} is not a class", where, expected)
    missing = [name for name in fields if not hasattr(owner, name)]
    missing += [name for name in functions if getattr(owner, name, None) is None]
    former = [name for name in RENAMED if hasattr(owner, name)]
    if kind == "load_balancing" and missing and former:
        renamed = ", ".join(f"{RENAMED[name]} in place of {name}" for name in former)
        what = f"{name!r} has the former {', '.join(former)} and no select"
        raise ScenarioError(what, where, f"{renamed} (docs/extending.md)")
    if missing:
        raise ScenarioError(f"{name!r} has no {', '.join(missing)}", where, expected)
    for field in NUMBER_ATTRIBUTES:
        value = getattr(owner, field, 0) if field in fields else 0
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            raise ScenarioError(f"{field} of {name!r} is {value!r}", where, "a whole number from 0")
    wire = getattr(owner, "wire", "tcp")
    if fields and wire not in WIRES:
        raise ScenarioError(f"wire of {name!r} is {wire!r}", where, f"one of {', '.join(WIRES)}")
    for side in OPTIONAL_FUNCTIONS[kind]:
        function = getattr(owner, side, None)
        if function is not None:
            _check_function(function, side, name, where)
    if fields:
        _check_numbers(owner, name, where)


def _check_numbers(owner: Any, name: str, where: str) -> None:
    """Raise ScenarioError if a transport's numbers of bitmaps or offsets of fields contradict its records."""
    for argument, side in (("flow", "sender"), ("receiver", "receiver")):
        for record in _records_of(owner, argument):
            needed = 1 + max(
                (entry.index for entry in record.ENTRIES.values() if isinstance(entry, Bitmap)), default=-1
            )
            if getattr(owner, f"{side}_bitmaps") < needed:
                what = f"{side}_bitmaps of {name!r} is {getattr(owner, f'{side}_bitmaps')}"
                raise ScenarioError(
                    what, where, f"at least {needed}, the number of bitmaps that {record.__name__} declares"
                )
    if owner.fresh_word == 0:
        expected = "the offset of the sender's field that counts packets sent once, such as Flow.sent_once.offset"
        raise ScenarioError(f"fresh_word of {name!r} is 0", where, expected)
    senders: list[type[Record]] = [Sender, *_records_of(owner, "flow")]
    words = max(record.WORDS for record in senders)
    for field in ("fresh_word", "probe_word"):
        if getattr(owner, field) >= words:
            what = f"{field} of {name!r} is {getattr(owner, field)}"
            raise ScenarioError(what, where, f"the offset of a field of the sender's record, which has {words} words")


def _records_of(owner: type, argument: str) -> list[type[Record]]:
    """Return the records that the functions of a component declare for an argument."""
    functions = [(side, getattr(owner, side, None)) for side in ARGUMENTS]
    declared = [declared_records(function.py_func, side) for side, function in functions if function is not None]
    return list(dict.fromkeys(records[argument] for records in declared if argument in records))


def _check_function(function: object, side: str, name: str, where: str) -> None:
    """Raise ScenarioError if a function of a class cannot be compiled into an engine."""
    if not hasattr(function, "py_func"):
        line = f"{code_location(function)}: " if inspect.isfunction(function) else ""
        what = f"{line}{side} of {name!r} is not compiled"
        raise ScenarioError(what, where, f"@njit above `def {side}({ARGUMENTS[side]})`")
    code = function.py_func.__code__
    if code.co_argcount and code.co_varnames[0] == "M":
        what = f"{code_location(function.py_func)}: {side} of {name!r} takes the state as M, but rules take records now"
        raise ScenarioError(what, where, f"def {side}({ARGUMENTS[side]}), with fields as in docs/extending.md")
    taken, expected = code.co_argcount, len(ARGUMENTS[side].split(", "))
    if taken != expected:
        what = f"{code_location(function.py_func)}: {side} of {name!r} takes {taken} arguments, not {expected}"
        raise ScenarioError(what, where, f"def {side}({ARGUMENTS[side]})")
    for argument, record in declared_records(function.py_func, side).items():
        if not (isinstance(record, type) and issubclass(record, RECORDS[argument])):
            shown = getattr(record, "__name__", repr(record))
            what = f"{code_location(function.py_func)}: {side} of {name!r} takes {argument} as {shown}"
            raise ScenarioError(what, where, f"{RECORDS[argument].__name__}, or a class derived from it")
    if "<locals>" in function.py_func.__qualname__:
        what = f"{code_location(function.py_func)}: {side} of {name!r} is defined inside another function"
        raise ScenarioError(what, where, "a function of the module, or of the class")


def declared_records(function: FunctionType, side: str) -> dict[str, Any]:
    """Return the records of a function's arguments, by the names in `ARGUMENTS`: those that its annotations declare,
    else the general ones. Raises ScenarioError if an annotation cannot be evaluated."""
    records: dict[str, Any] = {}
    code = function.__code__
    for argument, name in zip(ARGUMENTS[side].split(", "), code.co_varnames, strict=False):
        if argument in RECORDS:
            declared = function.__annotations__.get(name, RECORDS[argument])
            if isinstance(declared, str):
                try:
                    declared = eval(declared, function.__globals__)
                except Exception as error:
                    what = f"{code_location(function)}: the annotation of {name} cannot be evaluated: {error}"
                    raise ScenarioError(
                        what, "user-defined component", "a class that is imported at run time"
                    ) from None
            records[argument] = declared
    return records


def transport_parameters(owner: type[Transport], settings: JsonView, context: Context) -> list[int]:
    """Return a transport's parameters for flows of one kind: at most `Parameters.WORDS` integers of 64 bits.

    Raises
    ------
    ScenarioError
        If the transport's `parameters` fails or returns anything else; names the value and the line.
    """
    with asked(owner, "parameters", "transport"):
        returned: object = owner.parameters(dict(settings), context)
    rule = getattr(owner.parameters, "__wrapped__", owner.parameters)
    rule = getattr(rule, "__func__", rule)
    line = code_location(rule) if inspect.isfunction(rule) else class_file(owner)
    expected = f"at most {Parameters.WORDS} integers of 64 bits"
    values = list(returned) if isinstance(returned, Iterable) else []
    if len(values) > Parameters.WORDS or not isinstance(returned, Iterable):
        value = f"{len(values)} numbers" if values else repr(returned)
        what = f"{line}: parameters of {owner.__name__} returns {value}"
        raise ScenarioError(what, "transport", f"a list of {expected}")
    if is_user_defined(owner):
        counts = {_count_fields(record): record.__name__ for record in _records_of(owner, "params")}
        count = max(counts, default=0)
        if len(values) < count:
            what = f"{line}: parameters of {owner.__name__} returns {len(values)} numbers"
            raise ScenarioError(what, "transport", f"{count}, one for each field of {counts[count]}")
    for index, value in enumerate(values):
        error = "" if hasattr(value, "__index__") else "is not an integer"
        if not error and not -(1 << 63) <= operator.index(value) < 1 << 63:
            error = "does not fit 64 bits"
        if error:
            what = f"{line}: parameters of {owner.__name__} returns {value!r} as number {index}, which {error}"
            raise ScenarioError(what, "transport", expected)
    return [operator.index(value) for value in values]


def _count_fields(record: type[Record]) -> int:
    """Return the number of integers that the fields of a record of parameters take."""
    return max((entry.offset + entry.count for entry in record.ENTRIES.values()), default=0)


def code_location(function: FunctionType) -> str:
    """Return "file:line" of a Python function."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def functions_of(owner: type) -> list[FunctionType]:
    """Return the Python functions that a component has."""
    names = (*SENDER_SIDE, *RECEIVER_SIDE, *BALANCER_SIDE, *QUEUE_SIDE)
    return [getattr(owner, name).py_func for name in names if hasattr(owner, name)]


def is_user_defined(owner: type) -> bool:
    """Return True if a component is user-defined."""
    return not owner.__module__.startswith("gradwire.protocols.")


def type_check(owners: Sequence[type]) -> str:
    """Return Numba's first objection to the user-defined functions among `owners`, "file:line: why", or an empty
    string. Types are inferred but nothing is translated, so it is fast. Only for a process that does nothing else."""
    from numba import int64
    from numba.core.errors import NumbaError
    from numba.core.types import Boolean, Integer, none
    from numba.core.types.misc import Optional

    from gradwire.jit.intrinsics import WORDS
    from gradwire.jit.records.numba_types import RecordType

    for owner in owners:
        for side in ARGUMENTS:
            function = getattr(owner, side, None)
            if not is_user_defined(owner) or function is None:
                continue
            printing = _printing(function.py_func)
            if printing:
                return printing
            records = declared_records(function.py_func, side)
            kinds = tuple(
                RecordType(records[name]) if name in records else WORDS if name == "next_hops" else int64
                for name in ARGUMENTS[side].split(", ")
            )
            compiled = getattr(function, "numba", function)
            try:
                compiled.get_call_template(kinds, {})
            except NumbaError as error:
                return _reason(error, function.py_func)
            kind = compiled.overloads[kinds].signature.return_type
            if side in RETURNS and not isinstance(kind, (Integer, Boolean)):
                value = "nothing" if kind is none else "sometimes nothing" if isinstance(kind, Optional) else kind
                what = f"{side} of {owner.__name__} returns {value}, which is not {RETURNS[side]}"
                return f"{code_location(function.py_func)}: {what}"
    return ""


def _printing(function: FunctionType) -> str:
    """Return an error if a rule, or a function that it calls, prints; empty if none does. Machine code runs without the
    lock that Python's output needs, so printing would block forever."""
    from gradwire.jit.fingerprint import reachable_functions

    for called in reachable_functions([function]):
        for step in dis.get_instructions(called):
            if step.opname == "LOAD_GLOBAL" and step.argval == "print" and "print" not in called.__globals__:
                line = step.positions.lineno if step.positions else called.__code__.co_firstlineno
                return f"{called.__code__.co_filename}:{line}: compiled rules cannot print; {DEBUG_HINT}"
    return ""


CODE_LOCATION = re.compile(r'File "([^"]+)", line (\d+)|at (/\S+?\.py) \((\d+)\)')
NOISE = ("File ", "During:", "Failed in", "<source", ">>>", "There are", "- Of which", "Overload", "* ")


def _reason(error: Exception, function: FunctionType) -> str:
    """Return the line that Numba objects to and the reason, in one line, for the innermost position in the function's
    file."""
    from gradwire.jit.intrinsics import NO_FLOATS

    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without Numba's colours, where colorama is installed
    path = Path(function.__code__.co_filename)
    line = function.__code__.co_firstlineno
    for match in CODE_LOCATION.finditer(said):
        file, number = (match[1], match[2]) if match[1] else (match[3], match[4])
        if Path(file).name == path.name:
            line = int(number)
            break
    unknown = re.search(r"name '(\w+)' is not defined", said)
    if unknown:  # Numba names the function only
        uses = [step for step in dis.get_instructions(function) if step.argval == unknown[1] and step.positions]
        line = next((step.positions.lineno for step in uses if step.positions and step.positions.lineno), line)
    if NO_FLOATS in said:  # the most specific of the candidates
        return f"{path}:{line}: {NO_FLOATS}"
    plain = re.sub(r"#[0-9a-f]{12}", "", said)  # the hashes of layouts in the names of records
    texts = [text.strip().removesuffix(":") for text in plain.splitlines()]
    reasons = [text for text in texts if len(text) > 8 and not text.startswith(NOISE) and not text.startswith("def ")]
    return f"{path}:{line}: {reasons[0] if reasons else type(error).__name__}"


def import_line(owner: type, function: str, name: str) -> str:
    """Return a line of code that binds `name` to a component's function, of its module or of the class."""
    return _import_of(getattr(owner, function).py_func, name)


def record_lines(owner: type, function: str, suffix: str) -> tuple[list[str], dict[str, str]]:
    """Return lines of code that import the records of a function's arguments, and the names bound, by argument."""
    records = declared_records(getattr(owner, function).py_func, function)
    names = {argument: f"{argument}_{function}{suffix}" for argument in records}
    return [_import_of(records[argument], name) for argument, name in names.items()], names


def _import_of(item: Any, name: str) -> str:
    outer, _, inner = item.__qualname__.rpartition(".")
    if not outer:
        return f"from {item.__module__} import {inner} as {name}"
    return f"import sys; {name} = sys.modules[{item.__module__!r}].{outer}.{inner}"
