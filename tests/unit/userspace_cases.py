"""Small networks for tests of the userspace switch, and its fabric driven by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emu.plan import Plan, Port, Queues, TransportPlan
from emu.userspace.fabric import Fabric
from emu.userspace.packet import Packet
from traces.program import Messages, Program

US = 10**6
MBPS = 10**6
PAYLOAD, OVERHEAD = 1442, 58
FULL = 1500 * 80_000  # a full frame at 100 Mbps: 120 us in ps
PLAIN = Queues(8, 10**9, None, False)


def plan_of(
    hosts: int,
    cables: Sequence[tuple[int, int]],
    names: Sequence[str],
    routes: dict[tuple[int, int], tuple[int, ...]],
    *,
    rate: int = 100 * MBPS,
    latency: int = US,
    loss: float = 0.0,
    queues: Queues = PLAIN,
    balancing: str = "ecmp",
    seed: int = 1,
    rates: dict[int, int] | None = None,
    **more: Any,
) -> Plan:
    ports = [
        Port(2 * i + way, a, b, (rates or {}).get(2 * i + way, rate), latency, loss, f"{names[a]}->{names[b]}")
        for i, cable in enumerate(cables)
        for way, (a, b) in enumerate((cable, cable[::-1]))
    ]
    transport = TransportPlan("dlcp", PAYLOAD, OVERHEAD, "udp", {})
    return Plan(
        "case", seed, tuple(names), hosts, tuple(ports), routes, queues, balancing, (transport,), 2 * US, no_program(), **more
    )


def star(hosts: int, **more: Any) -> Plan:
    """h0 ... around s0: host i has ports 2i (up) and 2i + 1 (down)."""
    names = [f"h{i}" for i in range(hosts)] + ["s0"]
    routes = {(hosts, host): (2 * host + 1,) for host in range(hosts)}
    return plan_of(hosts, [(host, hosts) for host in range(hosts)], names, routes, **more)


def diamond(spines: int, **more: Any) -> Plan:
    """Two hosts on a leaf each, `spines` ways between. Ports of leaf0 to the spines: 4, 8, 12, ..."""
    names = ["h0", "h1", "leaf0", "leaf1"] + [f"spine{i}" for i in range(spines)]
    cables = [(0, 2), (1, 3)]
    for i in range(spines):
        cables += [(2, 4 + i), (3, 4 + i)]
    up = {way: tuple(4 + 4 * i + way * 2 for i in range(spines)) for way in (0, 1)}
    routes = {(2, 0): (1,), (3, 1): (3,), (2, 1): up[0], (3, 0): up[1]}
    for i in range(spines):
        routes |= {(4 + i, 0): (5 + 4 * i,), (4 + i, 1): (7 + 4 * i,)}
    return plan_of(2, cables, names, routes, **more)


def packet(dst: int, size: int = 1500, priority: int = 0, important: bool = True, **more: Any) -> Packet:
    return Packet(bytes(40), size, dst, priority, important, **more)


class Noted(Fabric):
    """Writes down every transmission: (start, port, packet, marked, not lost)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.log: list[tuple[int, int, Packet, bool, bool]] = []

    def transmit(self, port: Any, packet: Packet, c: int, start: int) -> bool:
        marked = packet.marked
        arrives = super().transmit(port, packet, c, start)
        self.log.append((start, port.number, packet, marked, arrives))
        return arrives

    def feed(self, *arrivals: tuple[int, int, Packet]) -> list[tuple[int, int, Packet]]:
        """Packets at hosts' ports, by time; then everything to the end."""
        reached = []
        for time, host, each in arrivals:
            reached += self.advance(time)
            self.arrive(time, host, each)
        return reached + self.advance(1 << 60)


def no_program() -> Program:
    none = np.zeros(0, dtype=np.int64)
    messages = Messages(*([none] * 10), none.astype(float), none, none, none, [])
    return Program((), messages, none, none, (none, none), (none, none), none, none, ())
