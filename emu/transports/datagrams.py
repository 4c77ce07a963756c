"""`DatagramCarrier` carries a transport's messages over UDP, between a host's sockets and the simulator's rules.

A packet is as long on a link as in the simulator: if its header is wider than gradwire's, zeros follow the header. The
work per packet is compiled (`gradwire.emu.agent.core`); this module does the work per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gradwire.emu.agent import compiled_agent
from gradwire.emu.agent.base import Arrival, Carrier, CarrierHost, MessageRow
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.system.sockets import address_of, address_word
from gradwire.emu.transports.endpoint import Endpoint
from gradwire.emu.transports.simulator_rules import Pairs, ReceivingEnd, Rules, SendingEnd, transport_class
from gradwire.emu.wire.header import ACK, BITMAP, IMPORTANT, NACK, STOP
from gradwire.jit.counter_rng import draw_entropy
from gradwire.protocols.transports.base import Context, control_important, shares_pair_state
from gradwire.scenarios.inner_units import Bytes, Ns
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.wire import SOURCE_PORTS, tos_byte

if TYPE_CHECKING:
    from gradwire.emu.transports.side_channel import SideChannel

AHEAD_WORDS = 4 << 20
"""Limit in 8-byte words on the state of messages that are prepared before the run begins (our choice)."""


class DatagramSender(SendingEnd):
    """A sending end with a socket.

    passed_kinds : kinds of packets that are passed to the rules unchanged.
    """

    __slots__ = ("carrier", "content", "row")

    def __init__(self, rules: Rules, row: MessageRow, carrier: DatagramCarrier, passed_kinds: Sequence[int]) -> None:
        """Set the destination; the message is not started."""
        host, endpoint = carrier.host, carrier.endpoint
        super().__init__(rules, row, None, draw_entropy(host.seed, row.number), carrier.pairs)
        self.row, self.carrier = row, carrier
        self.content = memoryview(b"")
        flow = self.nic_flow
        flow.destination = endpoint.name_of(row.dst)
        flow.peer = address_word(host.address(row.dst))
        flow.file = endpoint.sources[row.number % len(SOURCE_PORTS)].fileno()
        flow.tos, flow.important_tos = tos_byte(row.priority, False), tos_byte(row.priority, True)
        flow.payload, flow.nbytes, flow.fill = carrier.transport.payload, row.nbytes, rules.fill
        flow.passed_kinds = sum(1 << kind for kind in passed_kinds)

    def start(self, now: int) -> None:
        self.content = self.carrier.host.outgoing(self.row.number)
        self.nic_flow.content = address_of(self.content)
        super().start(now)


class DatagramCarrier(Carrier):
    """A transport over UDP at one host; see `gradwire.emu.agent.base.Carrier`. It runs the simulator's rules of any
    transport that needs only queues from switches."""

    by_side = False
    """True if answers other than acknowledgements use the side channel (`answer`)."""
    passed_kinds: Sequence[int] = (ACK, STOP, BITMAP, NACK)
    """Kinds of packets that are passed to the rules unchanged."""

    def __init__(
        self, host: CarrierHost, transport: TransportPlan, endpoint: Endpoint, _side: SideChannel | None = None
    ) -> None:
        self.host, self.transport, self.endpoint = host, transport, endpoint
        self.owner = transport_class(transport.kind, transport.folder)
        compiled_agent.rules(self.owner)  # takes a tenth of a second, so do it before the run begins
        important = control_important(self.owner, transport.parameters)
        self.control_flags = IMPORTANT if important else 0
        self.control_tos = tos_byte(transport.parameters.get("control_priority", 0), important)
        self._rules: dict[tuple[int, int], Rules] = {}
        self.pairs = Pairs(self.owner) if shares_pair_state(self.owner) else None
        """shared state of its messages at this host"""
        self._sent: list[DatagramSender] = []
        self._senders_made: dict[int, DatagramSender] = {}
        self._receivers_made: dict[int, ReceivingEnd] = {}

    def settings(self) -> Json:
        """Return the transport's table, from which its parameters are computed."""
        return dict(self.transport.parameters)

    def rules_of(self, row: MessageRow) -> Rules:
        """Return the rules for a message, given its base round-trip time and the slowest link of its paths."""
        kind = self.host.base_rtt_ps(row), self.host.slowest(row)
        if kind not in self._rules:
            context = Context(self.endpoint.nic.line, self.transport.payload, *kind)
            self._rules[kind] = Rules(self.owner, self.settings(), context)
        return self._rules[kind]

    def open(self) -> None:
        self.endpoint.open()

    def begin(self) -> None:
        self.endpoint.nic.restart()

    def prepare(self, rows: Iterable[MessageRow]) -> None:
        """Make the ends of the first messages, up to `AHEAD_WORDS`. An iteration makes all of its messages at once;
        making their ends then would delay everything else."""
        remaining = AHEAD_WORDS
        for row in rows:
            end: SendingEnd | ReceivingEnd
            if row.src == self.host.node:
                end = self._senders_made[row.number] = self.make_sender(row)
            else:
                end = self._receivers_made[row.number] = self.make_receiver(row)
            remaining -= len(end.block.words)
            if remaining < 0:
                return

    def send(self, message: int) -> None:
        sender = self._senders_made.pop(message, None) or self.make_sender(self.host.row(message))
        sender.start(self.host.loop.now() * 1000)
        self.endpoint.sends(sender)
        self._sent.append(sender)
        self.endpoint.nic.begin(sender)
        self.endpoint.nic.serve()

    def make_sender(self, row: MessageRow) -> DatagramSender:
        return DatagramSender(self.rules_of(row), row, self, self.passed_kinds)

    def receiver(self, row: MessageRow) -> ReceivingEnd:
        return self._receivers_made.pop(row.number, None) or self.make_receiver(row)

    def make_receiver(self, row: MessageRow) -> ReceivingEnd:
        receiver = ReceivingEnd(self.rules_of(row), row, self.pairs)
        flow = receiver.flow
        flow.control_bytes = int(self.owner.control_bytes)
        flow.control_flags, flow.control_tos = self.control_flags, self.control_tos
        flow.uses_side_channel = self.by_side
        return receiver

    def answer(self, receiver: ReceivingEnd, word: int) -> None:
        """Send an answer of the rules, other than an acknowledgement, over the side channel."""

    def probe(self, sender: DatagramSender, question: int) -> int:
        """Send a Probe for the rules; return its bytes on the link."""
        raise AssertionError(f"{self.transport.kind} sends no Probes")

    def probed(self, receiver: ReceivingEnd, header: tuple[int, ...], name: int, now: int) -> bool:
        """Handle a Probe for a message, from the address at `name`; return False if it is invalid."""
        return False

    def handle_packet(self, sender: DatagramSender, header: tuple[int, ...], datagram: memoryview, now: int) -> bool:
        """Handle another packet for a sender; return False if it is invalid."""
        return False

    def deliver(self, receiver: ReceivingEnd) -> None:
        """Deliver a message that is complete within its bound."""
        self.host.arrived(
            Arrival(
                receiver.row.number,
                Ns(self.host.loop.now()),
                Bytes(receiver.received_bytes),
                Bytes(receiver.nbytes - receiver.received_bytes),
                receiver.arrived(),
                receiver.marked_packets,
            )
        )
        receiver.place = memoryview(b"")

    def finish_message(self, sender: DatagramSender) -> None:
        self.endpoint.remove_sender(sender)
        sender.content, sender.nic_flow.content = memoryview(b""), 0
        self.host.message_finished(sender.number)

    def counts(self) -> dict[int, tuple[int, int]]:
        return {s.number: (s.sent, s.sent - s.probes - s.new) for s in self._sent}

    def marks(self) -> dict[int, int]:
        return {number: receiver.marked_packets for number, receiver in self._receivers()}

    def received(self) -> dict[int, int]:
        return {number: receiver.received_bytes for number, receiver in self._receivers()}

    def _receivers(self) -> Iterator[tuple[int, ReceivingEnd]]:
        items = self.endpoint.receivers.items()
        return (item for item in items if self.endpoint.carriers[item[1].row.transport] is self)

    def close(self) -> None:
        self.endpoint.close()
