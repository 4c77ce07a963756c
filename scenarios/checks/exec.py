"""What `[exec]` says of hosts and classes that there are not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import Mistake

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario


def check_exec(scenario: Scenario) -> Iterator[Mistake]:
    """Every mistake of `[exec]` that another table shows."""
    table = scenario.exec
    if table is None:
        return
    total = scenario.topology.host_count
    if total is not None:  # else a graph file, whose names are checked when it is read
        named = [(f"exec.hosts[{place}]", name) for place, name in enumerate(table.hosts or ())]
        named += [(f"exec.host[{place}].name", each.name) for place, each in enumerate(table.host)]
        for place, mark in enumerate(table.mark):
            named += [(f"exec.mark[{place}].{key}", getattr(mark, key)) for key in ("host", "to")]
        for path, name in named:
            if name is not None and not (re.fullmatch(r"h(0|[1-9]\d*)", name) and int(name[1:]) < total):
                yield Mistake(path, "is no host of the topology", name, f"h0 to h{total - 1}", ("topology",))
    queues = scenario.switch.queues
    for place, mark in enumerate(table.mark):
        if mark.priority is not None and mark.priority >= queues:
            what = f"is beyond the {queues} queues of a switch"
            yield Mistake(f"exec.mark[{place}].priority", what, mark.priority, f"0 to {queues - 1}", ("switch.queues",))
