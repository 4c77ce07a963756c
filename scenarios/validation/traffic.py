"""Checks a scenario's traffic, and the transports that single jobs or traffic choose for themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.units import format_size, format_time
from gradwire.scenarios.validation.common import HOST_KEYS, after_the_run, beyond_queues, needless_bound
from gradwire.scenarios.wire import frame_bytes

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario


def check_traffic(scenario: Scenario) -> Iterator[Mistake]:
    """Yield every mistake of traffic, or of the transport of a single table."""
    if not scenario.job and not scenario.traffic and scenario.exec is None:
        yield Mistake("job", "is missing", None, "at least one [[job]] or [[traffic]], or [exec]")
    yield from _names(scenario)
    for kind in ("job", "traffic"):
        for index, table in enumerate(getattr(scenario, kind)):
            if table.transport is not None:
                yield from _own_transport(scenario, f"{kind}[{index}].transport", table.transport)
    for index, traffic in enumerate(scenario.traffic):
        path = f"traffic[{index}]"
        yield from _hosts(scenario, path, traffic)
        yield from beyond_queues(f"{path}.priority", traffic.priority, scenario.switch.queues)
        yield from needless_bound(path, "bound", traffic.bound, traffic.transport or scenario.transport)
        yield from _ends(scenario, path, traffic)
    yield from _measured(scenario)


def _names(scenario: Scenario) -> Iterator[Mistake]:
    taken = {job.name for job in scenario.job}
    for index, traffic in enumerate(scenario.traffic):
        if traffic.name in taken:
            what = "is already in use by a job or other traffic"
            yield Mistake(f"traffic[{index}].name", what, traffic.name, "a unique name")
        taken.add(traffic.name)


def _own_transport(scenario: Scenario, path: str, transport: Any) -> Iterator[Mistake]:
    yield from beyond_queues(f"{path}.control_priority", transport.control_priority, scenario.switch.queues)
    frame = frame_bytes(transport.payload, transport.overhead)
    room = min(scenario.switch.queue_capacities(), default=None)
    if room is not None and room.size < frame:
        what = "makes packets too large for the switches"
        expected = f"packets below {room.words}, {format_size(room.size)}"
        yield Mistake(f"{path}.payload", what, format_size(transport.payload), expected, (f"switch.{room.key}",))


def _hosts(scenario: Scenario, path: str, traffic: TrafficTable) -> Iterator[Mistake]:
    total = scenario.host_count
    named = traffic.hosts if isinstance(traffic.hosts, tuple) else None
    if total is not None and named is not None:
        unknown = [name for name in named if not scenario.is_host(name)]
        if unknown:
            yield Mistake(
                f"{path}.hosts", "names unknown hosts", ", ".join(unknown[:8]), scenario.host_names, HOST_KEYS
            )
            return
    count = total if named is None else len(named)
    for mistake in () if count is None else traffic.misfits(count):
        yield replace(mistake.under(path), concerns=(*HOST_KEYS, f"{path}.hosts"))
    for key, names in traffic.named_hosts.items():
        unknown = [] if total is None else [name for name in names if not scenario.is_host(name)]
        if unknown:
            what, expected = "is not a host of the topology", scenario.host_names
            yield Mistake(f"{path}.{key}", what, ", ".join(unknown[:8]), expected, HOST_KEYS)


def _ends(scenario: Scenario, path: str, traffic: TrafficTable) -> Iterator[Mistake]:
    if traffic.endless and not scenario.job and scenario.duration is None:
        limits = "duration" + (f", {path}.{traffic.limit}" if traffic.limit else "")
        yield Mistake(path, "never ends, and no job ends the run", None, f"{limits} or {path}.stop", ("duration",))
    yield from after_the_run(scenario, f"{path}.start", traffic.start)


def _measured(scenario: Scenario) -> Iterator[Mistake]:
    after, until = scenario.measure.after, scenario.measure.until
    if not after and until is None:
        return
    if not scenario.traffic:
        what = "applies to traffic, but there is none: jobs are measured in their steady state"
        yield Mistake("measure", what, None, "no [measure], or [[traffic]]", ("traffic",))
    elif scenario.duration is not None and after >= scenario.duration:
        yield from after_the_run(scenario, "measure.after", after)
    else:
        last = max(each.stop or math.inf for each in scenario.traffic)
        if after >= last:
            what = "is not before the last possible start of a flow"
            yield Mistake("measure.after", what, format_time(after), f"below {format_time(int(last))}", ("traffic",))
