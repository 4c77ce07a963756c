"""Streams: which messages share a connection, its records, and room for what is under way on it.

One connection carries the messages of one transport from one host to another in one class, in the order in which they
start, as on real sockets (`gradwire.emu.transports.tcp`). Its records (see `gradwire.sim.fabric.core.stream`) are made
with those of its first message and stay, since windows and estimates of round trips do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwire.components import layout as at
from gradwire.components.draws import MASK, key_of
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.records import FlowRecords

STREAM_ENTROPY = 6  # kind of the draws that give each connection its path entropy

def stream_entropy(seed: int, transport: int, src: int, dst: int, priority: int) -> int:
    """The path entropy of a connection."""
    key = key_of(seed, STREAM_ENTROPY + 8 * transport, src & MASK)
    return int(key_of(int(key & MASK), STREAM_ENTROPY, (dst << 3 | priority) & MASK)) & 0xFFFF


@dataclass(slots=True)
class Stream:
    """One connection: `flow`, the number of its records; `entropy` of its packets; `open`, packets of messages that
    have records now; `room`, packets that its bitmaps have room for."""

    flow: int
    transport: int
    entropy: int
    open: int = 0
    room: int = 0


class Streams:
    """The streams of one fabric."""

    def __init__(self, records: FlowRecords) -> None:
        self._records = records
        self._known: dict[tuple[int, ...], Stream] = {}
        self._of_flow: dict[int, Stream] = {}

    def join(
        self,
        transport: int,
        src: Ints,
        dst: Ints,
        priority: Ints,
        packets: Ints,
    ) -> tuple[Ints, Ints]:
        """Messages of a transport get records: the numbers and the path entropies of their streams, int64[n] each."""
        pairs = np.stack((src, dst, priority), axis=1)
        keys, which = np.unique(pairs, axis=0, return_inverse=True)
        which = which.reshape(-1)
        more = np.bincount(which, weights=packets).astype(np.int64)
        streams = [self._of((transport, *key), added) for key, added in zip(keys.tolist(), more.tolist(), strict=True)]
        found = np.array([(stream.flow, stream.entropy) for stream in streams], dtype=np.int64)[which]
        return found[:, 0], found[:, 1]

    def leave(self, senders: Ints, packets: Ints) -> None:
        """The records of messages are free again. `senders`: those of their streams."""
        flows = (senders - self._records.memory.senders) // at.SENDER_WORDS
        for flow, less in zip(flows.tolist(), packets.tolist(), strict=True):
            self._of_flow[flow].open -= less

    def _of(self, key: tuple[int, ...], packets: int) -> Stream:
        """The stream of transport, hosts and class, on which there will be so many packets more."""
        stream = self._known.get(key)
        if stream is None:
            stream = self._known[key] = self._begin(*key)
            self._of_flow[stream.flow] = stream
        stream.open += packets
        if 2 * stream.open + 64 > stream.room:
            self._widen(stream)
        return stream

    def _begin(self, transport: int, src: int, dst: int, priority: int) -> Stream:
        """New records."""
        records = self._records
        flow = records.new(src, dst)
        entropy = stream_entropy(records.seed, transport, src, dst, priority)
        for base, words in records.of_stream(transport, src, dst, priority, entropy, flow):
            for word, value in words:
                records.memory.M[base + word] = value
        return Stream(flow, transport, entropy)

    def _widen(self, stream: Stream) -> None:
        """More room in the bitmaps, for twice the packets there are now: the engine moves them down when it is full."""
        records, M = self._records, self._records.memory.M
        f, r = records.sender(stream.flow), records.receiver(stream.flow)
        owner = records.transports[stream.transport].owner
        words = 1 << (-(-(2 * stream.open + 64) // 32) - 1).bit_length()
        for bits, size, bitmaps in (
            (f + at.S_BITS, f + at.S_WORDS, owner.sender_bitmaps),
            (r + at.R_BITS, r + at.R_WORDS, owner.receiver_bitmaps),
        ):
            old, had, new = int(M[bits]), int(M[size]), records.arena.allocate(words * bitmaps)
            for bitmap in range(bitmaps if had else 0):
                M[new + bitmap * words : new + bitmap * words + had] = M[old + bitmap * had : old + (bitmap + 1) * had]
            if had:
                records.arena.free(had * bitmaps, old)
            M[bits], M[size] = new, words
        M[f + at.S_PEER] = M[r + at.R_BITS]
        M[r + at.R_PACKETS] = stream.room = 32 * words
