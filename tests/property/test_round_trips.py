"""Base round trips on random networks: what the slowest of all paths takes, in the simulator and in the testbed."""

from __future__ import annotations

from typing import Any

import numpy as np
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import networks

from gradwire.emu.planning.base_rtt import RoundTrips as PlannedTrips
from gradwire.emu.planning.base_rtt import base_round_trip_ns
from gradwire.emu.planning.plan import Queues, TestbedPlan, TransportPlan
from gradwire.emu.planning.planner import ports_of, routes_of
from gradwire.topology import Network
from gradwire.topology.base_rtt import RoundTrips, network_size
from gradwire.topology.routing import build_routing


def brute(network: Network, src: int, dst: int, size: int) -> int:
    """The slowest of all paths, one after the other."""
    ways = build_routing(network).paths(src, dst)
    links = ((network.link_rate[list(way)].tolist(), network.link_latency[list(way)].tolist()) for way in ways)
    return max(
        sum(-(-size * 8 * 10**12 // rate) + latency for rate, latency in zip(*way, strict=True)) for way in links
    )


def pairs_of(network: Network) -> list[tuple[int, int]]:
    hosts = range(network.host_count)
    return [(src, dst) for src in hosts for dst in hosts if src != dst]


@budget(1)
@given(networks(), st.integers(60, 9216), st.integers(60, 200))
def test_base_round_trip_equals_that_of_the_slowest_path(network, out, back):
    trips, pairs = RoundTrips(network, build_routing(network)), pairs_of(network)
    expected = [brute(network, *pair, out) + brute(network, *pair[::-1], back) for pair in pairs]
    src, dst = np.array(pairs).T
    assert trips.times(src, dst, out, back).tolist() == expected
    assert trips.longest(out, back) == max(expected)
    assert network_size(network, [(out, back), (out, back)]).round_trips == (min(expected), max(expected))


@budget(0.5)
@given(networks())
def test_testbed_base_round_trip_equals_simulator(network):
    carried, routing = TransportPlan("dlcp", 1456, 58, "udp", {}), build_routing(network)
    program: Any = None
    plan = TestbedPlan(
        "random", 1, tuple(network.names), network.host_count, ports_of(network), routes_of(network, routing),
        Queues(1, 10**6, None, False), "ecmp", (carried,), 0, program,
    )  # fmt: skip
    planned, trips, pairs = PlannedTrips(plan), RoundTrips(network, routing), pairs_of(network)
    src, dst = np.array(pairs).T
    assert [planned.time_ps(*pair, carried) for pair in pairs] == trips.times(src, dst, 1514, 60).tolist()
    assert base_round_trip_ns(plan) == trips.longest(1514, 60) // 1000
