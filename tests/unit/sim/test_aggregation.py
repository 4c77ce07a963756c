"""Switches that sum: bytes, times and counters in closed form, that nothing changes without slots, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from sim_cases import US, make_trace, ps_job, scenario

from gradwire.emu.planning.planner import check_scenario
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.validation.scenario import find_mistakes, remarks
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle.aggregation import AggregationGroup
from gradwire.testing.oracle.packets import DATA, Packet
from gradwire.testing.scenario_comparison import PacketRecorder

PAYLOAD, BYTE = 1000, 80  # picoseconds a byte at 100 Gbps
FRAME = PAYLOAD + TCP_OVERHEAD
PACKETS, WORKERS = 50, 5
A = 2 * US + 2 * US + FRAME * BYTE
"""Of a message: software latency, two cables, and the last packet once more, from the switch."""
DCTCP = {"kind": "dctcp", "payload": f"{PAYLOAD}B", "initial_window": 10_000}


def case(slots: int = 1000, exchange: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Workers h0 to h4, a server h5, one tensor of so many packets."""
    job = ps_job(WORKERS, exchange={"aggregation": True, "partition": "1GB", **(exchange or {})})
    switch = {"queues": 1, "buffer": "100MB", "aggregation_slots": slots}
    return scenario(job, **{"switch": switch, "transport": DCTCP, **fields})


