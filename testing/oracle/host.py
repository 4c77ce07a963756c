"""Hosts with their NICs, and the transports at both ends of their flows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from gradwire.components.balancers.base import Balancer
from gradwire.components.layout import BLOCKED, PULL_PROBE, R_RIDER
from gradwire.components.transports.base import MUST
from gradwire.testing.oracle.fans import Fan
from gradwire.testing.oracle.flows import Flow, Group, Stream
from gradwire.testing.oracle.model import FREE, HELD, TIMER, Clock, Link, Log
from gradwire.testing.oracle.packets import ACK, DATA, PAUSE, PROBE, PULL, Arrival, Counters, Packet
from gradwire.testing.oracle.uncompiled import uncompiled

START, RELEASE, EXPIRY = 0, 1, 2  # the order of the timers of one message
AFTER_MESSAGES = 1 << 60
PROBE_BYTES = 60


class Host:
    """A host with its NIC.

    The NIC has the classes of the switches. In each class control packets go first, then the flows that have
    something to send take turns, one packet each. Data packets are made when they leave, but for those of flows whose
    transport lets them wait: these join the control packets of their class, and when one leaves, there may be more.

    While it stands still it starts nothing, and its timers and arrivals are put off until it goes on.
    """

    def __init__(
        self, clock: Clock, log: Log, link: Link, queues: int, flows: Sequence[Flow],
        delivered: Callable[[int, int], None], balancer: type[Balancer], shortest_first: bool,
    ) -> None:  # fmt: skip
        self.clock, self.log, self.link, self.flows = clock, log, link, flows
        self.delivered = delivered
        self.balancer, self.shortest_first = balancer, shortest_first
        self.paths = balancer.pick is not Balancer.pick
        self.still = False
        self.late: list[
            tuple[int, Callable[[], None]]
        ] = []  # timers that have passed meanwhile, with their keys
        self.held: list[tuple[Packet, int]] = []  # what has arrived meanwhile
        self.sent_from_here: list[Flow] = []
        self.latest: dict[Flow, tuple[Flow, Packet]] = {}  # by what a transport works on: the last data packet
        self.paused: set[int] = set()  # classes that the switch does not want
        self.deaf = False  # the link from the switch is cut
        self.pauses = 0
        self.pulls: deque[Flow] = deque()  # of which a receiver here wants pulls sent
        self.next_pull = 0
        self.control: list[deque[Packet]] = [deque() for _ in range(queues)]
        self.turns: list[deque[Flow | Group]] = [deque() for _ in range(queues)]
        link.freed = self.serve

    # --- timers -------------------------------------------------------------------------------------------------

    def schedule_start(self, flow: Flow, time: int) -> None:
        """The message enters the NIC at `time`."""
        self.sent_from_here.append(flow)
        self._at(time, flow, START, self._start)

    def _at(self, time: int, flow: Flow, what: int, action: Callable[[Flow], None]) -> None:
        self._set(time, flow.number << 2 | what, lambda: action(flow))

    def _set(self, time: int, key: int, action: Callable[[], None]) -> None:
        def go_off() -> None:
            if self.still:
                self.late.append((key, action))
            else:
                action()

        self.clock.at(time, TIMER, key, go_off)

    def _start(self, flow: Flow) -> None:
        if flow.fan is not None and flow.fan.out:
            flow.fan.started += 1
            if flow.fan.started < flow.fan.size:
                return
            flow = flow.fan.members[0]  # it sends for all
        if flow.stream is not None:
            flow.stream.hand_over(flow, self.clock.now)
            flow = flow.stream
            if flow not in self.sent_from_here:
                self.sent_from_here.append(flow)
        else:
            flow.on_sender("start", self.clock.now)
        self._watch(flow)
        self._ready(flow)
        self.serve()

    def _release(self, flow: Flow | Group) -> None:
        flow.resting = False
        self._ready(flow)
        self.serve()

    def _watch(self, flow: Flow) -> None:
        """Call the transport when the time that it has set comes, if by then it has not set another one."""
        if flow.timer and not flow.finished:
            self._at(max(flow.timer, self.clock.now), flow, EXPIRY, self._expire)

    def _expire(self, flow: Flow) -> None:
        if 0 < flow.timer <= self.clock.now and not flow.finished:
            flow.timer = 0
            flow.on_sender("on_timer", self.clock.now)
            self._watch(flow)
            self._ready(flow)
            self.serve()

    # --- sending ------------------------------------------------------------------------------------------------

    def _ready(self, flow: Flow | Group) -> None:
        """The flow may have something to send: it takes part in the turns of its class, or its group does; or its
        packets wait in the queue of its class."""
        if isinstance(flow, Flow) and flow.on_sender("at_nic", 0):
            self._fill(flow)
            return
        if isinstance(flow, Flow) and flow.group is not None and not flow.finished:
            flow.group.add(flow)
            flow = flow.group
        if not flow.ready and not flow.resting and not flow.finished:
            flow.ready = True
            self.turns[min(flow.priority, len(self.turns) - 1)].append(flow)

    def serve(self) -> None:
        """If the link is free, send the first thing that there is."""
        if self.still:
            return
        for c, (control, turns) in enumerate(zip(self.control, self.turns, strict=True)):
            if self.link.busy:
                return
            if c in self.paused:
                continue
            if control:
                self._send_queued(control.popleft())
            while turns and not self.link.busy:
                self._turn(turns)

    def _send_queued(self, packet: Packet) -> None:
        """A packet that has waited leaves."""
        self.link.send(packet)
        if packet.kind in (DATA, PROBE):
            flow = self.flows[packet.flow].stream or self.flows[packet.flow]
            flow.on_sender("at_nic", -packet.size)
            self._fill(flow)

    def _fill(self, flow: Flow) -> None:
        """All that the transport gives now waits in the queue of its class, in this order."""
        while not flow.finished and not flow.resting:
            packet = self._next_packet(flow)
            if packet is None:
                return
            flow.on_sender("at_nic", packet.size)
            self.control[min(packet.priority, len(self.control) - 1)].append(packet)

    def _turn(self, turns: deque[Flow | Group]) -> None:
        """The flow whose turn it is sends a packet and goes to the end of the line, or leaves the line."""
        now = self.clock.now
        first = min(range(len(turns)), key=lambda i: (turns[i].rider, i)) if self.shortest_first else 0
        flow = turns[first]
        del turns[first]
        flow.ready = False
        if flow.finished:
            return
        if isinstance(flow, Group):
            if flow.not_before > now:
                # before all others, the best class first: the first one of a pair sends
                best = min(flow.priority, len(self.turns) - 1)
                self._rest(flow, (best << 23 | flow.members[0].number) - (1 << 26))
            else:
                self._turn_of_group(flow, turns)
            return
        packet = self._next_packet(flow)
        if packet is not None:
            flow.ready = True
            turns.append(flow)
            self.link.send(packet)

    def _rest(self, flow: Flow | Group, order: int) -> None:
        """It may not send before the time in `not_before`."""
        flow.resting = True
        self._set(flow.not_before, order << 2 | RELEASE, partial(self._release, flow))

    def _next_packet(self, flow: Flow) -> Packet | None:
        """What the flow sends next, if it has something to send and may."""
        now = self.clock.now
        if flow.not_before > now:
            self._rest(flow, flow.number)
            return None
        pulled = flow.on_sender("pull", now)
        self._watch(flow)
        if pulled == BLOCKED:
            return None
        if isinstance(flow, Stream):
            message, place = flow.leave(pulled, now)
            packet = self._make(message, place, self._entropy(flow, pulled))
        else:
            packet = self._make(flow, pulled, self._entropy(flow, pulled))
        flow.sent += 1
        if flow.gap:
            flow.not_before = now + -(-packet.size * flow.gap // 65536)
        return packet

    def _turn_of_group(self, group: Group, turns: deque[Flow | Group]) -> None:
        """The oldest message of the group that has something to send sends a packet; older ones leave the group, and so
        does the group leave the line when none is left."""
        now = self.clock.now
        while group.members:
            flow = group.members[0]
            pulled = BLOCKED if flow.finished else flow.on_sender("pull", now)
            self._watch(flow)
            if pulled == BLOCKED:
                group.members.pop(0)
                continue
            packet = self._make(flow, pulled, self._entropy(flow, pulled))
            flow.sent += 1
            group.sent(now, packet.size)
            group.ready = True
            turns.append(group)
            self.link.send(packet)
            return

    def _entropy(self, flow: Flow, pulled: int) -> int:
        """The path entropy of what the transport has pulled: of a packet with data the balancer's, and then it has used
        it up."""
        if self.paths and pulled < PULL_PROBE:
            return int(uncompiled(self.balancer.pick)(flow.memory, flow.sender, flow.sent))
        return flow.entropy

    def _make(self, flow: Flow, pulled: int, entropy: int) -> Packet:
        if pulled >= PULL_PROBE:
            return Packet(
                flow.number, PROBE, flow.dst, PROBE_BYTES, flow.priority, True, flow.entropy,
                argument=pulled - PULL_PROBE,
            )  # fmt: skip
        must = bool(pulled & MUST)
        sequence = pulled & ~MUST
        flow.sequences_sent.append(sequence)
        rider = flow.rider if flow.protocol.rides else 0
        flow.clear_stamps(rider)
        return Packet(
            flow.number, DATA, flow.dst, flow.wire_bytes(sequence), flow.priority, flow.tags[sequence] or must,
            entropy, sequence=sequence, argument=rider, values=flow.carries and flow.carries(sequence),
        )  # fmt: skip

    # --- receiving ----------------------------------------------------------------------------------------------

    def receive(self, packet: Packet, link: int) -> None:
        """A packet has arrived: data and probes are for the receiver of the flow, the rest for its sender."""
        if self.still:
            self.held.append((packet, link))
            return
        if packet.kind == PAUSE:
            if self.deaf:
                return
            now = {c for c in range(8) if packet.argument >> c & 1}
            self.pauses += bool(now - self.paused)
            self.paused = now
            self.serve()
            return
        flow = self.flows[packet.flow]
        if flow.fan is not None and flow.fan.inwards(packet):
            (self._hear_of_all if flow.fan.out else self._take_of_all)(flow.fan, flow, packet)
        elif packet.kind in (DATA, PROBE):
            self._take(flow, packet)
        elif flow.stream is not None:
            stream = flow.stream
            self._hear(stream, packet, flow.first + packet.sequence, stream.acknowledged(packet.argument))
        elif not flow.finished:
            self._hear(flow, packet, packet.sequence, packet.argument)
        self.serve()

    def _hear(self, flow: Flow, packet: Packet, sequence: int, argument: int) -> None:
        echo, now = int(packet.echo), self.clock.now
        if self.paths:
            uncompiled(self.balancer.heard)(flow.memory, flow.sender, packet.kind, packet.entropy, echo, now)
        flow.on_sender("on_control", packet.kind, sequence, argument, echo, now)
        self._watch(flow)
        self._ready(flow)

    def _take_of_all(self, fan: Fan, flow: Flow, packet: Packet) -> None:
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
        self._queue(
            Packet(
                first.number, ACK, first.src, protocol.control_bytes, protocol.control_priority,
                protocol.control_important, first.entropy, sequence=packet.sequence, argument=fan.cumulative,
                echo=got.marked, all=True,
            )
        )  # fmt: skip

    def _take_one(self, flow: Flow, number: int, marked: bool) -> int:
        """The receiver of one of a fan takes a packet: its answer."""
        now = self.clock.now
        reply, done = flow.arrive(number, flow.payload_of(number), int(marked), now)
        for each in done:
            self.log.arrivals.append(Arrival(now, each.number, each.received, each.missing()))
            self.delivered(now, each.number)
        return reply

    def _hear_of_all(self, fan: Fan, flow: Flow, packet: Packet) -> None:
        """An acknowledgement of one of many, or of all: the first of the fan hears of it when it is of all."""
        first = fan.members[0]
        if first.finished or packet.sequence in fan.complete:
            return
        got = fan.arrive(flow.place, packet)
        if got is None:
            return
        first.on_sender("on_control", packet.kind, packet.sequence, fan.cumulative, int(got.marked), self.clock.now)
        if first.finished:
            for each in fan.members:
                each.finish()
        else:
            self._watch(first)
            self._ready(first)

    def _take(self, flow: Flow, packet: Packet) -> None:
        before = flow.delivered
        if packet.kind == DATA and not packet.trimmed:
            size = flow.payload_of(packet.sequence)
            flow.memory[flow.receiver + R_RIDER] = packet.argument
            if packet.values is not None:
                flow.brought[packet.sequence] = packet.values
            reply, done = flow.arrive(packet.sequence, size, int(packet.ce), self.clock.now)
        else:
            if packet.kind == DATA:
                reply = flow.on_receiver("on_trimmed", packet.sequence, self.clock.now)
            else:
                reply = flow.on_receiver("on_probe", packet.argument, self.clock.now)
            done = [flow] if flow.delivered and not before else []
        ends = flow.stream or flow  # what the transport works on
        if reply >> 39 & 1:
            self._answer(*self.latest[ends], reply)
        elif reply:
            self._answer(flow, packet, reply)
        if packet.kind == DATA and not packet.trimmed:
            self.latest[ends] = flow, packet
        self._watch_receiver(ends)
        for each in done:
            self.log.arrivals.append(Arrival(self.clock.now, each.number, each.received, each.missing()))
            self.delivered(self.clock.now, each.number)

    def _watch_receiver(self, flow: Flow) -> None:
        """Call the receiver when the time that it has set comes, if by then it has not set another one."""
        if flow.patience:
            self._at(max(flow.patience, self.clock.now), flow, EXPIRY, self._late_answer)

    def _late_answer(self, flow: Flow) -> None:
        if 0 < flow.patience <= self.clock.now:
            flow.patience = 0
            reply = flow.on_wire(flow.on_receiver("on_late", self.clock.now))
            if reply:
                self._answer(*self.latest[flow], reply)
            self.serve()

    def _answer(self, flow: Flow, packet: Packet, reply: int) -> None:
        """Queue the control packets that the receiver asks for: kind 3, echo 1, size 14, count 12, rider 1, pulls 8,
        unused 1, argument 22 bits, lowest first. One alone carries the sequence number of the packet that it answers, or
        its rider; several are numbered."""
        self._want_pulls(flow, reply >> 31 & 0xFF)
        count = reply >> 18 & 0xFFF
        alone = packet.argument if reply >> 30 & 1 else packet.sequence
        for number in range(count):
            answer = Packet(
                flow.number, reply & 7, flow.src, reply >> 4 & 0x3FFF or flow.protocol.control_bytes,
                flow.protocol.control_priority, flow.protocol.control_important, packet.entropy if self.paths else flow.entropy,
                sequence=alone if count == 1 else number, argument=reply >> 40, echo=bool(reply >> 3 & 1),
            )  # fmt: skip
            self._queue(answer)

    def _queue(self, answer: Packet) -> None:
        self.control[min(answer.priority, len(self.control) - 1)].append(answer)

    # --- pulls --------------------------------------------------------------------------------------------------

    def _want_pulls(self, flow: Flow, pulls: int) -> None:
        """A receiver wants more pulls sent; receivers take turns, and behind each pull there is the time of a packet of
        its flow."""
        flow.pulls += pulls
        if pulls and flow not in self.pulls:
            if not self.pulls:
                self._set(max(self.clock.now, self.next_pull), AFTER_MESSAGES, self._pull)
            self.pulls.append(flow)

    def _pull(self) -> None:
        """The time for a pull has come."""
        while self.pulls and not self.pulls[0].pulls:
            self.pulls.popleft()
        if not self.pulls:
            return
        flow = self.pulls[0]
        self.pulls.rotate(-1)
        flow.pulls -= 1
        flow.pulled += 1
        protocol = flow.protocol
        self.next_pull = self.clock.now + self.link.duration(flow.wire_bytes(0))
        self._set(self.next_pull, AFTER_MESSAGES, self._pull)
        self._queue(
            Packet(
                flow.number,
                PULL,
                flow.src,
                protocol.control_bytes,
                protocol.control_priority,
                protocol.control_important,
                flow.entropy,
                argument=flow.pulled & 0x3FFFFF,
            )
        )
        self.serve()

    # --- standing still -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stand still; the packet that is being sent leaves."""
        self.still = True

    def resume(self) -> None:
        """Go on: what can be sent, the timers that have passed, then what has arrived, all at this time."""
        if not self.still:
            return
        self.still = False
        now = self.clock.now
        late, held = self.late, self.held
        self.late, self.held = [], []
        for flow in self.sent_from_here:
            if 0 < flow.timer < now:
                flow.timer = now
        for flow in self.latest:
            if 0 < flow.patience < now:
                flow.patience = now
        self.clock.at(now, FREE, self.link.index, self.serve)
        for key, action in late:
            self._set(now, key, action)
        for number, (packet, link) in enumerate(held):
            self.clock.at(now, HELD, number, partial(self.receive, packet, link))

    def hear_no_more(self) -> None:
        """The link from the switch is cut, and so what it has asked for is over."""
        self.deaf = True
        self.paused = set()
        self.clock.at(self.clock.now, FREE, self.link.index, self.serve)

    def repeat(self) -> None:
        """The link to the switch works again: a host has asked for nothing."""

    def counters(self) -> Counters:
        """What there is to count: a NIC drops and marks nothing, and its queue is not measured."""
        link = self.link
        return Counters(link.packets, link.bytes, 0, 0, link.lost, 0, link.cut_off, 0, 0, 0, 0, self.pauses, 0)
