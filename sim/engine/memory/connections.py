"""`Streams` makes and finds the records of persistent connections, which several messages of a transport share.

One connection carries the messages of one transport from one host to another in one class, in the order of their
starts, as on real sockets (`gradwire.emu.transports.tcp`). Its records (see `gradwire.sim.engine.core.connection`) are
made when its first message is known and stay, since windows and round-trip estimates do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.jit.counter_rng import MASK, key_of
from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.jit.records.programs import ProgramMessage, Variant
from gradwire.protocols.transports.common.persistent_state import PersistentState, relevant_states
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory import records as numbering
from gradwire.sim.engine.memory.record_retention import WRITE
from gradwire.sim.engine.memory.records import FlowRecords

STREAM_ENTROPY = 6  # kind of the draws of path entropies

# the engine's own words in the records of an idle connection (`core.connection`): packet numbers are relative to its
# transport's, and positions and lengths of bitmaps do not matter
SENDER_STATE = PersistentState(
    times=(Sender.last_sent_at,),
    ahead=(Sender.next_start,),
    idle=(
        Sender.packets,
        Sender.bitmaps,
        Sender.bitmap_words,
        Sender.peer_bitmaps,
        Sender.next_ready,
        Sender.armed,
        Sender.sent,
        Sender.control_received,
        Sender.timeouts,
        Sender.first_packet,
        Sender.last_message,
        Sender.next_number,
    ),
)
RECEIVER_STATE = PersistentState(
    idle=(
        Receiver.packets,
        Receiver.bitmaps,
        Receiver.bitmap_words,
        Receiver.received_bytes,
        Receiver.arrived,
        Receiver.control_sent,
        Receiver.marked,
        Receiver.pulls_sent,
        Receiver.first_packet,
        Receiver.last_message,
        Receiver.armed,
        Receiver.last_data,
        Receiver.last_data_body,
    )
)


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
            receivers = self._records.receiver((senders - self._records.memory.senders) // Sender.WORDS)
            sender_state, receiver_state = (
                getattr(owner, f"{end}_at_rest", PersistentState()) for end in ("sender", "receiver")
            )
            yield transport, senders, Sender.WORDS, SENDER_STATE.union(sender_state)
            yield transport, receivers, Receiver.WORDS, RECEIVER_STATE.union(receiver_state)

    def relevant_state(self, anchor: int) -> list[Ints]:
        """Return the state of all streams while nothing is under way (`relevant_states`)."""
        return relevant_states(self._ends(), self._records.memory.state, anchor)

    def shift_times(self, by: int) -> None:
        """Delay all times in the records by `by` picoseconds; entries in the hosts' heaps become invalid."""
        state = self._records.memory.state
        for _, bases, words, persistent in self._ends():
            persistent.shift_times(state, bases, by)
            state[bases + (Sender.armed.offset if words == Sender.WORDS else Receiver.armed.offset)] = 0

    def _number_of(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int]:
        key = transport, src, dst, priority
        if key not in self._known:
            self._known[key] = self._begin(*key)
        return self._known[key]

    def _begin(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int]:
        """Write new records: those of a message without packets whose stream is itself."""
        records, state = self._records, self._records.memory.state
        flow, entropy = records.new(src, dst), stream_entropy(records.seed, transport, src, dst, priority)
        base = int(records.sender(flow))
        message = records.arena.allocate(ProgramMessage.WORDS + Variant.WORDS)
        variant = message + ProgramMessage.WORDS
        for word, value in (
            (Variant.nbytes.offset, at.FOREVER),
            (Variant.kind.offset, int(records.kinds(transport, np.array([src]), np.array([dst]))[0])),
            (Variant.priority.offset, priority),
            (Variant.notify.offset, at.TELL_DELIVERED),
            (Variant.is_logged.offset, 1),
            (Variant.stream.offset, base),
            (Variant.entropy.offset, entropy),
        ):
            state[variant + word] = value
        program_message = view(ProgramMessage, state, message)
        program_message.host = records.memory.node_base[src]
        program_message.destination = dst
        program_message.variant = variant
        records.keep(WRITE, message, flow)
        for position in (
            base + Sender.first_packet.offset,
            base + Sender.next_number.offset,
            int(records.receiver(flow)) + Receiver.first_packet.offset,
        ):
            state[position] = numbering.FIRST_PACKET
        records.arena.free(ProgramMessage.WORDS + Variant.WORDS, message)
        return base, entropy
