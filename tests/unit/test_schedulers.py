"""Tensor schedulers, alone and in a job: who overtakes whom, to the picosecond."""

from __future__ import annotations

from sim_cases import MS, US, Ideal, make_trace, ps_job, rows, scenario

from gradwire.sim.coupling import Message
from gradwire.sim.schedulers import Fifo, LayerOrder
from gradwire.sim.simulate import simulate

h, l, BYTE = 2 * US, US, 80  # software latency, network latency, picoseconds a byte at 100 Gbps  # noqa: E741


def run(job, trace, fabric=None):
    return rows(simulate(scenario(job), trace, fabric=fabric or Ideal()).messages)


def message(rank, size=100):
    return Message("j", "push", 0, rank, 0, 0, 1, size, 0, 0.0, True, rank, lambda message: None)


def test_fifo_releases_at_once():
    released = []
    scheduler = Fifo(released.append, 100)
    for rank in (3, 1, 2):
        scheduler.offer(message(rank))
    assert [each.rank for each in released] == [3, 1, 2]


def test_layer_order_releases_front_layers_first_within_its_credit():
    released = []
    scheduler = LayerOrder(released.append, 100)
    for rank in (9, 8, 7, 6, 5, 2, 3, 2):
        scheduler.offer(message(rank))
    assert [each.rank for each in released] == [9, 8, 7, 6], "four partitions of credit"
    for each in released[:4]:
        each.settled(each)
    assert [each.rank for each in released[4:]] == [2, 2, 3, 5]


def test_a_message_larger_than_the_credit_goes_alone():
    released = []
    scheduler = LayerOrder(released.append, 100)
    for size in (1000, 1, 1000):
        scheduler.offer(message(0, size))
    assert [each.bytes for each in released] == [1000]
    released[0].settled(released[0])
    assert [each.bytes for each in released] == [1000, 1]
    released[1].settled(released[1])
    assert [each.bytes for each in released] == [1000, 1, 1000]


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
