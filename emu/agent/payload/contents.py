"""`Contents` makes the bytes of one host's messages (gradients, sums of received values), stores received bytes, and
computes check sums.

A push carries a worker's gradient. A pull or a ring segment carries the sum of its sender's part and what it has
received, in the program's order. Lost packets count as zeros: a receive buffer changes only where packets arrive. A
pull shorter than the pushes has the beginning of their sum; a longer one has zeros behind it. So messages have the
real values that the network delivers, and from the gradients and the losses one can compute what every message should
have been (`gradwire.emu.results.verify`).

An outgoing buffer lives until its message is settled (and released by its sender); an incoming one until all messages
that contain it have been made.
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
from gradwire.emu.agent.host_part import HostProgram, MessageContents
from gradwire.emu.agent.payload.values import ValueSource

Sums = NDArray[np.uint32]
Key = tuple[tuple[int, ...], int, int]

PATTERN = 65521
"""Period of the traffic's pattern in bytes: a prime, so that no two packets of a message are equal."""
SUM_START = -0.0
"""Start of sums: adding -0.0 changes no value, to the bit, whereas adding 0.0 turns -0.0 into 0.0."""


@dataclass
class CheckSums:
    """CRC-32 of each packet of messages, in order.

    sent : of the bytes to be sent. received : of the receive buffer, with zeros for missing packets.
    """

    sent: dict[int, Sums] = field(default_factory=dict)
    received: dict[int, Sums] = field(default_factory=dict)

    def update(self, other: CheckSums) -> None:
        self.sent.update(other.sent)
        self.received.update(other.received)


