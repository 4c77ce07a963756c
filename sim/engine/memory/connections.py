"""Streams: persistent connections that several messages share, and their records.

One connection carries the messages of one transport from one host to another in one class, in the order of their
starts, as on real sockets (`gradwire.emu.transports.tcp`). Its records (see `gradwire.sim.engine.core.connection`) are
made when its first message is known and stay, since windows and round-trip estimates do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.jit import layout as at
from gradwire.jit.counter_rng import MASK, key_of
from gradwire.protocols.transports.common.persistent_state import PersistentState, relevant_states
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory import records as numbering
from gradwire.sim.engine.memory.record_retention import WRITE
from gradwire.sim.engine.memory.records import FlowRecords

STREAM_ENTROPY = 6  # kind of the draws of path entropies

# the engine's own words in the records of an idle connection (`core.connection`): packet numbers are relative to its
# transport's, and positions and lengths of bitmaps do not matter
SENDER_STATE = PersistentState(
    times=(at.S_LAST_SENT,), ahead=(at.S_PACE,),
    idle=(
        at.S_PACKETS, at.S_BITS, at.S_WORDS, at.S_PEER, at.S_NEXT, at.S_ARMED, at.S_SENT, at.S_HEARD, at.S_TIMEOUTS,
        at.S_FIRST, at.S_BACK, at.S_TOTAL,
    ),
)  # fmt: skip
RECEIVER_STATE = PersistentState(
    idle=(
        at.R_PACKETS, at.R_BITS, at.R_WORDS, at.R_GOT, at.R_ARRIVED, at.R_SENT, at.R_MARKED, at.R_PULLED, at.R_FIRST,
        at.R_BACK, at.R_ARMED, at.R_LAST, at.R_LAST + 1,
    )
)  # fmt: skip


def stream_entropy(seed: int, transport: int, src: int, dst: int, priority: int) -> int:
    """Return the path entropy of a connection."""
    key = key_of(seed, STREAM_ENTROPY + 8 * transport, src & MASK)
    return int(key_of(int(key & MASK), STREAM_ENTROPY, (dst << 3 | priority) & MASK)) & 0xFFFF


class Streams:
    """The streams of one fabric."""

    def __init__(self, records: FlowRecords) -> None:
        self._records = records
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}

    def of(self, transport: int, src: Ints, dst: Ints, priority: Ints) -> Ints:
        """Return the streams of messages: int64[n, 2], the base of the sender's record, and path entropy."""
        pairs = zip(src.tolist(), dst.tolist(), priority.tolist(), strict=True)
        return np.array([self._number_of(transport, *pair) for pair in pairs], dtype=np.int64).reshape(-1, 2)

    def _ends(self) -> Iterator[tuple[int, Ints, int, PersistentState]]:
        """Yield the records of either end by transport: its number, bases, words per record, and classification."""
        for transport in sorted({key[0] for key in self._known}):
            owner = self._records.transports[transport].owner
            senders = np.array([self._known[key][0] for key in sorted(self._known) if key[0] == transport])
            receivers = self._records.receiver((senders - self._records.memory.senders) // at.SENDER_WORDS)
            sender_state, receiver_state = (
                getattr(owner, f"{end}_at_rest", PersistentState()) for end in ("sender", "receiver")
            )
            yield transport, senders, at.SENDER_WORDS, SENDER_STATE.union(sender_state)
            yield transport, receivers, at.RECEIVER_WORDS, RECEIVER_STATE.union(receiver_state)

    def relevant_state(self, anchor: int) -> list[Ints]:
        """Return the state of all streams while nothing is under way (`relevant_states`)."""
        return relevant_states(self._ends(), self._records.memory.M, anchor)

    def shift_times(self, by: int) -> None:
        """Delay all times in the records by `by` picoseconds; entries in the hosts' heaps become invalid."""
        M = self._records.memory.M
        for _, bases, words, state in self._ends():
            state.shift_times(M, bases, by)
            M[bases + (at.S_ARMED if words == at.SENDER_WORDS else at.R_ARMED)] = 0

    def _number_of(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int]:
        key = transport, src, dst, priority
        if key not in self._known:
            self._known[key] = self._begin(*key)
        return self._known[key]

    def _begin(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int]:
        """Write new records: those of a message without packets whose stream is itself."""
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
        for position in (base + at.S_FIRST, base + at.S_TOTAL, int(records.receiver(flow)) + at.R_FIRST):
            M[position] = numbering.FIRST_PACKET
        records.arena.free(at.MESSAGE_WORDS + at.VARIANT_WORDS, message)
        return base, entropy
