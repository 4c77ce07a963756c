"""`OracleHost` models a host of the oracle, whose NIC sends the packets of its flows; receivers are in `receivers`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from gradwire.jit.records.constants import BLOCKED, PULL_PROBE
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.transports.base import IMPORTANT_FLAG
from gradwire.testing.oracle.aggregation import AggregationGroup
from gradwire.testing.oracle.clock import FREE, HELD, Clock, Link, OracleLog
from gradwire.testing.oracle.flows import Flow, PairGroup, Stream
from gradwire.testing.oracle.packets import DATA, PAUSE, PROBE, Counters, Packet
from gradwire.testing.oracle.pull_pacer import PullPacer
from gradwire.testing.oracle.receivers import Receivers
from gradwire.testing.oracle.rules import rule
from gradwire.testing.oracle.timers import EXPIRY, RELEASE, START, Timers

PROBE_BYTES = 60


class OracleHost:
    """A host with its NIC.

    The NIC has the classes of the switches. In each class control packets go first, then the flows that have something
    to send take turns, one packet each. Data packets are created when they leave, except those of flows whose transport
    lets them wait: these join the control packets of their class, and when one leaves, more may follow.

    A paused host starts nothing, and its timers and arrivals are deferred until it resumes.
    """

    def __init__(
        self,
        clock: Clock,
        log: OracleLog,
        link: Link,
        queues: int,
        flows: Sequence[Flow],
        delivered: Callable[[int, int], None],
        balancer: type[Balancer],
        shortest_first: bool,
    ) -> None:
        self.clock, self.link, self.flows = clock, link, flows
        self.balancer, self.shortest_first = balancer, shortest_first
        self.paths = balancer.pick_path is not Balancer.pick_path
        self.timers = Timers(clock)
        pulls = PullPacer(self.timers, link, self._queue, self.serve)
        self.receivers = Receivers(self.timers, log, pulls, delivered, self.paths, self._queue, self.serve)
        self.held: list[tuple[Packet, int]] = []  # arrivals of a stopped host
        self.sent_from_here: list[Flow] = []
        self.paused: set[int] = set()  # classes paused by the switch
        self.deaf = False  # the link from the switch is cut
        self.pauses = 0
        self.control: list[deque[Packet]] = [deque() for _ in range(queues)]
        self.turns: list[deque[Flow | PairGroup]] = [deque() for _ in range(queues)]
        link.freed = self.serve

    # --- timers -------------------------------------------------------------------------------------------------

    def schedule_start(self, flow: Flow, time: int) -> None:
        """Let the message enter the NIC at `time`."""
        self.sent_from_here.append(flow)
        self.timers.set_for(time, flow, START, self._start)

    def _start(self, flow: Flow) -> None:
        if flow.fan is not None and flow.fan.out:
            flow.fan.started += 1
            if flow.fan.started < flow.fan.size:
                return
            flow = flow.fan.members[0]  # it sends for all members
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

    def _release(self, flow: Flow | PairGroup) -> None:
        flow.resting = False
        self._ready(flow)
        self.serve()

    def _watch(self, flow: Flow) -> None:
        """Schedule a call of the transport at its timer, unless the timer changes until then."""
        if flow.sender.timer and not flow.finished:
            self.timers.set_for(max(flow.sender.timer, self.clock.now), flow, EXPIRY, self._expire)

    def _expire(self, flow: Flow) -> None:
        if 0 < flow.sender.timer <= self.clock.now and not flow.finished:
            flow.sender.timer = 0
            flow.on_sender("on_timer", self.clock.now)
            self._watch(flow)
            self._ready(flow)
            self.serve()

    # --- sending ------------------------------------------------------------------------------------------------

    def _ready(self, flow: Flow | PairGroup) -> None:
        """Let a flow that may have something to send, or its group, take turns in its class, or queue its packets."""
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
        """If the link is free, send the first packet that can go."""
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
                self._take_turn(turns)

    def _send_queued(self, packet: Packet) -> None:
        self.link.send(packet)
        if packet.kind in (DATA, PROBE):
            flow = self.flows[packet.flow].stream or self.flows[packet.flow]
            flow.on_sender("at_nic", -packet.size)
            self._fill(flow)

    def _fill(self, flow: Flow) -> None:
        """Queue all packets that the transport releases now in their class, in this order."""
        while not flow.finished and not flow.resting:
            packet = self._next_packet(flow)
            if packet is None:
                return
            flow.on_sender("at_nic", packet.size)
            self.control[min(packet.priority, len(self.control) - 1)].append(packet)

    def _take_turn(self, turns: deque[Flow | PairGroup]) -> None:
        """Send a packet of the flow whose turn it is and move it to the end of the line, or remove it."""
        now = self.clock.now
        first = min(range(len(turns)), key=lambda i: (turns[i].piggyback, i)) if self.shortest_first else 0
        flow = turns[first]
        del turns[first]
        flow.ready = False
        if flow.finished:
            return
        if isinstance(flow, PairGroup):
            if flow.not_before > now:
                # the pair's best class goes first, before all other timers
                best = min(flow.priority, len(self.turns) - 1)
                self._defer(flow, (best << 23 | flow.members[0].number) - (1 << 26))
            else:
                self._take_group_turn(flow, turns)
            return
        packet = self._next_packet(flow)
        if packet is not None:
            flow.ready = True
            turns.append(flow)
            self.link.send(packet)

    def _defer(self, flow: Flow | PairGroup, order: int) -> None:
        flow.resting = True
        self.timers.set(flow.not_before, order << 2 | RELEASE, partial(self._release, flow))

    def _next_packet(self, flow: Flow) -> Packet | None:
        """Return the flow's next packet, or None if it may not send."""
        now = self.clock.now
        if flow.not_before > now:
            self._defer(flow, flow.number)
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
        flow.sender.sent += 1
        if flow.sender.gap:
            flow.not_before = now + -(-packet.size * flow.sender.gap // 65536)
        return packet

    def _take_group_turn(self, group: PairGroup, turns: deque[Flow | PairGroup]) -> None:
        """Send a packet of the group's oldest message that has one; finished ones leave the group, and an empty group
        the line."""
        now = self.clock.now
        while group.members:
            flow = group.members[0]
            pulled = BLOCKED if flow.finished else flow.on_sender("pull", now)
            self._watch(flow)
            if pulled == BLOCKED:
                group.members.pop(0)
                continue
            packet = self._make(flow, pulled, self._entropy(flow, pulled))
            flow.sender.sent += 1
            group.sent(now, packet.size)
            group.ready = True
            turns.append(group)
            self.link.send(packet)
            return

    def _entropy(self, flow: Flow, pulled: int) -> int:
        """Return the path entropy of a pulled packet: the balancer's for data, which consumes it, else the flow's."""
        if self.paths and pulled < PULL_PROBE:
            return int(rule(self.balancer, "pick_path")(flow.memory, flow.sender.base, flow.sender.sent))
        return flow.entropy

    def _make(self, flow: Flow, pulled: int, entropy: int) -> Packet:
        if pulled >= PULL_PROBE:
            return Packet(
                flow.number,
                PROBE,
                flow.dst,
                PROBE_BYTES,
                flow.priority,
                True,
                flow.entropy,
                argument=pulled - PULL_PROBE,
            )
        is_required = bool(pulled & IMPORTANT_FLAG)
        sequence = pulled & ~IMPORTANT_FLAG
        flow.sequences_sent.append(sequence)
        piggyback = flow.piggyback if flow.protocol.rides else 0
        flow.clear_stamps(piggyback)
        return Packet(
            flow.number,
            DATA,
            flow.dst,
            flow.wire_bytes(sequence),
            flow.priority,
            flow.tags[sequence] or is_required,
            entropy,
            sequence=sequence,
            argument=piggyback,
            values=flow.carries and flow.carries(sequence),
        )

    # --- receiving ----------------------------------------------------------------------------------------------

    def receive(self, packet: Packet, link: int) -> None:
        """Receive a packet: data and probes go to the receiver of the flow, the rest to its sender."""
        if self.timers.still:
            self.held.append((packet, link))
            return
        if packet.kind == PAUSE:
            if self.deaf:
                return
            paused = {c for c in range(8) if packet.argument >> c & 1}
            self.pauses += bool(paused - self.paused)
            self.paused = paused
            self.serve()
            return
        flow = self.flows[packet.flow]
        if flow.fan is not None and flow.fan.is_towards_one(packet):
            (self._receive_for_group if flow.fan.out else self.receivers.take_of_all)(flow.fan, flow, packet)
        elif packet.kind in (DATA, PROBE):
            self.receivers.take(flow, packet)
        elif flow.stream is not None:
            stream = flow.stream
            self._receive(stream, packet, flow.first + packet.sequence, stream.acknowledged(packet.argument))
        elif not flow.finished:
            self._receive(flow, packet, packet.sequence, packet.argument)
        self.serve()

    def _receive(self, flow: Flow, packet: Packet, sequence: int, argument: int) -> None:
        echo, now = int(packet.echo), self.clock.now
        if self.paths:
            rule(self.balancer, "on_feedback")(flow.memory, flow.sender.base, packet.kind, packet.entropy, echo, now)
        flow.on_sender("on_control", packet.kind, sequence, argument, echo, now)
        self._watch(flow)
        self._ready(flow)

    def _receive_for_group(self, fan: AggregationGroup, flow: Flow, packet: Packet) -> None:
        """Handle an acknowledgement of one or all members: the first member receives it once it is that of all."""
        first = fan.members[0]
        if first.finished or packet.sequence in fan.complete:
            return
        state = fan.arrive(flow.place, packet)
        if state is None:
            return
        first.on_sender("on_control", packet.kind, packet.sequence, fan.cumulative, int(state.marked), self.clock.now)
        if first.finished:
            for member in fan.members:
                member.sender.is_done = 1
        else:
            self._watch(first)
            self._ready(first)

    def _queue(self, answer: Packet) -> None:
        self.control[min(answer.priority, len(self.control) - 1)].append(answer)

    # --- stopping -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.timers.stop()

    def resume(self) -> None:
        """Resume the host: first sending, then expired timers, then arrivals, all at this time."""
        if not self.timers.still:
            return
        now = self.clock.now
        arrivals, self.held = self.held, []
        for flow in self.sent_from_here:
            if 0 < flow.sender.timer < now:
                flow.sender.timer = now
        self.receivers.resume()
        self.clock.at(now, FREE, self.link.index, self.serve)
        self.timers.resume()
        for number, (packet, link) in enumerate(arrivals):
            self.clock.at(now, HELD, number, partial(self.receive, packet, link))

    def cut_incoming(self) -> None:
        """Cut the link from the switch, which ends its pauses."""
        self.deaf = True
        self.paused = set()
        self.clock.at(self.clock.now, FREE, self.link.index, self.serve)

    def repeat(self) -> None:
        """Do nothing when the link to the switch works again, since hosts send no pauses."""

    def counters(self) -> Counters:
        """Return the counters: a NIC drops and marks nothing, and its queue is not measured."""
        link = self.link
        return Counters(link.packets, link.bytes, 0, 0, link.lost, 0, link.cut_off, 0, 0, 0, 0, self.pauses, 0)
