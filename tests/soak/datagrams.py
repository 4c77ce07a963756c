"""What others may send to the ports of an agent that sends and receives: nothing is written but to where packets belong.

The agent's side is the real one, on loopback addresses of this machine, with the transports' machine code; a case takes
some milliseconds.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradwire.emu.agent.base import Arrival, MessageRow
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.transports.datagrams import DatagramCarrier
from gradwire.emu.transports.dlcp import Dlcp
from gradwire.emu.transports.endpoint import Endpoint
from gradwire.emu.transports.simulator_rules import transport_class
from gradwire.emu.wire.header import HEADER
from gradwire.scenarios.inner_units import Bps, Bytes, Ps, PsPerByte
from gradwire.scenarios.wire import GRADWIRE_PORT, SOURCE_PORTS, UDP_OVERHEAD, ps_per_byte

CARRIED = ("dlcp", "ltp", "timely", "swift", "constant_rate")
PAYLOAD, LEAST_NS = 1024, 300_000
GUARD, CANARY = 256, 0x5EAF_0D5E_AF0D


@contextmanager
def guarded() -> Iterator[None]:
    """Words before and behind everything that compiled code works on, which nobody may write to."""
    right: Any = WordBlock.__init__
    made = []

    def guard(self: WordBlock, size: int) -> None:
        whole = np.full(size + 2 * GUARD, CANARY, dtype=np.int64)
        whole[GUARD : GUARD + size] = 0
        right(self, 0)
        self._array = whole[GUARD : GUARD + size]
        self.words, self.address = self._array.data, int(whole.ctypes.data) + 8 * GUARD
        self.index = self.address >> 3
        made.append(whole)

    WordBlock.__init__ = guard  # type: ignore[method-assign]
    try:
        yield
    finally:
        WordBlock.__init__ = right  # type: ignore[method-assign]
    for whole in made:
        assert (whole[:GUARD] == CANARY).all() and (whole[-GUARD:] == CANARY).all(), "written beyond a block"


class Busy:
    """A host that sends message 0 to the other one, and receives message 1 from it."""

    def __init__(self, addresses: list[str], nbytes: int, bound: float) -> None:
        self.node, self.token, self.loop = 0, bytes(16), EpollLoop(time.monotonic_ns())
        self.addresses, self.rate, self.clock, self.seed = addresses, Bps(10**9), "wall", 1
        self.rows = [MessageRow(n, 0, n, 1 - n, Bytes(nbytes), 0, bound, bound == 0, 0) for n in (0, 1)]
        self.content = (np.arange(nbytes, dtype=np.int64) % 251 + 1).astype(np.uint8)
        self.room = np.full(nbytes + 2 * PAYLOAD, 0xA5, dtype=np.uint8)
        self.arrivals: list[Arrival] = []
        self.over: list[int] = []

    def address(self, node: int) -> str:
        return self.addresses[node]

    def row(self, message: int) -> MessageRow:
        return dict(enumerate(self.rows))[message]

    def base_rtt_ps(self, row: MessageRow) -> Ps:
        return Ps(100_000_000)

    def slowest(self, row: MessageRow) -> PsPerByte:
        return ps_per_byte(self.rate)

    def outgoing(self, message: int) -> memoryview:
        return memoryview(self.content)

    def incoming(self, message: int) -> memoryview:
        self.buffer = self.room[PAYLOAD:-PAYLOAD]
        self.buffer[:] = 0
        return memoryview(self.buffer)

    def arrived(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)

    def message_finished(self, message: int) -> None:
        self.over.append(message)

    def go_round(self) -> None:
        self.loop.at(self.loop.now() + LEAST_NS, self.loop.stop)
        self.loop.run()


def datagram(draw: random.Random, packets: int, nbytes: int) -> bytes:
    """Something that looks like a packet, more or less."""
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(60))
    edges = (0, 0, 1, packets - 1, packets - 1, packets, packets + 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
    sequence = draw.choice((*edges, draw.randrange(packets), draw.randrange(packets)))
    right = max(min(PAYLOAD, nbytes - PAYLOAD * sequence), 0)
    length = draw.choice((right, right, right, PAYLOAD, 0, 1, draw.randrange(1 << 16)))
    flags = draw.choice((0, 0, draw.randrange(8), draw.randrange(8), draw.randrange(1 << 16)))
    header = (
        draw.choice((0, 1, 1, 2, 0xFFFFFFFF)),
        draw.choice((*edges, draw.randrange(1 << 32))),
        length,
        sequence,
        flags,
    )
    data = HEADER.pack(*header) + draw.randbytes(draw.choice((length & 0x7FF, right, PAYLOAD + 12, 0)))
    return data[: draw.choice((len(data), len(data), len(data), draw.randrange(len(data) + 1)))]


def garbage(draw: random.Random) -> str:
    """Whatever comes to the ports of a host that sends and receives, nothing is written but to where packets belong;
    and if a stranger sent it, the message arrives as it is all the same."""
    kind, nbytes, only_strangers = draw.choice(CARRIED), draw.choice((1, PAYLOAD, 40_000, 70_001)), draw.random() < 0.3
    packets, owner = -(-nbytes // PAYLOAD), transport_class(kind)
    addresses = [f"127.{65 + i}.{draw.randrange(256)}.{draw.randrange(1, 255)}" for i in range(3)]
    with guarded(), _bound(addresses[1]) as peer, _bound(addresses[2]) as stranger:
        host: Any = Busy(addresses, nbytes, draw.choice((0.0, 0.2)) if owner.may_lose and not only_strangers else 0.0)
        plan = TransportPlan(kind, PAYLOAD, int(owner.data_overhead), "udp", owner.defaults())
        endpoint = Endpoint(host, PAYLOAD)
        make: Any = Dlcp if kind == "dlcp" else DatagramCarrier
        carrier = endpoint.carriers[0] = make(host, plan, endpoint, None)
        carrier.open()
        try:
            carrier.begin()
            carrier.send(0)
            for _ in range(draw.randrange(1, 5)):
                for _ in range(draw.randrange(40)):
                    source = stranger if only_strangers or draw.random() < 0.2 else peer
                    port = draw.choice((GRADWIRE_PORT, SOURCE_PORTS[0], SOURCE_PORTS[0], SOURCE_PORTS[1]))
                    source.sendto(datagram(draw, packets, nbytes), (addresses[0], port))
                host.go_round()
            _at_last(host, endpoint, peer, packets)
            assert len(host.arrivals) == 1 and len(host.over) <= 1
            if only_strangers:
                assert (host.buffer == host.content).all() and host.arrivals[0].lost == 0 and not host.over
            assert (host.room[:PAYLOAD] == 0xA5).all() and (host.room[-PAYLOAD:] == 0xA5).all(), (
                "written beyond a message"
            )
            return "refused" if endpoint.invalid_count else "ok"
        finally:
            carrier.close()
            host.loop.close()


@contextmanager
def _bound(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind((address, GRADWIRE_PORT))
        yield made


def _at_last(host: Any, endpoint: Endpoint, peer: socket.socket, packets: int) -> None:
    """The packets of message 1 come, all of them, as they are."""
    fill = max(int(endpoint.carriers[0].owner.data_overhead) - UDP_OVERHEAD, 0)
    for sequence in range(packets):
        content = host.content[sequence * PAYLOAD : (sequence + 1) * PAYLOAD].tobytes()
        peer.sendto(
            HEADER.pack(1, 0, len(content), sequence, 0) + bytes(fill) + content, (host.addresses[0], GRADWIRE_PORT)
        )
        if sequence % 32 == 31:
            host.go_round()
    for _ in range(20):
        host.go_round()
        if host.arrivals:
            return
