"""The parts of an agent and what they may ask of each other.

    Loop      one thread, one clock: timers and readable sockets
    Script    the host's part of the program: says when messages are ready, is told when they have arrived
    Contents  the bytes of messages: real gradients out, what arrived in, sums
    Carrier   one transport of one host: takes ready messages across the network

An agent (`gradwire.emu.agent.agent`) is one process per host. Times are integer nanoseconds since the common beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.inner_units import Bps, Bytes, Ns, Ps, PsPerByte


class Timer(Protocol):
    """What a loop is to call at a time."""

    time: int
    """nanoseconds"""
    call: Callable[[], None] | None
    """None when it has gone off, or was cancelled"""


class Loop(Protocol):
    """Timers and readable files, one at a time, in order of time (equal times: in the order in which they were set)."""

    def now(self) -> int:
        """Nanoseconds since the beginning; negative before it."""

    def scheduled(self) -> int:
        """When that which is being called now was to be called: earlier than now if a timer is late."""

    def at(self, time_ns: int, call: Callable[[], None]) -> Timer:
        """Call at a time, at once if it is past. Returns something that `cancel` takes."""

    def cancel(self, timer: Timer | None) -> None:
        """Forget a timer; one that has gone off is none any more."""

    def reader(self, file: int, call: Callable[[], None] | None) -> None:
        """Call whenever the file is readable; None: no longer."""

    def writer(self, file: int, call: Callable[[], None] | None) -> None:
        """Call whenever the file is writable; None: no longer."""


@dataclass(frozen=True)
class MessageRow:
    """What a host knows of a message beforehand, at both of its ends."""

    number: int
    table: int
    src: int
    dst: int
    nbytes: Bytes
    priority: int
    bound: float
    important: bool | Flags
    """one answer for all packets, or bool[packets]"""
    transport: int
    share: float | None = None
    """its own part of a budget (None: its bound), and the number of that; see `gradwire.experiment.program.Messages`"""
    pool: int = 0
    turn: int = 0


@dataclass
class Arrival:
    """What a receiver reports of a message.

    received : bytes; `lost` the rest. `have` : per packet whether it arrived, bool[packets], None where all did.
    """

    message: int
    time_ns: Ns
    received: Bytes
    lost: Bytes
    have: Flags | None
    marked: int = 0
    """data packets that came with a congestion mark; -1: not known (the kernel's TCP)"""


class Host(Protocol):
    """What a carrier is given: its own host."""

    @property
    def loop(self) -> Loop:
        """The host's loop."""

    node: int
    seed: int
    """of the run"""
    token: bytes
    """what the ends of this run's connections know each other by (`gradwire.emu.wire.header.Opening`)"""
    rate: Bps
    """bit/s of its link"""
    clock: str
    """"wall" or "virtual": under virtual time computing takes none, and nothing needs to be done in batches"""

    def address(self, node: int) -> str:
        """IPv4 address of a host."""

    def row(self, message: int) -> MessageRow:
        """A message that this host sends or receives."""

    def base_rtt_ps(self, row: MessageRow) -> Ps:
        """How long a full packet of a message and its answer take where nothing is in their way."""

    def slowest(self, row: MessageRow) -> PsPerByte:
        """Picoseconds per byte << 16 of the slowest link on the paths of a message."""

    def outgoing(self, message: int) -> memoryview:
        """The bytes of a message that is ready."""

    def incoming(self, message: int) -> memoryview:
        """Where a message's bytes go: zeros until written, of the message's size."""

    def arrived(self, arrival: Arrival) -> None:
        """A message that this host receives is complete (within its bound); its buffer does not change any more."""

    def settled(self, message: int, sent_packets: int, retransmitted: int) -> None:
        """The sender knows that the message is done with. Called once; the counts may go on to grow by what is still
        on its way out, in which case the carrier calls `Carrier.counts` right when asked at the end."""


Parts = Callable[..., tuple[Any, Any]]
"""(plan, node, loop, send) -> (script, contents): what an agent plays and what it carries, with no more than an agent
asks of them (`gradwire.emu.agent.agent.Agent`). Tests have others than `gradwire.emu.agent.parts.make_parts`."""


class Carrier(Protocol):
    """One transport at one host. Made before the beginning; everything that takes time then (sockets, connections) is
    done in `open` and `connect`."""

    def open(self) -> None:
        """Bind sockets and listen. All hosts open before any connects."""

    def connect(self, peers: Sequence[int]) -> None:
        """Connections to the hosts (nodes) that this one exchanges messages with, where there are to be any."""

    def connected(self) -> bool:
        """Whether everything that `connect` began is established."""

    def begin(self) -> None:
        """The run begins; from now on the loop has the run's time."""

    def prepare(self, rows: Iterable[MessageRow]) -> None:
        """Before the beginning, on the wall clock: make what can be made for messages of this transport that come or go
        here, `rows` in their order."""

    def send(self, message: int) -> None:
        """A message is ready and released: begin."""

    def counts(self) -> dict[int, tuple[int, int]]:
        """(sent packets, of them sent again) by message, of the messages sent from here."""

    def close(self) -> None:
        """Close all sockets."""
