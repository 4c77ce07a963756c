"""`Receivers` takes the data packets and probes that reach an oracle's host, and queues the transports' answers."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.jit.records.replies import (
    has_piggyback,
    is_for_previous,
    reply_argument,
    reply_count,
    reply_echo,
    reply_kind,
    reply_pulls,
    reply_size,
)
from gradwire.testing.oracle.aggregation import AggregationGroup
from gradwire.testing.oracle.clock import OracleLog
from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.packets import ACK, DATA, DeliveredMessage, Packet
from gradwire.testing.oracle.pull_pacer import PullPacer
from gradwire.testing.oracle.timers import EXPIRY, Timers


class Receivers:
    """Receivers of a host. They send through `queue` only, and by the timers."""

    def __init__(
        self,
        timers: Timers,
        log: OracleLog,
        pulls: PullPacer,
        delivered: Callable[[int, int], None],
        paths: bool,
        queue: Callable[[Packet], None],
        serve: Callable[[], None],
    ) -> None:
        """`delivered`: callback with the time and the number of a delivered message. `paths`: hosts select paths, so an
        answer takes that of the packet. `queue`: queues a packet at the NIC; `serve`: sends what can be sent."""
        self.timers, self.log, self.pulls, self.delivered, self.paths = timers, log, pulls, delivered, paths
        self.queue, self.serve = queue, serve
        self.latest: dict[Flow, tuple[Flow, Packet]] = {}  # the last data packet of each flow or connection

    def take(self, flow: Flow, packet: Packet) -> None:
        before = flow.receiver.is_done
        if packet.kind == DATA and not packet.trimmed:
            size = flow.payload_of(packet.sequence)
            flow.receiver.last_piggyback = packet.argument
            if packet.values is not None:
                flow.brought[packet.sequence] = packet.values
            reply, done = flow.arrive(packet.sequence, size, int(packet.ce), self.timers.now)
        else:
            if packet.kind == DATA:
                reply = flow.on_receiver("on_trimmed", packet.sequence, self.timers.now)
            else:
                reply = flow.on_receiver("on_probe", packet.argument, self.timers.now)
            done = [flow] if flow.receiver.is_done and not before else []
        ends = flow.stream or flow  # the transport's flow
        if is_for_previous(reply):
            self._answer(*self.latest[ends], reply)
        elif reply:
            self._answer(flow, packet, reply)
        if packet.kind == DATA and not packet.trimmed:
            self.latest[ends] = flow, packet
        self._watch(ends)
        self._record_arrivals(done)

    def take_of_all(self, fan: AggregationGroup, flow: Flow, packet: Packet) -> None:
        """Receive a data packet of one member, or of all: once complete, it is taken and answered for all.

        If it was complete before, the member that retransmits is answered.
        """
        if fan.has(flow.place, packet):
            if packet.sequence not in fan.complete:
                fan.arrive(flow.place, packet)  # it may have a mark
            if not packet.leaf:
                self._answer(flow, packet, self._take_one(flow, packet.sequence, packet.ce))
            return
        state = fan.arrive(flow.place, packet)
        if state is None:
            return
        for member in fan.members:
            self._take_one(member, packet.sequence, state.marked)
        first = fan.members[0]
        self.queue(
            first.control_packet(ACK, sequence=packet.sequence, argument=fan.cumulative, echo=state.marked, all=True)
        )

    def _take_one(self, flow: Flow, number: int, marked: bool) -> int:
        """Let the receiver of one member take a packet; return its answer."""
        reply, done = flow.arrive(number, flow.payload_of(number), int(marked), self.timers.now)
        self._record_arrivals(done)
        return reply

    def _record_arrivals(self, done: list[Flow]) -> None:
        now = self.timers.now
        for flow in done:
            self.log.arrivals.append(DeliveredMessage(now, flow.number, flow.receiver.received_bytes, flow.missing()))
            self.delivered(now, flow.number)

    def _watch(self, flow: Flow) -> None:
        """Schedule a call of the receiver at its timer, unless the timer changes until then."""
        if flow.receiver.timer:
            self.timers.set_for(max(flow.receiver.timer, self.timers.now), flow, EXPIRY, self._late_answer)

    def _late_answer(self, flow: Flow) -> None:
        if 0 < flow.receiver.timer <= self.timers.now:
            flow.receiver.timer = 0
            reply = flow.on_wire(flow.on_receiver("on_late", self.timers.now))
            if reply:
                self._answer(*self.latest[flow], reply)
            self.serve()

    def _answer(self, flow: Flow, packet: Packet, reply: int) -> None:
        """Queue the receiver's control packets.

        A single one carries the sequence number of the packet that it answers, or its piggyback value; several are
        numbered.
        """
        self.pulls.add_pulls(flow, reply_pulls(reply))
        count = reply_count(reply)
        alone = packet.argument if has_piggyback(reply) else packet.sequence
        for number in range(count):
            answer = flow.control_packet(
                reply_kind(reply),
                size=reply_size(reply) or flow.protocol.control_bytes,
                entropy=packet.entropy if self.paths else flow.entropy,
                sequence=alone if count == 1 else number,
                argument=reply_argument(reply),
                echo=bool(reply_echo(reply)),
            )
            self.queue(answer)

    def resume(self) -> None:
        """Resume the host: expired timers of receivers fire from now on."""
        now = self.timers.now
        for flow in self.latest:
            if 0 < flow.receiver.timer < now:
                flow.receiver.timer = now
