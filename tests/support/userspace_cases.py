"""Small networks for tests of the userspace switch, and its fabric driven by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.emu.native.calls import words_at
from gradwire.emu.planning.plan import Port, Queues, TestbedPlan, TransportPlan
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch import rules
from gradwire.emu.switches.userspace_switch.fabric import Fabric, port_counts
from gradwire.emu.switches.userspace_switch.layout import PacketRow, SwitchedNetwork
from gradwire.jit.compiled import njit
from gradwire.workload.program import Messages, Program

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
) -> TestbedPlan:
    ports = [
        Port(2 * i + way, a, b, (rates or {}).get(2 * i + way, rate), latency, loss, f"{names[a]}->{names[b]}")
        for i, cable in enumerate(cables)
        for way, (a, b) in enumerate((cable, cable[::-1]))
    ]
    transport = TransportPlan("dlcp", PAYLOAD, OVERHEAD, "udp", {})
    return TestbedPlan(
        "case",
        seed,
        tuple(names),
        hosts,
        tuple(ports),
        routes,
        queues,
        balancing,
        (transport,),
        2 * US,
        no_program(),
        **more,
    )


def star(hosts: int, **more: Any) -> TestbedPlan:
    """h0 ... around s0: host i has ports 2i (up) and 2i + 1 (down)."""
    names = [f"h{i}" for i in range(hosts)] + ["s0"]
    routes = {(hosts, host): (2 * host + 1,) for host in range(hosts)}
    return plan_of(hosts, [(host, hosts) for host in range(hosts)], names, routes, **more)


def diamond(spines: int, **more: Any) -> TestbedPlan:
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


@njit
def take(address):
    """A free packet, -1 if there is no room."""
    network = SwitchedNetwork(words_at(address), 0)
    return rules.take(network) if rules.has_space(network) else -1


@njit
def arrive(address, host, packet):
    rules.arrive(SwitchedNetwork(words_at(address), 0), host, packet)


@njit
def next_reached(address, until):
    return rules.next_reached(SwitchedNetwork(words_at(address), 0), until)


@njit
def wake_time(address):
    return rules.wake_time(SwitchedNetwork(words_at(address), 0))


@njit
def release(address, packet):
    rules.release(SwitchedNetwork(words_at(address), 0), packet)


@dataclass(eq=False)
class Packet:
    """A packet on its way. data : its first bytes. size : on the link. marked : on the way, known when it has arrived."""

    data: bytes
    size: int
    dst: int
    priority: int
    important: bool
    entropy: int = 0
    marked: bool = False


def packet(dst: int, size: int = 1500, priority: int = 0, important: bool = True, **more: Any) -> Packet:
    return Packet(bytes(40), size, dst, priority, important, **more)


class Driven(Fabric):
    """The compiled rules, driven by hand. `log`: every transmission: (start, port, packet, marked, not lost)."""

    def __init__(self, plan: TestbedPlan, packets: int = 256) -> None:
        super().__init__(plan, at.state_of(plan, packets=packets, drops=1, log=1 << 15))
        self.log: list[tuple[int, int, Packet, bool, bool]] = []
        self.under_way: dict[int, Packet] = {}

    def arrive(self, time: int, host: int, packet: Packet) -> None:
        """A host sends a packet."""
        assert time == self.state.network.now
        number = take(self.state.address)
        if number < 0:
            self.grow()
            number = take(self.state.address)
        S = self.state
        S.frames[number, : len(packet.data)] = np.frombuffer(packet.data, dtype=np.uint8)
        S.packets[number, : PacketRow.next.offset] = (
            len(packet.data), packet.size, packet.dst, packet.priority, packet.important, packet.entropy, 0,
        )  # fmt: skip
        self.under_way[number] = packet
        arrive(S.address, host, number)
        self._note()

    def advance(self, time: int) -> list[tuple[int, int, Packet]]:
        """Everything up to and with `time`: (time, host, packet) of what has reached its host, in order."""
        S, reached = self.state, []
        while (number := next_reached(S.address, time)) >= 0:
            self._note()
            packet = self.under_way[number]
            packet.marked = bool(PacketRow(S.packets[number], 0).is_marked)
            reached.append((S.network.reached_at, S.network.reached_host, packet))
            release(S.address, number)
        self._note()
        return reached

    def next_time(self) -> int | None:
        """When something has to be looked at next."""
        time = wake_time(self.state.address)
        return None if time < 0 else time

    def feed(self, *arrivals: tuple[int, int, Packet]) -> list[tuple[int, int, Packet]]:
        """Packets at hosts' ports, by time; then everything to the end."""
        reached = []
        for time, host, each in arrivals:
            reached += self.advance(time)
            self.arrive(time, host, each)
        return reached + self.advance(1 << 60)

    def port(self, number: int) -> Any:
        """What has been counted at a port, as `PortCounts`."""
        return port_counts(self.plan, self.counters())[number]

    def _note(self) -> None:
        network = self.state.network
        count = network.log_count
        for start, port, number, marked, arrives in self.state.log[:count].tolist():
            self.log.append((start, port, self.under_way[number], bool(marked), bool(arrives)))
        network.log_count = 0


def no_program() -> Program:
    none = np.zeros(0, dtype=np.int64)
    messages = Messages(*([none] * 10), none.astype(float), none, none, none, [])
    return Program((), messages, none, none, (none, none), (none, none), none, none, ())
