"""Plan: everything that the testbed needs to know, as plain data that can be sent to another process.

A plan is made from a scenario outside the testbed and pickled; inside - in private namespaces, in a virtual machine or
on other machines - nothing of scenarios, traces or simulators has to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwire.emu.planning.changes import Change
from gradwire.emu.programs.described import Programs
from gradwire.experiment.program import Program
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.json_data import JsonView


@dataclass(frozen=True)
class Port:
    """A directed link: the egress port at `src` and the wire to `dst`. Ports 2i and 2i + 1 are one cable."""

    number: int
    src: int
    dst: int
    rate: Bps
    """bit/s, in the bytes of `gradwire.scenarios.wire`"""
    latency_ps: Ps
    loss: float
    name: str
    """ "a->b", as in the Result's table of ports"""

    @property
    def device(self) -> str:
        """The network device of this port in the namespace of `src`."""
        return f"p{self.number}"


@dataclass(frozen=True)
class Queues:
    """Every egress port of every switch; `gradwire.scenarios.schema.network.Switch` says what it means. Hosts' ports
    have the same strict classes, without limit and without marks."""

    count: int
    buffer: Bytes
    thresholds: tuple[int, ...] | None
    """K in bytes, one per queue; None: nothing is marked"""
    selective_drop: bool
    limits: tuple[int, ...] | None = None
    """Bytes that every queue may hold of the buffer, one per queue; None: all of it"""

    def limit(self, queue: int) -> int:
        """Bytes that a queue may hold."""
        return self.buffer if self.limits is None else min(self.buffer, self.limits[queue])


@dataclass(frozen=True)
class TransportPlan:
    """What carries messages: `parameters` are the fields of its table in the scenario, in units of the inside.

    overhead, answer : bytes on a link of a data packet beyond its payload, and of its answer (0: as `wire` has it).
    folder : where a transport of the user's own lies, "module:Class".
    important : whether packets that nobody has tagged are important.
    congestion : the kernel's congestion control, where its TCP carries the messages; "" where the rules of
        `gradwire.components.transports` do, over UDP.
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
        """Whether the kernel's TCP carries its messages."""
        return self.congestion != ""

    @property
    def persistent(self) -> bool:
        """TCP: whether there is one connection for each pair of hosts and class rather than one for every message."""
        return self.parameters.get("connections") == "persistent"


@dataclass(frozen=True, eq=False)
class Plan:
    """One run.

    names : of the nodes, hosts first.
    routes : (switch, host) -> numbers of the equally good egress ports of that switch towards that host, ascending.
    balancing : "ecmp", "spray_random" or "spray_round_robin".
    clock : "wall" or "virtual".
    switch : the backend, "red", "bpf" or "userspace".
    captures : names of the nodes at whose ports packets are captured.
    sample_ps : how often the ports `sample_ports` (numbers) are sampled; None: never.
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
    """What faults do, in the order of time."""
    programs: Programs | None = None
    """Programs of the user's own across the network, beside `program` (`gradwire exec`)."""

    @property
    def node_count(self) -> int:
        return len(self.names)

    def of_node(self, node: int) -> list[Port]:
        """Egress ports of a node."""
        return [port for port in self.ports if port.src == node]

    def largest_frame(self) -> Bytes:
        """Bytes on the link of the largest packet."""
        return Bytes(max(each.payload + each.overhead for each in self.transports))


def host_address(node: int) -> str:
    """IPv4 address of a host: 10.0.0.1 for the first one, as captures of simulated packets have it."""
    number = node + 1
    return f"10.{number >> 16 & 63}.{number >> 8 & 255}.{number & 255}"


def port_address(port: int) -> str:
    """IPv4 address of a port of a switch, or of the far end of a host's; never that of a host."""
    return f"10.{128 + (port >> 16 & 63)}.{port >> 8 & 255}.{port & 255}"


def port_mac(port: int) -> str:
    """Hardware address of a port's device."""
    return f"02:00:{port >> 24 & 255:02x}:{port >> 16 & 255:02x}:{port >> 8 & 255:02x}:{port & 255:02x}"
