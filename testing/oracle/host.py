"""Hosts with their NICs, and the senders of their flows; the other ends are in `receivers`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from gradwire.components.balancers.base import Balancer
from gradwire.components.layout import BLOCKED, PULL_PROBE
from gradwire.components.transports.base import MUST
from gradwire.testing.oracle.fans import Fan
from gradwire.testing.oracle.flows import Flow, Group, Stream
from gradwire.testing.oracle.model import FREE, HELD, Clock, Link, Log
from gradwire.testing.oracle.packets import DATA, PAUSE, PROBE, Counters, Packet
from gradwire.testing.oracle.pulls import Pulls
from gradwire.testing.oracle.receivers import Receivers
from gradwire.testing.oracle.timers import EXPIRY, RELEASE, START, Timers
from gradwire.testing.oracle.uncompiled import uncompiled

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
        self.clock, self.link, self.flows = clock, link, flows
        self.balancer, self.shortest_first = balancer, shortest_first
        self.paths = balancer.pick is not Balancer.pick
        self.timers = Timers(clock)
        pulls = Pulls(self.timers, link, self._queue, self.serve)
        self.receivers = Receivers(self.timers, log, pulls, delivered, self.paths, self._queue, self.serve)
        self.held: list[tuple[Packet, int]] = []  # what has arrived meanwhile
        self.sent_from_here: list[Flow] = []
        self.paused: set[int] = set()  # classes that the switch does not want
        self.deaf = False  # the link from the switch is cut
        self.pauses = 0
        self.control: list[deque[Packet]] = [deque() for _ in range(queues)]
        self.turns: list[deque[Flow | Group]] = [deque() for _ in range(queues)]
        link.freed = self.serve

    # --- timers -------------------------------------------------------------------------------------------------

    def schedule_start(self, flow: Flow, time: int) -> None:
        """The message enters the NIC at `time`."""
        self.sent_from_here.append(flow)
        self.timers.set_for(time, flow, START, self._start)

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
            self.timers.set_for(max(flow.timer, self.clock.now), flow, EXPIRY, self._expire)

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
        if self.timers.still:
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
        self.timers.set(flow.not_before, order << 2 | RELEASE, partial(self._release, flow))

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
        if self.timers.still:
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
            (self._hear_of_all if flow.fan.out else self.receivers.take_of_all)(flow.fan, flow, packet)
        elif packet.kind in (DATA, PROBE):
            self.receivers.take(flow, packet)
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

    def _queue(self, answer: Packet) -> None:
        self.control[min(answer.priority, len(self.control) - 1)].append(answer)

    # --- standing still -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stand still; the packet that is being sent leaves."""
        self.timers.stop()

    def resume(self) -> None:
        """Go on: what can be sent, the timers that have passed, then what has arrived, all at this time."""
        if not self.timers.still:
            return
        now = self.clock.now
        held, self.held = self.held, []
        for flow in self.sent_from_here:
            if 0 < flow.timer < now:
                flow.timer = now
        self.receivers.resume()
        self.clock.at(now, FREE, self.link.index, self.serve)
        self.timers.resume()
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
