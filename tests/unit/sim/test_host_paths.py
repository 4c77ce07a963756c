"""Balancers that choose in the sending host, worked by hand: the oracle runs the same functions, so it cannot tell."""

from __future__ import annotations

from collections import Counter

import pytest

from gradwire.jit.records import Words
from gradwire.jit.records.constants import ACK, BITMAP, KEY_ORDER, NACK, PULL
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Switch
from gradwire.jit.records.packets import with_entropy
from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.load_balancers.reps import RING, Reps
from gradwire.protocols.load_balancers.source_random import SourceRandom
from gradwire.protocols.load_balancers.source_round_robin import SourceRoundRobin


def sender(number: int = 3, entropy: int = 1000, paths: int = 0) -> Sender:
    """A sender's record, which comes after the header; `paths`: how many it has to choose among, 0 = all."""
    flow = Sender([0] * (State.WORDS + Sender.WORDS), State.WORDS)
    flow.state.path_entropies = paths
    flow.data_header = with_entropy(0, entropy)
    flow.order = number << KEY_ORDER
    return flow


def way(entropy: int, ways: int) -> int:
    none: list[int] = []
    return uncompiled(SourceRandom.select)(Switch(none, 0), Words(none, 0), ways, with_entropy(0, entropy), 0, 0, 0)


def test_path_entropy_selects_next_hops_digit_by_digit():
    """11 = 3 + 4 (0 + 2 * 1): way 3 of 4, and of the quotient 2 way 0 of 2, then of 1 way 1 of 2."""
    assert [way(11, 4), way(11 // 4, 2), way(11 // 4 // 2, 2)] == [3, 0, 1]


def test_source_round_robin_uses_all_paths_of_two_tiers_equally():
    """16 packets over 4 x 4 paths use each path once; the count wraps at 16 bits."""
    pick = uncompiled(SourceRoundRobin.pick_path)
    paths = Counter((way(e, 4), way(e // 4, 4)) for e in (pick(sender(), count) for count in range(16)))
    assert len(paths) == 16 and set(paths.values()) == {1}
    assert pick(sender(entropy=0xFFFF), 1) == 0


def test_source_random_spreads_paths_evenly_and_per_message():
    pick = uncompiled(SourceRandom.pick_path)
    drawn = [pick(sender(), count) for count in range(4000)]
    assert all(0 <= entropy < 1 << 16 for entropy in drawn)
    counts = Counter(entropy % 4 for entropy in drawn)
    assert all(abs(count - 1000) < 4 * 27.4 for count in counts.values())  # four standard deviations
    assert drawn[:8] != [pick(sender(number=4), count) for count in range(8)]


def test_reps_recycles_unmarked_entropies_once_in_fifo_order():
    pick, heard = uncompiled(Reps.pick_path), uncompiled(Reps.on_feedback)
    record = sender()
    fresh = uncompiled(SourceRandom.pick_path)
    assert pick(record, 0) == fresh(record, 0)  # nothing has come back yet
    answers = ((7, ACK, 0), (8, ACK, 1), (9, NACK, 0), (10, PULL, 0), (11, BITMAP, 1), (12, BITMAP, 0), (65535, ACK, 0))
    for entropy, kind, marked in answers:
        heard(record, kind, entropy, marked, 0)
    assert [pick(record, 1), pick(record, 2), pick(record, 3)] == [7, 12, 65535]
    assert pick(record, 4) == fresh(record, 4)


def test_reps_ring_overwrites_oldest_entropies():
    pick, heard = uncompiled(Reps.pick_path), uncompiled(Reps.on_feedback)
    record = sender()
    for entropy in range(100, 111):
        heard(record, ACK, entropy, 0, 0)
    assert [pick(record, n) for n in range(RING)] == list(range(103, 111))
    heard(record, ACK, 5, 0, 0)
    assert pick(record, 9) == 5


@pytest.mark.parametrize("balancer", [SourceRandom, Reps])
def test_limited_paths_are_chosen_per_message(balancer):
    """Each of five paths carries a fifth of 4000 packets, within four standard deviations; another message has five
    other paths."""
    pick = uncompiled(balancer.pick_path)
    used = Counter(pick(sender(paths=5), count) for count in range(4000))
    assert len(used) == 5 and all(abs(count - 800) < 4 * 25.3 for count in used.values())
    others = {pick(sender(number=4, paths=5), count) for count in range(4000)}
    assert len(others) == 5 and not others & set(used)


def test_source_round_robin_cycles_through_limited_paths():
    """The paths are those that the random balancer draws from, one after the other."""
    pick, drawn = uncompiled(SourceRoundRobin.pick_path), uncompiled(SourceRandom.pick_path)
    turns = [pick(sender(paths=5), count) for count in range(10)]
    assert turns[:5] == turns[5:]
    assert set(turns) == {drawn(sender(paths=5), count) for count in range(200)}
