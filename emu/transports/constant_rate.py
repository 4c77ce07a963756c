"""A constant rate over real sockets: the rules of `gradwire.sim.transports.constant_rate`, where they are described."""

from __future__ import annotations

from typing import Any

from gradwire.emu.agent.base import Host, MessageRow
from gradwire.emu.agent.nic import Flow
from gradwire.emu.plan import TransportPlan
from gradwire.emu.transports.datagrams import Core, DatagramCarrier, Endpoint, Outgoing
from gradwire.emu.wire import STOP

ONE = 1 << 20


class Rules:
    """The parameters of the transport; names and defaults are those of
    `gradwire.scenarios.schema_transport.ConstantRate`."""

    def __init__(self, settings: Any, *, base_rtt: int) -> None:
        self.share = max(1, round(settings.get("share", 1.0) * ONE))
        self.repeat = max(settings.get("repeat_after", 1_000_000_000), base_rtt)


class Sender(Flow):
    """The sending end of one message."""

    __slots__ = ("first", "fresh", "next", "packets", "rules")

    def __init__(self, rules: Rules, number: int, priority: int, packets: int, line: int) -> None:
        super().__init__(number, priority)
        self.rules, self.packets = rules, packets
        self.gap = line * ONE // rules.share
        self.fresh = self.next = self.first = 0

    def pull(self, now: int) -> int:
        if self.next == self.packets:
            if not self.timer:
                self.timer = now + self.rules.repeat
            return -1
        sequence = (self.first + self.next) % self.packets
        self.next += 1
        if sequence == self.fresh:
            self.fresh += 1
        return sequence

    def on_timer(self, now: int) -> None:
        self.next = 0
        self.first = (self.first + (self.packets * 633 >> 10 | 1)) % self.packets

    def on_stop(self) -> None:
        """Nothing more to send."""
        self.done = True
        self.timer = 0


class Receiver(Core):
    """The receiving end of one message."""

    __slots__ = ()

    def on_data(self, sequence: int, size: int, ce: int, now: int) -> int:
        """What to answer: STOP, or -1 for nothing."""
        known = self.have[sequence]
        if self.done:
            return STOP if known else -1
        if not known:
            self.have[sequence] = 1
            self.got += size
        if self.nbytes - self.got <= self.allowed:
            self.done = True
            return STOP
        return -1


class _Outgoing(Outgoing, Sender):
    """A sender with a socket."""

    def __init__(self, rules: Rules, row: MessageRow, transport: TransportPlan, host: Host, endpoint: Endpoint) -> None:
        packets = max(1, -(-row.nbytes // transport.payload))
        Sender.__init__(self, rules, row.number, row.priority, packets, endpoint.nic.line)
        self.attach(row, transport, host, endpoint)

    @property
    def new(self) -> int:
        """Packets that have been sent at least once."""
        return self.fresh

    def transmit(self, what: int) -> int:
        return self.put(what, False)


class ConstantRate(DatagramCarrier):
    """The transport `constant_rate` at one host."""

    def __init__(self, host: Host, transport: TransportPlan, endpoint: Endpoint, _side: Any = None) -> None:
        super().__init__(host, transport, endpoint)

    def make_sender(self, row: MessageRow) -> Any:
        rules = Rules(self.transport.parameters, base_rtt=self.host.base_rtt_ps(row))
        return _Outgoing(rules, row, self.transport, self.host, self.endpoint)

    def make_receiver(self, row: MessageRow) -> Receiver:
        return Receiver(row, self.transport.payload)

    def answer(self, receiver: Any, kind: int, sequence: int, ce: int, name: int) -> None:
        self.endpoint.control(receiver.row, STOP, sequence, name)
