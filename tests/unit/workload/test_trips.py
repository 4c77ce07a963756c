"""Base round trips: of a pair of hosts, over its own paths and links; transports reckon with them flow by flow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.jit.records.programs import LogRow
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.testing import transport
from gradwire.testing.oracle import Case, MessageSpec, run_engine
from gradwire.topology import LinkSpec, Network, build_network, leaf_spine, star
from gradwire.topology.base_rtt import RoundTrips
from gradwire.topology.routing import build_routing

US, GBPS = 10**6, 10**9
DATA, ACK = 4096 + 66, 66


def network_of(topology: dict[str, Any], link: dict[str, Any], **more: Any) -> Network:
    """The network of a scenario's tables."""
    tables = {
        "name": "trips", "topology": topology, "link": link, "transport": {"kind": "dctcp"},
        "traffic": [{"name": "all", "kind": "all_to_all", "size": "1kB"}], **more,
    }  # fmt: skip
    scenario = build_scenario(tables)
    return build_network(scenario.topology, scenario.link, scenario.link_override)


def trip(network: Network, src: int, dst: int, out: int = DATA, back: int = ACK) -> int:
    return int(RoundTrips(network, build_routing(network)).times(src, dst, out, back)[0])


# --- the formula ------------------------------------------------------------------------------------------------------


def test_base_rtt_includes_long_leaf_spine_uplinks():
    """4 links there and 4 back, two of each of 10 us: 44 us of cables, and 8 transmissions at 100 Gbps."""
    network = network_of(
        {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2, "uplink_latency": "10us"},
        {"rate": "100Gbps", "latency": "1us"},
    )
    assert trip(network, 0, 2) == 2 * (2 + 20) * US + 4 * (DATA + ACK) * 80
    assert trip(network, 0, 1) == 2 * 2 * US + 2 * (DATA + ACK) * 80


def test_base_rtt_between_dragonfly_groups_includes_one_global_cable():
    """Between groups a packet crosses one global cable of 100 us and at most four others, 208 us there and back."""
    network = network_of(
        {"kind": "dragonfly", "p": 2, "global_latency": "100us"}, {"rate": "100Gbps", "latency": "1us"}
    )
    trips = RoundTrips(network, build_routing(network))
    hosts = np.arange(network.host_count)
    to_all = trips.times(np.zeros_like(hosts), hosts, DATA, ACK)[1:]
    assert to_all.max() == 2 * (100 + 4) * US + 5 * (DATA + ACK) * 80
    assert to_all.min() == 2 * 2 * US + 2 * (DATA + ACK) * 80


def test_base_rtt_adds_the_transmission_time_of_each_link_rate():
    """Hosts of 10 and 40 Gbps on one switch: the packet and its answer each cross both."""
    network = star(2, LinkSpec(10 * GBPS, US))
    network = replace(network, link_rate=np.array([10, 10, 40, 40]) * GBPS)
    assert trip(network, 0, 1) == 4 * US + (DATA + ACK) * (800 + 200)


