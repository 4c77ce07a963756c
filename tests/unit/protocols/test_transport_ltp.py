"""LTP: Early Close by hand, what is sent when, its rate as BBR's, and whole messages over the fabric.

100 Gbps, packets of 4154 bytes on the wire, 332 320 ps each; base round trip 10 us."""

from __future__ import annotations

import pytest
from transport_bench import GBPS, MS, US, Flow, incast, play, star_of

from gradwire.jit.records.constants import ACK, STOP
from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE
from gradwire.protocols.transports.loss_tolerant import ltp_rate
from gradwire.protocols.transports.loss_tolerant.ltp import Ltp
from gradwire.protocols.transports.loss_tolerant.ltp_layout import DRAIN, STARTUP
from gradwire.testing import FlowHarness, Word, transport
from gradwire.topology import LinkSpec, Override, leaf_spine, star

BASE = 10 * US
PACKET = 4154 * 80
MB = 1_000_000


def flow_of(packets, **fields):
    return FlowHarness(Ltp, packets, base_rtt=BASE, **{"tags": False} | fields)


# --- Early Close --------------------------------------------------------------------------------------------------------

# The first ten packets are spread over a round trip.
IDEAL = BASE


def arrive(flow, sequences, now):
    """Packets arrive at `now`, the first one of all having arrived at 1 us. What the receiver said to the last."""
    said = None
    for sequence in sequences:
        said = flow.data(sequence, now=now).kind
    return said


def begun(allowed, **fields):
    flow = flow_of(10, allowed=allowed, **fields)
    assert flow.data(0, now=US).kind == ACK
    return flow


def test_receiver_waits_for_all_packets_before_the_threshold():
    flow = begun(allowed=5 * 4096)
    assert arrive(flow, range(1, 9), US + IDEAL - 200) == ACK
    assert arrive(flow, [9], US + IDEAL - 200) == STOP


def test_receiver_stops_at_the_required_fraction_after_the_threshold():
    """The fraction requires 0.8 of ten packets; the bound alone would allow five missing packets."""
    flow = begun(allowed=5 * 4096)
    assert arrive(flow, range(1, 7), US + IDEAL + 200) == ACK
    assert arrive(flow, [7], US + IDEAL + 200) == STOP


def test_receiver_stops_at_the_loss_bound_after_the_deadline():
    flow = begun(allowed=5 * 4096)
    assert arrive(flow, range(1, 4), US + 2 * IDEAL + 200) == ACK
    assert arrive(flow, [4], US + 2 * IDEAL + 200) == STOP
    assert flow.receiver.is_done == 1


def alone(flow):
    return uncompiled(ltp_rate.unloaded_time)(flow.parameters, flow.packets * flow.payload, flow.packets)


def test_unloaded_time_matches_hand_calculation():
    """The first 22 packets leave at the initial rate of ten packets per round trip. A round trip lasts until the next
    packet after it, 11 us, in which 11 packets leave; its sample arrives a round trip later. Then the rate is 2.885
    times as high, 0.9587 of the line: 0.9587 * 10.3466 us make 29.85 packets."""
    assert alone(flow_of(10)) == pytest.approx(10 * US, rel=1e-4)
    assert alone(flow_of(22)) == pytest.approx(22 * US, rel=1e-4)
    assert alone(flow_of(42)) == pytest.approx(22 * US + 20 * PACKET / 0.95874, rel=1e-3)
    # after three round trips without growth and one of draining: 26 packets in the time of 27
    more = alone(flow_of(4000)) - alone(flow_of(1400))
    assert more == pytest.approx(2600 * PACKET * 27 / 26, rel=1e-3)


