"""Computes base round-trip times between a plan's hosts, a full packet and its answer on an empty network.

The figures equal those of the simulator (`gradwire.topology.base_rtt`, which works on routing tables; a test compares
them): every link adds serialisation time and latency, and the slowest of several equally good paths counts.
"""

from __future__ import annotations

from functools import cache, lru_cache

from gradwire.emu.planning.plan import TestbedPlan, TransportPlan
from gradwire.scenarios.inner_units import Bytes, Ns, Ps, PsPerByte
from gradwire.scenarios.wire import ACK_BYTES, DLCP_ACK_BYTES, crossing_ps, ps_per_byte


class RoundTrips:
    """Base round-trip times of one plan."""

    def __init__(self, plan: TestbedPlan) -> None:
        self.plan = plan
        self._own = {port.src: port.number for port in plan.ports if port.src < plan.host_count}
        self._one_way_ps = cache(self._slowest)
        self.slowest = cache(self._slowest_link)

    def time_ps(self, src: int, dst: int, transport: TransportPlan) -> Ps:
        out, back = Bytes(transport.payload + transport.overhead), answer_bytes(transport)
        return Ps(self._one_way_ps(src, dst, out) + self._one_way_ps(dst, src, back))

    def _slowest_link(self, src: int, dst: int) -> PsPerByte:
        """Return picoseconds per byte << 16 of the slowest link on any path from a node to a host."""
        if src == dst:
            return PsPerByte(0)
        port_numbers = (self._own[src],) if src in self._own else self.plan.routes.get((src, dst), ())
        ports = [self.plan.ports[number] for number in port_numbers]
        return max((max(ps_per_byte(port.rate), self.slowest(port.dst, dst)) for port in ports), default=PsPerByte(0))

    def longest_ps(self) -> Ps:
        """Return the longest round-trip time of any two hosts by any transport."""
        hosts = range(self.plan.host_count)
        pairs = [(src, dst) for src in hosts for dst in hosts if src != dst]
        return max(self.time_ps(*pair, transport) for transport in self.plan.transports for pair in pairs)

    def _slowest(self, node: int, host: int, size: Bytes) -> Ps:
        """Return the longest time in picoseconds that a packet takes from a node to a host."""
        if node == host:
            return Ps(0)
        port_numbers = (self._own[node],) if node in self._own else self.plan.routes.get((node, host), ())
        ports = [self.plan.ports[number] for number in port_numbers]
        times = (
            crossing_ps(size, port.rate, port.latency_ps) + self._one_way_ps(port.dst, host, size) for port in ports
        )
        return Ps(max(times, default=0))


def answer_bytes(transport: TransportPlan) -> Bytes:
    """Return the bytes on a link of a receiver's answer to a packet."""
    return transport.answer or Bytes(ACK_BYTES if transport.wire == "tcp" else DLCP_ACK_BYTES)


@lru_cache(4)
def base_round_trip_ns(plan: TestbedPlan) -> Ns:
    """Return the longest base round-trip time of a plan in nanoseconds."""
    return Ns(RoundTrips(plan).longest_ps() // 1000)