class Contents:
    """The contents of the messages of one host.

    sums : check sums so far.
    """

    def __init__(
        self, part: HostProgram, magnitudes: Sequence[ValueSource], payloads: Sequence[int], seed: int
    ) -> None:
        """Set the sources of values.

        magnitudes : by number of a trace. payloads : bytes of a full packet, by number of a transport.
        """
        self.part, self.sums = part, CheckSums()
        self._magnitudes, self._payloads, self._seed = magnitudes, payloads, seed
        self._outgoing: dict[int, memoryview] = {}
        self._incoming: dict[int, bytearray] = {}
        # Numbers of messages that contain a message, and that carry the same sum.
        self._uses = Counter(s for each in part.carries.values() for s in set(each.sums or ()))
        self._same = Counter(self._key(number) for number, each in part.carries.items() if each.sums)
        self._made: dict[Key, tuple[memoryview, Sums]] = {}
        self._to_make = deque(sorted(n for n, each in part.carries.items() if not each.sums))
        self._ahead: set[int] = set()  # made in advance
        traffic = [part.rows[number].nbytes for number, each in part.carries.items() if each.sums is None]
        self._pattern = memoryview(_pattern(max(traffic, default=0)))

    def outgoing(self, message: int) -> memoryview:
        """Return the bytes of a message that is ready; all its inputs have arrived."""
        self._ahead.discard(message)
        data = self._outgoing.get(message)
        if data is None:
            data, sums = self._make(message)
            self._outgoing[message], self.sums.sent[message] = data, sums
        return data

    def prepare_next(self, most: int) -> bool:
        """Make the next gradient or traffic message in idle time; return False if there is none. A gradient takes
        milliseconds per megabyte, check sums one. No message is made while `most` bytes are unused."""
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
        """Return the receive buffer of a message, zero until written."""
        buffer = self._incoming.get(message)
        if buffer is None:
            buffer = self._incoming[message] = bytearray(self.part.rows[message].nbytes)
        return memoryview(buffer)

    def arrived(self, arrival: Arrival) -> None:
        """Record the check sums of a received message; call it before the script's `delivered`."""
        message = arrival.message
        buffer = self.incoming(message)
        self.sums.received[message] = self._check(message, buffer)
        if not self._uses[message]:
            del self._incoming[message]

    def message_finished(self, message: int) -> None:
        self._outgoing.pop(message, None)

    def buffer_bytes(self) -> int:
        buffers = {id(each.obj): each.nbytes for each in self._outgoing.values() if each.obj is not self._pattern.obj}
        for data, _ in self._made.values():
            buffers[id(data.obj)] = data.nbytes
        buffers.update((id(each), len(each)) for each in self._incoming.values())
        return sum(buffers.values())

    def _make(self, message: int) -> tuple[memoryview, Sums]:
        """Return the bytes of a message and their check sums, shared by messages that carry the same sum."""
        carried, row = self.part.carries[message], self.part.rows[message]
        if carried.sums is None:
            begin = message * 7919 % PATTERN
            data = self._pattern[begin : begin + row.nbytes]
            return data, self._check(message, data)
        key = self._key(message)
        result = self._made.get(key) if carried.sums else None
        if result is None:
            data = self._add(message, carried).cast("B")
            result = data, self._check(message, data)
            self._release(key)
        if not carried.sums:
            return result
        self._made[key] = result
        self._same[key] -= 1
        if not self._same[key]:
            del self._made[key]
        return result

    def _key(self, message: int) -> Key:
        """Return the key shared by messages that carry the same sum."""
        carried = self.part.carries[message]
        return carried.sums or (), carried.first, self.part.rows[message].nbytes

    def _add(self, message: int, carried: MessageContents) -> memoryview:
        """Return the sender's part, with received values added to it or replacing it, in order."""
        row = self.part.rows[message]
        dtype = self._type(row.table, carried)
        count = row.nbytes // dtype.itemsize
        arrived = [np.frombuffer(self.incoming(each), dtype=dtype) for each in carried.sums or ()]
        if carried.own and carried.bucket < 0 and arrived:  # a pull may be longer than the pushes
            total = np.zeros(count, dtype=dtype)
            own_count = min(count, len(arrived[0]))
            total[:own_count] = self._gradient(row.table, carried, own_count, dtype)
        elif carried.own:
            total = self._gradient(row.table, carried, count, dtype)
        elif len(arrived) == 1 and carried.places[0][0] == 0 and len(arrived[0]) == count:
            return arrived[0].data
        else:
            total = np.full(count, SUM_START, dtype=dtype)
        for each, (first, instead) in zip(arrived, carried.places, strict=True):
            low, high = max(first, 0), min(first + len(each), count)
            piece = each[low - first : high - first]
            total[low:high] = piece if instead else total[low:high] + piece
        return total.data

    def _release(self, key: Key) -> None:
        """Count one use of the inputs of a sum, and free unused ones."""
        for message in set(key[0]):
            self._uses[message] -= self._same[key]
            if not self._uses[message]:
                del self._incoming[message]

    def _type(self, table: int, carried: MessageContents) -> np.dtype[Any]:
        magnitudes = self._magnitudes[self.part.tables[table].trace]
        tensors = self._tensors(table, carried)
        return magnitudes.widest(tensors)

    def _tensors(self, table: int, carried: MessageContents) -> tuple[int, ...]:
        return (carried.tensor,) if carried.bucket < 0 else self.part.tables[table].buckets[carried.bucket]

    def _gradient(self, table: int, carried: MessageContents, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return elements of this worker's gradient or bucket, zeros beyond its end."""
        job = self.part.tables[table]
        magnitudes = self._magnitudes[job.trace]
        values = np.zeros(count, dtype=dtype)
        slices = job.slices if carried.bucket >= 0 else ()
        skipped, elements = slices[carried.bucket] if slices else (0, carried.first + count)
        low = -skipped
        for tensor in self._tensors(table, carried):
            high = low + magnitudes.numel[tensor]
            begin, end = max(low, carried.first), min(high, carried.first + count, elements)
            if begin < end:
                values[begin - carried.first : end - carried.first] = magnitudes.gradient(
                    self._seed, job.name, carried.worker, carried.captured, tensor, begin - low, end - begin
                )
            low = high
        return values

    def _check(self, message: int, content: memoryview) -> Sums:
        return check_sums(content, self._payloads[self.part.rows[message].transport])


def check_sums(content: memoryview | bytes, payload: int) -> Sums:
    """Return the CRC-32 of every packet of a message."""
    view, crc32 = memoryview(content).cast("B"), zlib.crc32
    return np.array([crc32(view[at : at + payload]) for at in range(0, len(view), payload)], dtype=np.uint32)


def _pattern(largest: int) -> bytes:
    """Return the bytes from which traffic messages are cut."""
    if not largest:
        return b""
    once = np.random.Generator(np.random.PCG64(7117)).bytes(PATTERN)
    return once * (largest // PATTERN + 2)
