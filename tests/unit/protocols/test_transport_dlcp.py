"""DLCP's Stop and Probe, worked by hand, and whole messages whatever is lost. Packets are numbered from 0, sizes in bytes, times
in picoseconds."""

from __future__ import annotations

import random

import pytest
from dlcp_cases import BASE, TIMEOUT, answer, deliver, flow_of, probed
from transport_bench import US

from gradwire.jit.records.constants import ACK, BITMAP, PULL_PROBE, STOP
from gradwire.protocols.transports.base import IMPORTANT_FLAG
from gradwire.testing import Word

# --- Stop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allowed, last, needed",
    [
        (0, 100, 10),
        (99, 100, 10),  # one byte short of a packet
        (100, 100, 9),
        (199, 100, 9),
        (200, 100, 8),
        (40, 40, 9),  # just the short last packet may be missing
        (39, 40, 10),
        (1000, 100, 1),  # everything may be missing: the first one delivers
    ],
)
def test_receiver_sends_stop_when_missing_bytes_are_within_loss_bound(allowed, last, needed):
    flow = flow_of(10, payload=100, last=last, allowed=allowed, tags=False)
    assert deliver(flow, range(needed)) == [ACK] * (needed - 1) + [STOP]
    assert flow.receiver.is_done == 1


def test_stop_ignores_arrival_order_and_duplicate_packets():
    flow = flow_of(10, payload=100, last=40, allowed=100, tags=False)
    # 940 bytes: with the 40 of the last packet and 8 others, 100 are missing
    assert deliver(flow, [9, 9, 3, 7, 1, 1, 5, 0, 2, 8, 4]) == [ACK] * 10 + [STOP]


def test_packets_after_stop_leave_receiver_state_unchanged():
    flow = flow_of(10, payload=100, allowed=200, tags=False)
    deliver(flow, range(8))
    before = list(flow.memory)
    assert deliver(flow, [8, 9, 0]) == [None, None, None]
    assert flow.memory == before
    assert flow.probe(1).kind == STOP


def test_stop_waits_for_all_important_packets():
    tags = [i in (2, 7) for i in range(10)]
    flow = flow_of(10, payload=100, allowed=500, tags=tags)
    assert deliver(flow, [0, 1, 3, 4, 5, 6, 8, 9]) == [ACK] * 8  # 800 of 1000 bytes, but not 2 and 7
    assert flow.probe(1).kind == BITMAP
    assert deliver(flow, [7, 2]) == [ACK, STOP]
    indifferent = flow_of(10, payload=100, allowed=500, tags=tags, important_must_arrive=False)
    assert deliver(indifferent, [0, 1, 3, 4, 5]) == [ACK] * 4 + [STOP]


def test_stop_requires_loss_bound_even_with_all_important_packets():
    flow = flow_of(10, payload=100, allowed=500, tags=[i < 3 for i in range(10)])
    assert deliver(flow, range(5)) == [ACK] * 4 + [STOP]


def test_on_probe_policy_delivers_incomplete_message_only_after_probe():
    flow = flow_of(10, payload=100, allowed=500, tags=False, stop_policy="on_probe")
    assert deliver(flow, range(9)) == [ACK] * 9
    assert flow.receiver.is_done == 0
    assert flow.probe(1).kind == STOP
    assert (flow.receiver.is_done, flow.receiver.received_bytes) == (1, 900)
    whole = flow_of(10, payload=100, allowed=500, tags=False, stop_policy="on_probe")
    assert deliver(whole, range(10)) == [ACK] * 9 + [STOP]


def test_loss_bound_one_permits_stop_without_any_droppable_packet():
    flow = flow_of(10, payload=100, allowed=1000, tags=False)
    assert flow.probe(1).kind == STOP
    important = flow_of(10, payload=100, allowed=1000)
    assert important.probe(1).kind == BITMAP


def test_stop_finishes_sender_and_clears_timer():
    flow = flow_of(100)
    flow.pull(most=20)
    flow.control(STOP, 0, 0)
    assert (flow.sender.is_done, flow.sender.timer) == (1, 0)


def test_acknowledgement_echoes_ecn_mark():
    flow = flow_of(3)
    assert [flow.data(0, ce=1).echo, flow.data(1, ce=0).echo] == [1, 0]


# --- Probe ---------------------------------------------------------------------------------------------------


def test_probe_is_sent_one_base_rtt_after_last_packet_without_acks():
    flow = flow_of(5)
    assert flow.pull(now=100) == [0, 1, 2, 3, 4]
    assert flow.sender.timer == 100 + BASE
    assert flow.pull(now=200) == []
    assert flow.fire() == 100 + BASE
    assert flow.pull(now=100 + BASE) == [PULL_PROBE + 1]
    assert flow.sender.timer == 100 + BASE + TIMEOUT
    assert flow.pull(now=100 + BASE) == []


