"""Switches that sum in two levels, on leaves and spines: times, bytes and counters in closed form; and what a fault, a
lack of slots or other jobs do to them."""

from __future__ import annotations

from typing import Any

import pytest
from sim_cases import US, make_trace, scenario

from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD
from gradwire.sim.simulate import simulate
from gradwire.testing.scenario_comparison import PacketRecorder

PAYLOAD, BYTE = 1000, 80  # picoseconds a byte at 100 Gbps
FRAME = PAYLOAD + TCP_OVERHEAD
PACKETS, RACK = 40, 4
DCTCP = {"kind": "dctcp", "payload": f"{PAYLOAD}B", "initial_window": 10_000}
FAST = 4
"""How many times as fast uplinks are as the cables of hosts."""


def latency(racks: int) -> int:
    """Of a message from so many other racks, or to them: software latency, four cables, and the last packet once more on
    each link behind the first; the sums of all racks, or their copies, leave one switch one after the other."""
    return 2 * US + 4 * US + FRAME * BYTE // FAST * (1 + racks) + FRAME * BYTE


def case(racks: int, *, levels: int = 2, slots: int = 1000, fast: int = FAST, **fields: Any) -> Any:
    """A server in a rack of its own, the last one, and workers in all the others: h0 to h3 on leaf0, and so on."""
    server = f"h{racks * RACK}"
    job = {
        "workers": racks * RACK, "servers": 1,
        "placement": {"workers": [f"h{w}" for w in range(racks * RACK)], "servers": [server]},
        "exchange": {"kind": "parameter_server", "aggregation": True, "partition": "1GB"},
    }  # fmt: skip
    switch = {"queues": 1, "buffer": "100MB", "aggregation_slots": slots, "aggregation_levels": levels}
    topology = {"kind": "leaf_spine", "leaves": racks + 1, "spines": 1, "hosts_per_leaf": RACK}
    topology["uplink_rate"] = f"{100 * fast}Gbps"
    return scenario(job, **{"topology": topology, "switch": switch, "transport": DCTCP, **fields})


