"""DLCP's two ends over sockets beside those of the simulator: the same news in the same order, the same answers.

The rules are the same functions, compiled for records of their own; here they are told the same as the functions that
the simulator compiles, and every word of both records has to be the same after each step. Bitmaps go
through the bytes that the side channel carries."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from dlcp_both import BASE, Both
from transport_bench import US

from gradwire.emu.transports import dlcp
from gradwire.emu.transports.datagrams import DatagramCarrier
from gradwire.emu.wire.header import ACK, BITMAP, STOP
from gradwire.jit.records import constants as at
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE
from gradwire.protocols.transports.dlcp.records import ANSWERED_MIDWAY
from gradwire.scenarios.wire import BITMAP_PACKETS


def test_answer_kinds_equal_those_of_the_simulator():
    assert (ACK, STOP, BITMAP) == (at.ACK, at.STOP, at.BITMAP)


@pytest.mark.parametrize("control", ["receiver", "dctcp", "delay"])
@pytest.mark.parametrize("policy", ["early", "eager", "on_probe"])
@pytest.mark.parametrize("packets", [1, 3, 700, 9000, 17_000])
@pytest.mark.parametrize("seed", range(2))
def test_socket_and_simulator_endpoints_agree_under_random_events(control, policy, packets, seed):
    """Packets are lost, marked and reordered at random until both ends are done."""
    rng = random.Random(f"{control} {policy} {packets} {seed}")
    loss, marks = rng.choice([0.0, 0.1, 0.5]), rng.choice([0.0, 0.02, 0.4])
    allowed = rng.choice([0, 99, packets * 100 // 20])
    tags = rng.choice([True, False, [rng.random() < 0.5 for _ in range(packets)]])
    both = Both(
        packets, last=rng.choice([1, 60, 100]), tags=tags, allowed=min(allowed, packets * 100 - 100), stop_policy=policy,
        entropy=rng.randrange(1 << 16), send_order=rng.choice(["important_first", "sequential", "random"]),
        rate_control=control, important_must_arrive=rng.random() < 0.7, t_low=8 * US, t_high=40 * US, floor=rng.choice([8, 64]),
        g=rng.choice([0.0625, 0.5]), add_rate=10**9, probe_timeout=rng.choice([20 * US, 200 * US]),
    )  # fmt: skip
    now, bag = 0, []
    for _ in range(40 * packets + 2000):
        if len(bag) < 40:
            for _ in range(20):
                got = both.pull(now)
                if got < 0:
                    break
                bag.append(
                    ("probe", got - at.PULL_PROBE) if got >= at.PULL_PROBE else ("data", got & (IMPORTANT_FLAG - 1))
                )
        now += rng.randrange(1, US)
        timer = both.sender.timer
        if not bag or 0 < timer <= now:
            if not timer:
                break
            now = max(now, timer)
            both.fire()
            continue
        kind, first, *more = bag.pop(min(len(bag) - 1, int(rng.expovariate(0.2))))
        if rng.random() < loss:
            continue
        if kind == "data":
            ce = int(rng.random() < marks)
            answer, senders = both.data(first, ce, now)
            if answer == ACK:
                bag.append(("ack", first, ce, senders))
            elif answer == STOP:
                bag.append(("stop", 0))
        elif kind == "probe":
            answer = both.probe(first, now)
            if answer == STOP:
                bag.append(("stop", 0))
            elif answer == BITMAP:
                parts = dlcp.parts_of(both.receiver, first >> 12)
                bag += [("bitmap", part, first, *parts[part]) for part in range(len(parts))]
        elif kind == "ack":
            both.ack(first, more[0], now, more[1])
        elif kind == "bitmap":
            both.bitmap(first, *more, now)
        else:
            both.stop()
            break
    assert both.sender.done and both.receiver.done
    both.same_bitmaps()
    lost = both.receiver.nbytes - both.receiver.received_bytes
    assert 0 <= lost <= both.receiver.record.allowed_loss


def test_receiver_answers_a_probe_number_once_per_base_round_trip():
    both = Both(40, last=100, probe_timeout=20 * US)
    while both.pull(0) >= 0:
        pass
    for sequence in range(30):
        both.data(sequence, 0, 0)
    now = both.fire()
    assert both.pull(now) == at.PULL_PROBE + 1
    assert both.probe(1, now) == BITMAP
    for sequence in range(30, 35):
        both.data(sequence, 0, now)
    assert [both.probe(1, now + late) for late in (0, BASE - 1, BASE, BASE + 1)] == [-1, -1, BITMAP, -1]
    [(first, content)] = dlcp.parts_of(both.receiver, 0)
    again = both.fire()
    assert both.pull(again) == at.PULL_PROBE + 1
    both.bitmap(0, 1, first, content, again)
    assert both.flow.quota == 10  # of the five that came meanwhile nothing is known
    assert [both.pull(again) for _ in range(4)] == [sequence | IMPORTANT_FLAG for sequence in range(30, 34)]
    both.bitmap(0, 1, first, content, again)
    assert both.flow.quota == 6


def test_missing_important_packets_are_retransmitted_during_the_pass():
    """The first half is important, and its last four packets are lost. The probe is sent during the droppable half,
    and its answer puts the missing packets first."""
    both = Both(200, tags=[i < 100 for i in range(200)], probe_timeout=20 * US)
    sent = [both.pull(0) for _ in range(101)]
    assert sorted(sent[:100]) == list(range(100)) and both.sender.timer
    for sequence in sent[:96]:
        both.data(sequence, 0, 0)
    now = both.fire()
    assert both.pull(now) == at.PULL_PROBE + 1
    assert both.pull(now) >= 100  # the pass goes on meanwhile
    assert both.probe(1, now) == BITMAP
    [(first, content)] = dlcp.parts_of(both.receiver, 0)
    both.bitmap(0, 1, first, content, now)
    assert both.flow.midway_state == ANSWERED_MIDWAY
    assert sorted(both.pull(now) & ~IMPORTANT_FLAG for _ in range(4)) == sorted(sent[96:100])
    assert both.pull(now) >= 100


def delays(both, *round_trips, start=0):
    """One packet after the other is sent, and comes back after these times. Returns the rate after each."""
    now, rates = start, []
    for rtt in round_trips:
        sequence = both.pull(now)
        both.ack(sequence, 0, now + rtt)
        now += rtt
        rates.append(both.pair.rate)
    return rates


LAST = 1 - 2**-20
"""Of the share of a new difference: nearly all of it, as much as there can be."""


def by_delay(**more):
    settings = {"t_low": 20 * US, "t_high": 100 * US, "add_rate": 10**8, "ewma": 0.5} | more
    return Both(1000, rate_control="delay", **settings)


def test_delay_control_treats_t_low_as_not_below_the_threshold():
    """With rising delays, exactly t_low lowers the rate; a picosecond less raises it."""
    for last, rises in ((20 * US, False), (20 * US - 1, True)):
        before, after = delays(by_delay(ewma=LAST), 150 * US, 10 * US, last)[1:]
        assert before < ONE and (after > before) == rises


def test_delay_control_treats_t_high_as_not_above_the_threshold():
    """With falling delays, exactly t_high raises the rate; a picosecond more lowers it."""
    for last, rises in ((100 * US, True), (100 * US + 1, False)):
        before, after = delays(by_delay(ewma=LAST), 300 * US, last)
        assert before < ONE and (after > before) == rises


def test_fifth_calm_round_trip_starts_fivefold_rate_increase():
    """A round trip above t_high lowers the rate; the following ones of 50 us are calm."""
    rates = delays(by_delay(beta=1.0), 5000 * US, *[50 * US] * 8)
    steps = [after - before for before, after in pairwise(rates)]
    assert steps[:4] == [steps[0]] * 4 and steps[4:7] == [5 * steps[0]] * 3
    assert rates[-1] < ONE


@pytest.mark.parametrize("restless", [5000 * US, 90 * US])
def test_calm_count_restarts_after_a_high_or_rising_delay(restless):
    rates = delays(by_delay(beta=1.0, ewma=LAST), 5000 * US, *[50 * US] * 3, restless, *[50 * US] * 4)
    steps = [after - before for before, after in pairwise(rates)]
    assert steps[3] < 0 and steps[4:] == [steps[0]] * 4


def test_round_trips_below_t_low_leave_the_calm_count_unchanged():
    """Round trips below t_low neither count as calm nor end it, as in the simulator."""
    rates = delays(by_delay(beta=1.0, ewma=LAST), 5000 * US, *[50 * US] * 4, 10 * US, 10 * US)
    steps = [after - before for before, after in pairwise(rates)]
    assert steps[4:] == [steps[0]] * 2


# --- Bitmaps of several parts ---------------------------------------------------------------------------------------

LARGE = 20_000  # three parts


def probed(missing=(100, 10_000, 17_000), **settings):
    """All packets of a large message but some have arrived, and the sender has asked. Returns both, and the time."""
    both = Both(LARGE, **settings)
    while both.pull(0) >= 0:
        pass
    for sequence in range(LARGE):
        if sequence not in missing:
            both.data(sequence, 0, 0)
    now = both.fire()
    assert both.pull(now) == at.PULL_PROBE + 1
    return both, now


def test_duplicate_bitmap_parts_do_not_replace_missing_parts():
    both, now = probed()
    assert both.probe(1, now) == BITMAP
    parts = dlcp.parts_of(both.receiver, 0)
    for part in (1, 1, 1, 0, 0, 2):
        assert both.flow.quota == 0
        both.bitmap(part, 1, *parts[part], now)
    assert [both.pull(now) & ~IMPORTANT_FLAG for _ in range(3)] == [100, 10_000, 17_000]


def test_lost_bitmap_parts_are_requested_individually_in_each_round():
    both, now = probed()
    both.probe(1, now)
    parts = dlcp.parts_of(both.receiver, 0)
    both.bitmap(2, 1, *parts[2], now)
    now = both.fire()
    assert both.pull(now) == at.PULL_PROBE + (1 << 12 | 1)
    for part in (0, 1):
        both.bitmap(part, 1, *parts[part], now)  # late: the second is not asked for any more
    assert [both.pull(now) & ~IMPORTANT_FLAG for _ in range(3)] == [100, 10_000, 17_000]
    while both.pull(now) >= 0:
        pass
    now = both.fire()
    assert both.pull(now) == at.PULL_PROBE + 2
    both.probe(2, now)
    parts = dlcp.parts_of(both.receiver, 0)
    both.bitmap(0, 2, *parts[0], now)
    now = both.fire()
    assert [both.pull(now), both.pull(now)] == [at.PULL_PROBE + (part << 12 | 2) for part in (2, 3)]
    assert dlcp.parts_of(both.receiver, 3) == [(2 * BITMAP_PACKETS, parts[2][1])]


def test_arriving_bitmap_part_restarts_the_probe_timer():
    both, now = probed()
    both.probe(1, now)
    parts = dlcp.parts_of(both.receiver, 0)
    for part in (0, 1):
        now = both.sender.timer - 1
        both.bitmap(part, 1, *parts[part], now)
        assert both.sender.timer == now + both.flow.probe_wait
    assert both.fire() == now + both.flow.probe_wait


def test_probe_timeout_doubles_with_each_round_of_requests_for_missing_parts():
    both, now = probed(probe_timeout=5 * US)
    both.probe(1, now)
    both.bitmap(0, 1, *dlcp.parts_of(both.receiver, 0)[0], now)
    waits = []
    for _ in range(3):
        now = both.fire()
        while both.pull(now) >= 0:  # both parts that are missing, then nothing
            pass
        waits.append(both.sender.timer - now)
    assert waits == [first := waits[0], 2 * first, 4 * first]


def test_probes_are_not_counted_as_retransmissions():
    """This includes repeated probes and requests for bitmap parts."""
    both, now = probed()
    for _ in range(2):
        both.probe(1, now)
        now = both.fire()
        assert both.pull(now) == at.PULL_PROBE + 1
    parts = dlcp.parts_of(both.receiver, 0)
    both.bitmap(1, 1, *parts[1], now)
    now = both.fire()
    asked = [both.pull(now) for _ in range(2)]
    assert both.sender.probes == 5 and min(asked) > at.PULL_PROBE
    both.sender.record.sent = LARGE + 5 + 7  # as the interface counts: seven packets again
    assert list(DatagramCarrier.counts(SimpleNamespace(_sent=[both.sender])).values()) == [(LARGE + 12, 7)]


def test_receiver_ignores_outdated_probes_and_answers_newer_ones_at_once():
    both, now = probed()
    assert [both.probe(number, now) for number in (5, 4, 5, 6, 2, 3 << 12 | 6, 3 << 12 | 6)] == [
        BITMAP, -1, -1, BITMAP, -1, BITMAP, -1,
    ]  # fmt: skip
    assert both.probe((6 + 2048) & 4095, now + BASE) == -1 and both.probe((6 + 2047) & 4095, now + BASE) == BITMAP


@pytest.mark.parametrize("control", ["receiver", "dctcp"])
@pytest.mark.parametrize("seed", range(8))
def test_rates_by_marks_equal_the_simulator_under_loss_and_reordering(control, seed):
    """Rates, mark shares, round trips and sender counts are random."""
    rng = random.Random(seed)
    both = Both(4000, rate_control=control, g=rng.choice([0.0625, 0.5]), floor=rng.choice([8, 64]))
    marks, now, out = rng.choice([0.0, 0.02, 0.3]), 0, []
    for _ in range(400):
        if rng.random() < 0.05:
            both.set_pair(rate=rng.randrange(ONE // 64, ONE))
            both.set_pair(alpha=rng.randrange(ONE))
        for _ in range(rng.randrange(8)):
            out.append(both.pull(now))
        now += rng.choice([1, US, 5 * US, 100 * US])
        while out and rng.random() < 0.85:
            sequence = out.pop(min(len(out) - 1, rng.choice([0, 0, 0, 1, 3])))
            if rng.random() < 0.9:
                both.ack(sequence, int(rng.random() < marks), now, rng.choice([1, 1, 2, 9]))
