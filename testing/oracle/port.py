"""`OraclePort` models a switch's egress port (queues, marks, drops, scheduling, pauses); `Buffer` models its ports'
shared buffer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from gradwire.jit.counter_rng import draw, key_of
from gradwire.jit.records.constants import FOREVER, PORT_FLAG_SELECTIVE
from gradwire.jit.records.network import Port as PortRecord
from gradwire.jit.records.network import queue_of
from gradwire.protocols.queues.red import Red
from gradwire.protocols.queues.threshold import Threshold
from gradwire.scenarios.schema.network.network import Switch as Table
from gradwire.sim.engine.guarded_rules import check_returned
from gradwire.testing.oracle.clock import FREE, Link, OracleLog
from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.packets import DATA, PAUSE, Counters, Drop, Packet
from gradwire.testing.oracle.rules import rule

RED_DRAWS = 4  # a kind of random keys
PAUSE_BYTES = 60
RECORD = 500  # base of the port's record, as queue policies see it

Waiting = tuple[Packet, int]
"""A packet and its incoming link."""


class OraclePort:
    """A switch's egress port: a queue per class, one buffer for all, one threshold per class."""

    def __init__(
        self, log: OracleLog, link: Link, table: Table, seed: int, buffer: Buffer, flows: Sequence[Flow], policy: type
    ) -> None:
        """`policy`: the class of the queue policy."""
        self.log, self.link, self.table, self.buffer, self.flows = log, link, table, buffer, flows
        self.thresholds, self.ramp, self.shared = table.thresholds(), table.ramp(), table.shared()
        self.own = None if policy in (Red, Threshold) else policy
        self.state: defaultdict[int, int] = defaultdict(int)  # its record as queue policies see it
        self.limits = table.limits()
        self.quanta = table.quanta() or (0,) * table.queues
        self.deficit = [0] * table.queues
        self.turn, self.granted = 0, False
        self.key, self.tests = key_of(seed, RED_DRAWS, link.index), 0
        self.queues: list[deque[Waiting]] = [deque() for _ in range(table.queues)]
        self.paused: set[int] = set()  # classes paused by the far end
        self.wanted: set[int] = set()  # classes that the far end is to pause
        self.signal = False  # a pause frame is due
        self.deaf = False  # the link from the far end is cut
        self.tail = self.dropped = self.evicted = self.no_route = self.marks = self.control_marks = self.trimmed = (
            self.pauses
        ) = self.peak = 0
        link.freed = self.serve

    def waiting(self, queues: Sequence[deque[Waiting]]) -> int:
        """Return the bytes in queues, without the packet in transmission."""
        return sum(packet.size for queue in queues for packet, _ in queue)

    def class_of(self, packet: Packet) -> int:
        return min(packet.priority, len(self.queues) - 1)

    # --- coming in ----------------------------------------------------------------------------------------------

    def offer(self, packet: Packet, came_by: int) -> None:
        """Send, queue, mark, trim or drop a packet that is to leave here."""
        c = self.class_of(packet)
        if not self.link.busy and c not in self.paused:
            self.send(packet)
            return
        queue = self.queues[c]
        if self.is_to_be_trimmed(c, packet):
            self.trim(queue, packet, came_by)
            return
        if not self.finds_room(c, packet, came_by):
            self.tail += 1
            self._drop(packet, "tail")
            return
        if self.own is not None:
            verdict = self.verdict_of(self.own, c, packet)
            if verdict > 1:
                self.tail += verdict == 2
                self.dropped += verdict == 3
                self._drop(packet, "tail" if verdict == 2 else "selective")
                return
            if verdict:
                packet = packet.with_mark()
                self.marks += 1
                self.control_marks += packet.kind != DATA
        elif self.thresholds is not None:
            if self.is_above(self.waiting([queue]), self.thresholds[c]):
                if packet.important:
                    packet = packet.with_mark()
                    self.marks += 1
                    self.control_marks += packet.kind != DATA
                elif self.table.selective_drop:
                    self.dropped += 1
                    self._drop(packet, "selective")
                    return
        self.enqueue(c, packet, came_by)

    def enqueue(self, c: int, packet: Packet, came_by: int) -> None:
        self.queues[c].append((packet, came_by))
        self.peak = max(self.peak, self.waiting(self.queues))
        self.buffer.after_enqueue(came_by, c)

    def finds_room(self, c: int, packet: Packet, came_by: int) -> bool:
        """Return True if a packet has room; a worse one may be dropped for it."""
        queue = self.queues[c]
        if self.buffer.pausable(c):
            return (
                self.buffer.queued_bytes(came_by, c) + packet.size
                <= self.table.pfc_threshold + self.buffer.room[came_by]
            )
        if self.table.shortest_first:
            return self.evict_for(queue, packet)
        return not self.full(c, packet.size)

    def full(self, c: int, size: int) -> bool:
        """Return True if a packet has no room in its class's part of the buffer, the port's buffer, or the shared
        one."""
        if self.limits is not None:
            ports = [self] if self.shared is None else self.buffer.ports.values()
            if sum(self.waiting([port.queues[c]]) for port in ports) + size > self.limits[c]:
                return True
        if self.shared is None:
            return self.waiting(self.queues) + size > self.table.buffer
        free = self.shared[0] - self.buffer.used()
        return size > free or self.waiting([self.queues[c]]) + size > free * round(self.shared[1] * 65536) // 65536

    def is_above(self, waiting: int, threshold: int) -> bool:
        """Return True if a packet is to be marked or dropped above the threshold."""
        if waiting < threshold or self.ramp is None or waiting >= self.ramp[0]:
            return waiting >= threshold
        odds = int(self.ramp[1] * 2**32) * (waiting - threshold) // (self.ramp[0] - threshold)
        return self.test() < odds

    def verdict_of(self, policy: type, c: int, packet: Packet) -> int:
        """Return the verdict of a user-defined queue policy, which sees the port as the engine's words."""
        state = PortRecord(self.state, RECORD)
        waiting = [self.waiting([queue]) for queue in self.queues]
        state.queue = sum(waiting) << 8 | sum(1 << index for index, queue in enumerate(self.queues) if queue)
        state.busy_until, state.ps_per_byte = self.link.free_at, self.link.speed
        state.flags = (len(self.queues) - 1) << 8 | PORT_FLAG_SELECTIVE * self.table.selective_drop
        state.buffer, state.red_key, state.red_draws = self.table.buffer, self.key, self.tests
        for index, queued in enumerate(waiting):
            record = queue_of.py_func(state, index)
            record.nbytes = queued
            record.threshold = FOREVER if self.thresholds is None else self.thresholds[index]
        fifo = queue_of.py_func(state, c)
        verdict = int(rule(policy, "admit")(self.state, state.base, fifo.base, packet.as_words()[0]))
        check_returned(policy, "admit", verdict, 4)
        self.tests = state.red_draws
        return verdict

    def test(self) -> int:
        self.tests += 1
        return int(draw.py_func(self.key, self.tests - 1))

    def is_to_be_trimmed(self, c: int, packet: Packet) -> bool:
        limit = self.table.trim_threshold
        if limit is None or packet.kind != DATA or packet.trimmed or packet.size <= self.table.trim_size:
            return False
        return self.waiting([self.queues[c]]) + packet.size > limit or self.full(c, packet.size)

    def trim(self, queue: deque[Waiting], packet: Packet, came_by: int) -> None:
        """Trim a packet, or every other time the last one of the queue in its place."""
        swap = self.test() & 1
        if queue and swap:
            last, last_by = queue[-1]
            if last.kind == DATA and not last.trimmed and last.size >= packet.size:
                queue[-1] = packet, came_by
                packet, came_by = last, last_by
        self.trimmed += 1
        header = replace(packet, size=self.table.trim_size, priority=self.table.trim_priority, trimmed=True)
        c = self.class_of(header)
        if self.full(c, header.size):
            self.tail += 1
            self._drop(header, "tail")
        else:
            self.enqueue(c, header, came_by)

    def evict_for(self, queue: deque[Waiting], packet: Packet) -> bool:
        """Drop the packets of messages with more left, most first, then latest first, until there is room."""
        while self.waiting(self.queues) + packet.size > self.table.buffer:
            worst = max(range(len(queue)), key=lambda i: (queue[i][0].rank, i), default=None)
            if worst is None or queue[worst][0].rank <= packet.rank:
                return False
            self.evicted += 1
            self._drop(queue[worst][0], "evicted")
            del queue[worst]
        return True

    # --- going out ----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Send on the free link: a due pause frame, else a packet of the first strict class, else of the class whose
        turn it is."""
        if self.signal:
            self.send_pause()
            return
        ready = [bool(queue) and c not in self.paused for c, queue in enumerate(self.queues)]
        for c, quantum in enumerate(self.quanta):
            if ready[c] and not quantum:
                self.send_from(c)
                return
        while any(ready):
            c = self.turn
            if ready[c]:
                if not self.granted:
                    self.deficit[c] += self.quanta[c]
                    self.granted = True
                first = self.queues[c][0][0]
                if first.size <= self.deficit[c]:
                    self.deficit[c] -= first.size
                    if len(self.queues[c]) == 1:
                        self.deficit[c] = 0
                        self.next_turn()
                    self.send_from(c)
                    return
            self.next_turn()

    def next_turn(self) -> None:
        self.turn = (self.turn + 1) % len(self.queues)
        self.granted = False

    def send_from(self, c: int) -> None:
        queue = self.queues[c]
        first = 0
        if self.table.shortest_first:
            best = min(range(len(queue)), key=lambda i: (queue[i][0].rank, i))
            chosen = queue[best][0]
            of_flow = [i for i, (p, _) in enumerate(queue) if p.kind == DATA and p.flow == chosen.flow]
            first = of_flow[0] if chosen.kind == DATA else best
        packet, came_by = queue[first]
        del queue[first]
        self.send(packet)
        self.buffer.after_dequeue(came_by, c)

    def send(self, packet: Packet) -> None:
        if packet.kind == DATA:
            flow = self.flows[packet.flow]
            link = self.link
            flow.stamp(packet.argument, link.index, self.waiting(self.queues), link.bytes, link.clock.now, link.speed)
        self.link.send(packet)

    # --- flow control -------------------------------------------------------------------------------------------

    def signal_pause(self) -> None:
        """Signal a change of the paused classes to the far end."""
        self.signal = True
        if not self.link.busy:
            self.send_pause()

    def send_pause(self) -> None:
        self.signal = False
        classes = sum(1 << c for c in self.wanted)
        self.link.send(Packet(-1, PAUSE, 0, PAUSE_BYTES, 0, False, 0, argument=classes))

    def pause(self, classes: int) -> None:
        """Handle a pause frame of the far end."""
        if self.deaf:
            return
        paused = {c for c in range(8) if classes >> c & 1}
        self.pauses += bool(paused - self.paused)
        self.paused = paused
        if not self.link.busy:
            self.serve()

    def cut_incoming(self) -> None:
        """Cut the link from the far end, which ends its pauses."""
        self.deaf = True
        self.paused = set()
        self.link.clock.at(self.link.clock.now, FREE, self.link.index, self._continue)

    def repeat(self) -> None:
        """Repeat the pause frame when the link to the far end works again."""
        if self.table.pfc:
            self.signal = True
            self.link.clock.at(self.link.clock.now, FREE, self.link.index, self._continue)

    def _continue(self) -> None:
        if not self.link.busy:
            self.serve()

    def refuse(self, packet: Packet) -> None:
        self.no_route += 1
        self._drop(packet, "no_route")

    def _drop(self, packet: Packet, cause: str) -> None:
        self.log.drops.append(Drop(self.link.clock.now, self.link.index, cause, packet))

    def counters(self) -> Counters:
        """Return the counters."""
        link = self.link
        return Counters(
            link.packets, link.bytes, self.tail, self.dropped, link.lost, self.evicted, link.cut_off, self.no_route,
            self.marks, self.control_marks, self.trimmed, self.pauses, self.peak,
        )  # fmt: skip


class Buffer:
    """The shared buffer of a switch's ports, by incoming link, and its flow control."""

    def __init__(self, table: Table, longest: int) -> None:
        """`longest`: bytes of the longest packet."""
        self.table = table
        self.ports: dict[int, OraclePort] = {}  # by their links
        self.room: dict[int, int] = {}  # headroom above the threshold, by incoming link
        self.hysteresis = table.pfc_hysteresis or 2 * longest

    def used(self) -> int:
        return sum(port.waiting(port.queues) for port in self.ports.values())

    def pausable(self, c: int) -> bool:
        return self.table.pfc and (self.table.pfc_classes is None or c in self.table.pfc_classes)

    def queued_bytes(self, came_by: int, c: int) -> int:
        """Return the queued bytes of a class that came by a link, at all ports."""
        return sum(p.size for port in self.ports.values() for p, link in port.queues[c] if link == came_by)

    def limit(self) -> int:
        """Return the bytes of a class from one link above which its far end is paused."""
        shared = self.table.shared()
        if shared is None:
            return self.table.pfc_threshold
        size, alpha = shared
        return min(self.table.pfc_threshold, max(size - self.used(), 0) * round(alpha * 65536) // 65536)

    def after_enqueue(self, came_by: int, c: int) -> None:
        """Pause the far end if needed, after a packet of a class that came by a link was queued."""
        back = self.ports[came_by ^ 1]
        if self.pausable(c) and c not in back.wanted and self.queued_bytes(came_by, c) > self.limit():
            back.wanted.add(c)
            back.signal_pause()

    def after_dequeue(self, came_by: int, c: int) -> None:
        """Resume the far end if possible, after a packet has left its queue."""
        back = self.ports[came_by ^ 1]
        if c in back.wanted and self.queued_bytes(came_by, c) <= max(self.limit() - self.hysteresis, 0):
            back.wanted.remove(c)
            back.signal_pause()
