"""Receivers: the ends at one host of the flows that go to it, which take packets of data and probes and answer them."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.components.layout import R_RIDER
from gradwire.testing.oracle.fans import Fan
from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.model import Log
from gradwire.testing.oracle.packets import ACK, DATA, Arrival, Packet
from gradwire.testing.oracle.pulls import Pulls
from gradwire.testing.oracle.timers import EXPIRY, Timers


class Receivers:
    """What a host does with data and probes. Nothing is sent here but through `queue`, and by the timers."""

    def __init__(
        self, timers: Timers, log: Log, pulls: Pulls, delivered: Callable[[int, int], None], paths: bool,
        queue: Callable[[Packet], None], serve: Callable[[], None],
    ) -> None:  # fmt: skip
        """`delivered`: told the time and the number of a message that has arrived. `paths`: hosts choose paths, so that
        an answer takes that of the packet. `queue`: lets a packet wait at the NIC; `serve`: sends what can be sent."""
        self.timers, self.log, self.pulls, self.delivered, self.paths = timers, log, pulls, delivered, paths
        self.queue, self.serve = queue, serve
        self.latest: dict[Flow, tuple[Flow, Packet]] = {}  # by what a transport works on: the last data packet

    def take(self, flow: Flow, packet: Packet) -> None:
        """A data packet or a probe of a flow."""
        before = flow.delivered
        if packet.kind == DATA and not packet.trimmed:
            size = flow.payload_of(packet.sequence)
            flow.memory[flow.receiver + R_RIDER] = packet.argument
            if packet.values is not None:
                flow.brought[packet.sequence] = packet.values
            reply, done = flow.arrive(packet.sequence, size, int(packet.ce), self.timers.now)
        else:
            if packet.kind == DATA:
                reply = flow.on_receiver("on_trimmed", packet.sequence, self.timers.now)
            else:
                reply = flow.on_receiver("on_probe", packet.argument, self.timers.now)
            done = [flow] if flow.delivered and not before else []
        ends = flow.stream or flow  # what the transport works on
        if reply >> 39 & 1:
            self._answer(*self.latest[ends], reply)
        elif reply:
            self._answer(flow, packet, reply)
        if packet.kind == DATA and not packet.trimmed:
            self.latest[ends] = flow, packet
        self._watch(ends)
        self._tell(done)

    def take_of_all(self, fan: Fan, flow: Flow, packet: Packet) -> None:
        """A data packet of one of many, or of all: what is there of all is taken and answered for all; if it was before,
        the one is answered who sends it again."""
        if fan.has(flow.place, packet):
            if packet.sequence not in fan.complete:
                fan.arrive(flow.place, packet)  # it may have a mark
            if not packet.leaf:
                self._answer(flow, packet, self._take_one(flow, packet.sequence, packet.ce))
            return
        got = fan.arrive(flow.place, packet)
        if got is None:
            return
        for each in fan.members:
            self._take_one(each, packet.sequence, got.marked)
        first = fan.members[0]
        protocol = first.protocol
        self.queue(
            Packet(
                first.number, ACK, first.src, protocol.control_bytes, protocol.control_priority,
                protocol.control_important, first.entropy, sequence=packet.sequence, argument=fan.cumulative,
                echo=got.marked, all=True,
            )
        )  # fmt: skip

    def _take_one(self, flow: Flow, number: int, marked: bool) -> int:
        """The receiver of one of a fan takes a packet: its answer."""
        reply, done = flow.arrive(number, flow.payload_of(number), int(marked), self.timers.now)
        self._tell(done)
        return reply

    def _tell(self, done: list[Flow]) -> None:
        """These messages have arrived."""
        now = self.timers.now
        for each in done:
            self.log.arrivals.append(Arrival(now, each.number, each.received, each.missing()))
            self.delivered(now, each.number)

    def _watch(self, flow: Flow) -> None:
        """Call the receiver when the time that it has set comes, if by then it has not set another one."""
        if flow.patience:
            self.timers.set_for(max(flow.patience, self.timers.now), flow, EXPIRY, self._late_answer)

    def _late_answer(self, flow: Flow) -> None:
        if 0 < flow.patience <= self.timers.now:
            flow.patience = 0
            reply = flow.on_wire(flow.on_receiver("on_late", self.timers.now))
            if reply:
                self._answer(*self.latest[flow], reply)
            self.serve()

    def _answer(self, flow: Flow, packet: Packet, reply: int) -> None:
        """Queue the control packets that the receiver asks for: kind 3, echo 1, size 14, count 12, rider 1, pulls 8,
        unused 1, argument 22 bits, lowest first. One alone carries the sequence number of the packet that it answers, or
        its rider; several are numbered."""
        self.pulls.want(flow, reply >> 31 & 0xFF)
        count = reply >> 18 & 0xFFF
        alone = packet.argument if reply >> 30 & 1 else packet.sequence
        for number in range(count):
            answer = Packet(
                flow.number, reply & 7, flow.src, reply >> 4 & 0x3FFF or flow.protocol.control_bytes,
                flow.protocol.control_priority, flow.protocol.control_important, packet.entropy if self.paths else flow.entropy,
                sequence=alone if count == 1 else number, argument=reply >> 40, echo=bool(reply >> 3 & 1),
            )  # fmt: skip
            self.queue(answer)

    def resume(self) -> None:
        """The host goes on: what its receivers should have said meanwhile they say from now on."""
        now = self.timers.now
        for flow in self.latest:
            if 0 < flow.patience < now:
                flow.patience = now
