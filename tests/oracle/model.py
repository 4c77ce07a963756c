"""Links, ports, switches and hosts, one SimPy event per thing that happens.

What happens at one node at the same time happens in this order, which is the *phase* of its event:

1. `FREE`     a transmission ends, and the port starts the next one that waits;
2. `TIMER`    a message starts, a paced flow is released, a transport's timer expires; by message, then in this order;
3. `ARRIVAL`  packets arrive, by the index of the link that they come over;
4. `SENT_ON`  what jobs do about deliveries, by message.

After each of these an idle port starts what it can. Nodes cannot affect one another at the same instant - every packet
takes time - so the order between nodes does not matter.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import simpy

from sim.fabric.draws import draw, key_of
from sim.fabric.layout import BLOCKED, H_FLOWLET_GAP, N_KEY, N_TABLE, P_BUSY, P_QUEUE, P_SPEED, PULL_PROBE
from sim.transports.base import MUST

from .flows import Flow
from .packets import ACK, BITMAP, DATA, PROBE, STOP, Arrival, Counters, Drop, Packet, Transmission
from .uncompiled import uncompiled

FREE, TIMER, ARRIVAL, SENT_ON = 1, 2, 3, 4
START, RELEASE, EXPIRY = 0, 1, 2  # the order of the timers of one message
NODE_DRAWS, LINK_DRAWS, RED_DRAWS = 1, 2, 4  # kinds of random keys
PROBE_BYTES = 60


class Clock:
    """SimPy's event queue, with the phases as priorities."""

    def __init__(self) -> None:
        self.env = simpy.Environment(initial_time=0)

    @property
    def now(self) -> int:
        """Picoseconds."""
        return int(self.env.now)

    def at(self, time: int, phase: int, key: int, action: Callable[[], None]) -> None:
        """Let `action` happen at `time`; lower keys first within a phase."""
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        assert event.callbacks is not None
        event.callbacks.append(lambda _: action())
        self.env.schedule(event, priority=phase << 64 | key, delay=time - self.now)


