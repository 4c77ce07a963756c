"""Base round trips of a plan: how long a full packet and its answer take with nothing in their way.

The same figures as the simulator's (`gradwire.experiment.trips`, which works on its routing tables; a test holds the
two equal): every link takes the packet's bytes and then its latency, and of several equally good paths the slowest
counts.
"""

from __future__ import annotations

from functools import cache, lru_cache

from gradwire.emu.planning.plan import Plan, TransportPlan
from gradwire.scenarios.units import Bytes, Ns, Ps, PsPerByte
from gradwire.scenarios.wire import ACK_BYTES, DLCP_ACK_BYTES, crossing_ps, speed_of


class RoundTrips:
    """The base round trips of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._own = {port.src: port.number for port in plan.ports if port.src < plan.host_count}
        self._one_way = cache(self._slowest)
        self.slowest = cache(self._slowest_link)

    def time_ps(self, src: int, dst: int, transport: TransportPlan) -> Ps:
        """Of a flow of a transport from one host to another."""
        out, back = Bytes(transport.payload + transport.overhead), answer_bytes(transport)
        return Ps(self._one_way(src, dst, out) + self._one_way(dst, src, back))

    def _slowest_link(self, src: int, dst: int) -> PsPerByte:
        """Picoseconds per byte << 16 of the slowest link on any of the paths from a node to a host."""
        if src == dst:
            return PsPerByte(0)
        ways = (self._own[src],) if src in self._own else self.plan.routes.get((src, dst), ())
        ports = [self.plan.ports[number] for number in ways]
        return max((max(speed_of(port.rate), self.slowest(port.dst, dst)) for port in ports), default=PsPerByte(0))

    def longest_ps(self) -> Ps:
        """The longest of any two hosts, by any transport."""
        hosts = range(self.plan.host_count)
        pairs = [(src, dst) for src in hosts for dst in hosts if src != dst]
        return max(self.time_ps(*pair, transport) for transport in self.plan.transports for pair in pairs)

    def _slowest(self, node: int, host: int, size: Bytes) -> Ps:
        """Picoseconds from a node to a host."""
        if node == host:
            return Ps(0)
        ways = (self._own[node],) if node in self._own else self.plan.routes.get((node, host), ())
        ports = [self.plan.ports[number] for number in ways]
        times = (crossing_ps(size, port.rate, port.latency_ps) + self._one_way(port.dst, host, size) for port in ports)
        return Ps(max(times, default=0))


def answer_bytes(transport: TransportPlan) -> Bytes:
    """Bytes on a link of what a receiver answers a packet with."""
    return transport.answer or Bytes(ACK_BYTES if transport.wire == "tcp" else DLCP_ACK_BYTES)


@lru_cache(4)
def base_round_trip_ns(plan: Plan) -> Ns:
    """The longest base round trip of a plan, in nanoseconds."""
    return Ns(RoundTrips(plan).longest_ps() // 1000)
