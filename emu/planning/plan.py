"""`TestbedPlan` declares the complete description of a testbed run as plain data that another process can receive.

A plan is made from a scenario outside the testbed and pickled. Inside - in private namespaces, in a virtual machine or
on other machines - no module of scenarios, traces or simulators is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradwire.emu.user_programs.programs import Programs
from gradwire.jit.records.constants import SLOW_UNIT
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.json_data import JsonView
from gradwire.workload.program import Program

PS_PER_NS = 1000


@dataclass(frozen=True)
class Change:
    """The changes that faults make at `time_ns` since the beginning of the run; routes never change.

    Cables change in the switches (`SwitchBackend.set_loss`). Hosts change in their player: an agent pauses itself
    (`gradwire.emu.agent.loop`) and slows its computing (`gradwire.emu.agent.script`); a user program is stopped by a
    signal (`gradwire.emu.user_programs.player`).

    loss : (port, loss probability from now on).
    stop, go : hosts that pause and that resume.
    slow : (host, factor by which computing takes longer).
    """

    time_ns: int
    loss: tuple[tuple[int, float], ...] = ()
    stop: tuple[int, ...] = ()
    go: tuple[int, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Port:
    """A directed link: the egress port at `src` and the wire to `dst`. Ports 2i and 2i + 1 are one cable."""

    number: int
    src: int
    dst: int
    rate: Bps
    """bit/s, counting bytes as `gradwire.scenarios.wire` does"""
    latency_ps: Ps
    loss: float
    name: str
    """ "a->b", as in the Result's table of ports"""

    @property
    def device(self) -> str:
        """Return the network device of this port in the namespace of `src`."""
        return f"p{self.number}"


@dataclass(frozen=True)
class Queues:
    """The queues of every switch port, with the meanings of `gradwire.scenarios.schema.network.network.Switch`. Ports
    of hosts have the same strict priority classes, without limits and marks."""

    count: int
    buffer: Bytes
    thresholds: tuple[int, ...] | None
    """K in bytes, one per queue; None: no marking"""
    selective_drop: bool
    limits: tuple[int, ...] | None = None
    """Bytes of the buffer that each queue may hold, one per queue; None: all of it"""

    def limit(self, queue: int) -> int:
        return self.buffer if self.limits is None else min(self.buffer, self.limits[queue])


@dataclass(frozen=True)
class TransportPlan:
    """A transport and its parameters (the fields of its table in the scenario, in internal units).

    overhead, answer : bytes on a link of a data packet beyond its payload, and of its answer (0: default of `wire`).
    folder : folder of a user-defined transport, whose kind is "module:Class".
    important : True if untagged packets are important.
    congestion : the kernel's congestion control if its TCP carries the messages; "" if the rules of
        `gradwire.protocols.transports` do, over UDP.
    """

    kind: str
    payload: Bytes
    overhead: Bytes
    wire: str
    parameters: JsonView
    answer: Bytes = Bytes(0)
    folder: str | None = None
    important: bool = True
    congestion: str = ""

    @property
    def by_kernel(self) -> bool:
        """Return True if the kernel's TCP carries its messages."""
        return self.congestion != ""

    @property
    def persistent(self) -> bool:
        """Return True if TCP keeps one connection per pair of hosts and class, not one per message."""
        return self.parameters.get("connections") == "persistent"


@dataclass(frozen=True, eq=False)
class TestbedPlan:
    """The description of one run.

    names : of the nodes, hosts first.
    routes : (switch, host) -> numbers of the equally good egress ports of that switch towards that host, ascending.
    balancing : "ecmp", "spray_random" or "spray_round_robin".
    clock : "wall" or "virtual".
    switch : the backend, "red", "bpf" or "userspace".
    captures : names of the nodes at whose ports packets are captured.
    sample_ps : sampling interval of the ports `sample_ports` (numbers); None: no sampling.
    """

    name: str
    seed: int
    names: tuple[str, ...]
    host_count: int
    ports: tuple[Port, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    queues: Queues
    balancing: str
    transports: tuple[TransportPlan, ...]
    software_latency_ps: Ps
    program: Program
    trace_folders: tuple[str, ...] = ()
    clock: str = "wall"
    switch: str = "userspace"
    duration_ps: Ps | None = None
    sample_ps: Ps | None = None
    sample_ports: tuple[int, ...] = ()
    captures: tuple[str, ...] = ()
    wait_s: float = 60.0
    """Longest time without any progress, in seconds of the wall clock."""
    options: JsonView = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    """Effects of faults, in order of time."""
    programs: Programs | None = None
    """User programs across the network, beside `program` (`gradwire exec`)."""

    @property
    def node_count(self) -> int:
        return len(self.names)

    def ports_of_node(self, node: int) -> list[Port]:
        return [port for port in self.ports if port.src == node]

    def largest_frame(self) -> Bytes:
        """Return the bytes on the link of the largest packet."""
        return Bytes(max(transport.payload + transport.overhead for transport in self.transports))


def host_address(node: int) -> str:
    """Return the IPv4 address of a host: 10.0.0.1 for the first, as in captures of simulated packets."""
    number = node + 1
    return f"10.{number >> 16 & 63}.{number >> 8 & 255}.{number & 255}"


def port_address(port: int) -> str:
    """Return the IPv4 address of a switch port or of the far end of a host's cable; never that of a host."""
    return f"10.{128 + (port >> 16 & 63)}.{port >> 8 & 255}.{port & 255}"


def port_mac(port: int) -> str:
    return f"02:00:{port >> 24 & 255:02x}:{port >> 16 & 255:02x}:{port >> 8 & 255:02x}:{port & 255:02x}"


def pauses_of(changes: Sequence[Change], node: int) -> list[tuple[int, int]]:
    """Return a host's pauses as (from, to) in ns."""
    stops = [change.time_ns for change in changes if node in change.stop]
    return list(zip(stops, [change.time_ns for change in changes if node in change.go], strict=True))


def slowness_of(changes: Sequence[Change], node: int) -> list[tuple[Ps, int]]:
    """Return a host's compute slowness as (start, factor times `SLOW_UNIT`), ascending; empty if it is never slow."""
    slow_periods = [
        (Ps(change.time_ns * PS_PER_NS), round(factor * SLOW_UNIT))
        for change in changes
        for host, factor in change.slow
        if host == node
    ]
    return [(Ps(0), SLOW_UNIT), *slow_periods] if slow_periods else []
