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
    fan = take(at.FAN_WORDS + 2 * size)
    port = int(M[int(M[at.H_DEST]) + int(one[0])]) >> 20  # of its switch, to the one host
    M[fan + at.FAN_SIZE], M[fan + at.FAN_OUT], M[fan + at.FAN_STRIDE] = size, out, stride
    M[fan + at.FAN_NODE] = M[port + at.P_NODE]
    for word in (at.FAN_AT_SWITCH, at.FAN_AT_HOST):
        M[fan + word] = take(int(packets[0]) * stride)
    return fan
