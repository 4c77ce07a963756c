"""What the backends made of Linux's own queueing disciplines have in common: nodes, cables, routes, and the order in
which a network comes to be.

Build, read everything back, and only then let anybody send. What a backend adds is what it hangs below and before htb.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from gradwire.emu.agent import nic
from gradwire.emu.kernel import devices, queueing, routes
from gradwire.emu.kernel.devices import WIRE, WIRES, space, wire_device
from gradwire.emu.kernel.netlink import Wire, put_wire, read_wires
from gradwire.emu.planning.plan import Plan, Port
from gradwire.emu.planning.probe import Kernel
from gradwire.emu.switches.base import Drop, PortCounts, TestbedError
from gradwire.emu.system.namespaces import Namespaces, batch, inside, run_tool, shown

AHEAD_NS = 2 * nic.AHEAD_NS
"""How far ahead hosts send on the wall clock, our choice: a port of the kernel takes `queueing.WALL_FRAMES` at once and
runs dry the sooner. `dlcp-four` at 100 Mbit/s on `bpf`, seven pairs of runs by turns: 7.5 % longer than simulated
instead of 9.3 with half as much; but 12 of these 14 were disturbed. With `userspace` transports would react later."""


class KernelSwitch(ABC):
    """A network of htb. `wired`: cables have latency and transmission time, by netem. `chooser`: who picks among ways
    (`gradwire.emu.kernel.routes`)."""

    name = "kernel"

    def __init__(self, plan: Plan, *, wired: bool, chooser: str) -> None:
        self.plan = plan
        self.wired = wired
        self.chooser = chooser
        self.spaces = Namespaces()
        self._backlog_drops = 0

    # what a backend says

    def prepare(self) -> None:
        """Before the first line of tc."""

    def early_ns(self, port: Port) -> int:
        """How long before its time a packet may be let go, under virtual time."""
        return 0

    def leaf_bytes(self, port: Port, queue: int) -> int:
        """Bytes that a queue without a threshold may hold."""
        return queueing.leaf_limit(self.plan, port, queue)

    def leaf_line(self, port: Port, queue: int) -> str:
        return queueing.leaf_line(port, queue, self.leaf_bytes(port, queue))

    @abstractmethod
    def filter_lines(self, port: Port) -> list[str]:
        """Of the port itself."""

    @abstractmethod
    def arrival_lines(self, port: Port, device: str) -> list[str]:
        """Of the device at the far end of the port's (half of a) cable."""

    def adjust(self) -> None:
        """After the last line of tc."""

    def check_queues(self) -> None:
        """Compare leaves and filters with what was asked."""

    # the life of a backend

    def build(self) -> None:
        plan = self.plan
        devices.make_devices(
            plan, self.spaces, self.wired, lambda node: routes.route_lines(plan, node, self.chooser)
        )
        routes.make_rules(plan, self.spaces, self.chooser)
        self.prepare()
        arrivals: dict[str, list[str]] = {}
        for port in plan.ports:
            where, device = (
                (WIRES, wire_device(port.number)) if self.wired else (space(port.dst), f"p{port.number ^ 1}")
            )
            lines = arrivals.setdefault(where, [])
            lines.append(f"qdisc add dev {device} clsact")
            lines += self.arrival_lines(port, device)
        for node in range(plan.node_count):
            lines = arrivals.pop(space(node), [])
            for port in plan.of_node(node):
                lines += queueing.htb_lines(plan, port, early_ns=self.early_ns(port))
                lines += [self.leaf_line(port, queue) for queue in range(plan.queues.count)]
                lines += self.filter_lines(port)
            if self.wired:
                lines += self.entrance_lines(node)
            batch("tc", space(node), lines)
        for where, lines in arrivals.items():
            batch("tc", where, lines)
        if self.wired:
            with inside(self.spaces[WIRES]):
                for port in plan.ports:  # at the end where packets of `port` leave the wires
                    put_wire(WIRE + (port.number ^ 1), self.wire(port), new=True)
        self.adjust()
        self._backlog_drops = softnet_drops()
        self.verify()

    def entrance_lines(self, node: int) -> list[str]:
        """With wires in between: what else happens where packets come into a node."""
        return []

    def wire(self, port: Port) -> Wire:
        """Latency and transmission of a port's cable."""
        return Wire(port.latency_ps // 1000, port.rate // 8, 0)

    def verify(self) -> None:
        """Compare all that there is with what was asked; TestbedError at the first difference."""
        for node in range(self.plan.node_count):
            questions = [*devices.QUESTIONS, *routes.questions(self.plan, node)]
            links, neighbours, *others = shown("ip", space(node), questions)
            devices.check_node(self.plan, node, links, neighbours)
            routes.check_node(self.plan, node, others, self.spaces, self.chooser)
        if self.wired:
            devices.check_wires(self.plan)
        if self.wired:
            self._check_wires()
        self.check_queues()

    def _check_wires(self) -> None:
        with inside(self.spaces[WIRES]):
            found = read_wires()
        for port in self.plan.ports:
            wanted, got = self.wire(port), found.get(WIRE + (port.number ^ 1))
            if got != wanted:
                raise TestbedError(
                    f"the cable of {port.name} is {got}, read back from the kernel", WIRES, str(wanted)
                )

    def namespace(self, host: int) -> int:
        return self.spaces[space(host)]

    def start(self) -> None:
        """The kernel forwards already."""

    @abstractmethod
    def counts(self) -> list[PortCounts]:
        """See `gradwire.emu.switches.base.SwitchBackend`."""

    def drops(self) -> Sequence[Drop]:
        return []

    def notes(self) -> list[str]:
        return []

    def begin(self, time_ns: int) -> None:
        """The kernel does not say how late it is."""

    def over(self) -> None:
        """Nothing."""

    def check(self) -> list[str]:
        lost = softnet_drops() - self._backlog_drops
        return (
            [f"the kernel's backlog dropped {lost} packets: the machine is too slow for this rate"]
            if lost
            else []
        )

    def close(self) -> None:
        self.spaces.close()

    def run(self, node: int, command: Sequence[str]) -> str:
        """What a command prints in the namespace of a node."""
        with inside(self.spaces[space(node)]):
            return run_tool(command)


def softnet_drops() -> int:
    """Packets that this machine dropped between two virtual devices, since it started."""
    try:
        lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1], 16) for line in lines)


