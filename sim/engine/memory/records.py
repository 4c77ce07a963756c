"""Locates senders' and receivers' flow records in the engine's memory, and computes initial words that messages of a
step share.

A message has one record of each while it is under way, and so have a stream (`gradwire.sim.engine.memory.connections`)
and a group (`gradwire.sim.engine.memory.pairs`), whose records stay. Compiled code writes them
(`gradwire.sim.engine.program.flow_setup`) from the words of a message and those of its *variant*, which it shares with
others of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Host
from gradwire.jit.records.packets import with_importance, with_priority, with_size
from gradwire.jit.records.programs import TransportKind, Variant
from gradwire.scenarios.arrays import AnyArray, Ints
from gradwire.scenarios.loss import allowed_loss_per_message
from gradwire.sim.engine.memory.arena import Arena, RecordOperation
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.parameters import BoundTransport, ParameterSets
from gradwire.sim.engine.memory.record_retention import NEW

FIRST_PACKET = 0
"""Number of the first packet of every stream; numbers on the wire wrap around after 2**22 packets."""

N = TypeVar("N", int, Ints)
"""One record, or several: int64[n]."""

TABLE_CODES = 1 << 22  # values within such a range are numbered by a table, not by sorting


@dataclass(frozen=True)
class InitialRecords:
    """Initial values of the records of messages of one transport, one row per message, int64[n] unless stated
    otherwise.

    src, dst, nbytes, packets, priority, pool : as in `gradwire.workload.program.Messages`.
    share, bound : likewise, float64[n].
    tags : base of the importance bits (0: none, 1: all).
    important : number of important packets.
    """

    src: Ints
    dst: Ints
    nbytes: Ints
    packets: Ints
    priority: Ints
    share: AnyArray
    bound: AnyArray
    pool: Ints
    tags: Ints
    important: Ints


class FlowRecords:
    """The flow records of one fabric.

    Attributes
    ----------
    arena : allocator of what belongs to records temporarily.
    keep : the compiled management of messages.
    dropped : int64 per record: lost packets of its message.
    lasting : number of permanent records.
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
        self.memory, self.transports, self.sets, self.seed, self.keep = memory, transports, sets, seed, keep
        self.arena, self.lasting = Arena(memory, keep), 0
        self.dropped = memory.state[memory.dropped : memory.dropped + at.MAX_FLOWS]
        view(Host, memory.state, memory.node_base[: len(line)]).ps_per_byte = line
        for number, bound in enumerate(transports):
            owner, base = bound.owner, memory.transports + TransportKind.WORDS * number
            control = with_priority(with_size(0, owner.control_bytes), bound.control_priority)
            for word, value in (
                (TransportKind.payload.offset, bound.payload),
                (TransportKind.overhead.offset, owner.data_overhead),
                (TransportKind.control_header.offset, with_importance(control, int(bound.control_important))),
                (TransportKind.sender_bitmaps.offset, owner.sender_bitmaps),
                (TransportKind.receiver_bitmaps.offset, owner.receiver_bitmaps),
                (TransportKind.probes_offset.offset, owner.probe_word),
                (
                    TransportKind.sent_once_offset.offset,
                    Sender.first_sends.offset if bound.persistent else owner.fresh_word,
                ),
                (TransportKind.delays_answers.offset, bound.ack_delay),
            ):
                memory.state[base + word] = value

    @property
    def used(self) -> int:
        """Number of records that were ever in use."""
        return int(self.memory.state[State.used_records.offset])

    @property
    def open(self) -> int:
        """Number of records in use."""
        return self.used - int(self.memory.state[State.free_count.offset])

    def sender(self, flow: N) -> N:
        """Return the base of a sender's record."""
        return self.memory.senders + flow * Sender.WORDS

    def receiver(self, flow: N) -> N:
        """Return the base of a receiver's record."""
        return self.memory.receivers + flow * Receiver.WORDS

    def message_of(self, flows: Ints) -> Ints:
        """Return the messages that have the records, or had them last: int64[n]."""
        return view(Sender, self.memory.state, self.sender(flows)).order >> at.KEY_ORDER

    def new(self, src: int, dst: int) -> int:
        """Return the number of a new pair of zeroed records without a message, permanently, for a stream or a group.
        Raises GradwireError if there is no room for one."""
        flow = self.keep(NEW, src, dst)
        self.arena.check()
        self.lasting += 1
        return flow

    def kinds(self, transport: int, src: Ints, dst: Ints) -> Ints:
        """Return `Sender.kind` for messages of a transport between hosts: int64[n]."""
        return transport | self.sets.of(transport, src, dst) << at.SET_SHIFT

    def variants(
        self, begin: InitialRecords, transport: int, kind: Ints, stream: Ints, pair: Ints
    ) -> tuple[Ints, Ints]:
        """Return the distinct variants of messages, and the variant of each: int64[variants, Variant.WORDS], int64[n].

        The words that belong to their step are left 0.

        Parameters
        ----------
        kind : as `Sender.kind`.
        stream : int64[n, 2], base of the stream's sender's record, and its path entropy.
        pair : int64[n, 4], as `Variant.pair`.
        """
        variant_of_message, first = group_rows(
            begin.nbytes,
            begin.priority,
            begin.share,
            begin.bound,
            begin.pool,
            begin.tags,
            kind,
            stream[:, 0],
            pair[:, 0],
            pair[:, 1],
        )
        variants = np.zeros((len(first), Variant.WORDS), dtype=np.int64)
        nbytes = begin.nbytes[first]
        for word, values in (
            (Variant.nbytes.offset, nbytes),
            (Variant.packets.offset, begin.packets[first]),
            (Variant.kind.offset, kind[first]),
            (Variant.priority.offset, begin.priority[first]),
            (Variant.tags.offset, begin.tags[first]),
            (Variant.important_packets.offset, begin.important[first]),
            (Variant.allowed_loss.offset, allowed_loss_per_message(nbytes, begin.share[first])),
            (Variant.max_loss.offset, allowed_loss_per_message(nbytes, begin.bound[first])),
            (Variant.pool.offset, begin.pool[first]),
            (Variant.slots.offset, self.sets.slots(kind[first] >> at.SET_SHIFT, begin.packets[first])),
            (Variant.stream.offset, stream[first, 0]),
            (Variant.entropy.offset, stream[first, 1]),
        ):
            variants[:, word] = values
        variants[:, Variant.pair.offset : Variant.pair.offset + 4] = pair[first]
        return variants, variant_of_message


def group_rows(*columns: AnyArray) -> tuple[Ints, Ints]:
    """Group rows that are equal in all columns: int64[n], the group of every row, and int64[groups], a row of each."""
    n = len(columns[0])
    groups, group_count = np.zeros(n, dtype=np.int64), min(1, n)
    for column in columns:
        if not n or (column == column[0]).all():
            continue
        codes, code_count = _codes(column)
        groups, group_count = (codes, code_count) if group_count == 1 else _codes(groups * code_count + codes)
    first = np.zeros(group_count, dtype=np.int64)
    first[groups[::-1]] = np.arange(n)[::-1]  # the first row of each group is written last
    return groups, first


def _codes(column: AnyArray) -> tuple[Ints, int]:
    """Return ordinal numbers for the values of a column, and how many there are."""
    if column.dtype == np.int64:
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span <= max(TABLE_CODES, 4 * len(column)):
            is_used = np.zeros(span, dtype=np.int64)
            is_used[column - low] = 1
            codes = np.cumsum(is_used)
            return codes[column - low] - 1, int(codes[-1])
    values, codes = np.unique(column, return_inverse=True)
    return codes.reshape(-1), len(values)
