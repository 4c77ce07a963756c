"""resolve: from a scenario and a trace to the network, its routes, and the program of every host.

It is what `simulate` does before anything runs, as far as a testbed can do the same; what follows from what is then
plain data (`gradwire.experiment.program`) instead of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.experiment.placement import Places
from gradwire.experiment.program import FIFO, LAYER, Program, Table
from gradwire.experiment.replay import Replay
from gradwire.experiment.resolved import Resolved
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import Network
from gradwire.experiment.traffic import flows_of
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.sim.collectives import EXCHANGES as SIMULATED
from gradwire.sim.collectives import Exchange, Ring
from gradwire.sim.coupling import Message
from gradwire.sim.job import job_context
from gradwire.sim.precheck import find_needs
from gradwire.sim.programs import EXCHANGES, Builder, Job, add_traffic
from gradwire.sim.schedulers.layer import CREDIT_PARTITIONS

if TYPE_CHECKING:
    from gradwire.scenarios.schema import Scenario
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
    builder = Builder()
    for number, its in enumerate(needs.traces):
        _add_job(builder, scenario, number, its, traces.index(its), network, places[number])
    for number, table in enumerate(scenario.traffic):
        transport = scenario.transport_of(table)
        row = builder.table(Table(table.name, transport, FIFO, 0, is_job=False, element_bytes=1))
        add_traffic(builder, table, row, flows_of(scenario, number, network))
    return Resolved(network, build_routing(network), places, traces, _tagged(builder.finish(), scenario))


def _tagged(program: Program, scenario: Scenario) -> Program:
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
    mistakes = [
        Mistake("topology", f"host {name} has {count} network cards", expected="one network card per host")
        for name, count in zip(cards.hosts, cards.counts.tolist(), strict=True)
        if count > 1
    ][:1]
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
            "cannot be written down for hosts to run on their own:", scenario.name, mistakes=mistakes
        )


def _add_job(
    builder: Builder,
    scenario: Scenario,
    number: int,
    trace: Trace,
    source: int,
    network: Network,
    places: Places,
) -> None:
    table = scenario.job[number]
    transport = scenario.transport_of(table)
    replay = Replay(table, trace, scenario.seed, f"job[{number}]")
    payload = scenario.transports[transport].payload
    context = job_context(replay, places, network.cards, payload, transport, None, _refuse)
    exchange = SIMULATED[table.exchange.kind](context)
    widest = max(tensor.element_bytes for tensor in trace.tensors)
    credit = CREDIT_PARTITIONS * exchange.unit_bytes if table.order == LAYER else 0
    row = builder.table(
        Table(table.name, transport, table.order, credit, True, widest, source, *_buckets(exchange))
    )
    nodes = tuple(network.cards.node(host, 0) for host in places.workers)
    job = Job(builder, row, table, exchange, replay, nodes)
    EXCHANGES[table.exchange.kind](job)
    job.add_workers()


def _buckets(exchange: Exchange) -> tuple[tuple[tuple[int, ...], ...], int]:
    if not isinstance(exchange, Ring):
        return (), 1
    buckets: Sequence[tuple[int, ...]] = [bucket.tensors for bucket in exchange.buckets]
    return tuple(buckets), len(exchange.context.workers) * exchange.rails


def _refuse(message: Message) -> None:
    raise AssertionError(f"{message} is sent, where nothing runs")
