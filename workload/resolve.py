"""`resolve` converts a scenario and its traces to the network, its routes, and the program of every host.

These are the steps of `simulate` before the run that a testbed can share; the result is plain data
(`gradwire.workload.program`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import Network
from gradwire.topology.placement import HostAssignment
from gradwire.topology.routing import Routing, build_routing
from gradwire.traces.trace import Trace
from gradwire.workload.prerequisites import find_prerequisites, make_jobs
from gradwire.workload.program import Program, ProgramPart
from gradwire.workload.program_export import export_program
from gradwire.workload.traffic.flow_part import traffic_part
from gradwire.workload.traffic.tables import flows_of


class Resolved(NamedTuple):
    """A fully resolved scenario.

    places : of the workers and servers of every job.
    traces : the distinct ones; `Table.trace` is an index into them.
    program : tables are the jobs of the scenario, then its traffic.
    """

    network: Network
    routing: Routing
    places: list[HostAssignment]
    traces: list[Trace]
    program: Program


def resolve(scenario: Scenario, trace: Trace | None = None) -> Resolved:
    """Return the network and the program of a scenario's hosts, as data.

    trace : replayed by every job instead of the traces that they name.

    Raises ScenarioError or TraceError if the input cannot be run; or there is traffic without an end, or hosts have
    several NICs.
    """
    needs = find_prerequisites(scenario, trace)
    network, places = needs.network, needs.places
    _check_finite(scenario, network)
    traces = list(dict.fromkeys(needs.traces))
    parts = [job.part for job in make_jobs(scenario, needs)] + make_traffic(scenario, network)
    program = tag_untagged(export_program(parts), scenario)
    return Resolved(network, build_routing(network), places, traces, program)


def make_traffic(scenario: Scenario, network: Network, since_ps: int = 0) -> list[ProgramPart]:
    """Return the parts of a scenario's traffic, in its order, from the time `since_ps` on."""
    parts = []
    for number, table in enumerate(scenario.traffic):
        flows, transport = partial(flows_of, scenario, number, network, since_ps), scenario.transport_of(table)
        parts.append(traffic_part(table, len(scenario.job) + number, transport, flows, network.cards))
    return parts


def tag_untagged(program: Program, scenario: Scenario) -> Program:
    """Return the program with untagged messages marked as their transport sends them."""
    capable = [scenario.transports[table.transport].ecn_capable for table in program.tables]
    messages = program.messages
    important = [
        capable[table] if value is None else value
        for table, value in zip(messages.table.tolist(), messages.important, strict=True)
    ]
    return replace(program, messages=replace(messages, important=important))


def _check_finite(scenario: Scenario, network: Network) -> None:
    cards, mistakes = network.cards, list[Mistake]()
    if cards.machines is not None:
        expected = "1: a host of the testbed has one port"
        mistakes.append(Mistake("host.gpus", "are separate ports", cards.per_machine, expected))
    elif not cards.single:
        name, count = next((n, c) for n, c in zip(cards.hosts, cards.counts.tolist(), strict=True) if c > 1)
        mistakes.append(Mistake("topology", f"host {name} has {count} NICs", expected="one NIC per host"))
    mistakes += [
        Mistake(f"job[{number}].exchange.asynchronous", "has contents that are unknown in advance", True, "false")
        for number, job in enumerate(scenario.job)
        if getattr(job.exchange, "asynchronous", False)
    ]
    if scenario.duration is None:
        mistakes += [
            Mistake(f"traffic[{number}]", f"{table.name} has no end", expected="stop, or a duration of the scenario")
            for number, table in enumerate(scenario.traffic)
            if table.endless
        ]
    if mistakes:
        raise ScenarioError(
            "cannot be exported for hosts that run on their own:", scenario.display_name, mistakes=mistakes
        )
