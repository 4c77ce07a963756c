"""pFabric by hand: the window, what is left, time-outs and probes.

100 Gbps, packets of 4162 bytes on the wire, 332 960 ps each; base round trip 10 us: 31 packets hold it."""

from __future__ import annotations

from transport_bench import US

from gradwire.jit.records.constants import BITMAP, PULL_PROBE
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.pfabric import PFabric
from gradwire.testing import FlowHarness

BASE = 10 * US
RTO = 3 * BASE


def flow_of(packets, **fields):
    return FlowHarness(PFabric, packets, base_rtt=BASE, **fields)


def window(flow):
    return flow.sender.cwnd >> SHIFT


def test_window_stays_at_the_bandwidth_delay_product():
    flow = flow_of(1000)
    assert flow.pull() == list(range(31))
    for sequence in range(31):
        flow.ack(sequence, sequence + 1, now=BASE)
    assert window(flow) == 31
    assert flow.pull(BASE) == list(range(31, 62))


def test_remaining_size_excludes_acknowledged_packets():
    flow = flow_of(100)
    assert flow.sender.piggyback == 100
    flow.pull()
    assert flow.sender.piggyback == 100
    for left, sequence in ((99, 5), (98, 7), (98, 7)):
        flow.ack(sequence, 0, now=BASE)
        assert flow.sender.piggyback == left
    flow.ack(0, 6, now=BASE)
    assert flow.sender.piggyback == 93


def test_only_timeouts_trigger_retransmission_of_all_unacknowledged_packets():
    flow = flow_of(8)
    flow.pull(0)
    for sequence in (1, 2, 3, 4, 5, 7):
        flow.ack(sequence, 0, now=BASE)
        assert flow.pull(BASE) == []
    assert flow.fire() == RTO
    assert flow.pull(RTO) == [0]
    flow.ack(0, 6, now=RTO + BASE)
    assert flow.pull(RTO + BASE) == [6]


def test_slow_start_threshold_after_a_timeout_is_half_the_window():
    """20 packets in flight set the threshold to 10. Windows are 1, 2, 4, 8, 10, then one packet more per round trip."""
    flow = flow_of(400, window=20)
    flow.pull(0)
    now = flow.fire()
    windows = []
    sent = flow.pull(now)
    for _ in range(6):
        windows.append(window(flow))
        now += BASE
        under_way, sent = sent, []
        for sequence in under_way:
            flow.ack(sequence, sequence + 1, now=now)
            sent += flow.pull(now)
    assert windows == [1, 2, 4, 8, 10, 11]


def test_consecutive_timeouts_have_equal_length():
    flow = flow_of(50)
    times = [0]
    for _ in range(4):
        flow.pull(times[-1])
        times.append(flow.fire())
    assert times == [0, RTO, 2 * RTO, 3 * RTO, 4 * RTO]


def chronic(packets=50, **fields):
    """A flow after five time-outs in a row, and the time."""
    flow, now = flow_of(packets, **fields), 0
    for number in range(5):
        sent = flow.pull(now)
        assert len(sent) == (31 if number == 0 else 1)
        now = flow.fire()
    return flow, now


def test_sender_only_probes_after_five_consecutive_timeouts():
    flow, now = chronic()
    for number in range(1, 4):
        assert flow.pull(now) == [PULL_PROBE]
        assert flow.sender.probes_sent == number
        assert flow.sender.timer == now + RTO
        now = flow.fire()


def test_any_acknowledgement_resets_the_count_of_timeouts():
    flow, now = flow_of(50), 0
    for number in range(12):
        assert flow.pull(now)[0] < PULL_PROBE
        now = flow.fire()
        if number % 4 == 3:
            flow.ack(20, 0, now=now)


def test_probe_answer_with_received_packets_resumes_slow_start():
    flow, now = chronic()
    flow.pull(now)
    for sequence in range(3):
        flow.data(sequence)
    said = flow.probe(0)
    assert (said.kind, said.argument) == (BITMAP, 3)
    now += 2 * BASE
    flow.control(said.kind, 0, said.argument, now=now)
    assert flow.sender.piggyback == 47
    assert flow.sender.timer == now + RTO
    assert flow.pull(now) == [3, 4, 5, 6]  # three packets acknowledged: slow start


def test_probe_answer_without_received_packets_resumes_with_one_packet():
    flow, now = chronic()
    flow.pull(now)
    flow.control(BITMAP, 0, 0, now=now + BASE)
    assert flow.pull(now + BASE) == [0]
    assert flow.sender.timer == now + BASE + RTO
    assert flow.sender.piggyback == 50


def test_probe_answer_of_a_complete_message_ends_the_sender():
    flow, now = chronic(31)
    flow.pull(now)
    for sequence in range(31):
        flow.data(sequence)
    assert flow.receiver.is_done == 1
    said = flow.probe(0)
    flow.control(said.kind, 0, said.argument, now=now + BASE)
    assert (flow.sender.is_done, flow.sender.piggyback, flow.sender.timer) == (1, 0, 0)
