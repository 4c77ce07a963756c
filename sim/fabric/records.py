"""Flow records: the words of a flow's sender and receiver in the state, and what they are written from.

A message has one record of each while it is under way, and so have a stream (`gradwire.sim.fabric.streams`) and a
group (`gradwire.sim.fabric.pairs`), whose records stay. Compiled code writes them (`gradwire.sim.fabric.opening`), from
the words of a message and from those of its *variant*: what it has in common with others of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import AnyArray, Ints
from gradwire.scenarios.loss import allowed_losses
from gradwire.sim.fabric.arena import Arena, Keep
from gradwire.sim.fabric.keep import NEW
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.parameters import Bound, ParameterSets

FIRST_PACKET = 0
"""Number of the first packet of every stream; numbers on the wire begin anew after 2**22 packets."""

N = TypeVar("N", int, Ints)
"""Of one record, or of many: int64[n]."""

TABLE_CODES = 1 << 22  # values in so small a range are told apart by a table, not by sorting


@dataclass(frozen=True)
class Begin:
    """What the records of messages of one transport begin with: one row per message, int64[n] unless said otherwise.

    src, dst, nbytes, packets, priority, pool : as in `gradwire.experiment.program.Messages`; share, bound too,
        float64[n].
    tags : where the importance bits are, 0 none, 1 all; important : how many are set.
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
    arena : where what belongs to records for a while is allocated.
    keep : what Python asks of the compiled keeping of messages.
    dropped : int64 per record: packets of its message that were lost.
    lasting : records that are in use for good.
    """

    def __init__(
        self, memory: Memory, keep: Keep, transports: Sequence[Bound], sets: ParameterSets, line: Ints, seed: int
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory, self.transports, self.sets, self.seed, self.keep = memory, transports, sets, seed, keep
        self.arena, self.lasting = Arena(memory, keep), 0
        self.dropped = memory.M[memory.dropped : memory.dropped + at.MAX_FLOWS]
        memory.M[memory.node_base[: len(line)] + at.N_LINE] = line
        for number, bound in enumerate(transports):
            owner, base = bound.owner, memory.transports + at.KIND_WORDS * number
            control = owner.control_bytes << at.A_SIZE | bound.control_priority << at.A_PRIORITY
            for word, value in (
                (at.KIND_PAYLOAD, bound.payload),
                (at.KIND_OVERHEAD, owner.data_overhead),
                (at.KIND_CONTROL, control | bound.control_important << at.A_IMPORTANT),
                (at.KIND_SENDER_BITMAPS, owner.sender_bitmaps),
                (at.KIND_RECEIVER_BITMAPS, owner.receiver_bitmaps),
                (at.KIND_PROBES, owner.probe_word),
                (at.KIND_FRESH, at.S_FRESH if bound.persistent else owner.fresh_word),
                (at.KIND_LATE, bound.ack_delay),
            ):
                memory.M[base + word] = value

    @property
    def used(self) -> int:
        """Records that were ever in use."""
        return int(self.memory.M[at.H_USED])

    @property
    def open(self) -> int:
        """Records that are in use."""
        return self.used - int(self.memory.M[at.H_FREE_COUNT])

    def sender(self, flow: N) -> N:
        """Base of a sender's record."""
        return self.memory.senders + flow * at.SENDER_WORDS

    def receiver(self, flow: N) -> N:
        """Base of a receiver's record."""
        return self.memory.receivers + flow * at.RECEIVER_WORDS

    def message_of(self, flows: Ints) -> Ints:
        """The messages that have records, or had them last: int64[n]."""
        return self.memory.M[self.sender(flows) + at.S_ORDER] >> at.KEY_ORDER

    def new(self, src: int, dst: int) -> int:
        """The number of a pair of records, all zeros, that no message has: for a stream or a group, for good.

        Raises
        ------
        GradwireError
            There is no room for one.
        """
        flow = self.keep(NEW, src, dst)
        self.arena.check()
        self.lasting += 1
        return flow

    def kinds(self, transport: int, src: Ints, dst: Ints) -> Ints:
        """What S_KIND is for messages of a transport from hosts to hosts: int64[n]."""
        return transport | self.sets.of(transport, src, dst) << at.SET_SHIFT

    def variants(self, begin: Begin, transport: int, kind: Ints, stream: Ints, pair: Ints) -> tuple[Ints, Ints]:
        """What messages have in common, as rows of VARIANT_WORDS: int64[variants, VARIANT_WORDS] without what belongs
        to their step, and int64[n], which of them each is of.

        `kind` : as S_KIND; `stream` : int64[n, 2], base of the stream's sender's record, and its path entropy; `pair` :
        int64[n, 4], as V_PAIR.
        """
        of, first = alike(
            begin.nbytes, begin.priority, begin.share, begin.bound, begin.pool, begin.tags, kind,
            stream[:, 0], pair[:, 0], pair[:, 1],
        )  # fmt: skip
        found = np.zeros((len(first), at.VARIANT_WORDS), dtype=np.int64)
        nbytes = begin.nbytes[first]
        for word, values in (
            (at.V_BYTES, nbytes),
            (at.V_PACKETS, begin.packets[first]),
            (at.V_KIND, kind[first]),
            (at.V_PRIORITY, begin.priority[first]),
            (at.V_TAGS, begin.tags[first]),
            (at.V_IMPORTANT, begin.important[first]),
            (at.V_ALLOWED, allowed_losses(nbytes, begin.share[first])),
            (at.V_MOST, allowed_losses(nbytes, begin.bound[first])),
            (at.V_POOL, begin.pool[first]),
            (at.V_SLOTS, self.sets.slots(kind[first] >> at.SET_SHIFT, begin.packets[first])),
            (at.V_STREAM, stream[first, 0]),
            (at.V_ENTROPY, stream[first, 1]),
        ):
            found[:, word] = values
        found[:, at.V_PAIR : at.V_PAIR + 4] = pair[first]
        return found, of


def alike(*columns: AnyArray) -> tuple[Ints, Ints]:
    """Rows that are the same in all columns are of one kind: int64[n], the kind of every row, and int64[kinds], a row
    of each."""
    n = len(columns[0])
    of, kinds = np.zeros(n, dtype=np.int64), min(1, n)
    for column in columns:
        if not n or (column == column[0]).all():
            continue
        codes, several = _codes(column)
        of, kinds = (codes, several) if kinds == 1 else _codes(of * several + codes)
    first = np.zeros(kinds, dtype=np.int64)
    first[of[::-1]] = np.arange(n)[::-1]  # the first row of each comes last
    return of, first


def _codes(column: AnyArray) -> tuple[Ints, int]:
    """Numbers for the values of a column, in their order, and how many there are."""
    if column.dtype == np.int64:
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span <= max(TABLE_CODES, 4 * len(column)):
            there = np.zeros(span, dtype=np.int64)
            there[column - low] = 1
            codes = np.cumsum(there)
            return codes[column - low] - 1, int(codes[-1])
    values, codes = np.unique(column, return_inverse=True)
    return codes.reshape(-1), len(values)