def test_slowest_link_of_a_pair_is_taken_over_all_its_paths():
    """Hosts of 25 Gbps; one of two spines has uplinks of 10, and one host a cable of 1."""
    network = network_of(
        {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2, "uplink_rate": "40Gbps"},
        {"rate": "25Gbps", "latency": "1us"},
        link_override=[
            {"between": ["leaf0", "spine1"], "rate": "10Gbps"},
            {"between": ["h3", "leaf1"], "rate": "1Gbps"},
        ],
    )
    trips = RoundTrips(network, build_routing(network))
    speeds = {rate: 8 * 10**12 * 65536 // (rate * GBPS) for rate in (1, 10, 25)}
    found = trips.slowest(np.array([0, 0, 2, 2, 3, 0]), np.array([1, 2, 0, 3, 2, 3]))
    assert found == pytest.approx([speeds[rate] for rate in (25, 10, 10, 1, 1, 1)], abs=1)
    alike = star(3, LinkSpec(25 * GBPS, US))
    assert RoundTrips(alike, build_routing(alike)).slowest(0, 2) == pytest.approx([speeds[25]], abs=1)


@pytest.mark.parametrize("kind", ["dctcp", "dlcp"])
def test_base_rtt_equals_the_simulated_packet_and_acknowledgement_time(kind):
    """The first packet of two over links of different rates is answered exactly then (DLCP's last by a longer Stop)."""
    network = leaf_spine(2, 1, 1, LinkSpec(25 * GBPS, US), uplink_rate=10 * GBPS)
    table = transport(kind, payload="4096B")
    outcome = run_engine(Case(network, [table], [MessageSpec(0, 0, 1, 2 * 4096)]))
    overhead, back = (66, 66) if kind == "dctcp" else (58, 60)
    answered = min(t.start for t in outcome.transmissions if t.link == 1)  # the first answer, on its last link
    heard = answered + back * 8 * 40 + US
    assert heard == trip(network, 0, 1, 4096 + overhead, back)


# --- whose it is ------------------------------------------------------------------------------------------------------

CASES = {
    "dcqcn, hpcc": {},
    "pfabric": {"shortest_first": True},
    "ndp": {"trim_threshold": "33232B"},
    "nscc": {"trim_threshold": "33232B"},
    "swift": {},
    "timely": {},
    "ltp": {},
    "dlcp": {"ecn_threshold": "96KiB", "selective_drop": True},
}


def far_away(network: Network, host: int) -> Network:
    """The same with a cable of 1 ms to one host."""
    latency = network.link_latency.copy()
    latency[[2 * host, 2 * host + 1]] = 1000 * US
    return replace(network, link_latency=latency)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_distant_idle_host_does_not_change_the_simulation(kind):
    """Sixteen hosts send to one; an idle host has a cable of normal or of 1 ms latency."""
    network = leaf_spine(3, 8, 4, LinkSpec(100 * GBPS, US))
    assert network.link_src[2 * 23] == 23
    tables = [transport(each) for each in kind.split(", ")]  # some have an engine with others; the last one sends
    letters = [MessageSpec(0, host, 0, 200_000, len(tables) - 1) for host in range(1, 17)]
    switch = Switch.model_validate({"buffer": "512KiB", **CASES[kind]})
    near, far = (run_engine(Case(each, tables, letters, switch)) for each in (network, far_away(network, 23)))
    assert near == far


def parameters_of(fabric: Fabric, message: int) -> list[int]:
    """The parameter set of a message under way."""
    from gradwire.jit.records import constants as at

    state, flow = fabric.memory.state, fabric.flows.book.row(message, [LogRow.flow.offset])[0]
    number = int(state[fabric.flows.records.sender(flow) + Sender.kind.offset]) >> at.SET_SHIFT
    base = fabric.memory.params + number * Parameters.WORDS
    assert int(state[fabric.flows.records.receiver(flow) + Receiver.kind.offset]) >> at.SET_SHIFT == number
    return list(map(int, state[base : base + Parameters.WORDS]))


def test_ndp_initial_window_follows_the_base_rtt_of_each_pair():
    """NDP's initial window is one base RTT at the sender's line rate plus one packet."""
    network = far_away(star(4, LinkSpec(100 * GBPS, US)), 3)
    network = replace(network, link_rate=np.repeat([100, 100, 10, 100], 2) * GBPS)
    switch = Switch.model_validate({"trim_threshold": "33232B"})
    fabric = Fabric(network, build_routing(network), switch=switch, transports=[transport("ndp")])
    flows = [(0, 1), (0, 3), (2, 0), (1, 0)]
    numbers = [fabric.send(0, src, dst, 10**6) for src, dst in flows]
    frame = 4154
    for (src, dst), number in zip(flows, numbers, strict=True):
        line = frame * 8 * 10**12 // int(network.link_rate[2 * src])
        window = -(-trip(network, src, dst, frame, 60) // line) + 1
        assert parameters_of(fabric, number)[0] == window
    assert parameters_of(fabric, numbers[0]) == parameters_of(fabric, numbers[3])
    fabric.close()


# --- pulls ------------------------------------------------------------------------------------------------------------


def test_ndp_pull_pacing_uses_the_size_of_the_pulled_packet():
    """Two flows elsewhere with 9000-byte packets do not slow an NDP incast with 1460-byte packets. The incast keeps
    the receiver's line busy."""
    network = star(12, LinkSpec(10 * GBPS, US))
    ndp, nscc = transport("ndp", payload="1460B"), transport("nscc", payload="1460B")  # one engine for these three
    small, big = (transport("dctcp", payload=payload) for payload in ("1460B", "8932B"))
    incast = [MessageSpec(0, host, 8, 100_000) for host in range(8)]
    elsewhere = [MessageSpec(0, 9, 10, 10**6, 2), MessageSpec(0, 10, 9, 10**6, 2)]
    switch = Switch.model_validate({"trim_threshold": f"{8 * 1518}B"})
    alone = run_engine(Case(network, [ndp, nscc, small], incast, switch, "spray_random")).arrivals
    beside = run_engine(Case(network, [ndp, nscc, big], [*incast, *elsewhere], switch, "spray_random")).arrivals
    assert [each for each in beside if each.message < len(incast)] == alone
    packets = -(-100_000 // 1460)
    assert alone[-1].time < 1.1 * len(incast) * packets * 1518 * 800
