"""resolve: from a scenario and a trace to the network, its routes, and the program of every host.

It is what `simulate` does before anything runs, as far as a testbed can do the same; what follows from what is then
plain data (`gradwire.experiment.program`) instead of processes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gradwire.experiment.needs import Needs, find_needs
from gradwire.experiment.program import Part, Program
from gradwire.experiment.resolved import Resolved
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import Network
from gradwire.experiment.traffic.part import traffic_part
from gradwire.experiment.traffic.tables import flows_of
from gradwire.experiment.written import written_out
from gradwire.scenarios.errors import Mistake, ScenarioError

if TYPE_CHECKING:
    from gradwire.experiment.jobs import Job
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace


def resolve(scenario: Scenario, trace: Trace | None = None) -> Resolved:
    """What the hosts of a scenario do, as data.

    Parameters
    ----------
    trace : replayed by every job instead of the traces that they name.

    Raises
    ------
    ScenarioError, TraceError
        The input cannot be run; or, all named: traffic without an end, hosts with several network cards.
    """
    needs = find_needs(scenario, trace)
    network, places = needs.network, needs.places
    _check_finite(scenario, network)
    traces = list(dict.fromkeys(needs.traces))
    parts = [job.part for job in jobs_of(scenario, needs)] + traffic_of(scenario, network)
    program = tagged(written_out(parts), scenario)
    return Resolved(network, build_routing(network), places, traces, program)


def jobs_of(scenario: Scenario, needs: Needs) -> list[Job]:
    """The jobs of a scenario, in its order."""
    if not scenario.job:  # traffic alone needs none of what jobs are made of
        return []
    from gradwire.experiment.jobs import Job

    traces = list(dict.fromkeys(needs.traces))
    return [
        Job.of(
            table, needs.traces[number], needs.places[number], needs.network.cards, number=number,
            seed=scenario.seed, payload=(table.transport or scenario.transport).payload,
            transport=scenario.transport_of(table), source=traces.index(needs.traces[number]), where=f"job[{number}]",
            sums=scenario.switch.aggregation_slots > 0,
        )
        for number, table in enumerate(scenario.job)
    ]  # fmt: skip


def traffic_of(scenario: Scenario, network: Network, since_ps: int = 0) -> list[Part]:
    """What the traffic of a scenario does, in its order; from a time on, if it is not all of it."""
    return [
        traffic_part(
            table, len(scenario.job) + number, scenario.transport_of(table),
            partial(flows_of, scenario, number, network, since_ps), network.cards,
        )
        for number, table in enumerate(scenario.traffic)
    ]  # fmt: skip


def tagged(program: Program, scenario: Scenario) -> Program:
    """The program with the packets of untagged messages as their transport has them."""
    capable = [scenario.transports[table.transport].ecn_capable for table in program.tables]
    messages = program.messages
    important = [
        capable[table] if given is None else given
        for table, given in zip(messages.table.tolist(), messages.important, strict=True)
    ]
    return replace(program, messages=replace(messages, important=important))


def _check_finite(scenario: Scenario, network: Network) -> None:
    cards = network.cards
    mistakes = [] if cards.machines is None else [
        Mistake("host.gpus", "are ports of their own each", cards.per_machine, "1: a host of the testbed has one port")
    ]  # fmt: skip
    mistakes += [
        Mistake("topology", f"host {name} has {count} network cards", expected="one network card per host")
        for name, count in zip(cards.hosts, cards.counts.tolist(), strict=True)
        if count > 1 and cards.machines is None
    ][:1]
    mistakes += [
        Mistake(f"job[{number}].exchange.asynchronous", "makes contents that nobody can foretell", True, "false")
        for number, job in enumerate(scenario.job)
        if getattr(job.exchange, "asynchronous", False)
    ]
    if scenario.duration is None:
        mistakes += [
            Mistake(
                f"traffic[{number}]",
                f"{table.name} has no end",
                expected="stop, or a duration of the scenario",
            )
            for number, table in enumerate(scenario.traffic)
            if table.endless
        ]
    if mistakes:
        raise ScenarioError(
            "cannot be written down for hosts to run on their own:", scenario.called, mistakes=mistakes
        )
