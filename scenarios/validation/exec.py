"""Hosts and priorities that `[exec]` names but the scenario does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.validation import HOST_KEYS

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario


def check_exec(scenario: Scenario) -> Iterator[Mistake]:
    """Yield every mistake of `[exec]` that depends on another table."""
    table = scenario.exec
    if table is None:
        return
    if scenario.host_count is not None:  # else a graph file, whose names are checked when it is read
        named = [(f"exec.hosts[{place}]", name) for place, name in enumerate(table.hosts or ())]
        named += [(f"exec.host[{place}].name", each.name) for place, each in enumerate(table.host)]
        for place, mark in enumerate(table.mark):
            named += [(f"exec.mark[{place}].{key}", getattr(mark, key)) for key in ("host", "to")]
        for path, name in named:
            if name is not None and not scenario.is_host(name):
                yield Mistake(path, "is not a host of the topology", name, scenario.host_names, HOST_KEYS)
    queues = scenario.switch.queues
    for place, mark in enumerate(table.mark):
        if mark.priority is not None and mark.priority >= queues:
            what = f"is beyond the {queues} queues of a switch"
            yield Mistake(f"exec.mark[{place}].priority", what, mark.priority, f"0 to {queues - 1}", ("switch.queues",))