def run(asked: Any, packets: int = PACKETS) -> Any:
    return simulate(asked, make_trace([[packets * PAYLOAD // 4]], forward=US, backward=US))


def taken(result: Any, kind: str) -> set[int]:
    """From when messages of a kind were ready to when they were there."""
    rows = result.messages.to_pylist()
    return {row["end_ps"] - row["start_ps"] for row in rows if row["kind"] == kind}


def port(result: Any, name: str) -> dict[str, Any]:
    (found,) = (row for row in result.ports.to_pylist() if row["port"] == name)
    return dict(found)


def test_aggregated_push_and_pull_take_the_time_of_one_message():
    result = run(case())
    assert taken(result, "push") == {A + PACKETS * FRAME * BYTE}
    assert taken(result, "pull") == {A + PACKETS * FRAME * BYTE}
    alone = run(case(0))
    assert max(taken(alone, "push")) == A + WORKERS * PACKETS * FRAME * BYTE


def test_server_links_carry_one_aggregated_packet_per_sequence_number():
    """The server's links carry one packet of gradients, one of results and one acknowledgement of each."""
    result = run(case())
    for name in ("s0->h5", "h5->s0"):
        assert port(result, name)["packets"] == 2 * PACKETS
        assert port(result, name)["bytes"] == PACKETS * (FRAME + ACK_BYTES)
    for worker in range(WORKERS):
        assert port(result, f"h{worker}->s0")["packets"] == 2 * PACKETS
        assert port(result, f"s0->h{worker}")["packets"] == 2 * PACKETS


def test_switch_counts_summed_and_copied_packets():
    sums = run(case()).summary["totals"]["sums"]["s0"]
    assert sums.pop("slots_peak") <= PACKETS
    assert sums == {
        "summed_packets": (WORKERS - 1) * PACKETS, "unsummed_packets": 0, "copied_packets": WORKERS * PACKETS,
    }  # fmt: skip


def test_server_sums_packets_that_find_no_slot():
    """One worker is late, so slots stay occupied while packets wait for its packets. Packets without a slot are
    forwarded."""
    late = {"link_override": [{"between": ["h2", "s0"], "latency": "50us"}]}
    result = run(case(20, **late))
    sums = result.summary["totals"]["sums"]["s0"]
    assert sums["slots_peak"] == 20
    assert sums["unsummed_packets"] == WORKERS * (PACKETS - 20)
    assert sums["summed_packets"] == (WORKERS - 1) * 20
    assert port(result, "s0->h5")["packets"] >= WORKERS * (PACKETS - 20) + 20 + PACKETS
    assert taken(result, "push") == taken(run(case(1000, **late)), "push")


def test_aggregation_releases_all_flow_records():
    """Switches consume packets and create others. The engine still knows when no packet of a message is left, even
    with losses."""
    recorder = PacketRecorder(log=False)
    asked = case(20, link={"rate": "100Gbps", "latency": "1us", "loss": 0.01}, transport={**DCTCP, "min_rto": "50us"})
    simulate(asked, make_trace([[PACKETS * PAYLOAD // 4]], forward=US, backward=US), fabric=recorder)
    fabric = recorder.made
    fabric.run(Ps(fabric.now + 10**12))
    fabric.flows.close()
    assert fabric.flows.records.open == 0


def test_aggregation_without_slots_changes_nothing():
    with_key, without = run(case(0)), run(case(0, {"aggregation": False}))
    for name in ("messages", "ports", "iterations"):
        assert getattr(with_key, name).equals(getattr(without, name))
    assert "sums" not in with_key.summary["totals"]


@pytest.mark.parametrize("workers", [2, 4])
def test_in_network_all_reduce_sends_gradients_and_results_once(workers):
    """Every worker is the server of an equal share."""
    job = {"workers": workers, "exchange": {"kind": "in_network", "partition": f"{10 * PAYLOAD}B"}}
    asked = scenario(job, switch={"queues": 1, "buffer": "100MB", "aggregation_slots": 1000}, transport=DCTCP)
    result = run(asked, 20 * workers)
    share = 20 * FRAME  # of two workers, each has one message to itself and nothing is added up
    for worker in range(workers):
        for name in (f"h{worker}->s0", f"s0->h{worker}"):
            found = port(result, name)
            assert found["bytes"] == workers * share + 20 * workers * ACK_BYTES
    total = run(scenario({**job, "exchange": {"kind": "ring", "bucket": "1GB"}}, transport=DCTCP), 20 * workers)
    assert port(total, "h0->s0")["bytes"] > 2 * (workers - 1) * share


@pytest.mark.parametrize("workers", [4, 8])
def test_in_network_all_reduce_takes_half_of_ring_time_if_pipelined(workers):
    """If gradients become ready one by one, results return while the next gradients are sent. If all are ready at
    once, a NIC serves all messages in turn: nearly all are complete only at the end, and results follow as with a
    ring."""
    layers, packets = 40, 64 * workers
    job = {"workers": workers, "exchange": {"kind": "in_network", "partition": f"{packets * PAYLOAD // workers}B"}}
    asked = scenario(job, switch={"queues": 1, "buffer": "100MB", "aggregation_slots": 10_000}, transport=DCTCP)
    once = layers * packets * FRAME * BYTE
    found = []
    for backward in (0, once // layers):
        trace = make_trace([[packets * PAYLOAD // 4]] * layers, forward=0, backward=backward)
        found.append(max(simulate(asked, trace).iterations["end_ps"].to_pylist()) / once)
    at_one_time, one_by_one = found
    assert at_one_time == pytest.approx(2 * (workers - 1) / workers, rel=0.03)
    assert 1 < one_by_one < 1.2  # acknowledgements are 6 % of all bytes


def test_oracle_rejects_sum_with_duplicate_part():
    """The oracle tracks the parts of each sum; this test forges a packet with a duplicate part."""
    fan = AggregationGroup([0, 0, 0], 0, False, 2)
    packet = Packet(0, DATA, 0, 100, 0, True, 0)
    assert fan.arrive(0, packet) is None
    assert fan.arrive(1, packet) is None
    assert fan.arrive(2, packet) is not None
    twice = Packet(0, DATA, 0, 100, 0, True, 0, sequence=1, all=True, parts=(0, 1, 1))
    with pytest.raises(AssertionError, match="each part once"):
        fan.arrive(0, twice)


SLOTS = {"aggregation_slots": 64}
REFUSED = [
    ({"transport": "dlcp"}, {}, "dlcp cannot acknowledge for several senders"),
    ({"transport": {"kind": "dctcp", "connections": "persistent"}}, {}, "single messages"),
    ({"transport": {"kind": "cubic", "preset": "linux"}}, {}, "single messages"),
    ({"transport": {"kind": "cubic", "delayed_acks": "1ms"}}, {}, "each be acknowledged at once"),
    ({"switch": {**SLOTS, "pfc": True}}, {}, "pfc counts packets by their ingress link"),
    ({"load_balancing": "reps"}, {}, "lets hosts choose paths"),
    ({}, {"order": "layer"}, "would wait for each other"),
    ({}, {"scheduler": "p3"}, "would wait for each other"),
    ({}, {"exchange": {"kind": "parameter_server", "aggregation": True, "asynchronous": True}}, "asynchronous servers"),
]


@pytest.mark.parametrize(("fields", "job", "words"), REFUSED)
def test_unsupported_aggregation_settings_are_rejected(fields, job, words):
    tables = {"switch": SLOTS, "transport": "dctcp", **fields}
    try:
        asked = scenario({**ps_job(3, exchange={"aggregation": True}), **job}, **tables)
        said = [mistake.what for mistake in find_mistakes(asked)]
    except ValueError as error:  # within a job
        said = [str(error)]
    assert any(words in each for each in said), said


def test_testbed_rejects_switch_aggregation():
    with pytest.raises(GradwireError, match="do not aggregate packets"):
        check_scenario(case())


@pytest.mark.parametrize(("slots", "job", "words"), [
    (0, {}, "job[0].exchange: switches should sum, but switch.aggregation_slots is 0"),
    (0, {"servers": 0, "exchange": {"kind": "in_network"}}, "job[0].exchange: switches should sum"),
    (64, {"exchange": {"kind": "parameter_server"}}, "switch.aggregation_slots has no effect: no job's exchange uses switches that sum"),
    (64, {}, ""), (0, {"exchange": {"kind": "parameter_server"}}, ""),
])  # fmt: skip
def test_remark_on_unused_slots_and_aggregation_without_slots(slots, job, words):
    asked = scenario(
        {**ps_job(3, exchange={"aggregation": True}), **job}, switch={"aggregation_slots": slots, "ecn_threshold": "96KiB"},
        transport="dctcp",
    )  # fmt: skip
    said = list(remarks(asked))
    assert [each for each in said if words in each] if words else said == []
