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


def test_the_oldest_message_of_a_group_goes_first_and_the_group_has_one_turn():
    """Whatever order they come in; another flow of the class has every second slot."""
    loop, nic, log = bench()
    (pair,) = groups(0)
    start(nic, *(Fake(log, loop, number, 2, group=pair) for number in (5, 3, 8)), Fake(log, loop, 4, 4))
    loop.run(10_000)
    assert [number for number, _ in slots(log)] == [3, 4, 3, 4, 5, 4, 5, 4, 8, 8]


def test_an_older_message_that_has_news_goes_before_younger_ones():
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


def test_messages_of_a_pair_share_its_pace():
    """Together they are as fast as one, whichever sends; what lies between is for others."""
    loop, nic, log = bench()
    (pair,) = groups(0, gap=3 * LINE)
    start(nic, Fake(log, loop, 1, 1, group=pair), Fake(log, loop, 2, 2, group=pair), Fake(log, loop, 9, 3, 1))
    loop.run(10_000)
    assert slots(log) == [(1, 0), (9, 100), (9, 200), (2, 300), (9, 400), (2, 600)]
    assert Pair(pair.pair.words, 0).next_start == 900 * NS


def test_groups_of_several_classes_share_the_pace_and_the_better_class_goes_first():
    loop, nic, log = bench()
    first, second = groups(0, 1, gap=2 * LINE)
    start(nic, Fake(log, loop, 1, 3, 1, group=second), Fake(log, loop, 2, 2, 0, group=first))
    loop.run(10_000)
    assert slots(log) == [(2, 0), (2, 200), (1, 400), (1, 600), (1, 800)]


def test_a_younger_message_waits_for_the_pace_that_an_older_one_has_set():
    loop, nic, log = bench()
    (pair,) = groups(0, gap=5 * LINE)
    start(nic, Fake(log, loop, 1, 1, group=pair))
    loop.run(300)
    start(nic, Fake(log, loop, 2, 2, group=pair))
    loop.run(10_000)
    assert slots(log) == [(1, 0), (2, 500), (2, 1000)]


def test_a_message_of_a_group_that_is_done_or_has_nothing_is_passed_over_and_its_timer_kept():
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


def test_a_group_makes_up_for_lateness_but_not_for_time_before_it_had_anything_to_send():
    loop, nic, log = bench(late=150, ahead_ns=400)
    (pair,) = groups(0, gap=5 * LINE)
    start(nic, Fake(log, loop, 1, 20, group=pair), Fake(log, loop, 2, 10, group=pair))
    loop.run(50_000)
    assert all(at >= 500 * k for k, (_, _, at) in enumerate(log)) and log[-1][2] <= 500 * 29 + 150
    start(nic, Fake(log, loop, 3, 2, group=pair))
    loop.run(100_000)
    assert slots(log)[-2:] == [(3, 50_000), (3, 50_650)]
