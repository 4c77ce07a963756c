"""Declares the interfaces of an agent's event loop, transport carriers and host, and the message records that they
exchange.

    Loop      one thread, one clock: timers and readable sockets
    Script    the host's part of the program: determines when messages are ready
    Contents  the bytes of messages: real gradients out, received bytes in, sums
    Carrier   one transport of one host: sends ready messages over the network

An agent (`gradwire.emu.agent.agent`) is one process per host. Times are integer nanoseconds since the common beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.inner_units import Bps, Bytes, Ns, Ps, PsPerByte

if TYPE_CHECKING:
    from gradwire.emu.agent.loop import EpollLoop


@dataclass(frozen=True)
class MessageRow:
    """The known properties of a message at both of its ends."""

    number: int
    table: int
    src: int
    dst: int
    nbytes: Bytes
    priority: int
    bound: float
    important: bool | Flags
    """one value for all packets, or bool[packets]"""
    transport: int
    share: float | None = None
    """its part of a budget (None: its bound) and that budget's number; see `gradwire.workload.program.Messages`"""
    pool: int = 0
    turn: int = 0


@dataclass
class Arrival:
    """A receiver's report of a message.

    received, lost : bytes. have : bool[packets] of those that arrived; None if all did.
    """

    message: int
    time_ns: Ns
    received: Bytes
    lost: Bytes
    have: Flags | None
    marked: int = 0
    """data packets with a congestion mark; -1: unknown (the kernel's TCP)"""


class CarrierHost(Protocol):
    """A carrier's interface to its host."""

    loop: EpollLoop
    node: int
    seed: int
    """of the run"""
    token: bytes
    """identifies connections of this run (`gradwire.emu.wire.header.Opening`)"""
    rate: Bps
    """bit/s of its link"""
    clock: str
    """"wall" or "virtual"; in virtual time computing takes no time, so batches are not needed"""

    def address(self, node: int) -> str:
        """Return the IPv4 address of a host."""

    def row(self, message: int) -> MessageRow:
        """Return the row of a message that this host sends or receives."""

    def base_rtt_ps(self, row: MessageRow) -> Ps:
        """Return the round-trip time of a full packet of a message and its answer on an empty network."""

    def slowest(self, row: MessageRow) -> PsPerByte:
        """Return picoseconds per byte << 16 of the slowest link on the paths of a message."""

    def outgoing(self, message: int) -> memoryview:
        """Return the bytes of a message that is ready."""

    def incoming(self, message: int) -> memoryview:
        """Return the receive buffer of a message, of its size, zero until written."""

    def arrived(self, arrival: Arrival) -> None:
        """Record that a message to this host is complete (within its bound); its buffer no longer changes."""

    def message_finished(self, message: int) -> None:
        """Record that the sender has finished a message; called once."""


Parts = Callable[..., tuple[Any, Any]]
"""(plan, node, loop, send) -> (script, contents), with the interfaces that `gradwire.emu.agent.agent.Agent` uses. Tests
replace `gradwire.emu.agent.agent.make_parts`."""


class Carrier(ABC):
    """One transport at one host, made before the beginning; `open` and `connect` do the slow setup."""

    @abstractmethod
    def open(self) -> None:
        """Bind sockets and listen. All hosts open before any connects."""

    def connect(self, peers: Sequence[int]) -> None:
        """Connect to the hosts (nodes) that this one exchanges messages with, if the transport has connections."""

    def connected(self) -> bool:
        """Return True if all connections begun by `connect` are established."""
        return True

    def begin(self) -> None:
        """Begin the run; from now on the loop has the run's time."""

    def prepare(self, rows: Iterable[MessageRow]) -> None:
        """Prepare the messages `rows` of this transport before the beginning, on the wall clock."""

    @abstractmethod
    def send(self, message: int) -> None:
        """Begin to send a message, which is ready and released."""

    @abstractmethod
    def counts(self) -> dict[int, tuple[int, int]]:
        """Return (sent packets, retransmissions) of the messages sent from here, by message."""

    def marks(self) -> dict[int, int]:
        """Return data packets with a mark by message received here, including late ones."""
        return {}

    def marked_sent(self) -> dict[int, int]:
        """Return packets acknowledged with marks by message sent from here, if the sender can tell."""
        return {}

    @abstractmethod
    def received(self) -> dict[int, int]:
        """Return the payload bytes received so far by message, at least of incomplete ones."""

    def invalid_count(self) -> int:
        """Return the number of invalid connections and headers, besides those of the host's UDP sockets."""
        return 0

    def notes(self) -> list[str]:
        return []

    @abstractmethod
    def close(self) -> None:
        """Close all sockets."""
