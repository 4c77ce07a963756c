"""`check_files` and `check_hosts` validate a scenario's `[[traffic]]` tables; `flows_of` returns the flows of one
table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.jit.limits import MAX_PACKETS
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.user_code_errors import asked
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_size
from gradwire.topology import Network
from gradwire.workload.traffic.base import ABSENT, Flows, TrafficSetting, flows_since, random_generator


def check_files(scenario: Scenario) -> None:
    """Read every file that traffic names, and check the sizes of its flows.

    Raises ScenarioError if files are missing or damaged (the message names the lines), or a flow has too many packets.
    """
    total = scenario.host_count
    mistakes: list[Mistake] = []
    for index, table in enumerate(scenario.traffic):
        where = f"traffic[{index}]"
        hosts = len(table.hosts) if isinstance(table.hosts, tuple) else total
        try:
            field, largest = table.largest(where, hosts)
            payload = (table.transport or scenario.transport).payload
            if largest > payload * MAX_PACKETS:
                what = f"has a flow of {-(-largest // payload)} packets of {format_size(payload)}"
                expected = f"at most {MAX_PACKETS} packets, so {format_size(payload * MAX_PACKETS)}; or several flows"
                mistakes.append(Mistake(f"{where}.{field}", what, format_size(largest), expected))
        except ScenarioError as error:
            mistakes += error.mistakes or [Mistake(error.where, error.what, expected=error.expected)]
    if mistakes:
        raise ScenarioError("the traffic cannot be used:", scenario.display_name, mistakes=mistakes)


def check_hosts(scenario: Scenario, network: Network) -> None:
    """Look up all hosts that take part in traffic.

    Raises ScenarioError if the network does not have the hosts, or has too few; a scenario's own checks cover this
    except for networks from files.
    """
    for number, table in enumerate(scenario.traffic):
        hosts_of(table, f"traffic[{number}]", network)
        if scenario.host_count is None:  # `check_files` did not know the hosts yet
            with asked(table, "check_hosts", f"traffic[{number}]"):
                table.check_hosts(_setting(scenario, number, network))


def flows_of(scenario: Scenario, number: int, network: Network, since_ps: int = 0) -> Iterator[Flows]:
    """Return the flows of the scenario's `number`-th traffic, from the time `since_ps` on.

    Raises ScenarioError if hosts do not exist, or a file cannot be used.
    """
    table, setting = scenario.traffic[number], _setting(scenario, number, network)

    def flows() -> Iterator[Flows]:
        with asked(table, "flows_of", setting.where):
            yield from table.flows_of(setting)

    return flows_since(flows(), since_ps) if since_ps else flows()


def _setting(scenario: Scenario, number: int, network: Network) -> TrafficSetting:
    table = scenario.traffic[number]
    where = f"traffic[{number}]"
    hosts = hosts_of(table, where, network)
    cards = network.cards
    cable_rates = network.link_rate[network.up_link].astype(np.int64)
    ends = [time for time in (table.stop, scenario.duration) if time is not None]
    node_hosts = network.node_hosts
    if node_hosts is not None:
        node_hosts = np.where((node_hosts >= 0) & ~np.isin(node_hosts, hosts), ABSENT, node_hosts)
    return TrafficSetting(
        where=where,
        hosts=hosts,
        rates=cards.network_rates(cable_rates)[hosts],
        index=cards.index,
        end_ps=min(ends, default=None),
        rng=random_generator(scenario.seed, table.name),
        node_hosts=node_hosts,
    )


def hosts_of(table: TrafficTable, where: str, network: Network) -> Ints:
    """Return the numbers of the participating hosts. Errors as in `check_hosts`."""
    cards = network.cards
    named = cards.hosts if table.hosts == "all" else table.hosts
    names = [("hosts", name) for name in named] + [
        (key, name) for key, group in table.named_hosts.items() for name in group
    ]
    mistakes = [
        Mistake(f"{where}.{key}", "is not a host of the network", name, ", ".join(cards.hosts[:8]))
        for key, name in names
        if name not in cards.index
    ]
    if not mistakes:
        mistakes = [mistake.under(where) for mistake in table.misfits(len(named))]
    if mistakes:
        raise ScenarioError("the traffic does not fit the network:", mistakes=mistakes)
    return np.array([cards.index[name] for name in named], dtype=np.int64)
