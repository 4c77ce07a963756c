"""Traffic besides jobs: kinds by name, and what a scenario's `[[traffic]]` tables come to.

A kind is a function `Setting -> Iterator[Flows]` (see `gradwire.experiment.traffic.base`) in a file of its own,
registered here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradwire.components.limits import MAX_FLOWS, MAX_PACKETS
from gradwire.experiment.traffic import all_to_all, flow_list, incast, matrix, permutation, poisson
from gradwire.experiment.traffic.base import Flows, Kind, Setting, generator
from gradwire.experiment.traffic.cdf import distribution
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.traffic import AllToAll, FlowList, Matrix, Poisson, Repeated, Traffic
from gradwire.scenarios.units import format_size

if TYPE_CHECKING:
    from gradwire.experiment.topology import Network
    from gradwire.scenarios.schema.scenario import Scenario

KINDS: dict[str, Kind] = {
    "poisson": poisson.poisson,
    "permutation": permutation.permutation,
    "incast": incast.incast,
    "all_to_all": all_to_all.all_to_all,
    "flows": flow_list.flow_list,
    "matrix": matrix.matrix,
}


def check_files(scenario: Scenario) -> None:
    """Read every file that traffic names, and look how long its flows are.

    Raises
    ------
    ScenarioError
        Files are missing or damaged; says in which lines. Or a flow has more packets than can be numbered.
    """
    total = scenario.topology.host_count
    mistakes: list[Mistake] = []
    for index, table in enumerate(scenario.traffic):
        where = f"traffic[{index}]"
        hosts = len(table.hosts) if isinstance(table.hosts, tuple) else total
        try:
            largest = 0
            if isinstance(table, Poisson):
                field, largest = "sizes", int(distribution(table.sizes, f"{where}.sizes").size.max())
            elif isinstance(table, FlowList):
                field, rows = "file", flow_list.read(Path(table.file), f"{where}.file", hosts)
                largest = int(rows[:, 2].max(initial=0))
            elif isinstance(table, Matrix):
                field, flows = "file", matrix.read(Path(table.file), f"{where}.file", hosts)[0]
                largest = max((each.nbytes for each in flows), default=0)
            elif isinstance(table, Repeated):
                field, largest = "size", table.size
            payload = (table.transport or scenario.transport).payload
            if largest > payload * MAX_PACKETS:
                what = f"has a flow of {-(-largest // payload)} packets of {format_size(payload)}"
                expected = f"at most {MAX_PACKETS} packets, so {format_size(payload * MAX_PACKETS)}; or several flows"
                mistakes.append(Mistake(f"{where}.{field}", what, format_size(largest), expected))
        except ScenarioError as error:
            mistakes += error.mistakes or [Mistake(error.where, error.what, expected=error.expected)]
    if mistakes:
        raise ScenarioError("the traffic cannot be used:", scenario.name, mistakes=mistakes)


def check_hosts(scenario: Scenario, network: Network) -> None:
    """Look up everybody who takes part in traffic.

    Raises
    ------
    ScenarioError
        Hosts that the network does not have, or too few of them: what a scenario's checks know already is said here for
        networks from files.
    """
    for number, table in enumerate(scenario.traffic):
        hosts = len(_hosts(table, f"traffic[{number}]", network))
        if isinstance(table, AllToAll) and table.order == "at_once" and hosts * (hosts - 1) > MAX_FLOWS:
            raise ScenarioError(
                f"starts {hosts * (hosts - 1)} flows at once", f"traffic[{number}]",
                f'at most {MAX_FLOWS}: order = "shifts", or fewer hosts',
            )  # fmt: skip


def flows_of(scenario: Scenario, number: int, network: Network) -> Iterator[Flows]:
    """The flows of the scenario's `number`-th traffic.

    Raises
    ------
    ScenarioError
        Hosts that do not exist, or a file that cannot be used.
    """
    table = scenario.traffic[number]
    where = f"traffic[{number}]"
    hosts = _hosts(table, where, network)
    cards = network.cards
    cable_rates = network.link_rate[network.up_link].astype(np.int64)
    ends = [time for time in (table.stop, scenario.duration) if time is not None]
    return KINDS[table.kind](
        Setting(
            table=table,
            where=where,
            hosts=hosts,
            rates=np.add.reduceat(cable_rates, cards.first[:-1])[hosts],
            index=cards.index,
            end_ps=min(ends, default=None),
            rng=generator(scenario.seed, table.name),
        )
    )


def _hosts(table: Traffic, where: str, network: Network) -> NDArray[np.int64]:
    """Numbers of who takes part."""
    cards = network.cards
    named = cards.hosts if table.hosts == "all" else table.hosts
    mistakes = [
        Mistake(f"{where}.hosts", "is no host of the network", name, ", ".join(cards.hosts[:8]))
        for name in named
        if name not in cards.index
    ]
    receiver = getattr(table, "receiver", None)
    if receiver is not None and receiver not in cards.index:
        mistakes.append(Mistake(f"{where}.receiver", "is no host of the network", receiver))
    if not mistakes and len(named) < table.hosts_needed:
        mistakes.append(
            Mistake(
                f"{where}.hosts", f"{len(named)} hosts take part", expected=f"at least {table.hosts_needed}"
            )
        )
    shift = getattr(table, "shift", None)
    if shift and not shift % len(named):
        mistakes.append(Mistake(f"{where}.shift", "makes every host send to itself", shift))
    if mistakes:
        raise ScenarioError("the traffic does not fit the network:", mistakes=mistakes)
    return np.array([cards.index[name] for name in named], dtype=np.int64)
