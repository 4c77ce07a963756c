"""The rules of the network, packet by packet, on a clock that it is told. No input or output.

The same as the simulator's (sim/README.md, "Modelling choices"):

* store and forward: a packet's transmission starts when the port is free and no packet of a higher class waits; it
  takes the packet's bits over the rate; the packet is at the far end one latency after its last bit;
* a packet that finds its port idle goes out untested. Otherwise, against what waits without the packet on the wire:
  first the port's buffer (tail drop), then K of its class: marked if it is important, dropped if it is not and such
  packets are to be dropped there, else accepted;
* hosts' own ports have the same strict classes, no limit and no marks;
* at one time and place, transmissions start before arrivals are looked at, and arrivals go by number of their link;
* losses on the wire are drawn by counter when a transmission starts and come to light when it ends.

Times are integer picoseconds.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush
from itertools import chain
from typing import Any, NamedTuple

from emu.plan import Plan, Port
from emu.switches.base import PortCounts
from emu.userspace.draws import OF_LINK, OF_NODE, choice, draw, key_of
from emu.userspace.packet import Packet, message_and_number
from scenarios.wire import serialisation_ps

CLASSES = 8
UNLIMITED = 1 << 62
TAIL, SELECTIVE, LOSS, NO_ROUTE = "tail", "selective", "link_loss", "no_route"
BALANCERS = ("ecmp", "spray_random", "spray_round_robin")

BEFORE_ARRIVALS = -(1 << 40)
"""Added to a port's number: where the start of a transmission stands among what happens at one time."""

_FIRST = [(mask & -mask).bit_length() - 1 for mask in range(1 << CLASSES)]
"""The first class of a set of classes."""
_PER_CLASS = ("packets", "bytes", "drops_tail", "drops_selective", "marks")


class Lost(NamedTuple):
    """A packet that did not arrive."""

    time_ps: int
    port: int
    cause: str
    important: bool
    priority: int
    message: int
    packet: int


