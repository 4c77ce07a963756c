"""Balancers that choose in the sending host, worked by hand: the oracle runs the same functions, so it cannot tell."""

from __future__ import annotations

from collections import Counter

from oracle.uncompiled import uncompiled

from sim.balancers.reps import RING, Reps
from sim.balancers.source_random import SourceRandom
from sim.balancers.source_round_robin import SourceRoundRobin
from sim.fabric.layout import A_ENTROPY, ACK, KEY_ORDER, NACK, S_DATA, S_ORDER, SENDER_WORDS


def sender(number: int = 3, entropy: int = 1000) -> list[int]:
    record = [0] * SENDER_WORDS
    record[S_DATA] = entropy << A_ENTROPY
    record[S_ORDER] = number << KEY_ORDER
    return record


def way(entropy: int, ways: int) -> int:
    return uncompiled(SourceRandom.choose)([], 0, 0, ways, entropy << A_ENTROPY, 0, 0, 0)


def test_a_path_is_taken_apart_digit_by_digit():
    """11 = 3 + 4 (0 + 2 * 1): way 3 of 4, and of the quotient 2 way 0 of 2, then of 1 way 1 of 2."""
    assert [way(11, 4), way(11 // 4, 2), way(11 // 4 // 2, 2)] == [3, 0, 1]


def test_paths_by_turns_use_every_way_of_two_tiers_alike():
    """16 packets over 4 x 4 paths: each path once; and the count does not run out of its 16 bits."""
    pick = uncompiled(SourceRoundRobin.pick)
    paths = Counter((way(e, 4), way(e // 4, 4)) for e in (pick(sender(), 0, count) for count in range(16)))
    assert len(paths) == 16 and set(paths.values()) == {1}
    assert pick(sender(entropy=0xFFFF), 0, 1) == 0


def test_random_paths_are_spread_evenly_and_differ_between_messages():
    pick = uncompiled(SourceRandom.pick)
    drawn = [pick(sender(), 0, count) for count in range(4000)]
    assert all(0 <= entropy < 1 << 16 for entropy in drawn)
    counts = Counter(entropy % 4 for entropy in drawn)
    assert all(abs(count - 1000) < 4 * 27.4 for count in counts.values())  # four standard deviations
    assert drawn[:8] != [pick(sender(number=4), 0, count) for count in range(8)]


def test_reps_uses_again_what_came_back_unmarked_oldest_first_and_once():
    pick, heard = uncompiled(Reps.pick), uncompiled(Reps.heard)
    record = sender()
    fresh = uncompiled(SourceRandom.pick)
    assert pick(record, 0, 0) == fresh(record, 0, 0)  # nothing has come back yet
    for entropy, kind, marked in ((7, ACK, 0), (8, ACK, 1), (9, NACK, 0), (65535, ACK, 0)):
        heard(record, 0, kind, entropy, marked, 0)
    assert [pick(record, 0, 1), pick(record, 0, 2)] == [7, 65535]
    assert pick(record, 0, 3) == fresh(record, 0, 3)


def test_of_more_than_the_ring_holds_the_oldest_give_way():
    pick, heard = uncompiled(Reps.pick), uncompiled(Reps.heard)
    record = sender()
    for entropy in range(100, 111):
        heard(record, 0, ACK, entropy, 0, 0)
    assert [pick(record, 0, n) for n in range(RING)] == list(range(103, 111))
    heard(record, 0, ACK, 5, 0, 0)
    assert pick(record, 0, 9) == 5
