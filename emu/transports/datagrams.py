"""Transports over UDP: what stands between the sockets of a host (`gradwire.emu.transports.endpoint`) and the rules of
the simulator.

A packet is as long on a link as the simulator has it: where its header is a wider one than ours, zeros follow the
header. What happens for every packet is compiled (`gradwire.emu.agent.core`); here is what happens for every message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gradwire.components.draws import entropy_of
from gradwire.components.transports.base import Context, control_important, shares
from gradwire.emu.agent import machine
from gradwire.emu.agent.base import Arrival, MessageRow
from gradwire.emu.agent.core import layout as at
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.system.sockets import address_of, address_word
from gradwire.emu.transports.endpoint import Endpoint, LoopingHost
from gradwire.emu.transports.pairs import Pairs
from gradwire.emu.transports.rules import ReceivingEnd, Rules, SendingEnd, transport_class
from gradwire.emu.wire.header import ACK, BITMAP, IMPORTANT, NACK, STOP
from gradwire.scenarios.inner_units import Bytes, Ns
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.wire import SOURCE_PORTS, tos

if TYPE_CHECKING:
    from gradwire.emu.transports.side import SideChannel

AHEAD_WORDS = 4 << 20
"""Memory, in words of 8 bytes, that ends of messages may take that are made before the run begins (our choice)."""


class Outgoing(SendingEnd):
    """A sending end with a socket.

    heard : kinds of packets that are told to the rules as they are.
    """

    __slots__ = ("carrier", "content", "row")

    def __init__(self, rules: Rules, row: MessageRow, carrier: DatagramCarrier, heard: Sequence[int]) -> None:
        """Find the way to its destination; it is not started."""
        host, endpoint = carrier.host, carrier.endpoint
        super().__init__(rules, row, None, entropy_of(host.seed, row.number), carrier.pairs)
        self.row, self.carrier = row, carrier
        self.content = memoryview(b"")
        words = self.block.words
        words[at.F_NAME] = endpoint.name_of(row.dst)
        words[at.F_SOURCE] = address_word(host.address(row.dst))
        words[at.F_FILE] = endpoint.sources[row.number % len(SOURCE_PORTS)].fileno()
        words[at.F_TOS], words[at.F_TOS_IMPORTANT] = tos(row.priority, False), tos(row.priority, True)
        words[at.F_PAYLOAD], words[at.F_NBYTES], words[at.F_FILL] = carrier.transport.payload, row.nbytes, rules.fill
        words[at.F_HEARD] = sum(1 << kind for kind in heard)

    def start(self, now: int) -> None:
        """Find the bytes of the message, and begin."""
        self.content = self.carrier.host.outgoing(self.row.number)
        self.block.words[at.F_CONTENT] = address_of(self.content)
        super().start(now)


class DatagramCarrier:
    """A transport over UDP at one host; see `gradwire.emu.agent.base.Carrier`. It runs the simulator's rules of any
    transport that asks nothing of switches but queues."""

    by_side = False
    """Whether answers that are no acknowledgements go another way (`answer`)."""
    heard: Sequence[int] = (ACK, STOP, BITMAP, NACK)
    """Kinds of packets that are told to the rules as they are."""

    def __init__(
        self, host: LoopingHost, transport: TransportPlan, endpoint: Endpoint, _side: SideChannel | None = None
    ) -> None:
        self.host, self.transport, self.endpoint = host, transport, endpoint
        self.owner = transport_class(transport.kind, transport.folder)
        machine.rules(self.owner)  # takes a tenth of a second, which there is before the run begins
        important = control_important(self.owner, transport.parameters)
        self.control_flags = IMPORTANT if important else 0
        self.control_tos = tos(transport.parameters.get("control_priority", 0), important)
        self._rules: dict[tuple[int, int], Rules] = {}
        self.pairs = Pairs(self.owner) if shares(self.owner) else None
        """what its messages share at this host"""
        self._sent: list[Outgoing] = []
        self._senders_made: dict[int, Outgoing] = {}
        self._receivers_made: dict[int, ReceivingEnd] = {}

    def settings(self) -> Json:
        """The transport's table, as its parameters are made from it."""
        return dict(self.transport.parameters)

    def rules_of(self, row: MessageRow) -> Rules:
        """The rules for a message: those for its base round trip and the slowest link of its paths."""
        kind = self.host.base_rtt_ps(row), self.host.slowest(row)
        if kind not in self._rules:
            context = Context(self.endpoint.nic.line, self.transport.payload, *kind)
            self._rules[kind] = Rules(self.owner, self.settings(), context)
        return self._rules[kind]

    def open(self) -> None:
        self.endpoint.open()

    def connect(self, peers: Sequence[int]) -> None:
        """Nothing: datagrams need no connections."""

    def connected(self) -> bool:
        return True

    def begin(self) -> None:
        self.endpoint.nic.restart()

    def prepare(self, rows: Iterable[MessageRow]) -> None:
        """Make the ends of the first of its messages, as many as may take `AHEAD_WORDS`: an iteration makes all of its
        messages at once, and who makes their ends then is late for everything else."""
        left = AHEAD_WORDS
        for row in rows:
            end: SendingEnd | ReceivingEnd
            if row.src == self.host.node:
                end = self._senders_made[row.number] = self.make_sender(row)
            else:
                end = self._receivers_made[row.number] = self.make_receiver(row)
            left -= len(end.block.words)
            if left < 0:
                return

    def send(self, message: int) -> None:
        sender = self._senders_made.pop(message, None) or self.make_sender(self.host.row(message))
        sender.start(self.host.loop.now() * 1000)
        self.endpoint.sends(sender)
        self._sent.append(sender)
        self.endpoint.nic.begin(sender)
        self.endpoint.nic.serve()

    def make_sender(self, row: MessageRow) -> Outgoing:
        """The sending end of a message."""
        return Outgoing(self.rules_of(row), row, self, self.heard)

    def receiver(self, row: MessageRow) -> ReceivingEnd:
        """The receiving end of a message of which something has come."""
        return self._receivers_made.pop(row.number, None) or self.make_receiver(row)

    def make_receiver(self, row: MessageRow) -> ReceivingEnd:
        """The receiving end of a message."""
        made = ReceivingEnd(self.rules_of(row), row, self.pairs)
        words = made.block.words
        words[at.E_CONTROL_BYTES] = int(self.owner.control_bytes)
        words[at.E_CONTROL_FLAGS], words[at.E_CONTROL_TOS] = self.control_flags, self.control_tos
        words[at.E_BY_SIDE] = self.by_side
        return made

    def answer(self, receiver: ReceivingEnd, word: int) -> None:
        """Send what the rules answer to a packet and is no acknowledgement, where that goes another way."""

    def probe(self, sender: Outgoing, question: int) -> int:
        """Ask what has arrived, as the rules want to. Returns the bytes on the link."""
        raise AssertionError(f"{self.transport.kind} sends no probes")

    def probed(self, receiver: ReceivingEnd, header: tuple[int, ...], name: int, now: int) -> bool:
        """A Probe has come for a message, from the address at `name`. Whether it can be one."""
        return False

    def told(self, sender: Outgoing, header: tuple[int, ...], datagram: memoryview, now: int) -> bool:
        """Something has come for a sender that its rules do not take as it is. Whether it is one of ours."""
        return False

    def deliver(self, receiver: ReceivingEnd) -> None:
        """A message is complete within its bound."""
        self.host.arrived(
            Arrival(
                receiver.row.number, Ns(self.host.loop.now()), Bytes(receiver.got),
                Bytes(receiver.nbytes - receiver.got), receiver.arrived(), receiver.marked,
            )
        )  # fmt: skip
        receiver.place = memoryview(b"")

    def settle(self, sender: Outgoing) -> None:
        """The sender has nothing more to do."""
        self.endpoint.is_over(sender)
        sender.content, sender.block.words[at.F_CONTENT] = memoryview(b""), 0
        self.host.settled(sender.number, *self._count(sender))

    def _count(self, sender: Outgoing) -> tuple[int, int]:
        return sender.sent, sender.sent - sender.probes - sender.new

    def counts(self) -> dict[int, tuple[int, int]]:
        return {sender.number: self._count(sender) for sender in self._sent}

    def marks(self) -> dict[int, int]:
        """Data packets that came with a mark, by message received here; late ones included."""
        return {number: receiver.marked for number, receiver in self._receivers()}

    def received(self) -> dict[int, int]:
        """Payload bytes that have come, by message received here."""
        return {number: receiver.got for number, receiver in self._receivers()}

    def _receivers(self) -> Iterator[tuple[int, ReceivingEnd]]:
        found = self.endpoint.receivers.items()
        return (each for each in found if self.endpoint.carriers[each[1].row.transport] is self)

    def close(self) -> None:
        self.endpoint.close()
