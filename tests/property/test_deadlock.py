"""Flow control that stops itself: five switches in a ring, each host sending two switches on."""

from __future__ import annotations

import networkx

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.testing.oracle import Case
from gradwire.testing.oracle.case_runs import fabric_of
from gradwire.topology import LinkSpec, from_networkx

US = 10**6
SECOND = 10**12


def jammed(reach: int = 2) -> Fabric:
    """A ring in which every host sends so many switches on: with two, all wait for each other."""
    graph = networkx.Graph()
    for n in range(5):
        graph.add_node(f"s{n}", kind="switch")
        graph.add_node(f"h{n}", kind="host")
    for n in range(5):
        graph.add_edge(f"s{n}", f"s{(n + 1) % 5}", rate=10**10, latency=US)
        graph.add_edge(f"h{n}", f"s{n}", rate=4 * 10**10, latency=US)
    network = from_networkx(graph, LinkSpec(10**10, US))
    table = Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "initial_window": 4000})
    switch = Switch.model_validate({"queues": 1, "pfc": True, "pfc_threshold": "20KB"})
    fabric = fabric_of(Case(network, [table], [], switch))
    at = network.index
    for n in range(5):
        fabric.send(0, at[f"h{n}"], at[f"h{(n + reach) % 5}"], 3_000_000)
    return fabric


def run(reach: int) -> str:
    """What the fabric says of a deadlock when every host of the ring sends so many switches on."""
    fabric = jammed(reach)
    while fabric.undelivered and not fabric.deadlock:
        assert fabric.now < SECOND
        fabric.run(SECOND)
    fabric.close()
    return fabric.deadlock


def test_flow_control_deadlock_names_the_cycle_of_ports():
    said = run(reach=2)
    for n in range(5):
        assert f"s{n}->s{(n + 1) % 5} waits for s{(n + 1) % 5}->s{(n + 2) % 5}" in said


def test_ports_waiting_only_for_hosts_are_no_deadlock():
    """With destinations one switch away, no packet waits for another cable of the ring."""
    assert run(reach=1) == ""


def test_no_deadlock_is_reported_while_an_event_is_scheduled():
    """A scheduled change could resume the ports."""
    fabric, until = jammed(), SECOND // 10
    fabric.agenda.add(until, lambda now: None)
    while fabric.now < until:
        assert not fabric.deadlock
        fabric.run(until)
    while not fabric.deadlock:
        assert fabric.now < SECOND
        fabric.run(SECOND)
    fabric.close()