class Egress:
    """An egress port and the wire behind it. Lists have an entry per class."""

    __slots__ = (
        "bytes", "drops_selective", "drops_tail", "dst", "ends_at_host", "free_at", "held", "key", "last", "latency",
        "limit", "lost", "marks", "mask", "number", "odds", "packets", "peak", "queues", "rate", "selective", "sent",
        "thresholds", "times", "waiting",
    )  # fmt: skip

    def __init__(self, plan: Plan, port: Port) -> None:
        queues = plan.queues
        limited = port.src >= plan.host_count
        self.number = port.number
        self.dst = port.dst
        self.ends_at_host = port.dst < plan.host_count
        self.rate = port.rate
        self.latency = port.latency_ps
        self.odds = -int(-port.loss * 2**32 // 1)
        self.key = key_of(plan.seed, OF_LINK, port.number)
        self.last = queues.count - 1
        self.limit = queues.buffer if limited else UNLIMITED
        marking = queues.thresholds if limited else None
        self.thresholds = list(marking or ()) + [UNLIMITED] * (CLASSES - len(marking or ()))
        self.selective = queues.selective_drop
        self.times: dict[int, int] = {}
        self.free_at = 0
        self.queues: list[deque[Packet]] = [deque() for _ in range(CLASSES)]
        self.held = [0] * CLASSES
        self.mask = 0
        self.waiting = self.peak = self.sent = self.lost = 0
        self.packets = [0] * CLASSES
        self.bytes = [0] * CLASSES
        self.drops_tail = [0] * CLASSES
        self.drops_selective = [0] * CLASSES
        self.marks = [0] * CLASSES


class Fabric:
    """All ports and links of a plan.

    `arrive` hands it packets of hosts, `advance` lets time pass and returns what has reached its destination meanwhile,
    `next_time` says when there is something to do. Time never goes back.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ports = [Egress(plan, port) for port in plan.ports]
        self.up = {port.src: self.ports[port.number] for port in plan.ports if port.src < plan.host_count}
        self.ways = {
            way: [self.ports[number] for number in numbers] for way, numbers in sorted(plan.routes.items())
        }
        self.now = 0
        self.drops: list[Lost] = []
        self.node_key = [key_of(plan.seed, OF_NODE, node) for node in range(plan.node_count)]
        self.choices = [0] * plan.node_count
        """How many packets every switch has had a choice for."""
        self._happenings: list[tuple[int, int, Egress, Packet | None]] = []
        """(time, order, port, packet that reaches its far end, or None: a transmission may start), a heap"""
        self._choose = {
            "ecmp": self._by_hash, "spray_random": self._by_draw, "spray_round_robin": self._in_turn,
        }[plan.balancing]  # fmt: skip
        self._counted: list[list[int]] = [getattr(port, name) for port in self.ports for name in _PER_CLASS]

    # --- time ---------------------------------------------------------------------------------------------------

    def next_time(self) -> int | None:
        """When something happens next; None if nothing is under way."""
        return self._happenings[0][0] if self._happenings else None

    def advance(self, time: int) -> list[tuple[int, int, Packet]]:
        """Everything up to and with `time`. Returns (time, host, packet) of what has reached its host, in order."""
        self.now = time
        happenings = self._happenings
        reached: list[tuple[int, int, Packet]] = []
        while happenings and happenings[0][0] <= time:
            now, _, port, packet = heappop(happenings)
            if packet is None:
                self._serve(port, now)
            elif port.ends_at_host:
                reached.append((now, port.dst, packet))
            else:
                ways = self.ways.get((port.dst, packet.dst))
                if not ways:
                    self._drop(port, packet, now, NO_ROUTE)
                elif len(ways) == 1:
                    self._offer(ways[0], packet, now)
                else:
                    self._offer(self._choose(port.dst, ways, packet), packet, now)
        return reached

    def arrive(self, time: int, host: int, packet: Packet) -> None:
        """A host sends a packet: it reaches the host's own port. `time` is that of the last `advance`."""
        if time != self.now:
            raise ValueError(f"a packet at {time} ps where the fabric has been advanced to {self.now} ps")
        self._offer(self.up[host], packet, time)

    # --- ways ---------------------------------------------------------------------------------------------------

    def _by_hash(self, node: int, ways: list[Egress], packet: Packet) -> Egress:
        self.choices[node] += 1
        return ways[choice(draw(self.node_key[node], packet.entropy), len(ways))]

    def _by_draw(self, node: int, ways: list[Egress], packet: Packet) -> Egress:
        count = self.choices[node]
        self.choices[node] = count + 1
        return ways[choice(draw(self.node_key[node], count), len(ways))]

    def _in_turn(self, node: int, ways: list[Egress], packet: Packet) -> Egress:
        count = self.choices[node]
        self.choices[node] = count + 1
        return ways[count % len(ways)]

    # --- ports --------------------------------------------------------------------------------------------------

    def _offer(self, port: Egress, packet: Packet, time: int) -> None:
        """A packet reaches a port: it goes out, waits or is dropped."""
        c = packet.priority
        if c > port.last:
            c = port.last
        if port.free_at <= time and not port.mask:
            self.transmit(port, packet, c, time)
            return
        size = packet.size
        waiting = port.waiting + size
        if waiting > port.limit:
            port.drops_tail[c] += 1
            self._drop(port, packet, time, TAIL)
            return
        if port.held[c] >= port.thresholds[c]:
            if packet.important:
                packet.marked = True
                port.marks[c] += 1
            elif port.selective:
                port.drops_selective[c] += 1
                self._drop(port, packet, time, SELECTIVE)
                return
        port.queues[c].append(packet)
        port.held[c] += size
        port.waiting = waiting
        if waiting > port.peak:
            port.peak = waiting
        if not port.mask:
            heappush(self._happenings, (port.free_at, BEFORE_ARRIVALS + port.number, port, None))
        port.mask |= 1 << c

    def _serve(self, port: Egress, time: int) -> None:
        """The port is free: start the first packet of the highest class that has one."""
        c = _FIRST[port.mask]
        queue = port.queues[c]
        packet = queue.popleft()
        size = packet.size
        port.held[c] -= size
        port.waiting -= size
        if not queue:
            port.mask ^= 1 << c
        self.transmit(port, packet, c, time)
        if port.mask:
            heappush(self._happenings, (port.free_at, BEFORE_ARRIVALS + port.number, port, None))

    def transmit(self, port: Egress, packet: Packet, c: int, start: int) -> bool:
        """Put a packet on the wire; its first bit leaves at `start`. False if it will never arrive."""
        size = packet.size
        taken = port.times.get(size)
        if taken is None:
            taken = port.times[size] = serialisation_ps(size, port.rate)
        end = start + taken
        port.free_at = end
        port.packets[c] += 1
        port.bytes[c] += size
        if port.odds:
            count = port.sent
            port.sent = count + 1
            if draw(port.key, count) < port.odds:
                port.lost += 1
                self._drop(port, packet, end, LOSS)
                return False
        heappush(self._happenings, (end + port.latency, port.number, port, packet))
        return True

    def _drop(self, port: Egress, packet: Packet, time: int, cause: str) -> None:
        message, number = message_and_number(packet.data)
        self.drops.append(Lost(time, port.number, cause, packet.important, packet.priority, message, number))

    # --- what has been counted ----------------------------------------------------------------------------------

    def counters(self) -> array[int]:
        """All counters, in the order in which `port_counts` reads them. Quick: the network stands still meanwhile."""
        rest = ((port.lost, port.peak, port.waiting) for port in self.ports)
        return array("q", chain(chain.from_iterable(self._counted), chain.from_iterable(rest)))


def port_counts(plan: Plan, counters: Any) -> list[PortCounts]:
    """What `Fabric.counters` says, by port."""
    counts = []
    width = CLASSES * len(_PER_CLASS)
    rest = width * len(plan.ports)
    for port in plan.ports:
        block = counters[width * port.number : width * (port.number + 1)]
        columns = {name: list(block[CLASSES * i : CLASSES * (i + 1)]) for i, name in enumerate(_PER_CLASS)}
        lost, peak, waiting = counters[rest + 3 * port.number : rest + 3 * port.number + 3]
        counts.append(
            PortCounts(
                port.name,
                **{name: sum(column) for name, column in columns.items()},
                drops_loss=lost,
                peak_queue_bytes=peak,
                queue_bytes=waiting,
                by_queue=[
                    {name: column[c] for name, column in columns.items()} for c in range(plan.queues.count)
                ],
            )
        )
    return counts
