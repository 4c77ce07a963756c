"""Fans in the state: which messages switches add up on their way to one host, or make of one on their way from it.

See `gradwire.sim.fabric.core.fan`, which does so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.memory import Memory

Take = Callable[[int], int]
"""The base of so many fresh words, all zeros."""


def lay_fans(memory: Memory, take: Take, fans: Ints, src: Ints, dst: Ints, packets: Ints) -> int:
    """Lay the fans of some messages into the state: the base of two words for each message, as V_FANS.

    `fans` : int64[n], the number of the fan that a message is of, -1 for none; the messages of one are alike, between
    one host and others. `src`, `dst`, `packets` : int64[n].
    """
    M, n = memory.M, len(fans)
    base = take(2 * n)
    table = M[base : base + 2 * n].reshape(n, 2)
    order = np.argsort(fans, kind="stable")
    order = order[fans[order] >= 0]
    for members in np.split(order, np.flatnonzero(np.diff(fans[order])) + 1) if len(order) else ():
        fan = _lay_fan(memory, take, src[members], dst[members], packets[members])
        table[members] = np.stack((np.full(len(members), fan), np.arange(len(members))), axis=1)
    return base


def lay_one(memory: Memory, take: Take, src: Ints, dst: Ints, packets: int) -> int:
    """The base of one fan of messages of so many packets."""
    return _lay_fan(memory, take, src, dst, np.full(len(src), packets))


def _lay_fan(memory: Memory, take: Take, src: Ints, dst: Ints, packets: Ints) -> int:
    M, size, stride = memory.M, len(src), 1 + -(-len(src) // 32)
    out = size > 1 and bool((src == src[0]).all())
    many, one = (dst, src) if out else (src, dst)
    if size < 2 or (one != one[0]).any() or (packets != packets[0]).any() or len(np.unique(many)) < size:
        raise ValueError("a fan is of messages of one length between one host and others, each once")
    fan = take(at.FAN_WORDS + at.MEMBER_WORDS * size)
    M[fan + at.FAN_OUT], M[fan + at.FAN_STRIDE] = out, stride
    words = int(packets[0]) * stride
    M[fan + at.FAN_AT_HOST] = take(words)
    of = M[fan + at.FAN_WORDS : fan + at.FAN_WORDS + at.MEMBER_WORDS * size].reshape(size, at.MEMBER_WORDS)
    switches = _switch_of(M, many)
    whole, alone = _switch_of(M, one[:1])[0], np.ones(size, dtype=bool)
    if memory.levels > 1 and (switches == switches[0]).all():
        whole = switches[0]
    elif memory.levels > 1:
        for switch, count in zip(*np.unique(switches, return_counts=True), strict=True):
            if count < 2 or switch == whole:
                continue
            places = np.flatnonzero(switches == switch)
            leaf = take(at.STATION_WORDS)
            _lay_station(M, leaf, int(switch), int(count), take(words), of[:, at.F_LEAF_NEXT], places)
            of[places, at.F_LEAF] = leaf
            alone[places[1:]] = False
    _lay_station(M, fan, int(whole), size, take(words), of[:, at.F_NEXT], np.flatnonzero(alone))
    return fan


def _switch_of(M: Ints, hosts: Ints) -> Ints:
    """Base of the switch that each host hangs on."""
    ports = M[int(M[at.H_DEST]) + hosts] >> 20  # of the switch, to the host
    return M[ports + at.P_NODE]


def _lay_station(M: Ints, station: int, switch: int, size: int, words: int, chain: Ints, places: Ints) -> None:
    """Lay a station. `words`: base of what it knows of packets; `chain`: the column in which those that it makes
    packets for follow one another, which are at `places`."""
    for word, value in (
        (at.STATION_NODE, switch), (at.STATION_SIZE, size), (at.STATION_FIRST, places[0]),
        (at.STATION_COPIES, len(places)), (at.STATION_AT, words),
    ):  # fmt: skip
        M[station + word] = value
    chain[places] = np.roll(places, -1)
