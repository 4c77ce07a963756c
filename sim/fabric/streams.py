"""Streams: which messages share a connection, and its records.

One connection carries the messages of one transport from one host to another in one class, in the order in which they
start, as on real sockets (`gradwire.emu.transports.tcp`). Its records (see `gradwire.sim.fabric.core.stream`) are made
when the first of its messages is known and stay, since windows and estimates of round trips do.
"""

from __future__ import annotations

import numpy as np

from gradwire.components import layout as at
from gradwire.components.draws import MASK, key_of
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric import records as numbering
from gradwire.sim.fabric.keep import WRITE
from gradwire.sim.fabric.records import FlowRecords

STREAM_ENTROPY = 6  # kind of the draws that give each connection its path entropy

def stream_entropy(seed: int, transport: int, src: int, dst: int, priority: int) -> int:
    """The path entropy of a connection."""
    key = key_of(seed, STREAM_ENTROPY + 8 * transport, src & MASK)
    return int(key_of(int(key & MASK), STREAM_ENTROPY, (dst << 3 | priority) & MASK)) & 0xFFFF


class Streams:
    """The streams of one fabric."""

    def __init__(self, records: FlowRecords) -> None:
        self._records = records
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}

    def of(self, transport: int, src: Ints, dst: Ints, priority: Ints) -> Ints:
        """The streams of messages of a transport: int64[n, 2], the base of the sender's record, and path entropy."""
        pairs = zip(src.tolist(), dst.tolist(), priority.tolist(), strict=True)
        return np.array([self._of(transport, *pair) for pair in pairs], dtype=np.int64).reshape(-1, 2)

    def _of(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int]:
        key = transport, src, dst, priority
        if key not in self._known:
            self._known[key] = self._begin(*key)
        return self._known[key]

    def _begin(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int]:
        """New records: those of a message without packets of its own, on itself."""
        records, M = self._records, self._records.memory.M
        flow, entropy = records.new(src, dst), stream_entropy(records.seed, transport, src, dst, priority)
        base = int(records.sender(flow))
        message = records.arena.allocate(at.MESSAGE_WORDS + at.VARIANT_WORDS)
        variant = message + at.MESSAGE_WORDS
        for word, value in (
            (at.V_BYTES, at.FOREVER),
            (at.V_KIND, int(records.kinds(transport, np.array([src]), np.array([dst]))[0])),
            (at.V_PRIORITY, priority),
            (at.V_TELL, at.TELL_DELIVERED),
            (at.V_LOGGED, 1),
            (at.V_STREAM, base),
            (at.V_ENTROPY, entropy),
        ):
            M[variant + word] = value
        M[message + at.G_NODE] = records.memory.node_base[src]
        M[message + at.G_TO] = dst
        M[message + at.G_VARIANT] = variant
        records.keep(WRITE, message, flow)
        for place in (base + at.S_FIRST, base + at.S_TOTAL, int(records.receiver(flow)) + at.R_FIRST):
            M[place] = numbering.FIRST_PACKET
        records.arena.free(at.MESSAGE_WORDS + at.VARIANT_WORDS, message)
        return base, entropy