class Link:
    """A directed link: it takes one packet at a time, and loses some of them."""

    def __init__(self, clock: Clock, log: Log, index: int, rate: int, latency: int, loss: float, seed: int) -> None:
        self.clock, self.log, self.index, self.latency = clock, log, index, latency
        self.speed = -(-(8 * 10**12 << 16) // rate)  # picoseconds per byte << 16, rounded up
        self.loss_odds = -int(-loss * 2**32 // 1)  # of 2**32, rounded up
        self.loss_key = key_of(seed, LINK_DRAWS, index)
        self.receive: Callable[[Packet, int], None]  # the node at the far end
        self.freed: Callable[[], None]  # the port at the near end
        self.busy = False
        self.free_at = 0
        self.packets = 0
        self.bytes = 0
        self.lost = 0

    def duration(self, size: int) -> int:
        """Picoseconds from the first to the last bit of a packet, rounded up."""
        return -(-size * self.speed // 65536)

    def send(self, packet: Packet) -> None:
        """Start a transmission now."""
        assert not self.busy
        self.busy = True
        end = self.clock.now + self.duration(packet.size)
        self.free_at = end
        lost = draw.py_func(self.loss_key, self.packets) < self.loss_odds if self.loss_odds else False
        self.packets += 1
        self.bytes += packet.size
        self.log.transmissions.append(Transmission(self.clock.now, self.index, packet, lost))
        self.clock.at(end, FREE, self.index, self._end)
        if lost:
            self.lost += 1
            self.log.drops.append(Drop(end, self.index, "link_loss", packet))
        else:
            arrive = self.receive
            self.clock.at(end + self.latency, ARRIVAL, self.index, lambda: arrive(packet, self.index))

    def _end(self) -> None:
        self.busy = False
        self.freed()


class Log:
    """Everything that is compared with the engine."""

    def __init__(self) -> None:
        self.transmissions: list[Transmission] = []
        self.drops: list[Drop] = []
        self.arrivals: list[Arrival] = []


class Port:
    """A switch's egress port: a queue per class, one buffer for all, one threshold per class."""

    def __init__(
        self, log: Log, link: Link, queues: int, buffer: int, thresholds: Sequence[int] | None, selective: bool,
        ramp: tuple[int, float] | None, seed: int, shared: tuple[int, float] | None, beside: dict[int, Port],
        quanta: tuple[int, ...] | None,
    ) -> None:  # fmt: skip
        self.log, self.link = log, link
        self.buffer, self.thresholds, self.selective = buffer, thresholds, selective
        self.quanta = quanta or (0,) * queues
        self.deficit = [0] * queues
        self.turn, self.granted = 0, False
        self.shared, self.beside = shared, beside  # all ports of the switch
        self.ramp, self.key, self.tests = ramp, key_of(seed, RED_DRAWS, link.index), 0
        self.queues: list[deque[Packet]] = [deque() for _ in range(queues)]
        self.tail = self.dropped = self.marks = self.peak = 0
        link.freed = self.serve

    def waiting(self, queues: Sequence[deque[Packet]]) -> int:
        """Bytes in queues. The packet that is being sent is in none."""
        return sum(packet.size for queue in queues for packet in queue)

    def offer(self, packet: Packet) -> None:
        """A packet wants to leave here: send it, queue it, mark it or drop it."""
        if not self.link.busy:
            self.link.send(packet)
            return
        queue = self.queues[min(packet.priority, len(self.queues) - 1)]
        if self.full(queue, packet.size):
            self.tail += 1
            self._drop(packet, "tail")
            return
        if self.thresholds is not None:
            if self.above(self.waiting([queue]), self.thresholds[self.queues.index(queue)]):
                if packet.important:
                    packet = packet.marked()
                    self.marks += 1
                elif self.selective:
                    self.dropped += 1
                    self._drop(packet, "selective")
                    return
        queue.append(packet)
        self.peak = max(self.peak, self.waiting(self.queues))

    def full(self, queue: deque[Packet], size: int) -> bool:
        """Whether there is no room for a packet: in the port's buffer, or in what the shared one leaves to the queue."""
        if self.shared is None:
            return self.waiting(self.queues) + size > self.buffer
        free = self.shared[0] - sum(port.waiting(port.queues) for port in self.beside.values())
        return size > free or self.waiting([queue]) + size > free * round(self.shared[1] * 65536) // 65536

    def above(self, waiting: int, threshold: int) -> bool:
        """Whether a packet is to be marked or dropped by choice."""
        if waiting < threshold or self.ramp is None or waiting >= self.ramp[0]:
            return waiting >= threshold
        self.tests += 1
        odds = int(self.ramp[1] * 2**32) * (waiting - threshold) // (self.ramp[0] - threshold)
        return bool(draw.py_func(self.key, self.tests - 1) < odds)

    def serve(self) -> None:
        """The link is free: the first packet of the first strict class that has one goes, else of the class whose turn
        it is."""
        for queue, quantum in zip(self.queues, self.quanta, strict=True):
            if queue and not quantum:
                self.link.send(queue.popleft())
                return
        while any(self.queues):
            queue = self.queues[self.turn]
            if queue:
                if not self.granted:
                    self.deficit[self.turn] += self.quanta[self.turn]
                    self.granted = True
                if queue[0].size <= self.deficit[self.turn]:
                    packet = queue.popleft()
                    self.deficit[self.turn] -= packet.size
                    if not queue:
                        self.deficit[self.turn] = 0
                        self.next_turn()
                    self.link.send(packet)
                    return
            self.next_turn()

    def next_turn(self) -> None:
        """Deficit round robin: on to the next class."""
        self.turn = (self.turn + 1) % len(self.queues)
        self.granted = False

    def _drop(self, packet: Packet, cause: str) -> None:
        self.log.drops.append(Drop(self.link.clock.now, self.link.index, cause, packet))

    def counters(self) -> Counters:
        """What there is to count."""
        link = self.link
        return Counters(link.packets, link.bytes, self.tail, self.dropped, link.lost, self.marks, self.peak)


WAYS, PORTS, TABLE = 1000, 2000, 100_000  # where balancers find these in a switch's state


class Switch:
    """Looks up the ways to a packet's destination and lets the load balancer choose."""

    def __init__(
        self, clock: Clock, node: int, seed: int, ways: Callable[[int], Sequence[int]], balancer: Any,
        flowlet_gap: int,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.state: defaultdict[int, int] = defaultdict(int)  # its record as balancers see it, at 0
        self.state |= {N_KEY: key_of(seed, NODE_DRAWS, node), N_TABLE: TABLE, H_FLOWLET_GAP: flowlet_gap}
        self.ways = ways
        self.choose = uncompiled(balancer.choose)
        self.balanced = 0
        self.ports: dict[int, Port] = {}

    def receive(self, packet: Packet, link: int) -> None:
        """A packet has arrived."""
        ways = self.ways(packet.dst)
        way = 0
        if len(ways) > 1:
            for i, link in enumerate(ways):  # the ports as balancers see them
                port, at = self.ports[link], PORTS + 100 * i
                self.state[WAYS + i] = at
                self.state[at + P_QUEUE] = port.waiting(port.queues) << 8
                self.state[at + P_BUSY] = port.link.free_at
                self.state[at + P_SPEED] = port.link.speed
            now = self.clock.now
            way = self.choose(self.state, 0, WAYS, len(ways), *packet.words(), self.balanced, now)
            self.balanced += 1
        self.ports[ways[way]].offer(packet)


class Host:
    """A host with its network card.

    The card has the classes of the switches. In each class control packets go first, then the flows that have
    something to send take turns, one packet each. Data packets are made when they leave.
    """

    def __init__(
        self, clock: Clock, log: Log, link: Link, queues: int, flows: Sequence[Flow],
        delivered: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.clock, self.log, self.link, self.flows = clock, log, link, flows
        self.delivered = delivered
        self.control: list[deque[Packet]] = [deque() for _ in range(queues)]
        self.turns: list[deque[Flow]] = [deque() for _ in range(queues)]
        link.freed = self.serve

    # --- timers -------------------------------------------------------------------------------------------------

    def schedule_start(self, flow: Flow, time: int) -> None:
        """The message enters the card at `time`."""
        self._at(time, flow, START, self._start)

    def _at(self, time: int, flow: Flow, what: int, action: Callable[[Flow], None]) -> None:
        self.clock.at(time, TIMER, flow.number << 2 | what, lambda: action(flow))

    def _start(self, flow: Flow) -> None:
        flow.on_sender("start", self.clock.now)
        self._watch(flow)
        self._ready(flow)
        self.serve()

    def _release(self, flow: Flow) -> None:
        flow.resting = False
        self._ready(flow)
        self.serve()

    def _watch(self, flow: Flow) -> None:
        """Call the transport when the time that it has set comes, if by then it has not set another one."""
        if flow.timer and not flow.finished:
            self._at(flow.timer, flow, EXPIRY, self._expire)

    def _expire(self, flow: Flow) -> None:
        if flow.timer == self.clock.now and not flow.finished:
            flow.timer = 0
            flow.on_sender("on_timer", self.clock.now)
            self._watch(flow)
            self._ready(flow)
            self.serve()

    # --- sending ------------------------------------------------------------------------------------------------

    def _ready(self, flow: Flow) -> None:
        """The flow may have something to send: it takes part in the turns of its class."""
        if not flow.ready and not flow.resting and not flow.finished:
            flow.ready = True
            self.turns[min(flow.priority, len(self.turns) - 1)].append(flow)

    def serve(self) -> None:
        """If the link is free, send the first thing that there is."""
        for control, turns in zip(self.control, self.turns, strict=True):
            if self.link.busy:
                return
            if control:
                self.link.send(control.popleft())
            while turns and not self.link.busy:
                self._turn(turns)

    def _turn(self, turns: deque[Flow]) -> None:
        """The flow whose turn it is sends a packet and goes to the end of the line, or leaves the line."""
        now = self.clock.now
        flow = turns.popleft()
        flow.ready = False
        if flow.finished:
            return
        if flow.not_before > now:
            flow.resting = True
            self._at(flow.not_before, flow, RELEASE, self._release)
            return
        pulled = flow.on_sender("pull", now)
        self._watch(flow)
        if pulled == BLOCKED:
            return
        packet = self._make(flow, pulled)
        flow.sent += 1
        if flow.gap:
            flow.not_before = now + -(-packet.size * flow.gap // 65536)
        flow.ready = True
        turns.append(flow)
        self.link.send(packet)

    def _make(self, flow: Flow, pulled: int) -> Packet:
        if pulled >= PULL_PROBE:
            return Packet(
                flow.number, PROBE, flow.dst, PROBE_BYTES, flow.priority, True, flow.entropy,
                argument=pulled - PULL_PROBE,
            )  # fmt: skip
        must = bool(pulled & MUST)
        sequence = pulled & ~MUST
        flow.sequences_sent.append(sequence)
        return Packet(
            flow.number, DATA, flow.dst, flow.wire_bytes(sequence), flow.priority, flow.tags[sequence] or must,
            flow.entropy, sequence=sequence,
        )  # fmt: skip

    # --- receiving ----------------------------------------------------------------------------------------------

    def receive(self, packet: Packet, link: int) -> None:
        """A packet has arrived: data and probes are for the receiver of the flow, the rest for its sender."""
        flow = self.flows[packet.flow]
        if packet.kind in (DATA, PROBE):
            self._take(flow, packet)
        elif packet.kind in (ACK, STOP, BITMAP) and not flow.finished:
            flow.on_sender(
                "on_control", packet.kind, packet.sequence, packet.argument, int(packet.echo), self.clock.now
            )
            self._watch(flow)
            self._ready(flow)
        self.serve()

    def _take(self, flow: Flow, packet: Packet) -> None:
        before = flow.delivered
        if packet.kind == DATA:
            size = flow.payload_of(packet.sequence)
            reply = flow.on_receiver("on_data", packet.sequence, size, int(packet.ce), self.clock.now)
        else:
            reply = flow.on_receiver("on_probe", packet.argument, self.clock.now)
        if reply:
            self._answer(flow, packet, reply)
        if flow.delivered and not before:
            self.log.arrivals.append(Arrival(self.clock.now, flow.number, flow.received, flow.missing()))
            self.delivered(self.clock.now, flow.number)

    def _answer(self, flow: Flow, packet: Packet, reply: int) -> None:
        """Queue the control packets that the receiver asks for: kind 3, echo 1, size 14, count 22, argument 22 bits,
        lowest first. One alone carries the sequence number of the packet that it answers; several are numbered."""
        count = reply >> 18 & 0xFFF
        for number in range(count):
            answer = Packet(
                flow.number, reply & 7, flow.src, reply >> 4 & 0x3FFF or flow.protocol.control_bytes,
                flow.protocol.control_priority, True, flow.entropy,
                sequence=packet.sequence if count == 1 else number, argument=reply >> 40, echo=bool(reply >> 3 & 1),
            )  # fmt: skip
            self.control[min(answer.priority, len(self.control) - 1)].append(answer)

    def counters(self) -> Counters:
        """What there is to count: a card drops and marks nothing, and its queue is not measured."""
        return Counters(self.link.packets, self.link.bytes, 0, 0, self.link.lost, 0, 0)
