"""Checks shared by several tables yield mistakes, such as unknown hosts, classes beyond the queues and needless loss
bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.job.loss_bound import largest_bound
from gradwire.scenarios.units import Ps, format_time

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

HOST_KEYS = ("topology", "host.gpus")
"""Keys that determine the hosts, their number and their names: `concerns` of a mistake about hosts."""


def beyond_queues(path: str, number: int | None, queues: int) -> Iterator[Mistake]:
    """Yield the mistake of a class, if any, beyond the queues of a switch."""
    if number is not None and not 0 <= number < queues:
        what = f"is beyond the {queues} queues of a switch"
        yield Mistake(path, what, number, f"0 to {queues - 1}", ("switch.queues",))


def unknown_host(scenario: Scenario, path: str, name: str) -> Iterator[Mistake]:
    """Yield the mistake of a name that no host has."""
    if not scenario.is_host(name):
        yield Mistake(path, "is not a host of the topology", name, scenario.host_names, HOST_KEYS)


def needless_bound(path: str, key: str, bound: Any, transport: Any) -> Iterator[Mistake]:
    """Yield the mistake of a loss bound `key` in the table at `path` whose transport loses nothing."""
    if largest_bound(bound) > 0 and not transport.may_lose:
        what = f"allows loss, but transport {transport.kind} delivers every byte"
        value = bound if isinstance(bound, float) else bound.model_dump(exclude_unset=True)
        concerns = ("transport.kind", f"{path}.transport")
        yield Mistake(f"{path}.{key}", what, value, '0, or transport = "dlcp"', concerns)


def after_the_run(scenario: Scenario, path: str, moment: Ps) -> Iterator[Mistake]:
    """Yield the mistake of a time that is not before the end of the run."""
    if scenario.duration is not None and moment >= scenario.duration:
        expected = f"below duration, {format_time(scenario.duration)}"
        yield Mistake(path, "is not before the end of the run", format_time(moment), expected, ("duration",))
