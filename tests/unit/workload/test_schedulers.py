"""The order of release: by readiness, or by layer within a credit; who overtakes whom, to the picosecond."""

from __future__ import annotations

import pytest
from ideal_fabric import IdealFabric
from part_cases import burst
from sim_cases import MS, US, Ideal, make_trace, ps_job, rows, scenario
from transport_bench import star_of

from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.simulate import simulate
from gradwire.testing import transport
from gradwire.topology.routing import build_routing

h, l, BYTE = 2 * US, US, 80  # software latency, network latency, picoseconds a byte at 100 Gbps  # noqa: E741


def run(job, trace, fabric=None):
    return rows(simulate(scenario(job), trace, fabric=fabric or Ideal()).messages)


def released(made, by):
    """When each message of a part entered the network, played by the engine or by SimPy."""
    if by == "engine":
        network = star_of(3)
        fabric = Fabric(network, build_routing(network), switch=Switch(buffer="1MB"), transports=[transport("dlcp")])
    else:
        fabric = IdealFabric(lookahead=2 * US)
    coupling = Coupling(fabric, 2 * US, ["a", "b", "c"])
    track = coupling.play(made)
    coupling.run(lambda: track.finished and not track.undelivered)
    return track.steps[0].started.tolist()


def order(times):
    """Numbers of the messages in the order of their release, those of one moment together."""
    return [[n for n, each in enumerate(times) if each == time] for time in sorted(set(times))]


@pytest.mark.parametrize("by", ["engine", "simpy"])
def test_burst_without_credit_is_released_at_once(by):
    assert released(burst([100] * 3, [3, 1, 2], 0), by) == [2 * US] * 3


@pytest.mark.parametrize("by", ["engine", "simpy"])
def test_credit_releases_front_layers_first(by):
    times = released(burst([100] * 8, [9, 8, 7, 6, 5, 2, 3, 2], 400), by)
    assert order(times) == [[0, 1, 2, 3], [5], [7], [6], [4]], "four of them are the credit; then the layers in order"


@pytest.mark.parametrize("by", ["engine", "simpy"])
def test_message_larger_than_the_credit_is_released_alone(by):
    assert order(released(burst([1000, 1, 1000], [0, 0, 0], 400), by)) == [[0], [1], [2]]


@pytest.mark.parametrize("by", ["engine", "simpy"])
def test_credit_per_destination_prevents_blocking_between_destinations(by):
    """Nine messages, every third to a second host, leave two at a time under one shared credit."""
    to = [1, 1, 2] * 3
    together = released(burst([100] * 9, range(9), 200, to=to), by)
    assert len(order(together)[0]) == 2
    apart = released(burst([100] * 9, range(9), 200, to=to, apart=True), by)
    assert order(apart)[0] == [0, 1, 2, 5]
    assert max(apart) < max(together)


def test_layer_order_lets_the_front_layer_overtake():
    """Back layer: 16 partitions, 2 ms on the wire.  The front layer is ready 0.1 ms later, all at one server.

    In order of readiness its push waits for all 16; by layer for the one on the wire and the credit.
    """
    trace = make_trace([[250], [25_000_000 // 4]], backward=MS // 10)
    job = ps_job(1, exchange={"partition": "1562500B"})
    ends = {}
    for order in ("fifo", "layer"):
        messages = run({**job, "order": order}, trace)
        pushes = [row for row in messages if row["kind"] == "push"]
        ends[order] = next(row["end_ps"] for row in pushes if row["tensor"] == 0)
        assert sum(row["bytes"] for row in pushes) == trace.total_bytes
        assert {row["start_ps"] for row in pushes if row["tensor"] == 1} == {2 * MS + MS // 10}
    part, ready = 1_562_500 * BYTE, 2 * MS + MS // 10
    assert ends["fifo"] == ready + h + 16 * part + 1000 * BYTE + l
    # When the front push is offered, four partitions are under way and the first has not arrived yet.  It is
    # released when that one has (and stands behind the other three).
    assert ends["layer"] == ready + h + 4 * part + 1000 * BYTE + l


def test_network_priority_lets_the_front_layer_overtake():
    trace = make_trace([[250], [25_000_000 // 4]], backward=MS // 10)
    tagging = {"layer_priority": True, "priorities": [1, 2]}
    job = ps_job(1, exchange={"partition": "1562500B"}, tagging=tagging)
    messages = run(job, trace, fabric=Ideal(priorities=True))
    part, ready = 1_562_500 * BYTE, 2 * MS + MS // 10
    front = next(row for row in messages if row["kind"] == "push" and row["tensor"] == 0)
    assert front["end_ps"] == ready + h + part + 1000 * BYTE + l, "only the one on the wire was before it"
