"""DLCP's two ends over sockets beside those of the simulator: the same news in the same order, the same answers."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from transport_bench import GBPS, US, Ends

from gradwire.emu.agent.base import MessageRow
from gradwire.emu.transports import constant_rate, dlcp
from gradwire.emu.transports.datagrams import DatagramCarrier
from gradwire.emu.wire import ACK, BITMAP, STOP
from gradwire.scenarios.wire import BITMAP_PACKETS
from gradwire.sim.fabric import layout as at
from gradwire.sim.transports.constant_rate import FRESH as CR_FRESH
from gradwire.sim.transports.constant_rate import ConstantRate
from gradwire.sim.transports.dlcp import (
    AGAIN,
    ALPHA,
    ASKING,
    CALM,
    LAST_RTT,
    NEW,
    NEXT,
    PROBE,
    PROBES,
    PROBING,
    RATE,
    REDUCED,
    ROUND_END,
    SLOPE,
    SRTT,
    TIMED,
    WAIT,
    Dlcp,
)

BASE = 10 * US
BITS = 32


def test_kinds_are_those_of_the_simulator():
    assert (ACK, STOP, BITMAP) == (at.ACK, at.STOP, at.BITMAP)
    assert dlcp.MUST == 1 << 30 and dlcp.ONE == 1 << 20


class Both:
    """The simulator's ends and the sockets', told the same; every step compares them."""

    def __init__(self, packets, payload=100, last=100, tags=True, allowed=0, **settings):
        self.ends = Ends(
            Dlcp, packets, payload=payload, last=last, tags=tags, allowed=allowed, base_rtt=BASE, **settings
        )
        nbytes = payload * (packets - 1) + last
        important = tags if isinstance(tags, bool) else np.array(tags, dtype=bool)
        row = MessageRow(0, 0, 0, 1, nbytes, 0, (allowed + 0.5) / nbytes, important, 0)
        rules = dlcp.Rules(settings, base_rtt=BASE, payload=payload)
        line = -(-(8_000_000_000_000 << 16) // (100 * GBPS))
        self.sender = dlcp.Sender(rules, 0, 0, packets, line)
        self.receiver = dlcp.Receiver(rules, row, payload)
        assert self.receiver.allowed == allowed
        self.same()

    def same(self):
        ends, s = self.ends, self.sender
        theirs = [ends[w] for w in (
            NEW, AGAIN, NEXT, RATE, ALPHA, SRTT, TIMED, PROBE, PROBES, PROBING, ASKING, WAIT, LAST_RTT, SLOPE, CALM,
            REDUCED, ROUND_END,
        )]  # fmt: skip
        ours = [
            s.new, s.again_count, s.next, s.rate, s.alpha, s.srtt, s.timed, s.probe, s.probes, s.probing, s.asking, s.wait,
            s.last_rtt, s.slope, s.calm, s.reduced, s.round_end,
        ]  # fmt: skip
        assert ours == theirs
        assert (s.gap, s.timer, int(s.done)) == (ends[at.S_GAP], ends[at.S_TIMER], ends[at.S_DONE])
        r = self.receiver
        assert (r.got, int(r.done)) == (ends.at_receiver(at.R_GOT), ends.at_receiver(at.R_DONE))

    def pull(self, now):
        theirs = self.ends.pull(now, most=1)
        ours = self.sender.pull(now)
        assert ours == (theirs[0] if theirs else -1)
        self.same()
        return ours

    def data(self, sequence, ce, now):
        theirs = self.ends.data(sequence, ce, now)
        ours = self.receiver.on_data(sequence, self.receiver.size(sequence), ce, now)
        assert ours == (theirs.kind if theirs.count else -1)
        self.same()
        return ours

    def ack(self, sequence, echo, now):
        if not self.sender.done:
            self.ends.ack(sequence, echo=echo, now=now)
            self.sender.on_ack(sequence, echo, now)
            self.same()

    def probe(self, number, now):
        theirs = self.ends.probe(number, now)
        ours = self.receiver.on_probe(number, now)
        assert ours == (theirs.kind if theirs.count else -1)
        if ours == BITMAP:
            assert theirs.count == len(self.receiver.bitmap(number >> 12)) and theirs.argument == number
            assert theirs.size == 66 + len(self.receiver.bitmap()[0][1])
        self.same()
        return ours

    def bitmap(self, part, number, first, content, now):
        """A part of an answer. The simulator's sender reads the last snapshot, which must be the one it asked for."""
        count = min(self.sender.packets - first, BITMAP_PACKETS)
        have = np.unpackbits(np.frombuffer(content, dtype=np.uint8), bitorder="little")[:count].astype(bool)
        self.ends.control(at.BITMAP, part, number, now=now)
        self.sender.on_bitmap(first, have, number, now)
        self.same()

    def stop(self):
        self.ends.control(at.STOP, 0, 0)
        self.sender.on_stop()
        self.same()

    def fire(self):
        now = self.ends.fire()
        assert now == self.sender.timer
        self.sender.timer = 0
        self.sender.on_timer(now)
        self.same()
        return now


