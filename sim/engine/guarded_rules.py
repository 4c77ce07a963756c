"""Generates guards that replace invalid packet numbers or next hops of user-defined components, and raises the error
after the call. Without them, such a number would be an access out of bounds.

Around each function of a user-defined component the engine gets a few compiled lines. They record an invalid result in
the header of the state and continue with a valid one until the engine is back in Python, which ends the run. Components
that come with gradwire are bound directly, at no cost.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from gradwire.jit.machine_code import MachineCodeError
from gradwire.jit.records import constants as at
from gradwire.jit.records.header import State
from gradwire.protocols.registry import ARGUMENTS, DEBUG_HINT, class_file, code_location, import_line, is_user_defined
from gradwire.protocols.transports.base import IMPORTANT_FLAG
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError

GUARDED_FUNCTIONS = ("pull", "select", "pick_path", "admit")
"""The guarded functions, in the order of their numbers in the header."""

LIMITS = {"pull": "flow.packets", "select": "hop_count", "pick_path": "1 << 16", "admit": "4"}
"""Exclusive upper limits of results, in terms of the arguments."""
RESULT_DESCRIPTIONS = {
    "pull": ("packet number", "a packet of the message, below {limit}, BLOCKED, or PULL_PROBE and an argument"),
    "select": ("next hop", "the index of a next hop, below {limit}"),
    "pick_path": ("path entropy", "16 bits, below {limit}"),
    "admit": ("verdict", "0 (accept), 1 (mark), 2 (drop, as where the buffer is full) or 3 (drop by choice)"),
}
"""Names of results, and descriptions of valid ones."""
FALLBACK_RESULTS = {"pull": at.BLOCKED, "select": 0, "pick_path": 0, "admit": 0}
"""Results that the engine continues with."""


def guarded_source(owner: type, function: str, name: str, number: int = 0) -> list[str]:
    """Return the source lines that bind `name` to a component's function. `number`: of a transport, among the run's."""
    if not is_user_defined(owner) or function not in GUARDED_FUNCTIONS:
        return [import_line(owner, function, name)]
    arguments, got = ARGUMENTS[function], "got"
    state = f"{'flow' if 'flow' in arguments else arguments.partition(', ')[0]}.state"
    passed = []
    if function == "pull":
        got = f"got & ~{IMPORTANT_FLAG}"
        passed = [f"    if got == {at.BLOCKED} or got >= {at.PULL_PROBE}:", "        return got"]
    return [
        import_line(owner, function, f"{name}_unwatched"),
        "@njit",
        f"def {name}({arguments}):",
        f"    got = {name}_unwatched({arguments})",
        *passed,
        f"    if got < 0 or ({got}) >= {LIMITS[function]}:",
        f"        {state}.invalid_owner = {number}",
        f"        {state}.invalid_value = got",
        f"        {state}.invalid_limit = {LIMITS[function]}",
        f"        {state}.invalid_rule = {1 + GUARDED_FUNCTIONS.index(function)}",
        f"        return {FALLBACK_RESULTS[function]}",
        "    return got",
    ]


def check_recorded(state: Ints, transports: Sequence[type], balancer: type, queue: type) -> None:
    """Raise ScenarioError if an invalid result of the bound classes has been recorded."""
    if not state[State.invalid_rule.offset]:
        return
    function = GUARDED_FUNCTIONS[int(state[State.invalid_rule.offset]) - 1]
    owner = {"pull": transports[int(state[State.invalid_owner.offset])], "admit": queue}.get(function, balancer)
    raise_invalid_result(
        owner, function, int(state[State.invalid_value.offset]), int(state[State.invalid_limit.offset])
    )


def rule_error(owners: Sequence[type], error: Exception) -> ScenarioError | None:
    """Return the error for an exception in a rule, if user-defined components take part. Compiled code does not tell
    which function raised it; the engine as plain Python does."""
    users = [f"{owner.__name__} ({class_file(owner)})" for owner in owners if is_user_defined(owner)]
    if not users:
        return None
    why = "an exception" if isinstance(error, MachineCodeError) else f"{type(error).__name__}: {error}"
    files = [class_file(owner) for owner in owners]
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    expected = "rules without division by zero, and without `raise`"
    if lines:
        return ScenarioError(
            f"{lines[-1].filename}:{lines[-1].lineno}: a rule has raised {why}",
            "user-defined component",
            "rules that raise no exception",
        )
    what = f"a compiled rule of {' or '.join(users)} has raised {why}"
    return ScenarioError(what, "user-defined component", f"{expected}; {DEBUG_HINT}")


def check_returned(owner: type, function: str, got: int, limit: int) -> None:
    """Raise ScenarioError if a function of a component has returned an invalid result, `limit` or more."""
    if function == "pull" and (got == at.BLOCKED or got >= at.PULL_PROBE):
        return
    if got < 0 or (got & ~IMPORTANT_FLAG if function == "pull" else got) >= limit:
        raise_invalid_result(owner, function, got, limit)


def raise_invalid_result(owner: type, function: str, got: int, limit: int) -> None:
    """Raise the error for an invalid result of a function."""
    path = {"pull": "transport", "admit": "switch.policy"}.get(function, "load_balancing")
    name, expected = RESULT_DESCRIPTIONS[function]
    rule = getattr(owner, function)
    location = code_location(rule.py_func) if hasattr(rule, "py_func") else class_file(owner)
    message = f"{location}: {function} of {owner.__name__} returned {got}, an invalid {name}"
    raise ScenarioError(message, path, expected.format(limit=limit))
