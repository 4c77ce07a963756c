"""`OracleSwitch` routes the oracle's packets by the load balancer, and sums or copies them; `port` queues them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from gradwire.jit.counter_rng import key_of
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Port as PortRecord
from gradwire.jit.records.network import Switch as SwitchRecord
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.scenarios.schema.network.network import Switch as Table
from gradwire.sim.engine.guarded_rules import check_returned
from gradwire.testing.oracle.aggregation import SwitchSlots
from gradwire.testing.oracle.clock import Clock
from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.packets import DATA, PAUSE, Packet
from gradwire.testing.oracle.port import Buffer
from gradwire.testing.oracle.rules import rule

NODE_DRAWS = 1  # a kind of random keys
RECORD, WAYS, PORTS, TABLE = 500, 1000, 2000, 100_000  # bases of these in a switch's state, for balancers


class OracleSwitch:
    """A switch that looks up the next hops of a packet and lets the load balancer select."""

    def __init__(
        self,
        clock: Clock,
        node: int,
        seed: int,
        ways: Callable[[int], Sequence[int]],
        balancer: type[Balancer],
        table: Table,
        flows: Sequence[Flow],
        longest: int,
        number: int,
    ) -> None:
        self.number, self.slots = number, SwitchSlots(table.aggregation_slots)
        self.clock, self.flows = clock, flows
        self.state: defaultdict[int, int] = defaultdict(int)  # its record as balancers see it
        SwitchRecord(self.state, RECORD).key = key_of(seed, NODE_DRAWS, node)
        SwitchRecord(self.state, RECORD).balancer_table = TABLE
        State(self.state, 0).flowlet_gap = table.flowlet_gap
        self.ways = ways
        self.balancer, self.select = balancer, rule(balancer, "select")
        self.source_routes = balancer.source_routes
        self.balanced = 0
        self.buffer = Buffer(table, longest)
        self.ports = self.buffer.ports

    def receive(self, packet: Packet, link: int) -> None:
        if packet.kind == PAUSE:
            self.ports[link ^ 1].pause(packet.argument)
            return
        flow = self.flows[packet.flow]
        station = None if flow.fan is None else flow.fan.station(flow.place, self.number)
        if flow.fan is not None and station is not None:
            if flow.fan.is_towards_one(packet):
                whole = self.slots.add_up(flow.fan, station, flow.place, packet)
                if whole is not None:
                    self._route(whole, link)
                return
            if flow.fan.is_from_one(station, packet):
                copies = flow.fan.copies(station, packet)
                self.slots.copied += len(copies) * (packet.kind == DATA)
                for copy in copies:
                    self._route(copy, link)
                return
        self._route(packet, link)

    def _route(self, packet: Packet, link: int) -> None:
        ways = self.ways(packet.dst)
        if not ways:
            self.ports[min(self.ports)].refuse(packet)
            return
        way = 0
        if len(ways) > 1:
            for i, index in enumerate(ways):  # the ports as balancers see them
                port, record = self.ports[index], PortRecord(self.state, PORTS + 100 * i)
                self.state[WAYS + i] = record.base
                record.queue = port.waiting(port.queues) << 8
                record.busy_until = port.link.free_at
                record.ps_per_byte = port.link.speed
            now = self.clock.now
            way = self.select(self.state, RECORD, WAYS, len(ways), *packet.as_words(), self.balanced, now)
            check_returned(self.balancer, "select", way, len(ways))
            self.balanced += 1
            if self.source_routes:
                packet = replace(packet, entropy=packet.entropy // len(ways))
        self.ports[ways[way]].offer(packet, link)
