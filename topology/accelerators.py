"""Replaces a network's machines by their accelerators as hosts, joined by scale-up and PCIe switches within each
machine.

A machine is a host of the topology. If it holds G accelerators, each of these becomes a host: jobs place workers on
accelerators, traffic goes between them, and each has one node per port:

* the scale-up port, on the machine's scale-up switch (NVLink and NVSwitch, for example): it carries all traffic between
accelerators of one machine, and nothing else; * the path to the network. With as many network cards as accelerators, or
a multiple, each accelerator has cards of its own (rail i for accelerator i). With fewer cards, accelerators that share
one are connected to a PCIe switch whose uplink is the card's cable, so they share it packet by packet.

All of these are ordinary switches and cables with the queues of [switch], simulated exactly, packet by packet. Left
out: memory and copy engines, which are not narrower than the ports; the credits that make real scale-up links lossless
(queues here are long compared with the few flows that meet in one); and relaying through the card of a neighbour on the
right rail, as some libraries do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwire.scenarios.errors import Mistake
from gradwire.topology.cables import Cable, refuse_network
from gradwire.topology.network import Network, assemble


class MachineSpec(NamedTuple):
    """The inside of a machine: number of accelerators; rate (bits/s) and latency (ps) of each kind of cable."""

    gpus: int
    scale_up: tuple[int, int]
    pcie: tuple[int, int]


def with_accelerators(network: Network, inside: MachineSpec) -> Network:
    """Return the network whose hosts are the accelerators of its machines.

    Accelerator g of h3 is called h3.gpu<g> and its ports h3.gpu<g>.nic0 ... and, the scale-up port, h3.gpu<g>.up; h3.up
    is the scale-up switch, h3.pcie<c> the switch before network card c if accelerators share it. Cables and switches of
    the network keep their order, and their names except for the cards.

    Raises ScenarioError if the network cards of a machine cannot be divided among or shared evenly by its accelerators.
    """
    machines, gpus = network.cards, inside.gpus
    uneven = [
        (name, count)
        for name, count in zip(machines.hosts, machines.counts.tolist(), strict=True)
        if count % gpus and gpus % count
    ]
    if uneven:
        name, count = uneven[0]
        what = f"machine {name} has {count} network cards, which {gpus} accelerators cannot share evenly"
        refuse_network([Mistake("host.gpus", what, gpus, "a multiple or a divisor of the cards")])
    first = len(machines.hosts) * gpus
    switches = list(network.names[network.host_count :])
    cables: list[Cable] = []
    cable_ends: dict[int, int] = {}  # the new end of each card's cable: an accelerator or its PCIe switch
    machine_nodes: list[list[int]] = []
    for machine, name in enumerate(machines.hosts):
        cards, accelerators = int(machines.counts[machine]), range(machine * gpus, (machine + 1) * gpus)
        nodes = [*accelerators]
        for card in range(cards):
            node = int(machines.first[machine]) + card
            cable_ends[node] = accelerators[card * gpus // cards]
            if cards < gpus:
                cable_ends[node] = first + len(switches)
                nodes.append(cable_ends[node])
                switches.append(f"{name}.pcie{card}")
                sharing = accelerators[card * gpus // cards : (card + 1) * gpus // cards]
                cables += [Cable(accelerator, cable_ends[node], *inside.pcie) for accelerator in sharing]
        nodes.append(first + len(switches))  # ports are numbered by their switches, so this one comes last
        switches.append(f"{name}.up")
        cables += [Cable(accelerator, nodes[-1], *inside.scale_up) for accelerator in accelerators]
        machine_nodes.append(nodes)
    return assemble(
        [f"{name}.gpu{g}" for name in machines.hosts for g in range(gpus)],
        switches,
        _network_cables(network, cable_ends, first - network.host_count) + cables,
        title=network.title,
        order=_order(network, machine_nodes, first),
        machines=np.repeat(np.arange(len(machines.hosts)), gpus),
    )


def _network_cables(network: Network, cable_ends: dict[int, int], shift: int) -> list[Cable]:
    """Return the cables of the network, with new ends for cards and switch numbers increased by `shift`."""
    costs = np.ones(network.link_count, dtype=np.int32) if network.link_cost is None else network.link_cost
    columns = (network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss, costs)
    return [
        Cable(cable_ends.get(a, a + shift), cable_ends.get(b, b + shift), rate, latency, loss, cost)
        for a, b, rate, latency, loss, cost in zip(*(column[::2].tolist() for column in columns), strict=True)
    ]


def _order(network: Network, machine_nodes: list[list[int]], first: int) -> list[int]:
    """Return the locality order: the nodes of each machine take the position of its first card."""
    order: list[int] = []
    begins = {int(card): machine for machine, card in enumerate(network.cards.first[:-1])}
    for node in network.order.tolist():
        if node >= network.host_count:
            order.append(node + first - network.host_count)
        elif node in begins:
            order += machine_nodes[begins[node]]
    return order
