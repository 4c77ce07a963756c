"""Flow records: the words of a flow's sender and receiver in the state, and which of them are in use.

A message has one record of each, and so have a stream (`gradwire.sim.fabric.streams`) and a group
(`gradwire.sim.fabric.pairs`), whose records stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from gradwire.components import layout as at
from gradwire.components.draws import entropy_of
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.fabric.arena import Arena
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.parameters import Bound, ParameterSets
from gradwire.sim.fabric.room import SMALLEST_FRAME

FIRST_PACKET = 0
"""Number of the first packet of every stream; numbers on the wire begin anew after 2**22 packets."""

N = TypeVar("N", int, Ints)
"""Of one message, or of many: int64[messages]."""

WordsAndValues = tuple[tuple[int, int | Ints], ...]
"""Pairs of a word of a record and what it holds."""


@dataclass(frozen=True, slots=True)
class Records(Generic[N]):
    """What the records of one message, or of many, begin with.

    `tags`: where the importance bits are, 0 none, 1 all; `wanted`: how many are set; `logged`: 1 if its packets are
    noted; `tell`, `home`, `event`, `left`: see the layout. `stream`: number of the records of its stream,
    -1 = none.
    """

    number: N
    src: N
    dst: N
    nbytes: N
    packets: N
    priority: N
    allowed: N
    tags: N
    wanted: N
    tell: int = at.TELL_DELIVERED
    home: int | Ints = 0
    event: int | Ints = 0
    left: int = 0
    logged: int = 1
    stream: int | Ints = -1
    pair: Sequence[int | Ints] = (0, 0, 0, 0)
    """bases of what the pair shares at the sender, of the group's record, of what it and its host share at the
    receiver"""
    entropy: int | Ints | None = None
    """of its stream; None: one of its own"""


class FlowRecords:
    """The flow records of one fabric.

    Attributes
    ----------
    arena : where what belongs to records for a while is allocated.
    message_of : int64 per record: the message that has it, or had it last; -1 for streams and groups.
    dropped : int64 per record: packets of its message that were lost.
    active : int64[hosts]: flows of every host that may set timers.
    """

    def __init__(
        self, memory: Memory, transports: Sequence[Bound], sets: ParameterSets, line: Ints, seed: int
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory, self.transports, self.sets, self.seed = memory, transports, sets, seed
        self.arena = Arena(memory)
        self.message_of = np.full(1024, -1, dtype=np.int64)
        self.dropped = np.zeros(1024, dtype=np.int64)
        self.active = np.zeros(len(line), dtype=np.int64)
        self.used = 0
        self._line = line
        self._free: list[int] = []

    def sender(self, flow: N) -> N:
        """Base of a sender's record."""
        return self.memory.senders + flow * at.SENDER_WORDS

    def receiver(self, flow: N) -> N:
        """Base of a receiver's record."""
        return self.memory.receivers + flow * at.RECEIVER_WORDS

    def allocate(self, many: int) -> list[int]:
        """Numbers of records that are free: those that were freed last come first.

        Raises
        ------
        GradwireError
            There are not so many.
        """
        again = self._free[len(self._free) - min(many, len(self._free)) :]
        del self._free[len(self._free) - len(again) :]
        fresh = many - len(again)
        if fresh:
            if self.used + fresh > at.MAX_FLOWS:
                raise GradwireError(f"more than {at.MAX_FLOWS} messages under way at once", "fabric", "fewer")
            again += range(self.used, self.used + fresh)
            self.used += fresh
            while self.used > len(self.message_of):
                self.message_of = np.concatenate((self.message_of, np.full_like(self.message_of, -1)))
                self.dropped = np.concatenate((self.dropped, np.zeros_like(self.dropped)))
        return again

    def free(self, flows: Ints) -> None:
        """Take records back."""
        self.dropped[flows] = 0
        self._free.extend(flows.tolist())

    def expect_timers(self, host: int, flows: int = 1) -> None:
        """A host gets more flows: three entries of its heap for each of them all, and some to spare.

        Raises
        ------
        GradwireError
            There is no room for a larger heap.
        """
        self.active[host] += flows
        M = self.memory.M
        node = int(self.memory.node_base[host])
        base = int(M[node + at.N_HEAP])
        need = 3 * int(self.active[host]) + 8
        if need <= M[base - 1]:
            return
        size = 2 * need
        fresh = self.memory.heap_free + 8
        if fresh + 2 * size > self.memory.heap_end:
            raise GradwireError("too many messages under way at one host", "fabric", "fewer")
        self.memory.heap_free = fresh + 2 * size
        count = 2 * int(M[node + at.N_HEAP_COUNT])
        M[fresh : fresh + count] = M[base : base + count]
        M[fresh - 1] = size
        M[node + at.N_HEAP] = fresh

    def new(self, src: int, dst: int) -> int:
        """The number of a pair of records, all zeros, that no message has: for a stream or a group, for good."""
        M, flow = self.memory.M, self.allocate(1)[0]
        self.message_of[flow] = -1
        for base, size in ((self.sender(flow), at.SENDER_WORDS), (self.receiver(flow), at.RECEIVER_WORDS)):
            M[base : base + size] = 0
        self.expect_timers(src)
        self.expect_timers(dst)
        return flow

    def of_stream(
        self, transport: int, src: int, dst: int, priority: int, entropy: int, flow: int
    ) -> Iterator[tuple[int, WordsAndValues]]:
        """What the records of a stream begin with: base, and pairs of word and value, of the sender's and the
        receiver's."""
        begin: Records[int] = Records(0, src, dst, at.FOREVER, 0, priority, 0, 0, 0, stream=flow, entropy=entropy)
        chosen = self.sets.of_pair(transport, src, dst)
        sender, receiver = self.begin(begin, transport, chosen, 0, 0, 0, 0, 0)
        first = FIRST_PACKET
        yield self.sender(flow), (*sender, (at.S_FIRST, first), (at.S_TOTAL, first))
        yield self.receiver(flow), (*receiver, (at.R_FIRST, first))

    def begin(
        self, begin: Records[N], transport: int, chosen: N, words: N, bits: N, peer: N, slots: N, stamps: N
    ) -> tuple[WordsAndValues, WordsAndValues]:
        """The words of sender and receiver that do not begin at zero.

        `chosen`: the parameter set; `words`: of one bitmap; `bits`, `peer`: bases of those of sender and receiver;
        `stamps`: base of so many `slots` for in-band telemetry.
        """
        kind = self.transports[transport]
        overhead = kind.owner.data_overhead
        entropy = (entropy_of(self.seed, begin.number) if begin.entropy is None else begin.entropy) << at.A_ENTROPY
        entropy |= begin.logged << at.A_LOGGED
        last = begin.nbytes - (begin.packets - 1) * kind.payload + overhead
        last = max(last, SMALLEST_FRAME) if isinstance(last, int) else np.maximum(last, SMALLEST_FRAME)
        which = transport | chosen << at.SET_SHIFT
        return (
            self._sender(begin, kind, entropy, last, which, words, bits, peer, slots, stamps),
            self._receiver(begin, kind, entropy, last, which, words, peer),
        )

    def _sender(
        self, begin: Records[N], kind: Bound, entropy: int | Ints, last: int | Ints, which: N, words: N, bits: N,
        peer: N, slots: N, stamps: N,
    ) -> WordsAndValues:  # fmt: skip
        full = (kind.payload + kind.owner.data_overhead) << at.A_SIZE
        return (
            (at.S_DATA, begin.dst | full | begin.priority << at.A_PRIORITY | entropy),
            (at.S_PACKETS, begin.packets),
            (at.S_LAST, last),
            (at.S_BITS, bits),
            (at.S_WORDS, words),
            (at.S_KIND, which),
            (at.S_ORDER, (begin.number & at.MASK_KEY_NUMBER) << at.KEY_ORDER),
            (at.S_NEXT, -1),
            (at.S_PEER, peer),
            (at.S_LINE, self._line[begin.src]),
            (at.S_TAGS, begin.tags),
            (at.S_HOME, begin.home),
            (at.S_ALLOWED, begin.allowed),
            (at.S_PAIR, begin.pair[0]),
            (at.S_GROUP, begin.pair[1]),
            (at.S_STAMPS, stamps),
            (at.S_SLOTS, slots - 1),
            (at.S_STREAM, (begin.stream >= 0) * (self.memory.senders + begin.stream * at.SENDER_WORDS)),
        )

    def _receiver(
        self, begin: Records[N], kind: Bound, entropy: int | Ints, last: int | Ints, which: N, words: N, peer: N
    ) -> WordsAndValues:
        control = kind.owner.control_bytes << at.A_SIZE | kind.control_priority << at.A_PRIORITY
        control |= kind.control_important << at.A_IMPORTANT
        return (
            (at.R_CONTROL, begin.src | control | entropy),
            (at.R_PACKETS, begin.packets),
            (at.R_BYTES, begin.nbytes),
            (at.R_PAYLOAD, kind.payload),
            (at.R_BITS, peer),
            (at.R_WORDS, words),
            (at.R_KIND, which),
            (at.R_FRAME, np.where(begin.packets > 1, kind.payload + kind.owner.data_overhead, last)),
            (at.R_TAGS, begin.tags),
            (at.R_ALLOWED, begin.allowed),
            (at.R_IMPORTANT, begin.wanted),
            (at.R_TELL, begin.tell),
            (at.R_EVENT, begin.event),
            (at.R_LEFT, begin.left),
            (at.R_STREAM, (begin.stream >= 0) * (self.memory.receivers + begin.stream * at.RECEIVER_WORDS)),
            (at.R_PAIR, begin.pair[2]),
            (at.R_HOST, begin.pair[3]),
        )