def netem_works(kernel: Kernel) -> bool:
    """Whether cables can have latency on this kernel."""
    return kernel.has("qdisc", "netem") and kernel.has("qdisc", "clsact")


def missing_everywhere(kernel: Kernel, plan: Plan) -> list[str]:
    """What no backend out of queueing disciplines can do without."""
    missing = []
    if kernel.namespaces:
        missing.append(f"no private namespaces: {kernel.namespaces}")
    for name in ("htb", "bfifo"):
        if not kernel.has("qdisc", name):
            missing.append(kernel.why_not("qdisc", name))
    for name in ("ip", "tc"):
        if not kernel.has("tool", name):
            missing.append(kernel.why_not("tool", name))
    several = [plan.names[node] for node in range(plan.host_count) if len(plan.of_node(node)) > 1]
    if several:
        missing.append(f"hosts with several cables, such as {several[0]}")
    return missing


def substitutions_everywhere(kernel: Kernel, plan: Plan) -> list[str]:
    """What such a backend does otherwise than the plan says."""
    done = []
    if not netem_works(kernel):
        latencies = sorted({port.latency_ps for port in plan.ports})
        slowest = min(port.rate for port in plan.ports)
        own_us = plan.largest_frame() * 8e6 / slowest
        span = " to ".join(f"{each / 1e6:g}" for each in dict.fromkeys((latencies[0], latencies[-1])))
        done.append(
            f"no netem: cables have no latency (the scenario has {span} us), and a packet is handed on when its "
            f"transmission begins, not when it ends (up to {own_us:.0f} us earlier per link)"
        )
    if plan.clock == "wall":
        ahead = max(queueing.slack_bytes(plan, port) for port in plan.ports)
        done.append(f"a port may be up to {ahead} bytes ahead of its rate after an idle time or a late timer")
        fastest = max(port.rate for port in plan.ports)
        if 0 <= kernel.reachable_bps < fastest:
            done.append(
                f"rates: the fastest port has {fastest / 1e6:g} Mbit/s, this machine kept "
                f"{kernel.reachable_bps / 1e6:g} "
                "with one port when it was tried"
            )
    return done
