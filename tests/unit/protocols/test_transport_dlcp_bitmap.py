"""DLCP's Bitmap, worked by hand: what it asks for, when it counts, and how its parts are asked for one by one."""

from __future__ import annotations

import pytest
from dlcp_cases import BASE, LONGEST, TIMEOUT, answer, deliver, flow_of, probed
from transport_bench import US

from gradwire.jit.records.constants import BITMAP, PULL_PROBE, STOP
from gradwire.protocols.transports.base import IMPORTANT_FLAG
from gradwire.testing import Word


def test_bitmap_requests_exactly_missing_packets_as_important():
    flow = flow_of(100, tags=False)
    probed(flow)
    missing = [0, 31, 32, 63, 64, 98]
    deliver(flow, [i for i in range(100) if i not in missing])
    reply = answer(flow)
    assert (reply.argument, reply.count, reply.size) == (1, 1, 66 + 13)
    assert flow.sender.timer == 0
    assert flow.pull() == [i | IMPORTANT_FLAG for i in missing]
    assert flow.sender.quota == 0
    assert flow.sender.timer > 0  # and then a probe, when it is quiet


def test_bitmap_reports_packets_received_before_probe_reply():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(30))
    reply = flow.probe(1)
    deliver(flow, range(30, 35))  # too late for the answer on its way
    flow.control(BITMAP, 0, reply.argument)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in range(30, 40)]


def test_late_bitmap_is_accepted_after_probe_retransmission():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(30))
    reply = flow.probe(1)
    flow.pull(flow.fire())  # the answer is late
    flow.control(BITMAP, 0, reply.argument)
    assert flow.sender.timer == 0
    assert flow.pull() == [i | IMPORTANT_FLAG for i in range(30, 40)]


def test_duplicate_bitmap_for_same_probe_number_is_ignored():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(30))
    flow.probe(1)
    flow.pull(flow.fire())
    flow.control(BITMAP, 0, 1)
    flow.control(BITMAP, 0, 1)  # nothing is sent yet
    assert flow.sender.quota == 10
    assert flow.pull(most=4) == [i | IMPORTANT_FLAG for i in range(30, 34)]
    flow.control(BITMAP, 0, 1)  # some of it
    assert flow.pull() == [i | IMPORTANT_FLAG for i in range(34, 40)]
    timer = flow.sender.timer
    flow.control(BITMAP, 0, 1)  # all of it, and it is being quiet
    assert (flow.sender.quota, flow.sender.timer) == (0, timer)
    when = flow.fire()
    flow.control(BITMAP, 0, 1)  # about to ask again
    assert flow.pull(when) == [PULL_PROBE + 2]
    timer = flow.sender.timer
    flow.control(BITMAP, 0, 1)  # waiting for the answer to another number
    assert (flow.sender.quota, flow.sender.timer) == (0, timer)


def test_bitmap_after_timeout_but_before_probe_retransmission_is_accepted():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(30))
    reply = flow.probe(1)
    flow.fire()  # the NIC is busy: the probe has not been repeated
    flow.control(BITMAP, 0, reply.argument)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in range(30, 40)]  # and no probe before it has been quiet
    assert flow.sender.probes_sent == 1


def test_receiver_repeats_bitmap_snapshot_at_most_once_per_base_rtt():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(30))
    start = 50 * US
    assert flow.probe(1, now=start).count == 1
    deliver(flow, range(30, 35))
    assert [flow.probe(1, now=start + late).count for late in (0, BASE - 1, BASE, BASE + 1, 2 * BASE - 1, 2 * BASE)] == [
        0, 0, 1, 0, 0, 1,
    ]  # fmt: skip
    flow.control(BITMAP, 0, 1)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in range(30, 40)]


def test_next_probe_number_gets_fresh_bitmap_immediately():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(30))
    answer(flow, now=0)
    flow.pull()
    deliver(flow, range(30, 38))
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + 2]
    answer(flow, 2)
    assert flow.pull() == [38 | IMPORTANT_FLAG, 39 | IMPORTANT_FLAG]


def test_reordered_older_probe_does_not_overwrite_newer_bitmap():
    flow = flow_of(40)
    probed(flow)
    deliver(flow, range(20))
    answer(flow)
    flow.pull()
    flow.pull(flow.fire())
    deliver(flow, range(20, 30))
    flow.probe(2)
    deliver(flow, range(30, 35))
    assert flow.probe(1, now=5 * BASE).count == 0
    flow.control(BITMAP, 0, 2)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in range(30, 40)]


