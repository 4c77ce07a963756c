"""Streams: which messages share a connection, and its records.

One connection carries the messages of one transport from one host to another in one class, in the order in which they
start, as on real sockets (`gradwire.emu.transports.tcp`). Its records (see `gradwire.sim.fabric.core.stream`) are made
when the first of its messages is known and stay, since windows and estimates of round trips do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.components import layout as at
from gradwire.components.draws import MASK, key_of
from gradwire.components.transports.at_rest import AtRest, told_of
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric import records as numbering
from gradwire.sim.fabric.keep import WRITE
from gradwire.sim.fabric.records import FlowRecords

STREAM_ENTROPY = 6  # kind of the draws that give each connection its path entropy

# what is the engine's of the records of a connection of which nothing is under way (`core.stream`): numbers of packets
# are counted from where its transport counts from, and where bitmaps are and how long is nobody's business
SENDER_AT_REST = AtRest(
    times=(at.S_LAST_SENT,), ahead=(at.S_PACE,),
    idle=(
        at.S_PACKETS, at.S_BITS, at.S_WORDS, at.S_PEER, at.S_NEXT, at.S_ARMED, at.S_SENT, at.S_HEARD, at.S_TIMEOUTS,
        at.S_FIRST, at.S_BACK, at.S_TOTAL,
    ),
)  # fmt: skip
RECEIVER_AT_REST = AtRest(
    idle=(
        at.R_PACKETS, at.R_BITS, at.R_WORDS, at.R_GOT, at.R_ARRIVED, at.R_SENT, at.R_MARKED, at.R_PULLED, at.R_FIRST,
        at.R_BACK, at.R_ARMED, at.R_LAST, at.R_LAST + 1,
    )
)  # fmt: skip

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

    def _ends(self) -> Iterator[tuple[int, Ints, int, AtRest]]:
        """The records of either end of the connections of each transport: its number, bases, words of one, and which
        of these are what."""
        for transport in sorted({key[0] for key in self._known}):
            owner = self._records.transports[transport].owner
            senders = np.array([self._known[key][0] for key in sorted(self._known) if key[0] == transport])
            receivers = self._records.receiver((senders - self._records.memory.senders) // at.SENDER_WORDS)
            mine, its = (getattr(owner, f"{end}_at_rest", AtRest()) for end in ("sender", "receiver"))
            yield transport, senders, at.SENDER_WORDS, SENDER_AT_REST.and_of(mine)
            yield transport, receivers, at.RECEIVER_WORDS, RECEIVER_AT_REST.and_of(its)

    def told(self, anchor: int) -> list[Ints]:
        """How they stand while nothing is under way (`told_of`)."""
        return told_of(self._ends(), self._records.memory.M, anchor)

    def later(self, by: int) -> None:
        """What they know of times is so many picoseconds later; what their hosts' heaps had of them is over."""
        M = self._records.memory.M
        for _, bases, words, which in self._ends():
            which.later(M, bases, by)
            M[bases + (at.S_ARMED if words == at.SENDER_WORDS else at.R_ARMED)] = 0

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