def run(asked: Any, **more: Any) -> Any:
    return simulate(asked, make_trace([[PACKETS * PAYLOAD // 4]], forward=US, backward=US), **more)


def times(result: Any, kind: str) -> set[int]:
    rows = result.messages.to_pylist()
    return {row["end_ps"] - row["start_ps"] for row in rows if row["kind"] == kind}


Links = dict[str, tuple[int, int]]


def carried(asked: Any) -> Links:
    """Packets and bytes of every link, when the last acknowledgements have arrived as well."""
    recorder = PacketRecorder(log=False)
    run(asked, fabric=recorder)
    recorder.made.run(recorder.made.now + 10**9)
    ports = recorder.made.finish().ports
    return dict(zip(ports["port"], zip(ports["packets"].tolist(), ports["bytes"].tolist(), strict=True), strict=True))


def both_ways(links: Links, one: str, other: str) -> set[tuple[int, int]]:
    return {links[f"{one}->{other}"], links[f"{other}->{one}"]}


@pytest.mark.parametrize("racks", [1, 2, 3])
def test_two_level_aggregation_takes_the_time_of_one_message(racks):
    """The time does not depend on the number of workers: uplinks carry one sum per rack."""
    result = run(case(racks))
    assert times(result, "push") == {latency(racks) + PACKETS * FRAME * BYTE}
    assert times(result, "pull") == {latency(rack + 1) + PACKETS * FRAME * BYTE for rack in range(racks)}
    one_level = run(case(racks, levels=1, fast=1))
    assert max(times(one_level, "push")) > racks * RACK * PACKETS * FRAME * BYTE


@pytest.mark.parametrize("racks", [1, 2, 3])
def test_uplinks_carry_one_sum_per_rack(racks):
    """Each rack's uplink carries one sum and one acknowledgement of its results. Its downlink carries one copy of
    each result and one acknowledgement."""
    links = carried(case(racks))
    once, server = (2 * PACKETS, PACKETS * (FRAME + ACK_BYTES)), racks * RACK
    for leaf in range(racks):
        assert both_ways(links, f"leaf{leaf}", "spine0") == {once}
    assert both_ways(links, f"leaf{racks}", f"h{server}") == {once}
    assert both_ways(links, f"leaf{racks}", "spine0") == {(racks * once[0], racks * once[1])}
    for worker in range(racks * RACK):
        assert both_ways(links, f"h{worker}", f"leaf{worker // RACK}") == {once}


def test_single_level_aggregation_sends_all_workers_packets_on_uplinks():
    links = carried(case(2, levels=1))
    for leaf in range(2):
        assert both_ways(links, f"leaf{leaf}", "spine0") == {(RACK * 2 * PACKETS, RACK * PACKETS * (FRAME + ACK_BYTES))}


def test_each_aggregation_level_counts_its_sums():
    sums = run(case(2)).summary["totals"]["sums"]
    assert {name: {**counts, "slots_peak": 0} for name, counts in sums.items()} == {
        **{
            f"leaf{leaf}": {
                "slots_peak": 0, "summed_packets": (RACK - 1) * PACKETS, "unsummed_packets": 0,
                "copied_packets": RACK * PACKETS,
            }
            for leaf in range(2)
        },
        "leaf2": {
            "slots_peak": 0, "summed_packets": PACKETS, "unsummed_packets": 0, "copied_packets": 2 * PACKETS,
        },
    }  # fmt: skip


def test_workers_in_one_rack_are_summed_at_their_leaf():
    sums = run(case(1)).summary["totals"]["sums"]
    assert list(sums) == ["leaf0"]
    assert sums["leaf0"]["summed_packets"] == (RACK - 1) * PACKETS


def test_server_leaf_sums_packets_without_slot_in_their_rack():
    """One worker of the first rack is late, so its leaf forwards all packets beyond its slots unsummed."""
    late = {"link_override": [{"between": ["h2", "leaf0"], "latency": "90us"}]}
    result = run(case(2, slots=10, **late))
    sums = result.summary["totals"]["sums"]
    assert sums["leaf0"]["slots_peak"] == sums["leaf2"]["slots_peak"] == 10
    assert sums["leaf0"]["summed_packets"] == (RACK - 1) * 10
    assert sums["leaf0"]["unsummed_packets"] == RACK * (PACKETS - 10)
    assert sums["leaf1"]["summed_packets"] == (RACK - 1) * PACKETS
    assert times(result, "push") == times(run(case(2, **late)), "push")


@pytest.mark.parametrize("kind", ["in_network", "parameter_server"])
@pytest.mark.parametrize("slots", [3, 1000])
def test_engine_matches_oracle_for_two_aggregating_jobs_with_losses(kind, slots):
    """Two jobs share the switches' slots; all records are free at the end."""
    exchange = {"kind": kind, "partition": f"{8 * PAYLOAD}B", **({"aggregation": True} if kind != "in_network" else {})}
    servers = int(kind != "in_network")
    jobs = [
        {
            "workers": 6, "servers": servers, "exchange": exchange, "iterations": 2,
            "placement": {
                "workers": [f"h{w}" for w in range(first, 12, 2)], "servers": [f"h{12 + first}"][:servers],
            },
        }
        for first in range(2)
    ]  # fmt: skip
    asked = scenario(
        *jobs, topology={"kind": "leaf_spine", "leaves": 4, "spines": 2, "hosts_per_leaf": 4},
        switch={"queues": 1, "buffer": "30kB", "ecn_threshold": "10kB", "aggregation_slots": slots},
        transport={"kind": "dctcp", "payload": f"{PAYLOAD}B", "min_rto": "100us"}, load_balancing="spray_random",
        link={"rate": "100Gbps", "latency": "1us", "loss": 0.003},
    )  # fmt: skip
    recorder = PacketRecorder()
    simulate(asked, make_trace([[PACKETS * PAYLOAD // 4]], forward=US, backward=US), fabric=recorder)
    assert not recorder.difference()
    fabric = recorder.made
    fabric.run(fabric.now + 10**12)
    fabric.flows.close()
    assert fabric.flows.records.open == 0


def test_aggregation_does_not_depend_on_threads():
    fields = {"link": {"rate": "100Gbps", "latency": "1us", "loss": 0.003}, "load_balancing": "spray_random"}
    asked = case(3, slots=7, **fields)
    one, *others = (run(asked, threads=threads) for threads in (1, 2, 3))
    for other in others:
        for name in ("messages", "ports", "drops", "iterations"):
            assert getattr(one, name).equals(getattr(other, name))
        assert one.summary["totals"] == other.summary["totals"]


def test_aggregation_matches_oracle_under_link_and_host_faults():
    """A rack's uplinks are cut for a while, then a worker pauses. All packets are retransmitted and summed correctly."""
    faults = [
        {"kind": "link_down", "between": ["leaf0", "spine0"], "at": "10us", "until": "700us", "noticed_after": "100us"},
        {"kind": "host_paused", "host": "h1", "at": "12us", "until": "900us"},
    ]
    recorder = PacketRecorder()
    asked = case(2, slots=30, fault=faults, transport={**DCTCP, "initial_window": 10, "min_rto": "50us"})
    simulate(asked, make_trace([[PACKETS * PAYLOAD // 4]], forward=US, backward=US), fabric=recorder)
    assert not recorder.difference()
