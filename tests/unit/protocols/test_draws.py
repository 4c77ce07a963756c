"""Random numbers by counter: streams that have nothing to do with each other, and ties that nobody wins by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire.jit.counter_rng import (
    LINK_DRAWS,
    MASK,
    NODE_DRAWS,
    RED_DRAWS,
    TIE_BITS,
    TIE_DRAWS,
    draw,
    key_of,
    mix,
    tie_break,
)
from gradwire.sim.engine.memory.link_capacity import MAX_WINDOW

KINDS = (LINK_DRAWS, NODE_DRAWS, RED_DRAWS, TIE_DRAWS)


def streams(seeds: range, identities: int, length: int) -> NDArray[np.int64]:
    """The first draws of links and nodes of several runs: one row per stream."""
    keys = np.concatenate([key_of(seed, kind, np.arange(identities)) for seed in seeds for kind in KINDS])
    begin, step = keys & MASK, keys >> 32
    return np.asarray(mix.py_func((begin[:, None] + np.arange(length) * step[:, None]) & MASK))


def test_vectorized_streams_equal_scalar_draws():
    rows = streams(range(1, 2), 3, 5)
    wanted = [
        draw.py_func(int(key_of(1, kind, identity)), count)
        for kind in KINDS for identity in range(3) for count in range(5)
    ]  # fmt: skip
    assert rows.ravel().tolist() == wanted
    assert draw(key_of(1, LINK_DRAWS, 2), 4) == rows[2, 4]


@pytest.mark.slow
def test_streams_share_no_pair_of_consecutive_numbers():
    """Streams that overlap would share pairs of consecutive numbers; the test compares 2,000 streams of 4,096
    numbers. A pair has 64 bits, so chance repetitions among eight million are very rare; on one cycle of 2**32, four
    pairs of streams would overlap."""
    rows = streams(range(1, 6), 100, 4096)
    pairs = (rows[:, :-1] << 31) ^ rows[:, 1:]
    assert len(rows) == 2000
    ordered = np.sort(pairs, axis=None)
    assert np.all(ordered[1:] != ordered[:-1])


@pytest.mark.parametrize("distance", [1, 2, 7, 4 * 100])
def test_streams_of_nearby_links_are_uncorrelated(distance):
    """Draws of nearby link numbers correlate by less than five standard errors, at several shifts."""
    rows = streams(range(1, 3), 100, 2048)
    uniform: NDArray[Any] = rows / 2.0**32 - 0.5
    for shift in range(4):
        ahead = uniform[distance:, shift:]
        behind = uniform[:-distance, : ahead.shape[1]]
        correlation = 12 * np.mean(ahead * behind)
        assert abs(correlation) < 5 / ahead.size**0.5


def test_tie_break_is_fair_among_links():
    """Sixteen links tie every 330 ns for a second, and each wins a sixteenth of the ties (four standard errors). The
    winner of a tie is independent of the previous winner, and the hash depends on time beyond 2 ms."""
    keys = [int(key_of(1, TIE_DRAWS, link)) for link in range(16)]
    times = [n * 332_960 for n in range(4000)]
    table = np.array([[tie_break(key, time) for key in keys] for time in times])
    assert table.min() >= 0 and table.max() < 1 << TIE_BITS
    won = table.argmin(axis=1)
    share = 1 / 16
    assert np.abs(np.bincount(won) / len(times) - share).max() < 4 * (share * (1 - share) / len(times)) ** 0.5
    again = np.mean(won[1:] == won[:-1])
    assert abs(again - share) < 4 * (share * (1 - share) / len(times)) ** 0.5
    assert tie_break(keys[0], 5) != tie_break(keys[0], 5 + (1 << 31))


def test_sort_key_fits_the_longest_lookahead_window():
    """Time, hash and index take 63 bits."""
    assert MAX_WINDOW <= 1 << (63 - TIE_BITS - 20)