@pytest.mark.parametrize("control", ["dctcp", "delay"])
@pytest.mark.parametrize("policy", ["eager", "on_probe"])
@pytest.mark.parametrize("packets", [1, 3, 700, 9000, 30_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_news_have_the_same_consequences(control, policy, packets, seed):
    """Losses, marks and overtaking at random, until both say that the message is there."""
    rng = random.Random(f"{control} {policy} {packets} {seed}")
    loss, marks = rng.choice([0.0, 0.1, 0.5]), rng.choice([0.0, 0.02, 0.4])
    allowed = rng.choice([0, 99, packets * 100 // 20])
    tags = rng.choice([True, False, [rng.random() < 0.5 for _ in range(packets)]])
    both = Both(
        packets, last=rng.choice([1, 60, 100]), tags=tags, allowed=min(allowed, packets * 100 - 100), stop_policy=policy,
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
                bag.append(("probe", got - dlcp.PULL_PROBE) if got >= dlcp.PULL_PROBE else ("data", got & (dlcp.MUST - 1)))
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
            answer = both.data(first, ce, now)
            if answer == ACK:
                bag.append(("ack", first, ce))
            elif answer == STOP:
                bag.append(("stop", 0))
        elif kind == "probe":
            answer = both.probe(first, now)
            if answer == STOP:
                bag.append(("stop", 0))
            elif answer == BITMAP:
                parts = both.receiver.bitmap(first >> 12)
                bag += [("bitmap", part, first, *parts[part]) for part in range(len(parts))]
        elif kind == "ack":
            both.ack(first, more[0], now)
        elif kind == "bitmap":
            both.bitmap(first, *more, now)
        else:
            both.stop()
            break
    assert both.sender.done and both.receiver.done
    lost = both.receiver.nbytes - both.receiver.got
    assert 0 <= lost <= both.receiver.allowed


def test_a_number_is_answered_with_what_was_there_once_per_base_round_trip_and_heard_once():
    both = Both(40, last=100, probe_timeout=20 * US)
    while both.pull(0) >= 0:
        pass
    for sequence in range(30):
        both.data(sequence, 0, 0)
    now = both.fire()
    assert both.pull(now) == dlcp.PULL_PROBE + 1
    assert both.probe(1, now) == BITMAP
    for sequence in range(30, 35):
        both.data(sequence, 0, now)
    assert [both.probe(1, now + late) for late in (0, BASE - 1, BASE, BASE + 1)] == [-1, -1, BITMAP, -1]
    [(first, content)] = both.receiver.bitmap()
    again = both.fire()
    assert both.pull(again) == dlcp.PULL_PROBE + 1
    both.bitmap(0, 1, first, content, again)
    assert both.sender.again_count == 10  # of the five that came meanwhile nothing is known
    assert [both.pull(again) for _ in range(4)] == [sequence | dlcp.MUST for sequence in range(30, 34)]
    both.bitmap(0, 1, first, content, again)
    assert both.sender.again_count == 6


@pytest.mark.parametrize("packets", [1, 2, 5, 7, 10, 333])
@pytest.mark.parametrize("seed", range(4))
def test_constant_rate_does_the_same(packets, seed):
    rng = random.Random(f"{packets} {seed}")
    loss, share, allowed = rng.choice([0.0, 0.3, 0.8]), rng.choice([1.0, 0.37]), rng.choice([0, packets * 100 // 10])
    ends = Ends(ConstantRate, packets, payload=100, allowed=allowed, base_rtt=BASE, tags=False, share=share, repeat_after=50 * US)
    rules = constant_rate.Rules({"share": share, "repeat_after": 50 * US}, base_rtt=BASE)
    sender = constant_rate.Sender(rules, 0, 0, packets, ends[at.S_LINE])
    row = MessageRow(0, 0, 0, 1, 100 * packets, 0, (allowed + 0.5) / (100 * packets), False, 0)
    receiver = constant_rate.Receiver(row, 100)
    assert sender.gap == ends[at.S_GAP]
    now, sent = 0, 0
    while not sender.done:
        theirs, ours = ends.pull(now, most=1), sender.pull(now)
        assert ours == (theirs[0] if theirs else -1)
        assert (sender.timer, sender.fresh) == (ends[at.S_TIMER], ends[CR_FRESH])
        if ours < 0:
            now = ends.fire()
            sender.timer = 0
            sender.on_timer(now)
            continue
        sent += 1
        assert sent < 100_000
        if rng.random() >= loss:
            reply = ends.data(ours, now=now)
            answer = receiver.on_data(ours, 100, 0, now)
            assert answer == (reply.kind if reply.count else -1)
            if answer == STOP and rng.random() >= loss:
                sender.on_stop()
    assert receiver.nbytes - receiver.got <= allowed


def delays(both, *round_trips, start=0):
    """One packet after the other is sent, and comes back after these times. Returns the rate after each."""
    now, rates = start, []
    for rtt in round_trips:
        sequence = both.pull(now)
        both.ack(sequence, 0, now + rtt)
        now += rtt
        rates.append(both.sender.rate)
    return rates


def by_delay(**more):
    settings = {"t_low": 20 * US, "t_high": 100 * US, "add_rate": 10**8, "ewma": 0.5} | more
    return Both(1000, rate_control="delay", **settings)




def test_a_round_trip_of_just_t_low_is_not_below_it():
    """With delays on the rise, one of just t_low lowers the rate; a picosecond less raises it."""
    for last, rises in ((20 * US, False), (20 * US - 1, True)):
        before, after = delays(by_delay(ewma=1.0), 150 * US, 10 * US, last)[1:]
        assert before < dlcp.ONE and (after > before) == rises


def test_a_round_trip_of_just_t_high_is_not_above_it():
    """150 us and 100 us: delays fall, so that just t_high raises the rate, and a picosecond more lowers it."""
    for last, rises in ((100 * US, True), (100 * US + 1, False)):
        before, after = delays(by_delay(ewma=1.0), 300 * US, last)
        assert before < dlcp.ONE and (after > before) == rises


def test_the_fifth_calm_round_trip_raises_the_rate_five_times_as_fast():
    """One above t_high lowers the rate; then every one of 50 us is calm."""
    rates = delays(by_delay(beta=1.0), 5000 * US, *[50 * US] * 8)
    steps = [after - before for before, after in pairwise(rates)]
    assert steps[:4] == [steps[0]] * 4 and steps[4:7] == [5 * steps[0]] * 3
    assert rates[-1] < dlcp.ONE


@pytest.mark.parametrize("restless", [5000 * US, 90 * US])
def test_calm_begins_anew_after_a_restless_round_trip(restless):
    """Above t_high, or on the rise."""
    rates = delays(by_delay(beta=1.0, ewma=1.0), 5000 * US, *[50 * US] * 3, restless, *[50 * US] * 4)
    steps = [after - before for before, after in pairwise(rates)]
    assert steps[3] < 0 and steps[4:] == [steps[0]] * 4


def test_below_t_low_calm_is_kept():
    """As in the simulator: round trips below t_low neither count as calm nor end it."""
    rates = delays(by_delay(beta=1.0, ewma=1.0), 5000 * US, *[50 * US] * 4, 10 * US, 10 * US)
    steps = [after - before for before, after in pairwise(rates)]
    assert steps[4:] == [steps[0]] * 2


# --- Bitmaps of several parts ---------------------------------------------------------------------------------------

LARGE = 20_000  # three parts


def probed(missing=(100, 10_000, 17_000)):
    """All packets of a large message but some have arrived, and the sender has asked. Returns both, and the time."""
    both = Both(LARGE)
    while both.pull(0) >= 0:
        pass
    for sequence in range(LARGE):
        if sequence not in missing:
            both.data(sequence, 0, 0)
    now = both.fire()
    assert both.pull(now) == dlcp.PULL_PROBE + 1
    return both, now


def test_copies_of_a_part_do_not_stand_for_others():
    both, now = probed()
    assert both.probe(1, now) == BITMAP
    parts = both.receiver.bitmap()
    for part in (1, 1, 1, 0, 0, 2):
        assert both.sender.again_count < 3
        both.bitmap(part, 1, *parts[part], now)
    assert [both.pull(now) & ~dlcp.MUST for _ in range(3)] == [100, 10_000, 17_000]


def test_parts_that_are_lost_are_asked_for_one_by_one_from_the_first_in_every_round():
    both, now = probed()
    both.probe(1, now)
    parts = both.receiver.bitmap()
    both.bitmap(2, 1, *parts[2], now)
    now = both.fire()
    assert both.pull(now) == dlcp.PULL_PROBE + (1 << 12 | 1)
    for part in (0, 1):
        both.bitmap(part, 1, *parts[part], now)  # late: the second is not asked for any more
    assert [both.pull(now) & ~dlcp.MUST for _ in range(3)] == [100, 10_000, 17_000]
    while both.pull(now) >= 0:
        pass
    now = both.fire()
    assert both.pull(now) == dlcp.PULL_PROBE + 2
    both.probe(2, now)
    parts = both.receiver.bitmap()
    both.bitmap(0, 2, *parts[0], now)
    now = both.fire()
    assert [both.pull(now), both.pull(now)] == [dlcp.PULL_PROBE + (part << 12 | 2) for part in (2, 3)]
    assert both.receiver.bitmap(3) == [(2 * BITMAP_PACKETS, parts[2][1])]


def test_parts_that_come_put_off_the_time_when_the_others_are_overdue():
    both, now = probed()
    both.probe(1, now)
    parts = both.receiver.bitmap()
    for part in (0, 1):
        now = both.sender.timer - 1
        both.bitmap(part, 1, *parts[part], now)
        assert both.sender.timer == now + both.sender.wait
    assert both.fire() == now + both.sender.wait


def test_no_probe_is_counted_as_data_that_was_sent_again():
    """Nor one that repeats another, or asks for a part."""
    both, now = probed()
    for _ in range(2):
        both.probe(1, now)
        now = both.fire()
        assert both.pull(now) == dlcp.PULL_PROBE + 1
    parts = both.receiver.bitmap()
    both.bitmap(1, 1, *parts[1], now)
    now = both.fire()
    asked = [both.pull(now) for _ in range(2)]
    assert both.sender.probes == 5 and min(asked) > dlcp.PULL_PROBE
    both.sender.sent = LARGE + 5 + 7  # as the interface counts: seven packets again
    assert DatagramCarrier._count(None, both.sender) == (LARGE + 12, 7)


def test_a_probe_that_was_overtaken_is_not_answered_and_a_newer_one_at_once():
    both, now = probed()
    assert [both.probe(number, now) for number in (5, 4, 5, 6, 2, 3 << 12 | 6, 3 << 12 | 6)] == [
        BITMAP, -1, -1, BITMAP, -1, BITMAP, -1,
    ]  # fmt: skip
    assert both.probe((6 + 2048) & 4095, now + BASE) == -1 and both.probe((6 + 2047) & 4095, now + BASE) == BITMAP


@pytest.mark.parametrize("seed", range(12))
def test_the_same_rates_by_marks_whatever_is_lost_or_overtaken(seed):
    """From rates and shares of marks of all kinds, over round trips of all lengths."""
    rng = random.Random(seed)
    both = Both(4000, rate_control="dctcp", g=rng.choice([0.0625, 0.5]), floor=rng.choice([8, 64]))
    marks, now, out = rng.choice([0.0, 0.02, 0.3]), 0, []
    for _ in range(400):
        if rng.random() < 0.05:
            both.sender.rate = rng.randrange(dlcp.ONE // 64, dlcp.ONE)
            both.ends[RATE] = both.sender.rate
            both.sender.alpha = rng.randrange(dlcp.ONE)
            both.ends[ALPHA] = both.sender.alpha
        for _ in range(rng.randrange(8)):
            out.append(both.pull(now))
        now += rng.choice([1, US, 5 * US, 100 * US])
        while out and rng.random() < 0.85:
            sequence = out.pop(min(len(out) - 1, rng.choice([0, 0, 0, 1, 3])))
            if rng.random() < 0.9:
                both.ack(sequence, int(rng.random() < marks), now)
