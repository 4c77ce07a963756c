"""Writes aggregation groups (messages that switches sum towards one host, or copy from one) into the engine's state.

`gradwire.sim.engine.core.aggregation` works on them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradwire.jit.records import view
from gradwire.jit.records.aggregation import AggregationGroup, AggregationNode, Member
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Port
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory.engine_memory import EngineMemory

Allocate = Callable[[int], int]
"""Allocates a number of zeroed words and returns their base."""


def write_groups(memory: EngineMemory, take: Allocate, fans: Ints, src: Ints, dst: Ints, packets: Ints) -> int:
    """Lay the aggregation groups of some messages into the state; return the base of two words per message, as V_FANS.

    `fans` : int64[n], the group number of each message, -1 for none; the messages of a group are alike, between one
        host
    and several others. `src`, `dst`, `packets` : int64[n].
    """
    state, n = memory.state, len(fans)
    base = take(2 * n)
    table = state[base : base + 2 * n].reshape(n, 2)
    order = np.argsort(fans, kind="stable")
    order = order[fans[order] >= 0]
    for members in np.split(order, np.flatnonzero(np.diff(fans[order])) + 1) if len(order) else ():
        fan = _write_group(memory, take, src[members], dst[members], packets[members])
        table[members] = np.stack((np.full(len(members), fan), np.arange(len(members))), axis=1)
    return base


def write_group(memory: EngineMemory, take: Allocate, src: Ints, dst: Ints, packets: int) -> int:
    """Lay one group of messages of `packets` packets into the state, and return its base."""
    return _write_group(memory, take, src, dst, np.full(len(src), packets))


def _write_group(memory: EngineMemory, take: Allocate, src: Ints, dst: Ints, packets: Ints) -> int:
    state, size, stride = memory.state, len(src), 1 + -(-len(src) // 32)
    is_outward = size > 1 and bool((src == src[0]).all())
    members, one = (dst, src) if is_outward else (src, dst)
    if size < 2 or (one != one[0]).any() or (packets != packets[0]).any() or len(np.unique(members)) < size:
        raise ValueError("an aggregation group needs messages of one length between one host and distinct others")
    fan = take(AggregationGroup.WORDS + Member.WORDS * size)
    aggregation_group = view(AggregationGroup, state, fan)
    aggregation_group.is_outward, aggregation_group.stride = is_outward, stride
    words = int(packets[0]) * stride
    aggregation_group.host_packet_states = take(words)
    member_words = state[fan + AggregationGroup.WORDS : fan + AggregationGroup.WORDS + Member.WORDS * size].reshape(
        size, Member.WORDS
    )
    switches = _switch_of(state, members)
    root, is_first = _switch_of(state, one[:1])[0], np.ones(size, dtype=bool)
    if memory.levels > 1 and (switches == switches[0]).all():
        root = switches[0]
    elif memory.levels > 1:
        for switch, count in zip(*np.unique(switches, return_counts=True), strict=True):
            if count < 2 or switch == root:
                continue
            positions = np.flatnonzero(switches == switch)
            leaf = take(AggregationNode.WORDS)
            _write_node(
                state,
                leaf,
                int(switch),
                int(count),
                take(words),
                member_words[:, Member.leaf_next_copy.offset],
                positions,
            )
            member_words[positions, Member.leaf.offset] = leaf
            is_first[positions[1:]] = False
    _write_node(
        state, fan, int(root), size, take(words), member_words[:, Member.next_copy.offset], np.flatnonzero(is_first)
    )
    return fan


def _switch_of(state: Ints, hosts: Ints) -> Ints:
    """Return the base of the switch that each host is attached to."""
    ports = state[int(state[State.destinations.offset]) + hosts] >> 20  # the switch's port to the host
    bases: Ints = view(Port, state, ports).node.base
    return bases


def _write_node(state: Ints, station: int, switch: int, size: int, words: int, chain: Ints, positions: Ints) -> None:
    """Lay an aggregation node into the state. `words`: base of its packet state. `chain`: column in which the members
    that it makes packets for, at `places`, are linked."""
    for word, value in (
        (AggregationNode.switch.offset, switch),
        (AggregationNode.size.offset, size),
        (AggregationNode.first_copy.offset, positions[0]),
        (AggregationNode.copies.offset, len(positions)),
        (AggregationNode.packet_states.offset, words),
    ):
        state[station + word] = value
    chain[positions] = np.roll(positions, -1)
