"""Accelerators: machines of a network that each hold several, joined by a switch of their own.

A machine is what a topology calls a host. With G accelerators in it each of these is a host from then on: jobs place
workers on them, traffic goes between them, and each has a node for every port:

* its scale-up port, on the machine's scale-up switch (NVLink and NVSwitch, and the like): what goes between
  accelerators of one machine goes by it, whatever else they send, and nothing else does;
* its way to the network. With as many network cards as accelerators, or a multiple, each has cards of its own (rail i
  for accelerator i); with fewer, those that share a card hang on a PCIe switch, whose uplink is the card's cable, so
  that they share it packet by packet.

All of these are switches and cables like others, with the queues of [switch], and are simulated packet by packet: that
is exact, and no approximation of rates has to be believed. What is left out: memory and copy engines, which are not
narrower than the ports; credits, by which real scale-up links lose nothing (their queues here are long beside the few
flows that meet in one); and relaying, by which a library may send by the card of a neighbour that is on the right rail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwire.experiment.topology.cables import Cable, refuse_network
from gradwire.experiment.topology.network import Network, assemble
from gradwire.scenarios.errors import Mistake


class Inside(NamedTuple):
    """What is in a machine: accelerators, and bits per second and picoseconds of a cable of each kind."""

    gpus: int
    scale_up: tuple[int, int]
    pcie: tuple[int, int]


def with_accelerators(network: Network, inside: Inside) -> Network:
    """The network whose hosts are the accelerators of its machines.

    Accelerator g of h3 is called h3.gpu<g> and its ports h3.gpu<g>.nic0 ... and, the scale-up port, h3.gpu<g>.up;
    h3.up is the scale-up switch, h3.pcie<c> the switch before network card c where accelerators share it. Cables and
    switches of the network keep their order, and their names but for the cards.

    Raises
    ------
    ScenarioError
        Machines whose network cards can neither be dealt out to accelerators nor be shared evenly.
    """
    machines, each = network.cards, inside.gpus
    uneven = [
        (name, count)
        for name, count in zip(machines.hosts, machines.counts.tolist(), strict=True)
        if count % each and each % count
    ]
    if uneven:
        name, count = uneven[0]
        what = f"machine {name} has {count} network cards, which {each} accelerators cannot share evenly"
        refuse_network([Mistake("host.gpus", what, each, "a multiple or a divisor of the cards")])
    first = len(machines.hosts) * each
    switches = list(network.names[network.host_count :])
    cables: list[Cable] = []
    plugs: dict[int, int] = {}  # where the cable of a card ends now: at an accelerator, or at its PCIe switch
    within: list[list[int]] = []
    for machine, name in enumerate(machines.hosts):
        cards, mine = int(machines.counts[machine]), range(machine * each, (machine + 1) * each)
        own = [*mine]
        for card in range(cards):
            node = int(machines.first[machine]) + card
            plugs[node] = mine[card * each // cards]
            if cards < each:
                plugs[node] = first + len(switches)
                own.append(plugs[node])
                switches.append(f"{name}.pcie{card}")
                sharing = mine[card * each // cards : (card + 1) * each // cards]
                cables += [Cable(accelerator, plugs[node], *inside.pcie) for accelerator in sharing]
        own.append(first + len(switches))  # ports are numbered by their switches, so this one comes last
        switches.append(f"{name}.up")
        cables += [Cable(accelerator, own[-1], *inside.scale_up) for accelerator in mine]
        within.append(own)
    return assemble(
        [f"{name}.gpu{g}" for name in machines.hosts for g in range(each)], switches,
        _kept(network, plugs, first - network.host_count) + cables, title=network.title,
        order=_order(network, within, first), machines=np.repeat(np.arange(len(machines.hosts)), each),
    )  # fmt: skip


def _kept(network: Network, plugs: dict[int, int], further: int) -> list[Cable]:
    """The cables of the network, whose switches are numbered so many further."""
    costs = np.ones(network.link_count, dtype=np.int32) if network.link_cost is None else network.link_cost
    columns = (network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss, costs)
    return [
        Cable(plugs.get(a, a + further), plugs.get(b, b + further), rate, latency, loss, cost)
        for a, b, rate, latency, loss, cost in zip(*(column[::2].tolist() for column in columns), strict=True)
    ]


def _order(network: Network, within: list[list[int]], first: int) -> list[int]:
    """The locality order: each machine, with what is in it, where its first card was."""
    order: list[int] = []
    begins = {int(card): machine for machine, card in enumerate(network.cards.first[:-1])}
    for node in network.order.tolist():
        if node >= network.host_count:
            order.append(node + first - network.host_count)
        elif node in begins:
            order += within[begins[node]]
    return order
