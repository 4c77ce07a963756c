"""The engine's array: its tables of routes say what the routing says."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import networkx
import numpy as np
import pytest

from gradwire.jit.records.header import State
from gradwire.jit.records.network import Node
from gradwire.jit.records.network import Switch as SwitchRecord
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.memory.engine_memory import EngineMemory, build_memory, write_routes
from gradwire.sim.engine.memory.link_capacity import link_capacity
from gradwire.sim.engine.memory.regions import REROUTED_ENTRIES, RegionSizes
from gradwire.topology import LinkSpec, Network, dragonfly, fat_tree, from_networkx, leaf_spine, star, torus
from gradwire.topology.routing import Routing, build_routing

LINK = LinkSpec(10**11, 10**6)
NETWORKS = {
    "star": lambda: star(3, LINK),  # no groups at all
    "leaf_spine": lambda: leaf_spine(16, 1, 4, LINK),
    "one spine": lambda: leaf_spine(3, 2, 1, LINK),  # groups of one link only
    "fat_tree": lambda: fat_tree(8, LINK),
    "dragonfly": lambda: dragonfly(3, LINK),
    "torus": lambda: torus((3, 4), LINK, hosts_per_switch=1),  # every switch has hosts
    "mixed": lambda: from_networkx(networkx.barbell_graph(4, 2), LINK, hosts_per_switch=2),
}
BLOCKS = {"leaf_spine": 1, "fat_tree": 8, "dragonfly": 19}
"""All leaves, pods, groups: what one entry of a table is for, where that saves enough."""


def laid(network: Network, routing: Routing, reroutes: bool) -> EngineMemory:
    return build_memory(
        network, routing, Switch(), RegionSizes(threads=1, reroutes=reroutes), longest_frame=1500, host_latency=2 * 10**6,
        seed=1,
    )  # fmt: skip


def read_back(memory: EngineMemory, network: Network, routing: Routing) -> int:
    """Check every way; how many words were read."""
    state, hosts, seen = memory.state, network.host_count, set()
    shift = int(state[State.block_shift.offset])
    for host in range(hosts):
        word = int(state[int(state[State.destinations.offset]) + host])
        edge, number = int(routing.edge_of[host]), word & (1 << 20) - 1
        assert word >> 20 == memory.port_base[routing.down_link[host]]
        for switch in range(network.switch_count):
            node = int(memory.node_base[hosts + switch])
            assert (state[node + Node.edge.offset] == number) == (switch == edge)
            if switch == edge:
                continue
            place = int(state[node + SwitchRecord.routes.offset]) + (number >> shift)
            word = int(state[place])
            seen.add(place)
            if word < 0:
                place = ~word + (number & (1 << shift) - 1)
                word = int(state[place])
                seen.add(place)
            count, value = word >> 40, word & (1 << 40) - 1
            first = int(state[State.groups.offset]) + value
            found = state[first : first + count].tolist() if count > 1 else [value] * count
            assert found == [memory.port_base[link] for link in routing.next_links(switch, edge)]
    return len(seen)


@pytest.mark.parametrize("name", NETWORKS)
def test_engine_route_tables_match_routing(name: str) -> None:
    network = NETWORKS[name]()
    routing = build_routing(network)
    seen = read_back(laid(network, routing, False), network, routing)
    assert seen <= routing.blocks.word_count <= network.switch_count * len(np.unique(routing.edge_of))
    if name in BLOCKS:
        assert routing.blocks.table.shape[1] == BLOCKS[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_rerouting_rewrites_engine_route_tables(name: str) -> None:
    """Links go down, in one direction or both, and come up again; blocks may then differ and be longer."""
    network = NETWORKS[name]()
    whole = build_routing(network)
    memory = laid(network, whole, True)
    hosts = network.host_count
    inner = np.flatnonzero((network.link_src >= hosts) & (network.link_dst >= hosts)).tolist()
    for seed in range(3):
        down = set(Random(seed).sample(inner, min(seed, len(inner))))
        routing = build_routing(network, down | {link ^ 1 for link in down} if seed % 2 else down)
        write_routes(memory, routing, REROUTED_ENTRIES)
        read_back(memory, network, routing)
    write_routes(memory, whole, REROUTED_ENTRIES)
    read_back(memory, network, whole)


def test_arrival_capacity_sums_the_rates_of_all_links() -> None:
    """A fast link of one host does not raise the capacity for the slow links of a large switch."""
    network = star(50, LINK)
    slow = link_capacity(network, 1500, 2 * 10**6)
    each = slow.per_window // network.link_count
    assert slow.arrivals == 50 * each
    rates = network.link_rate.copy()
    rates[:2] *= 10
    fast = link_capacity(replace(network, link_rate=rates), 1500, 2 * 10**6)
    assert 50 * each < fast.arrivals < 60 * each + 20