def test_bitmap_requests_single_missing_important_packet():
    tags = [i == 20 for i in range(40)]
    flow = flow_of(40, payload=100, allowed=400, tags=tags)
    probed(flow)
    deliver(flow, [i for i in range(40) if i != 20])
    answer(flow)
    assert flow.pull() == [20 | IMPORTANT_FLAG]
    assert deliver(flow, [20]) == [STOP]


LARGE = 20_000  # 625 words: a Bitmap in three parts of 8192, 8192 and 3616 packets


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_sender_waits_for_all_parts_of_large_bitmap(order):
    flow = flow_of(LARGE)
    when = probed(flow)
    missing = [8191, 8192, 16_384, 19_999]
    deliver(flow, [i for i in range(LARGE) if i not in missing])
    reply = flow.probe(1)
    assert (reply.count, reply.size) == (3, 66 + 1024)
    for part in order:
        assert flow.pull() == []
        assert flow.sender.timer == when + TIMEOUT  # what is lacking is asked for when nothing has come for so long
        when += 150 * US  # the line is slow
        flow.control(BITMAP, part, reply.argument, now=when)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in missing]


def asked(part):
    """A first probe that asks for one part, counted from 0, instead of all."""
    return part + 1 << 12 | 1


def test_lost_bitmap_parts_are_requested_individually():
    flow = flow_of(LARGE)
    when = probed(flow)
    missing = [100, 10_000, 17_000]
    deliver(flow, [i for i in range(LARGE) if i not in missing])
    answer(flow, parts=[1])
    assert flow.pull() == []
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + asked(0), PULL_PROBE + asked(2)]
    assert flow.sender.timer == when + LONGEST  # twice the time-out would be more
    reply = flow.probe(asked(2), now=when)
    assert reply.count == 1
    flow.control(BITMAP, 0, reply.argument)  # alone, it carries the number of the probe's packet: 0
    assert flow.pull() == []
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + asked(0)]
    flow.control(BITMAP, 0, flow.probe(asked(0), now=when).argument)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in missing]  # each of them once


def test_full_bitmap_is_requested_when_no_part_arrived():
    flow = flow_of(LARGE)
    probed(flow)
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + 1]
    assert flow.probe(1, now=when).count == 3


@pytest.mark.parametrize("again", ["of everything", "asked for alone"])
def test_duplicate_bitmap_part_does_not_replace_missing_parts(again):
    flow = flow_of(LARGE)
    probed(flow)
    missing = [100, 10_000, 17_000]
    deliver(flow, [i for i in range(LARGE) if i not in missing])
    reply = flow.probe(1)
    for _ in range(5):
        flow.control(BITMAP, 1 if again == "of everything" else 0, 1 if again == "of everything" else asked(1))
    assert flow.pull() == []
    for part in (0, 2):
        flow.control(BITMAP, part, reply.argument)
    assert flow.pull() == [i | IMPORTANT_FLAG for i in missing]


def test_late_bitmap_part_is_not_requested_individually():
    flow = flow_of(LARGE)
    probed(flow)
    deliver(flow, range(1, LARGE))
    answer(flow, parts=[1])
    when = flow.fire()
    assert flow.pull(when, most=1) == [PULL_PROBE + asked(0)]
    flow.control(BITMAP, 2, 1)  # late, of the first answer
    assert flow.pull(when) == [] and flow.sender.timer == when + LONGEST
    flow.control(BITMAP, 0, 1)
    assert flow.pull(when) == [0 | IMPORTANT_FLAG]


def test_full_and_part_probes_are_each_answered_once_per_base_rtt():
    flow = flow_of(LARGE)
    start = 7 * BASE
    for late in (0, BASE - 1, BASE):
        answers = [flow.probe(n, now=start + late).count for n in (1, asked(0), asked(0), asked(2), 1, asked(1))]
        assert answers == ([0] * 6 if late == BASE - 1 else [3, 1, 0, 1, 0, 1])


def test_probe_number_order_survives_12_bit_wraparound():
    """The receiver tells newer probe numbers from older ones after more than 4096 rounds."""
    flow = flow_of(40)
    deliver(flow, range(20))
    for number in (*range(1, 9000, 1000), 9001):
        assert flow.probe(number & 4095, now=0).count == 1
        assert flow.probe((number - 1) & 4095, now=0).count == 0


def test_largest_message_has_bitmap_of_512_parts():
    packets = (1 << 22) - 1
    flow = flow_of(packets, word=Word)
    flow.data(packets - 1)
    reply = flow.probe(1)
    assert (reply.kind, reply.count) == (BITMAP, 512)