@pytest.mark.parametrize("rate", [10 * GBPS, 100 * GBPS, 400 * GBPS])
@pytest.mark.parametrize("latency", [US // 10, US, 20 * US])
@pytest.mark.parametrize("payload", [1024, 4096])
def test_early_close_loses_no_data_on_an_idle_network(rate, latency, payload):
    """Messages of all sizes arrive completely at the earliest threshold. The estimated unloaded time is at most 8 %
    above the simulated one."""
    network = star(2, LinkSpec(rate, latency))
    there, back = (2 * (latency + -(-size * 8 * 10**12 // rate)) for size in (payload + 58, 60))
    for nbytes in (1, 4096, 100_000, 1_000_000, 10_000_000, 100_000_000):
        table = transport("ltp", payload=f"{payload}B")
        outcome = play(network, [Flow(0, 1, nbytes, bound=1.0, droppable=1.0)], table, buffer=200 * MB)
        assert outcome.lost == [0]
        flow = FlowHarness(Ltp, -(-nbytes // payload), payload=payload, rate=rate, base_rtt=there + back)
        if nbytes >= MB:
            assert 0.93 < (outcome.ends[0] - there) / alone(flow) < 1


@pytest.mark.parametrize("slower", [10 * GBPS, 30 * GBPS, 90 * GBPS, GBPS // 10])
@pytest.mark.parametrize("where", ["receiver", "uplinks"])
def test_early_close_loses_no_data_on_an_idle_network_with_a_slow_link(where, slower):
    """The unloaded time of a message follows from the slowest link of its paths."""
    if where == "receiver":
        network, links = star(2, LinkSpec(100 * GBPS, US), [Override(("h1", "s0"), rate=slower)]), [100 * GBPS, slower]
    else:
        network = leaf_spine(2, 1, 1, LinkSpec(100 * GBPS, US), uplink_rate=slower)
        links = [100 * GBPS, slower, slower, 100 * GBPS]
    there, back = (sum(US + -(-size * 8 * 10**12 // rate) for rate in links) for size in (4096 + 58, 60))
    for nbytes in (4096, 100_000, 1_000_000, 10_000_000):
        outcome = play(network, [Flow(0, 1, nbytes, bound=1.0, droppable=1.0)], transport("ltp"), buffer=200 * MB)
        assert outcome.lost == [0]
        flow = FlowHarness(Ltp, -(-nbytes // 4096), base_rtt=there + back, slowest=slower)
        if nbytes >= MB:
            assert 0.9 < (outcome.ends[0] - there) / alone(flow) < 1


def test_unloaded_time_matches_the_rate_of_an_extremely_slow_link():
    """A 2 kbit/s link behind 800 Gbit/s determines the time, and the calculation terminates."""
    flow = FlowHarness(Ltp, 1000, rate=800 * GBPS, base_rtt=20 * 10**12, slowest=2000, word=Word)
    assert alone(flow) == pytest.approx(1000 * 4154 * 8 * 10**12 // 2000, rel=0.05)


@pytest.mark.parametrize("when", [US, 10 * MS])
def test_receiver_does_not_stop_above_the_loss_bound(when):
    """Two missing packets exceed the bound by one byte."""
    flow = begun(allowed=2 * 4096 - 1)
    assert arrive(flow, range(1, 8), when) == ACK
    assert arrive(flow, [8], 10 * MS) == STOP


def test_receiver_waits_for_critical_packets_after_the_deadline():
    tags = [number in (0, 9) for number in range(10)]
    flow = begun(allowed=9 * 4096, tags=tags)
    assert arrive(flow, [1, 2, 3], 10 * MS) == ACK
    assert arrive(flow, [9], 10 * MS) == STOP
    free = begun(allowed=9 * 4096, tags=tags, critical_must_arrive=False)
    assert arrive(free, [1], 10 * MS) == STOP


def test_receiver_repeats_stop_only_for_duplicate_packets():
    """Late packets stay missing because the job has already been notified of the loss."""
    flow = begun(allowed=5 * 4096, threshold=0.0, deadline=0.0)
    arrive(flow, range(1, 5), 2 * US)
    assert flow.receiver.is_done == 1
    silent = flow.run["on_data"](flow.memory, flow.k, flow.r, 7, 4096, 0, 3 * US)
    assert silent == 0
    assert flow.data(7, now=50 * US).kind == STOP
    assert flow.data(2, now=50 * US).kind == STOP


# --- sending ------------------------------------------------------------------------------------------------------------


def test_sender_transmits_critical_packets_first():
    flow = flow_of(8, tags=[number % 3 == 1 for number in range(8)])
    assert flow.pull() == [1, 4, 7, 0, 2, 3, 5, 6]


@pytest.mark.parametrize("tags", [True, False])
def test_uniformly_tagged_messages_are_sent_in_order(tags):
    assert flow_of(5, tags=tags).pull() == [0, 1, 2, 3, 4]


def test_lost_packets_are_retransmitted_half_an_rtt_after_the_last_ack():
    flow = flow_of(6)
    assert flow.pull(0) == list(range(6))
    for sequence in (0, 2, 5):
        flow.ack(sequence, now=12 * US)
    assert flow.pull(12 * US) == []
    assert flow.sender.timer == 18 * US
    flow.ack(4, now=15 * US)
    assert flow.sender.timer == 21 * US
    now = flow.fire()
    assert flow.pull(now) == [1 | IMPORTANT_FLAG, 3 | IMPORTANT_FLAG]


def test_timeout_without_any_acknowledgement_doubles_up_to_eight_times():
    flow = flow_of(3)
    waits, now = [], 0
    for _ in range(11):
        flow.pull(now)
        waits.append(flow.sender.timer - now)
        now = flow.fire()
    assert waits == [200 * US << min(doublings, 8) for doublings in range(11)]


def test_stop_ends_the_sender():
    flow = flow_of(6)
    flow.pull(0)
    flow.control(STOP, 0, 0, now=12 * US)
    assert (flow.sender.is_done, flow.sender.timer) == (1, 0)


# --- rate ---------------------------------------------------------------------------------------------------------------


def rounds(flow, count, rtt, acknowledged, first=0):
    """Round trips of `rtt` in each of which that many packets come back, the timed one last. Yields the rate."""
    now = flow.clock
    for _ in range(count):
        sent = flow.pull(now, most=acknowledged)
        now += rtt
        for sequence in (*sent[1:], sent[0]):
            flow.ack(sequence, now=now)
        flow.clock = now
        yield flow.sender.rate


def measured(packets=100_000, **fields):
    """A flow that knows its smallest round trip, 10 us."""
    flow = flow_of(packets, **fields)
    flow.clock = 0
    list(rounds(flow, 1, BASE, 1))
    assert flow.sender.min_rtt == BASE
    return flow


def test_initial_rate_is_one_initial_window_per_round_trip():
    flow = flow_of(1000)
    assert flow.sender.rate == 10 * PACKET * ONE // BASE
    assert flow.sender.gap == flow.sender.ps_per_byte * ONE // flow.sender.rate


def test_startup_rate_is_2_885_times_the_delivery_rate():
    """Three packets in 10 us are 0.0997 of the line."""
    flow = measured()
    (rate,) = rounds(flow, 1, BASE, 3)
    assert rate / ONE == pytest.approx(2.885 * 3 * PACKET / BASE, rel=0.002)
    assert flow.sender.mode == STARTUP


def test_startup_turns_to_drain_after_three_rounds_without_25_percent_growth():
    flow = measured()
    list(rounds(flow, 1, BASE, 8))
    assert list(rounds(flow, 2, BASE, 9))[-1] / ONE == pytest.approx(2.885 * 9 * PACKET / BASE, rel=0.002)
    assert flow.sender.mode == STARTUP
    (rate,) = rounds(flow, 1, BASE, 9)
    assert flow.sender.mode == DRAIN
    assert rate / ONE == pytest.approx(9 * PACKET / BASE / 2.885, rel=0.002)


def test_pacing_gain_cycle_is_1_25_then_0_75_then_six_times_1():
    flow = measured()
    list(rounds(flow, 5, BASE, 8))
    share = 8 * PACKET / BASE * ONE
    gains = [round(rate / share, 2) for rate in rounds(flow, 20, BASE, 8)]
    at = gains.index(1.25)
    assert gains[at : at + 9] == [1.25, 0.75, 1, 1, 1, 1, 1, 1, 1.25]


def test_doubled_round_trip_time_lowers_the_rate():
    flow = measured()
    list(rounds(flow, 5, BASE, 8))
    before = max(rounds(flow, 2, BASE, 8))
    for rate in rounds(flow, 8, 2 * BASE + 10, 8):
        assert rate < 0.76 * before


def test_exactly_doubled_round_trip_time_leaves_the_gain_cycle_alone():
    flow = measured()
    list(rounds(flow, 5, BASE, 8))
    share = 8 * PACKET / BASE * ONE
    gains = [round(rate / share, 2) for rate in rounds(flow, 8, 2 * BASE, 8)]
    assert sorted(gains) == [0.75, 1, 1, 1, 1, 1, 1, 1.25]


def test_bandwidth_filter_forgets_old_samples():
    flow = measured()
    list(rounds(flow, 6, BASE, 20))
    rates = list(rounds(flow, 40, BASE, 4))
    assert rates[2] / ONE > 10 * PACKET / BASE
    assert rates[-1] / ONE < 1.26 * 4 * PACKET / BASE


# --- over the fabric ----------------------------------------------------------------------------------------------------


def test_single_message_reaches_line_rate():
    outcome = play(star_of(2), [Flow(1, 0, 50 * MB)], transport("ltp"), buffer=10 * MB)
    assert outcome.again == [0]
    assert outcome.ends[0] < 1.1 * 50 * MB * 80


@pytest.mark.parametrize("bound", [0.0, 0.1])
def test_incast_finishes_near_the_ideal_time_within_the_loss_bound(bound):
    senders, size = 8, 4 * MB
    outcome = play(star_of(9), incast(senders, size, bound=bound), transport("ltp"), buffer=MB)
    ideal = senders * size * 80
    assert all(lost <= bound * size for lost in outcome.lost)
    assert (1 - bound) * ideal < max(outcome.ends) < 1.35 * ideal
    assert (sum(outcome.lost) > 0) == (bound > 0)


@pytest.mark.parametrize("loss", [0.01, 0.3])
@pytest.mark.parametrize("bound", [0.0, 0.1, 1.0])
def test_all_messages_complete_over_a_lossy_link(bound, loss):
    """Links lose data, acknowledgements and Stop with probability `loss`. `play` asserts that every sender finishes."""
    flows = [Flow(1, 0, MB // 4, bound=bound, droppable=0.9), Flow(2, 0, MB // 4, bound=bound), Flow(1, 0, 1, at=US)]
    outcome = play(star_of(3, rate=10 * GBPS, loss=loss), flows, transport("ltp"), buffer=MB)
    assert outcome.drops["link_loss"] > 0
    assert all(lost <= bound * flow.nbytes for flow, lost in zip(flows, outcome.lost, strict=True))
    assert max(outcome.ends) < 200 * MS


def test_loss_bound_avoids_retransmissions_and_shortens_completion():
    """5 % of the packets are lost; a bound of 0.1 makes retransmissions unnecessary."""
    flows = [Flow(1, 0, 4 * MB, bound=0.1)]
    early = play(star_of(2, loss=0.05), flows, transport("ltp", threshold=0.0), buffer=10 * MB)
    whole = play(star_of(2, loss=0.05), [Flow(1, 0, 4 * MB)], transport("ltp"), buffer=10 * MB)
    assert 0 < early.lost[0] <= 0.1 * 4 * MB
    assert early.ends[0] < whole.ends[0]
    assert early.again == [0] < whole.again
