"""What functions of the user's own return, watched: a packet or a way that there is not would be read or written past
the end of something.

Where a component is not gradwire's own, the engine is bound to a few compiled lines around its function. They note in
the header of the state what cannot be, and go on with something that can until the engine is back in Python, where the
run is refused. What comes with gradwire is bound as it is, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.components import layout as at
from gradwire.components.find import ARGUMENTS, PLAIN, bound_to, file_of, is_users, place_of
from gradwire.components.objects import Raised
from gradwire.components.transports.base import MUST
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError

CHECKED = ("pull", "choose", "pick", "admit")
"""The functions that are watched, in the order of their numbers in the header."""

LIMITS = {"pull": f"M[f + {at.S_PACKETS}]", "choose": "n", "pick": "1 << 16", "admit": "4"}
"""What they have to return less of, in terms of their arguments."""
NAMES = {
    "pull": ("packet", "a packet of the message, below {limit}, BLOCKED, or PULL_PROBE and an argument"),
    "choose": ("way", "a way below {limit}"),
    "pick": ("path entropy", "16 bits, below {limit}"),
    "admit": ("verdict", "0 (accept), 1 (mark), 2 (drop, as where the buffer is full) or 3 (drop by choice)"),
}
"""What it is that they return, and what is right."""
INSTEAD = {"pull": at.BLOCKED, "choose": 0, "pick": 0, "admit": 0}
"""What the engine goes on with."""


def watched(owner: type, function: str, name: str, number: int = 0) -> list[str]:
    """The lines of source that bind `name` to a component's function; `number`: of a transport, among the run's."""
    if not is_users(owner) or function not in CHECKED:
        return [bound_to(owner, function, name)]
    arguments, got = ARGUMENTS[function], "got"
    passed = []
    if function == "pull":
        got = f"got & ~{MUST}"
        passed = [f"    if got == {at.BLOCKED} or got >= {at.PULL_PROBE}:", "        return got"]
    return [
        bound_to(owner, function, f"{name}_unwatched"),
        "@njit",
        f"def {name}({arguments}):",
        f"    got = {name}_unwatched({arguments})",
        *passed,
        f"    if got < 0 or ({got}) >= {LIMITS[function]}:",
        f"        M[{at.H_WRONG_OWNER}] = {number}",
        f"        M[{at.H_WRONG_VALUE}] = got",
        f"        M[{at.H_WRONG_LIMIT}] = {LIMITS[function]}",
        f"        M[{at.H_WRONG}] = {1 + CHECKED.index(function)}",
        f"        return {INSTEAD[function]}",
        "    return got",
    ]


def check_watched(M: Ints, transports: Sequence[type], balancer: type, queue: type) -> None:
    """Raise ScenarioError if something of the classes that an engine is bound to has been noted."""
    if not M[at.H_WRONG]:
        return
    function = CHECKED[int(M[at.H_WRONG]) - 1]
    owner = {"pull": transports[int(M[at.H_WRONG_OWNER])], "admit": queue}.get(function, balancer)
    refuse(owner, function, int(M[at.H_WRONG_VALUE]), int(M[at.H_WRONG_LIMIT]))


def stopped(owners: Sequence[type], error: Exception) -> ScenarioError | None:
    """What is said where compiled code has raised an exception, if it has something of the user's own in it. Which of
    its functions it was nobody knows."""
    users = [f"{owner.__name__} ({file_of(owner)})" for owner in owners if is_users(owner)]
    if not users:
        return None
    why = "an exception" if isinstance(error, Raised) else f"{type(error).__name__}: {error}"
    return ScenarioError(
        f"a compiled rule of {' or '.join(users)} has raised {why}", "a component of your own",
        f"rules without division by zero, and without `raise`; {PLAIN}",
    )  # fmt: skip


def check_returned(owner: type, function: str, got: int, limit: int) -> None:
    """The same for what a function of a component has just returned, which has to be below `limit`."""
    if function == "pull" and (got == at.BLOCKED or got >= at.PULL_PROBE):
        return
    if got < 0 or (got & ~MUST if function == "pull" else got) >= limit:
        refuse(owner, function, got, limit)


def refuse(owner: type, function: str, got: int, limit: int) -> None:
    """Raise the error of what a function has returned that cannot be."""
    where = {"pull": "transport", "admit": "switch.policy"}.get(function, "load_balancing")
    what, right = NAMES[function]
    found = getattr(owner, function)
    place = place_of(found.py_func) if hasattr(found, "py_func") else file_of(owner)
    said = f"{place}: {function} of {owner.__name__} returned {got}, a {what} that there is not"
    raise ScenarioError(said, where, right.format(limit=limit))
