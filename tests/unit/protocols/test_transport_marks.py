"""Reactions to marks, of NewReno (RFC 3168) and DCTCP (RFC 8257), and both under random loss, reordering and marks."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from transport_bench import GBPS, MS, US

from gradwire.protocols.transports.base import ONE as WHOLE
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness, Word

ONE = 1 << 16  # a window of one packet


def sender(owner=TcpNewReno, packets=1000, **settings):
    return FlowHarness(owner, packets, **settings)


# --- NewReno ----------------------------------------------------------------------------------------------------


def test_ecn_marks_halve_the_window_once_per_window_of_data():
    flow = sender(ecn=True)
    flow.pull()
    flow.ack(0, 1, echo=1)
    assert flow.sender.cwnd == flow.sender.ssthresh == 5 * ONE
    for sequence in range(1, 10):
        flow.ack(sequence, sequence + 1, echo=1)
        flow.pull()
    assert flow.sender.cwnd == 5 * ONE  # the window of the first mark: 0 to 9
    flow.ack(10, 11, echo=1)
    assert flow.sender.cwnd == 5 * ONE >> 1


def test_loss_and_mark_in_one_window_reduce_the_window_once():
    flow = sender(ecn=True)
    flow.pull()
    for sequence in (1, 2, 3):
        flow.ack(sequence, 0)
    flow.ack(4, 0, echo=1)
    assert flow.sender.cwnd == 5 * ONE
    marked = sender(ecn=True)
    marked.pull()
    marked.ack(0, 1, echo=1)
    for sequence in (2, 3, 4):
        marked.ack(sequence, 1)
    assert marked.sender.cwnd == 5 * ONE
    assert marked.pull() == [1]


def test_window_does_not_grow_until_recovery_ends_after_an_ecn_reduction():
    flow = sender(ecn=True)
    flow.pull()
    for sequence in range(7):
        flow.ack(sequence, sequence + 1, echo=int(sequence == 0))
        flow.pull()  # 5 allowed: 10 and 11 are new
    assert flow.sender.nxt == 12
    for sequence in (8, 9, 10):
        flow.ack(sequence, 7)
    assert flow.sender.cwnd == 5 * ONE
    assert flow.pull()[0] == 7
    flow.ack(7, 11)
    flow.pull()
    flow.ack(11, 12)  # the window of the mark, 0 to 9, is long over, that of the loss ends here
    assert flow.sender.cwnd == 5 * ONE


def test_mark_after_a_timeout_does_not_stop_slow_start():
    flow = sender(ecn=True)
    flow.pull()
    flow.fire()
    flow.pull(now=2 * MS)
    flow.ack(0, 1, echo=1, now=3 * MS)
    assert flow.sender.cwnd == 2 * ONE
    flow.pull(now=3 * MS)
    flow.ack(1, 2, now=3 * MS)
    assert flow.sender.cwnd == 3 * ONE


# --- DCTCP -----------------------------------------------------------------------------------------------------


def follow(patterns, g=Fraction(1, 16), window=10):
    """Alpha of RFC 8257 after each observation window; patterns: (marked, acknowledged)."""
    alpha = Fraction(1)
    for marked, packets in patterns:
        alpha = alpha * (1 - g) + g * Fraction(marked, packets)
        yield alpha


def test_dctcp_alpha_matches_the_rfc_8257_average_of_mark_shares():
    """The first window is one packet; the second holds the 10 packets in flight at the end of the first."""
    flow = sender(Dctcp)
    assert flow.sender.alpha == WHOLE
    marked = {1, 2, 3, 14, 15, *range(21, 31)}
    ends = {0: (0, 1), 9: (3, 9)}
    flow.sender.ssthresh = 2 * ONE
    flow.pull()
    seen, counts, window, end = [], [0, 0], [], 0
    for sequence in range(60):
        flow.ack(sequence, sequence + 1, echo=int(sequence in marked))
        counts[0] += sequence in marked
        counts[1] += 1
        if sequence + 1 >= end:
            window.append(tuple(counts))
            counts, end = [0, 0], flow.sender.nxt
            seen.append(flow.sender.alpha)
        flow.pull()
    assert (window[0], window[1]) == (ends[0], ends[9])
    assert len(window) > 5
    for alpha, expected in zip(seen, follow(window), strict=True):
        assert abs(alpha - expected * WHOLE) < 20  # rounding down, once per window
    assert seen[0] == WHOLE * 15 // 16
    assert seen[1] == WHOLE * 15 // 16 + (WHOLE // 3 - WHOLE * 15 // 16) // 16


def test_dctcp_alpha_decays_to_zero_without_marks():
    flow = sender(Dctcp, 100_000)
    flow.sender.ssthresh = 2 * ONE
    flow.pull()
    for sequence in range(20_000):
        flow.ack(sequence, sequence + 1)
        flow.pull()
    assert flow.sender.alpha == 0


def test_first_mark_halves_the_window_because_alpha_starts_at_one():
    flow = sender(Dctcp)
    flow.pull()
    flow.ack(0, 1, echo=1)
    assert flow.sender.alpha == WHOLE
    assert flow.sender.cwnd == flow.sender.ssthresh == 5 * ONE


def test_window_shrinks_by_half_of_alpha_once_per_window():
    flow = sender(Dctcp)
    flow.sender.ssthresh = 10 * ONE
    flow.pull()
    flow.sender.alpha = WHOLE // 4 * 16 // 15  # a quarter after the first window, which has no mark
    flow.ack(0, 1)
    flow.pull()
    assert abs(flow.sender.alpha - WHOLE // 4) <= 1
    before = flow.sender.cwnd
    flow.ack(1, 2, echo=1)
    assert abs(flow.sender.cwnd - before * 7 // 8) <= 4
    assert flow.sender.ssthresh == flow.sender.cwnd
    out, after = flow.sender.nxt, flow.sender.cwnd
    for sequence in range(2, out):
        flow.ack(sequence, sequence + 1, echo=1)
        flow.pull()
        assert flow.sender.cwnd == after  # neither smaller nor larger
    flow.ack(out, out + 1, echo=1)
    assert flow.sender.cwnd < after


def test_window_never_falls_below_two_packets():
    flow = sender(Dctcp)
    flow.pull()
    for sequence in range(200):
        flow.ack(sequence, sequence + 1, echo=1)
        flow.pull()
    assert flow.sender.cwnd == 2 * ONE


def test_dctcp_halves_the_window_on_loss_like_newreno():
    flow = sender(Dctcp)
    flow.pull()
    flow.sender.alpha = 0
    for sequence in (1, 2, 3):
        flow.ack(sequence, 0)
    assert flow.sender.cwnd == 5 * ONE
    assert flow.pull() == [0]


@pytest.mark.parametrize("rate", [10**7, 800 * GBPS])
@pytest.mark.parametrize("owner", [TcpNewReno, Dctcp])
def test_numbers_fit_64_bits_on_slow_and_fast_links(owner, rate):
    flow = sender(owner, 1 << 18, rate=rate, word=Word, base_rtt=100 * MS if rate == 10**7 else US)
    flow.sender.ssthresh = flow.sender.cwnd = (1 << 21) * ONE
    flow.sender.nxt = flow.sender.in_flight = 1 << 14
    for sequence in range(100):
        flow.ack(sequence, sequence + 1, echo=sequence % 7 == 0, now=sequence * 10**12)
        flow.pull(sequence * 10**12, most=2)
    assert flow.sender.cwnd > 0
    assert flow.sender.srtt >= 0
    flow.fire()
    assert flow.sender.lost_packets == flow.sender.nxt - 100


# --- everything together --------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [TcpNewReno, Dctcp])
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_packet_counts_match_scoreboard_under_loss_reordering_and_marks(owner, loss, seed):
    """Packets and acknowledgements are lost, reordered and marked at random."""
    rng = random.Random(seed)
    flow = FlowHarness(owner, 300, ecn=True, word=Word)
    now, bag = 0, []
    for _ in range(100_000):
        for sequence in flow.pull(now):
            bag.append(("data", sequence, 0))
        acked, lost, sent = set(flow.packets_in("acknowledged")), set(flow.packets_in("lost")), flow.sender.nxt
        out = [i for i in range(sent) if i not in acked and i not in lost]
        assert flow.sender.in_flight == len(out)
        waiting = [i for i in lost if i not in acked]
        assert flow.sender.lost_packets == len(waiting)
        assert flow.sender.cwnd >= ONE
        assert flow.sender.timer > 0
        now += rng.randrange(1, US)
        if not bag or flow.sender.timer <= now:
            now = max(now, flow.sender.timer)
            flow.fire()
            continue
        kind, sequence, argument = bag.pop(min(len(bag) - 1, int(rng.expovariate(0.5))))
        if rng.random() < loss:
            continue
        if kind == "data":
            reply = flow.data(sequence, ce=int(rng.random() < 0.1))
            bag.append((reply.echo, sequence, reply.argument))
        else:
            flow.ack(sequence, argument, echo=kind, now=now)
            if flow.sender.is_done:
                break
    assert flow.sender.is_done == flow.receiver.is_done == 1
    assert flow.sender.timer == 0
