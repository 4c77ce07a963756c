"""Times at which the members of a ring collective finish, step by step, with slow and interrupted links.

A ring of n members passes a chunk of 1/n of the buffer per step: 2 (n - 1) steps for an all-reduce, n - 1 for an
all-gather or reduce-scatter. Step k of a member begins when it has both sent its previous chunk and received it from
its neighbor, so a slow link delays the members behind it one step after the other: the member right behind it finishes
last. A sender is done when its last chunks are in the buffers of the connection, 8 slots of half a chunk [NCCL,
NCCL_STEPS]. A connection has 16 channels with chunks of at most a MiB, so large buffers take several rounds, which the
slowest link paces; channels over the same NICs count as one ring here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.lazily import np

CHANNELS, CHUNK_BYTES = 16, 1 << 20
BUFFERED_CHUNKS = 4
"""Chunks that a sender may be ahead of its receiver."""
Outage = tuple[float, float]
"""A span in which a link carries nothing, in seconds."""


class RingChannel(NamedTuple):
    """One ring of a collective: positions of the members in ring order, and the link into each of them.

    order : int64[n]. rate : bytes/s of the link into order[i]. latency : seconds of it. outages : of each link.
    """

    order: Sequence[int]
    rate: Sequence[float]
    latency: Sequence[float]
    outages: Sequence[Sequence[Outage]]


def ring_ends(kind: str, nbytes: int, channels: Sequence[RingChannel], begin: float) -> Floats:
    """Return when each member finishes, float64[n] in seconds, if all begin at `begin`; the channels share the buffer
    evenly."""
    members = len(channels[0].order)
    ends = np.full(members, float(begin))
    for channel in channels:
        round_bytes = members * CHUNK_BYTES * max(CHANNELS // len(channels), 1)
        finished = _channel_ends(kind, nbytes / len(channels), round_bytes, channel, begin)
        ends[list(channel.order)] = np.maximum(ends[list(channel.order)], finished)
    return ends


def _channel_ends(kind: str, nbytes: float, round_bytes: int, channel: RingChannel, begin: float) -> Floats:
    members = len(channel.order)
    steps = (members - 1) * (2 if kind == "all_reduce" else 1)
    rounds = max(1, -(-int(nbytes) // round_bytes))
    times = tuple(nbytes / members / rounds / r + wait for r, wait in zip(channel.rate, channel.latency, strict=True))
    earlier = (rounds - 1) * steps * max(times)
    broken = [index for index, spans in enumerate(channel.outages) if spans]
    if not broken:
        return begin + earlier + _last_round(steps, times)
    begin += _paced(begin, earlier, [span for index in broken for span in channel.outages[index]])
    arrived = np.full(members, float(begin))
    history = [arrived]
    for _ in range(steps):
        starts = np.maximum(np.roll(arrived, 1), arrived)
        ended = starts + times
        for index in broken:
            for first, last in channel.outages[index]:
                if starts[index] < last and ended[index] > first:
                    ended[index] += last - max(first, starts[index])
        arrived = ended
        history.append(arrived)
    return np.maximum(arrived, np.roll(history[max(steps - BUFFERED_CHUNKS, 0)], -1))


@lru_cache(maxsize=4096)
def _last_round(steps: int, times: tuple[float, ...]) -> Floats:
    """Return when each member finishes the last round, in seconds since its begin."""
    arrived = np.zeros(len(times))
    buffered = arrived
    for step in range(steps):
        if step == max(steps - BUFFERED_CHUNKS, 0):
            buffered = arrived
        arrived = np.maximum(np.roll(arrived, 1), arrived) + times
    return np.maximum(arrived, np.roll(buffered, -1))


def _paced(begin: float, work: float, outages: Sequence[Outage]) -> float:
    """Return how long `work` seconds take that pause during outages."""
    clock, left = begin, work
    for first, last in sorted(outages):
        if last <= clock:
            continue
        if clock + left <= first:
            break
        left -= max(first - clock, 0.0)
        clock = last
    return clock + left - begin
