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


def test_the_rows_are_what_is_drawn():
    rows = streams(range(1, 2), 3, 5)
    wanted = [
        draw.py_func(int(key_of(1, kind, identity)), count)
        for kind in KINDS for identity in range(3) for count in range(5)
    ]  # fmt: skip
    assert rows.ravel().tolist() == wanted
    assert draw(key_of(1, LINK_DRAWS, 2), 4) == rows[2, 4]


@pytest.mark.slow
def test_no_stream_is_another_one_shifted():
    """Two numbers in a row, 64 bits, of 2,000 streams of 4,096: where streams share a stretch, they are there twice. By
    chance, among eight million, they hardly ever are; on one cycle of 2**32, four pairs of
    streams would overlap."""
    rows = streams(range(1, 6), 100, 4096)
    pairs = (rows[:, :-1] << 31) ^ rows[:, 1:]
    assert len(rows) == 2000
    ordered = np.sort(pairs, axis=None)
    assert np.all(ordered[1:] != ordered[:-1])


@pytest.mark.parametrize("distance", [1, 2, 7, 4 * 100])
def test_streams_of_neighbours_are_not_alike(distance):
    """Correlation between the draws of one link and of one that is near it in number, over several shifts: no more than
    five standard errors of what chance makes of it."""
    rows = streams(range(1, 3), 100, 2048)
    uniform: NDArray[Any] = rows / 2.0**32 - 0.5
    for shift in range(4):
        ahead = uniform[distance:, shift:]
        behind = uniform[:-distance, : ahead.shape[1]]
        correlation = 12 * np.mean(ahead * behind)
        assert abs(correlation) < 5 / ahead.size**0.5


def test_a_tie_is_anybodys():
    """Sixteen links that meet every 330 ns for a second: each has the lowest hash a sixteenth of the time (four standard
    errors), the winner of a tie says nothing of the next one's, and time beyond 2 ms still counts."""
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


def test_sort_keys_have_room_for_the_longest_window():
    """Time, hash and index in 63 bits."""
    assert MAX_WINDOW <= 1 << (63 - TIE_BITS - 20)