def test_each_acknowledgement_delays_probe_by_half_a_round_trip():
    flow = flow_of(5)
    flow.pull(now=0)
    flow.ack(0, now=40 * US)  # the first packet was timed
    assert flow.sender.pair.srtt == 40 * US
    assert flow.sender.timer == 60 * US
    flow.ack(1, now=50 * US)
    assert flow.sender.timer == 70 * US
    assert flow.sender.probe_number == 0
    flow.fire()
    assert flow.pull(now=70 * US) == [PULL_PROBE + 1]
    flow.ack(2, now=80 * US)  # a late one does not disturb the probe's own timer
    assert flow.sender.timer == 70 * US + TIMEOUT


def test_no_probe_is_sent_while_data_packets_remain():
    flow = flow_of(50)
    for _ in range(5):
        assert all(got < IMPORTANT_FLAG for got in flow.pull(most=9))
        assert flow.sender.timer == 0


@pytest.mark.parametrize(
    "timeout, expected",
    [
        (20, [30, 60, 120, 240, 240, 240]),  # three round trips, twice as long each time, up to 24
        (45, [45, 90, 180, 240, 240]),
        (200, [200, 240, 240]),
        (1000, [1000, 1000, 1000]),  # never sooner than was asked for
    ],
)
def test_unanswered_probe_is_retransmitted_with_same_number_and_backoff(timeout, expected):
    flow = flow_of(5, probe_timeout=timeout * US)
    when = probed(flow)
    waits = []
    for n in range(len(expected)):
        again = flow.fire()
        waits.append(again - when)
        when = again
        assert flow.pull(when) == [PULL_PROBE + 1]
        assert (flow.sender.probe_number, flow.sender.probes_sent) == (1, n + 2)
    assert waits == [us * US for us in expected]


@pytest.mark.parametrize("measured, expected", [(66, 200), (70, 210), (80, 240), (100, 240), (60_000, 240)])
def test_probe_timeout_is_three_srtts_between_minimum_and_maximum(measured, expected):
    flow = flow_of(5)
    flow.pull(now=0)
    flow.ack(0, now=measured * US)
    when = flow.fire()
    flow.pull(when)
    assert flow.sender.timer == when + expected * US


def test_next_probe_number_resets_probe_timeout_backoff():
    flow = flow_of(40, probe_timeout=20 * US)
    when = probed(flow)
    for _ in range(3):
        when = flow.fire()
        flow.pull(when)
    answer(flow, now=when)
    flow.pull(when)  # all of it once more
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + 2]
    assert flow.sender.timer == when + 30 * US


# --- everything together -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["eager", "on_probe"])
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("packets, seed", [(9000, 0), (9000, 1), (9000, 2), (9000, 3), (50_000, 4)])
def test_message_completes_within_loss_bound_despite_loss_and_reordering(policy, loss, packets, seed):
    """The network loses and reorders data, acknowledgements, Probes, Bitmaps and Stops at random."""
    rng = random.Random(seed)
    payload = 100
    allowed = rng.choice([0, 50 * payload, 2000 * payload])
    tags = [rng.random() < 0.5 for _ in range(packets)]
    flow = flow_of(packets, payload=payload, last=60, allowed=allowed, tags=tags, stop_policy=policy, word=Word)
    now, bag, copies = 0, [], [0] * packets
    for _ in range(1_000_000):
        if len(bag) < 40:
            for got in flow.pull(now, most=20):
                if got >= PULL_PROBE:
                    bag.append(("probe", got - PULL_PROBE, 0))
                else:
                    assert (got >= IMPORTANT_FLAG) == (copies[got & (IMPORTANT_FLAG - 1)] > 0)
                    copies[got & (IMPORTANT_FLAG - 1)] += 1
                    bag.append(("data", got & (IMPORTANT_FLAG - 1), 0))
        now += rng.randrange(1, US)
        if not bag or 0 < flow.sender.timer <= now:
            now = max(now, flow.sender.timer)
            flow.fire()
            continue
        kind, first, second = bag.pop(min(len(bag) - 1, int(rng.expovariate(0.2))))
        if rng.random() < loss:
            continue
        if kind == "data":
            reply = flow.data(first, ce=int(rng.random() < 0.1))
            bag += [(reply.kind, first, reply.echo)] * reply.count
        elif kind == "probe":
            reply = flow.probe(first, now=now)
            bag += [(reply.kind, part, reply.argument) for part in range(reply.count)]
        elif kind == ACK:
            flow.ack(first, echo=second, now=now)
        else:
            flow.control(kind, first, second, now=now)
            if flow.sender.is_done:
                break
    assert flow.sender.is_done == flow.receiver.is_done == 1
    lost = packets * payload - 40 - flow.receiver.received_bytes
    assert 0 <= lost <= allowed
    if loss == 0 and allowed == 0:
        assert max(copies) == 1
