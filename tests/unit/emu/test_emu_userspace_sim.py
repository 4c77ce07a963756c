"""The userspace switch against the simulator, packet by packet: what the hosts of a simulated run have sent is sent again,
at the same times, and everything that follows must be the same - starts of transmissions, ways, marks, drops, counters.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from userspace_cases import Driven, Packet, no_program

from gradwire.emu.planning.plan import Port, Queues, TestbedPlan, TransportPlan
from gradwire.emu.switches.userspace_switch.fabric import port_counts
from gradwire.emu.switches.userspace_switch.layout import NodeRow
from gradwire.jit.counter_rng import draw_entropy
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.wire import GRADWIRE_PORT, PACKET_KINDS
from gradwire.sim.simulate import simulate
from gradwire.topology import build_network
from gradwire.topology.routing import build_routing

STAR = {"kind": "star", "hosts": 5}
LEAF_SPINE = {"kind": "leaf_spine", "leaves": 3, "hosts_per_leaf": 2, "spines": 3}
CONSTANT = {"kind": "constant_rate", "payload": "1456B", "share": 0.8, "repeat_after": "20ms"}
DLCP = {"kind": "dlcp", "payload": "1456B"}
DCTCP = {"kind": "dctcp", "payload": "1448B"}


def incast(size="200kB", **more: Any) -> dict[str, Any]:
    return {"kind": "incast", "receiver": "h0", "fan_in": 4, "size": size, "rounds": 2, "period": "5ms", **more}


def shuffle(size="150kB", **more: Any) -> dict[str, Any]:
    return {"kind": "all_to_all", "size": size, **more}


CASES = {
    "star_drop_tail": (STAR, "ecmp", CONSTANT, [incast()], {}),
    "star_selective": (STAR, "ecmp", CONSTANT, [incast()], {"ecn_threshold": "20kB", "selective_drop": True}),
    "star_marks": (STAR, "ecmp", DCTCP, [incast()], {"ecn_threshold": "8kB"}),
    "star_classes": (STAR, "ecmp", CONSTANT, [incast(priority=3), shuffle("20kB", priority=1)], {"queues": 4}),
    "star_parts": (
        STAR,
        "ecmp",
        CONSTANT,
        [incast(priority=3), shuffle("20kB", priority=1)],
        {"queues": 4, "buffer_share": [1, 0.3, 1, 0.5]},
    ),
    "star_dlcp": (
        STAR,
        "ecmp",
        DLCP,
        [incast(bound=0.1), incast(bound=0.1, droppable=True)],
        {"ecn_threshold": "9kB", "selective_drop": True},
    ),
    "lossy": (STAR, "ecmp", CONSTANT, [shuffle()], {"loss": 0.03}),
    "ecmp": (LEAF_SPINE, "ecmp", CONSTANT, [incast(), shuffle("50kB")], {}),
    "round_robin": (LEAF_SPINE, "spray_round_robin", CONSTANT, [incast(), shuffle("50kB")], {}),
    "random": (
        LEAF_SPINE,
        "spray_random",
        DLCP,
        [incast(droppable=True), shuffle("50kB")],
        {"ecn_threshold": "5kB", "selective_drop": True},
    ),
    "lossy_random": (LEAF_SPINE, "spray_random", DCTCP, [shuffle()], {"ecn_threshold": "5kB", "loss": 0.01}),
}


def scenario_of(topology, balancing, transport, traffic, switch):
    switch = {"buffer": "30kB", **switch}
    link = {"rate": "1Gbps", "latency": "5us", "loss": switch.pop("loss", 0.0)}
    tables = {
        "name": "case", "seed": 7, "topology": topology, "link": link, "switch": switch, "load_balancing": balancing,
        "transport": transport, "traffic": [{"name": f"t{n}", **each} for n, each in enumerate(traffic)],
        "host": {"software_latency": "10us"}, "output": {"packet_log": True}, "duration": "200ms",
    }  # fmt: skip
    return build_scenario(tables)


def plan_of(scenario) -> TestbedPlan:
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    routing = build_routing(network)
    rows = zip(
        network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss, strict=True
    )
    ports = tuple(
        Port(n, int(a), int(b), int(rate), int(latency), float(loss), network.link_name(n))
        for n, (a, b, rate, latency, loss) in enumerate(rows)
    )
    routes = {}
    for switch in range(network.switch_count):
        for host in range(network.host_count):
            edge = int(routing.edge_of[host])
            here = (int(routing.down_link[host]),) if edge == switch else routing.next_links(switch, edge)
            routes[network.host_count + switch, host] = tuple(here)
    table = scenario.switch
    queues = Queues(table.queues, table.buffer, table.thresholds(), table.selective_drop, table.limits())
    transport = TransportPlan(
        "any", scenario.transport.payload, scenario.transport.overhead, scenario.transport.wire, {}
    )
    return TestbedPlan(
        "case", scenario.seed, network.names, network.host_count, ports, routes, queues, scenario.load_balancing,
        (transport,), scenario.host.software_latency, no_program(),
    )  # fmt: skip


def labelled(row: dict[str, Any], dst: int, entropy: int) -> Packet:
    """A packet of the log; in its data a gradwire header that names it, as a real one would have."""
    flags = PACKET_KINDS.index(row["kind"])
    header = row["message"].to_bytes(4, "big") + bytes(6) + (row["packet"] & 0xFFFFFFFF).to_bytes(4, "big")
    data = b"\x45" + bytes(8) + b"\x11" + bytes(12) + GRADWIRE_PORT.to_bytes(2, "big") + bytes(4)
    data += header + flags.to_bytes(2, "big")
    return Packet(data, row["bytes"], dst, row["priority"], row["important"], entropy)


@pytest.mark.parametrize("name", CASES)
def test_userspace_switch_matches_the_simulator_packet_by_packet(name):
    scenario = scenario_of(*CASES[name])
    result = simulate(scenario)
    plan = plan_of(scenario)
    number = {each: n for n, each in enumerate(plan.names)}
    ends = {m["message"]: (number[m["src"]], number[m["dst"]]) for m in result.messages.to_pylist()}
    rows = sorted(result.packets.to_pylist(), key=lambda row: row["start_ps"])
    fabric, identity = Driven(plan), {}
    for row in rows:
        host = number[row["port"].split("->")[0]]
        if host < plan.host_count:
            there = row["kind"] in ("data", "probe")
            entropy = int(draw_entropy(plan.seed, row["message"]))
            packet = labelled(row, ends[row["message"]][there], entropy)
            identity[id(packet)] = (packet, row["message"], row["kind"], row["packet"], row["argument"])
            fabric.advance(row["start_ps"])
            fabric.arrive(row["start_ps"], host, packet)
    seen_last = max([rows[-1]["start_ps"], *result.drops["time_ps"].to_pylist()])
    fabric.advance(seen_last)

    wanted = Counter(
        (
            r["start_ps"],
            r["port"],
            r["message"],
            r["kind"],
            r["packet"],
            r["argument"],
            r["bytes"],
            r["marked"],
            r["lost"],
        )
        for r in rows
    )
    found = Counter(
        (start, plan.ports[port].name, *identity[id(packet)][1:], packet.size, marked, not arrives)
        for start, port, packet, marked, arrives in fabric.log
    )
    assert len(rows) > 1000
    assert found == wanted

    drops = [(d["time_ps"], d["port"], d["cause"], d["important"], d["priority"], d["message"], d["packet"])
             for d in result.drops.to_pylist()]  # fmt: skip
    assert Counter((d.time_ps, plan.ports[d.port].name, *d[2:]) for d in fabric.drops()) == Counter(drops)

    counts = port_counts(plan, fabric.counters())
    columns = ("packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "marks", "peak_queue_bytes")
    for row, count in zip(result.ports.to_pylist(), counts, strict=True):
        assert row["port"] == count.port
        used = columns if number[row["port"].split("->")[0]] >= plan.host_count else columns[:-1]
        assert {c: getattr(count, c) for c in used} == {c: row[c] for c in used}
    _something_happened(name, counts, fabric)


def _something_happened(name, counts, fabric) -> None:
    """A comparison of nothing with nothing would always be right."""
    total = {
        c: sum(getattr(each, c) for each in counts) for c in ("drops_tail", "drops_selective", "drops_loss", "marks")
    }
    wanted = {
        "star_drop_tail": ["drops_tail"], "star_selective": ["drops_selective"], "star_marks": ["marks"],
        "star_classes": ["drops_tail"], "star_parts": ["drops_tail"], "star_dlcp": ["drops_selective", "marks"], "lossy": ["drops_loss"],
        "ecmp": ["drops_tail"], "round_robin": ["drops_tail"], "random": ["drops_selective"],
        "lossy_random": ["drops_loss", "marks"],
    }[name]  # fmt: skip
    assert all(total[column] > 0 for column in wanted), total
    if name in ("ecmp", "round_robin", "random", "lossy_random"):
        assert fabric.state.nodes[:, NodeRow.choices.offset].sum() > 500
