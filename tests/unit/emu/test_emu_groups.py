"""Messages that share a pace, at the host's interface by hand: whose turn it is, and when."""

from __future__ import annotations

from nic_bench import LINE, NS, Fake, bench, slots, start

from gradwire.emu.agent.nic import FlowGroup
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.jit.records.flows import Pair


def groups(*priorities, gap=0):
    """Groups of one pair, one for each class."""
    pair = WordBlock(Pair.WORDS)
    Pair(pair.words, 0).gap = gap
    return [FlowGroup(pair, priority) for priority in priorities]


def test_group_sends_its_oldest_message_first_and_takes_one_turn():
    """Order of arrival is irrelevant; another flow of the class gets every second slot."""
    loop, nic, log = bench()
    (pair,) = groups(0)
    start(nic, *(Fake(log, loop, number, 2, group=pair) for number in (5, 3, 8)), Fake(log, loop, 4, 4))
    loop.run(10_000)
    assert [number for number, _ in slots(log)] == [3, 4, 3, 4, 5, 4, 5, 4, 8, 8]


def test_updated_older_message_precedes_younger_ones():
    loop, nic, log = bench()
    (pair,) = groups(0)
    old, young = Fake(log, loop, 1, 1, group=pair), Fake(log, loop, 2, 4, group=pair)
    start(nic, old, young)
    loop.run(250)
    old.left = 1
    nic.update(old)
    nic.update(old)  # it is there already
    loop.run(10_000)
    assert [number for number, _ in slots(log)] == [1, 2, 2, 1, 2, 2]
    young.left = 1
    nic.update(young)
    nic.serve()
    loop.run(20_000)
    assert slots(log)[-1] == (2, 10_000)


def test_messages_of_a_pair_share_its_rate():
    """Together they send as fast as one message; other flows use the gaps."""
    loop, nic, log = bench()
    (pair,) = groups(0, gap=3 * LINE)
    start(nic, Fake(log, loop, 1, 1, group=pair), Fake(log, loop, 2, 2, group=pair), Fake(log, loop, 9, 3, 1))
    loop.run(10_000)
    assert slots(log) == [(1, 0), (9, 100), (9, 200), (2, 300), (9, 400), (2, 600)]
    assert Pair(pair.pair.words, 0).next_start == 900 * NS


def test_groups_of_a_pair_share_its_rate_and_serve_priority_0_first():
    loop, nic, log = bench()
    first, second = groups(0, 1, gap=2 * LINE)
    start(nic, Fake(log, loop, 1, 3, 1, group=second), Fake(log, loop, 2, 2, 0, group=first))
    loop.run(10_000)
    assert slots(log) == [(2, 0), (2, 200), (1, 400), (1, 600), (1, 800)]


def test_younger_message_waits_for_the_gap_of_an_older_one():
    loop, nic, log = bench()
    (pair,) = groups(0, gap=5 * LINE)
    start(nic, Fake(log, loop, 1, 1, group=pair))
    loop.run(300)
    start(nic, Fake(log, loop, 2, 2, group=pair))
    loop.run(10_000)
    assert slots(log) == [(1, 0), (2, 500), (2, 1000)]


def test_group_skips_finished_and_idle_messages_and_preserves_timers():
    loop, nic, log = bench()
    (pair,) = groups(0)
    done, idle, busy = (Fake(log, loop, number, 2 * (number != 2), group=pair) for number in (1, 2, 3))
    start(nic, done)
    idle.timer = 700 * NS  # as its pull sets it
    start(nic, idle, busy)
    done.done = True
    loop.run(10_000)
    assert slots(log) == [(1, 0), (3, 100), (3, 200)]
    assert idle.fired == [700] and not pair.record.first


def test_group_compensates_for_late_slots_but_not_for_idle_time():
    loop, nic, log = bench(late=150, ahead_ns=400)
    (pair,) = groups(0, gap=5 * LINE)
    start(nic, Fake(log, loop, 1, 20, group=pair), Fake(log, loop, 2, 10, group=pair))
    loop.run(50_000)
    assert all(at >= 500 * k for k, (_, _, at) in enumerate(log)) and log[-1][2] <= 500 * 29 + 150
    start(nic, Fake(log, loop, 3, 2, group=pair))
    loop.run(100_000)
    assert slots(log)[-2:] == [(3, 50_000), (3, 50_650)]
