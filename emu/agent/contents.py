"""Contents: the bytes of one host's messages - gradients out, what arrived in, sums - and check sums of all of them.

A push carries a worker's gradient; a pull or a ring segment carries what its sender has received, added up after its
own part, in the order that the program lists. Packets that were lost count there as zeros: a buffer is as it was made,
but for what arrived. A pull that is shorter than the pushes holds the beginning of their sum, and a longer one nothing
behind it. So what travels is what the network made of real values, and whoever knows the gradients and what was lost
can tell what every message should have been (`gradwire.emu.results.verify`).

Buffers live as long as something needs them: an outgoing one until its message is settled (and whoever sends it holds
it), an incoming one until everything is made that it is part of.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.agent.base import Arrival
from gradwire.emu.agent.host_part import Carried, Part
from gradwire.emu.agent.values import Values

Sums = NDArray[np.uint32]
Key = tuple[tuple[int, ...], int, int]

PATTERN = 65521
"""Bytes after which the pattern of traffic repeats: a prime, so that no two packets of a message are alike."""
NOTHING = -0.0
"""What sums begin with: added to anything it leaves that as it is, to the bit, where 0.0 turns -0.0 into itself."""


@dataclass
class CheckSums:
    """CRC-32 of the packets of messages, in order; whole messages have as many as they have packets.

    sent : of what was handed out to be sent. received : of the buffer of what arrived; of a packet that did not arrive,
    that of so many zeros.
    """

    sent: dict[int, Sums] = field(default_factory=dict)
    received: dict[int, Sums] = field(default_factory=dict)

    def update(self, other: CheckSums) -> None:
        """Take in those of another host."""
        self.sent.update(other.sent)
        self.received.update(other.received)


class Contents:
    """The contents of the messages of one host.

    Attributes
    ----------
    sums : check sums so far.
    """

    def __init__(
        self, part: Part, magnitudes: Sequence[Values], payloads: Sequence[int], seed: int
    ) -> None:
        """`magnitudes` : by number of a trace; `payloads` : bytes of a full packet, by number of a transport."""
        self.part, self.sums = part, CheckSums()
        self._magnitudes, self._payloads, self._seed = magnitudes, payloads, seed
        self._outgoing: dict[int, memoryview] = {}
        self._incoming: dict[int, bytearray] = {}
        # How many messages a message is part of, and how many carry the same sum.
        self._uses = Counter(s for each in part.carries.values() for s in set(each.sums or ()))
        self._same = Counter(self._key(number) for number, each in part.carries.items() if each.sums)
        self._made: dict[Key, tuple[memoryview, Sums]] = {}
        self._to_make = deque(sorted(n for n, each in part.carries.items() if not each.sums))
        self._ahead: set[int] = set()  # made before anybody asked
        traffic = [row.nbytes for number, row in part.rows.items() if self._is_traffic(number)]
        self._pattern = memoryview(_pattern(max(traffic, default=0)))

    def outgoing(self, message: int) -> memoryview:
        """The bytes of a message that is ready; everything that it is made of has arrived."""
        self._ahead.discard(message)
        found = self._outgoing.get(message)
        if found is None:
            found, sums = self._make(message)
            self._outgoing[message], self.sums.sent[message] = found, sums
        return found

    def make_ahead(self, most: int) -> bool:
        """Make the next message that carries a gradient as it is, or is traffic, while there is nothing else to do - a
        gradient takes milliseconds per megabyte, check sums one - unless what was made so and not asked for yet has
        `most` bytes. Returns whether it did."""
        if sum(self.part.rows[message].nbytes for message in self._ahead) >= most:
            return False
        while self._to_make:
            message = self._to_make.popleft()
            if message not in self.sums.sent:
                self.outgoing(message)
                self._ahead.add(message)
                return True
        return False

    def incoming(self, message: int) -> memoryview:
        """Where a message's bytes go: zeros until written."""
        found = self._incoming.get(message)
        if found is None:
            found = self._incoming[message] = bytearray(self.part.rows[message].nbytes)
        return memoryview(found)

    def arrived(self, arrival: Arrival) -> None:
        """A message is as it will be: note its check sums. Call it before the script hears of it."""
        message = arrival.message
        buffer = self.incoming(message)
        self.sums.received[message] = self._check(message, buffer)
        if not self._uses[message]:
            del self._incoming[message]

    def settled(self, message: int) -> None:
        """A message from here is done with."""
        self._outgoing.pop(message, None)

    def held(self) -> int:
        """Bytes of all buffers."""
        buffers = {
            id(each.obj): each.nbytes for each in self._outgoing.values() if each.obj is not self._pattern.obj
        }
        for made, _ in self._made.values():
            buffers[id(made.obj)] = made.nbytes
        buffers.update((id(each), len(each)) for each in self._incoming.values())
        return sum(buffers.values())

    def _make(self, message: int) -> tuple[memoryview, Sums]:
        """The bytes of a message, and their check sums; the same object for messages that carry the same sum."""
        carried, row = self.part.carries[message], self.part.rows[message]
        if carried.sums is None:
            begin = message * 7919 % PATTERN
            found = self._pattern[begin : begin + row.nbytes]
            return found, self._check(message, found)
        key = self._key(message)
        made = self._made.get(key) if carried.sums else None
        if made is None:
            found = self._add(message, carried).cast("B")
            made = found, self._check(message, found)
            self._release(key)
        if not carried.sums:
            return made
        self._made[key] = made
        self._same[key] -= 1
        if not self._same[key]:
            del self._made[key]
        return made

    def _key(self, message: int) -> Key:
        """What messages have alike that carry the same sum."""
        carried = self.part.carries[message]
        return carried.sums or (), carried.first, self.part.rows[message].nbytes

    def _add(self, message: int, carried: Carried) -> memoryview:
        """The sender's own part, and what has arrived on top of it or in its place, in order."""
        row = self.part.rows[message]
        dtype = self._type(row.table, carried)
        count = row.nbytes // dtype.itemsize
        arrived = [np.frombuffer(self.incoming(each), dtype=dtype) for each in carried.sums or ()]
        if carried.own and carried.bucket < 0 and arrived:  # of a pull, which may be longer than what was pushed
            total = np.zeros(count, dtype=dtype)
            own = min(count, len(arrived[0]))
            total[:own] = self._gradient(row.table, carried, own, dtype)
        elif carried.own:
            total = self._gradient(row.table, carried, count, dtype)
        elif len(arrived) == 1 and carried.places[0][0] == 0 and len(arrived[0]) == count:
            return arrived[0].data
        else:
            total = np.full(count, NOTHING, dtype=dtype)
        for each, (first, instead) in zip(arrived, carried.places, strict=True):
            low, high = max(first, 0), min(first + len(each), count)
            mine = each[low - first : high - first]
            total[low:high] = mine if instead else total[low:high] + mine
        return total.data

    def _release(self, key: Key) -> None:
        """One more message is made of those."""
        for each in set(key[0]):
            self._uses[each] -= self._same[key]
            if not self._uses[each]:
                del self._incoming[each]

    def _type(self, table: int, carried: Carried) -> np.dtype[Any]:
        magnitudes = self._magnitudes[self.part.tables[table].trace]
        tensors = self._tensors(table, carried)
        return magnitudes.widest(tensors)

    def _tensors(self, table: int, carried: Carried) -> tuple[int, ...]:
        return (carried.tensor,) if carried.bucket < 0 else self.part.tables[table].buckets[carried.bucket]

    def _gradient(self, table: int, carried: Carried, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Elements of the own gradient, or of the own bucket: zeros behind its end."""
        job = self.part.tables[table]
        magnitudes = self._magnitudes[job.trace]
        values = np.zeros(count, dtype=dtype)
        slices = job.slices if carried.bucket >= 0 else ()
        before, elements = slices[carried.bucket] if slices else (0, carried.first + count)
        low = -before
        for tensor in self._tensors(table, carried):
            high = low + magnitudes.numel[tensor]
            begin, end = max(low, carried.first), min(high, carried.first + count, elements)
            if begin < end:
                values[begin - carried.first : end - carried.first] = magnitudes.gradient(
                    self._seed, job.name, carried.worker, carried.captured, tensor, begin - low, end - begin
                )
            low = high
        return values

    def _is_traffic(self, message: int) -> bool:
        carried = self.part.carries.get(message)
        return carried is not None and carried.sums is None

    def _check(self, message: int, content: memoryview) -> Sums:
        return check_sums(content, self._payloads[self.part.rows[message].transport])


def check_sums(content: memoryview | bytes, payload: int) -> Sums:
    """CRC-32 of every packet of a message."""
    view, crc32 = memoryview(content).cast("B"), zlib.crc32
    return np.array([crc32(view[at : at + payload]) for at in range(0, len(view), payload)], dtype=np.uint32)


def _pattern(largest: int) -> bytes:
    """What the messages of traffic are pieces of."""
    if not largest:
        return b""
    once = np.random.Generator(np.random.PCG64(7117)).bytes(PATTERN)
    return once * (largest // PATTERN + 2)
