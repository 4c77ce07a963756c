"""`Flows` creates a fabric's messages from Python, manages their flow records while under way, and reads their
counters.

Results must not depend on which record a message gets, as that depends on how often the engine was stopped: equal times
are ordered by message, not by record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver
from gradwire.jit.records.programs import LogRow, ProgramMessage, Variant
from gradwire.result_store.missing_packets import missing_runs
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.loss import LossAllowance
from gradwire.sim.engine.memory.arena import RecordOperation
from gradwire.sim.engine.memory.connections import Streams
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.message_log import MessageLog
from gradwire.sim.engine.memory.pairs import Pairs
from gradwire.sim.engine.memory.parameters import BoundTransport, ParameterSets
from gradwire.sim.engine.memory.record_retention import CLOSE, COUNT, OPEN
from gradwire.sim.engine.memory.records import FlowRecords, InitialRecords, group_rows
from gradwire.sim.engine.message_counts import MessageCounts


class Flows:
    """The messages of one fabric and their flow records.

    Attributes
    ----------
    book : the message log.
    records : the records of messages, streams and groups.
    delivered_bytes : payload bytes of all delivered messages.
    """

    def __init__(
        self,
        memory: EngineMemory,
        keep: RecordOperation,
        transports: Sequence[BoundTransport],
        sets: ParameterSets,
        line: Ints,
        seed: int,
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory = memory
        self.records = FlowRecords(memory, keep, transports, sets, line, seed)
        self.arena = self.records.arena
        self.transports = transports
        self._keep = keep
        self.book = MessageLog(memory)
        self.delivered_bytes = 0
        self._streams = Streams(self.records)
        self._pairs = Pairs(self.records)

    # --- opening and skipping -----------------------------------------------------------------------------------

    def jump(self, messages: int, nbytes: int, by: int) -> None:
        """Account for skipped messages: their number and bytes; later messages get higher numbers, and times grow by
        `by`."""
        self.book.jump(messages, by)
        self.delivered_bytes += nbytes
        self._pairs.shift_times(by)
        self._streams.shift_times(by)

    @property
    def shares(self) -> bool:
        """True if messages of any transport share words between two hosts."""
        return any(bound.pairs for bound in self.transports)

    def persistent_state(self, anchor: int) -> list[Ints]:
        """Return the state that outlives messages while none is under way, with times relative to `anchor`."""
        return self._streams.relevant_state(anchor) + self._pairs.relevant_state(anchor)

    def variants(self, begin: InitialRecords, transport: int) -> tuple[Ints, Ints]:
        """Return what messages of one transport have in common (`FlowRecords.variants`). Makes the connections and
        pairs of first messages."""
        kind = self.transports[transport]
        hosts = len(self.memory.node_base)
        which, first = group_rows(begin.src * hosts + begin.dst, begin.priority)
        src, dst, priority = begin.src[first], begin.dst[first], begin.priority[first]
        stream, pair = np.tile((0, -1), (len(first), 1)), np.zeros((len(first), 4), dtype=np.int64)
        if kind.pairs:
            pair = self._pairs.of(transport, src, dst, priority)
        if kind.persistent:
            stream = self._streams.of(transport, src, dst, priority)
        return self.records.variants(
            begin, transport, self.records.kinds(transport, src, dst)[which], stream[which], pair[which]
        )

    def open(
        self,
        time_ps: int,
        src: int,
        dst: int,
        nbytes: int,
        packets: int,
        *,
        transport: int,
        priority: int,
        loss: LossAllowance,
        important: Flags | bool | None,
        settled: bool = False,
        logged: bool = True,
        number: int | None = None,
        turn: int | None = None,
        fan: tuple[int, int] | None = None,
        since: int = 0,
    ) -> int:
        """Open a message that starts at a time, write its records, and return its number. `turn`: by default the
        number. `fan`: the base of its aggregation group, and its position there."""
        state = self.memory.state
        tags, important_count = self.tags(
            self.transports[transport].important if important is None else important, packets
        )
        number = self.book.enter(1) if number is None else number
        numbers = (src, dst, nbytes, packets, priority, loss.pool, tags, important_count)
        source, target, size, count, priorities, pool, tag, importance = np.array(numbers, dtype=np.int64)[:, None]
        share, bound = np.array([[loss.share], [loss.bound]], dtype=np.float64)
        begin = InitialRecords(source, target, size, count, priorities, share, bound, pool, tag, importance)
        row = self.variants(begin, transport)[0][0]
        row[Variant.notify.offset] = at.TELL_DELIVERED | at.TELL_FINISHED if settled else at.TELL_DELIVERED
        row[Variant.is_logged.offset], row[Variant.first_message.offset], row[Variant.ties_since.offset] = (
            int(logged),
            number,
            since,
        )
        self.book.rows(number, 1)[0] = (
            src, dst, nbytes, packets, transport, -1, 0, -1, 0, 0, 0, tags if tags > 1 else 0, 0, 0, 0,
        )  # fmt: skip
        words = ProgramMessage.WORDS + Variant.WORDS + 2
        g = self.arena.allocate(words)
        row[Variant.messages.offset], variant = g, g + ProgramMessage.WORDS
        if fan is not None:
            row[Variant.aggregations.offset] = variant + Variant.WORDS
            state[variant + Variant.WORDS : variant + Variant.WORDS + 2] = fan
        state[variant : variant + Variant.WORDS] = row
        for word, value in (
            (ProgramMessage.host.offset, self.memory.node_base[src]),
            (ProgramMessage.destination.offset, dst | (number if turn is None else turn) << at.TURN_SHIFT),
            (ProgramMessage.variant.offset, variant),
            (ProgramMessage.released_at.offset, time_ps),
        ):
            state[g + word] = value
        self._keep(OPEN, g, 1)
        self.arena.check()
        self.arena.free(words, g)
        return number

    def tags(self, important: Flags | bool, packets: int) -> tuple[int, int]:
        """Store the importance bits of a message; return their base (0: none, 1: all), and how many are set."""
        if isinstance(important, (bool, np.bool_)):
            return int(important), packets * int(important)
        flags = np.asarray(important, dtype=bool)
        if flags.shape != (packets,):
            raise ValueError(f"importance flags of shape {flags.shape}; expected one for each of {packets} packets")
        words = -(-packets // 32)
        base = self.arena.allocate(words)
        packed = np.zeros(4 * words, dtype=np.uint8)
        bits = np.packbits(flags, bitorder="little")
        packed[: len(bits)] = bits
        self.memory.state[base : base + words] = packed.view("<u4")
        return base, int(flags.sum())

    # --- progress and end ---------------------------------------------------------------------------------------

    def missing(self, number: int) -> Ints:
        """Return the missing packets of a message that still has records (`missing_runs`)."""
        state = self.memory.state
        packets, nbytes, kind, flow = self.book.row(
            number, [LogRow.packets.offset, LogRow.nbytes.offset, LogRow.transport.offset, LogRow.flow.offset]
        )
        base = int(view(Receiver, state, self.records.receiver(flow)).bitmaps_base)
        words = state[base : base + -(-packets // 32)].astype("<u4")
        arrived = np.unpackbits(words.view(np.uint8), bitorder="little")[:packets]
        return missing_runs(number, arrived == 0, nbytes, self.transports[kind].payload)

    def received(self) -> int:
        """Return the payload bytes that all records have received."""
        words = self.records.receiver(np.arange(self.records.used)) + Receiver.received_bytes.offset
        return int(self.memory.state[words].sum())

    def delivered_total(self, first: int, beyond: int) -> int:
        """Return the bytes of delivered messages in [first, beyond), plus what has arrived of the others. None of them
        may be forgotten."""
        book = self.book.rows(first, beyond - first)
        delivered = book[:, LogRow.end.offset] >= 0
        live = book[~delivered & (book[:, LogRow.flow.offset] >= 0), LogRow.flow.offset]
        return int(
            book[delivered, LogRow.nbytes.offset].sum()
            + view(Receiver, self.memory.state, self.records.receiver(live)).received_bytes.sum()
        )

    def all_delivered_bytes(self) -> int:
        """Return the same for all messages so far."""
        state, receivers = self.memory.state, self.records.receiver(np.arange(self.records.used))
        receiver_records = view(Receiver, state, receivers)
        nbytes = receiver_records.nbytes  # FOREVER for streams
        live = (receiver_records.is_done == 0) & (nbytes < at.FOREVER)
        return self.delivered_bytes + int(view(Receiver, state, receivers[live]).received_bytes.sum())

    def counts(self, first: int, many: int) -> MessageCounts:
        """Return the counters of `many` messages from `first` on."""
        self._keep(COUNT, first, many)
        book = self.book.rows(first, many)
        sent, retransmitted, marked, trimmed, timeouts, end, received = (
            book[:, column].copy()
            for column in (
                LogRow.sent.offset,
                LogRow.retransmitted.offset,
                LogRow.marked.offset,
                LogRow.trimmed.offset,
                LogRow.timeouts.offset,
                LogRow.end.offset,
                LogRow.received.offset,
            )
        )
        return MessageCounts(
            sent_packets=sent,
            retransmitted=retransmitted,
            marked=marked,
            trimmed=trimmed,
            timeouts=timeouts,
            end_ps=end,
            received_bytes=received,
            first=first,
        )

    def close(self, at_least: int = 1) -> int:
        """Free the records of messages without packets left, if at least `at_least` wait; return the number freed."""
        return self._keep(CLOSE, at_least, 0)
