"""`KernelSwitch`, base class of the `red` and `bpf` backends, builds a network of Linux queueing disciplines and
verifies it.

A network is built, read back completely, and only then used. Backends add what is below and before htb.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from gradwire.emu.planning.plan import Port, TestbedPlan
from gradwire.emu.switches.backend_kind import SwitchBackend, TestbedError
from gradwire.emu.switches.linux_network import devices, queueing, routes
from gradwire.emu.switches.linux_network.devices import WIRE, WIRES, namespace_name, wire_device
from gradwire.emu.switches.linux_network.netlink import Wire, put_wire, read_wires
from gradwire.emu.system.namespaces import Namespaces, batch, inside, query_json, run_tool


class KernelSwitch(SwitchBackend):
    """A network of htb.

    wired : cables have latency and transmission time, by netem.
    chooser : selects among several next hops (`gradwire.emu.switches.linux_network.routes`).
    """

    def __init__(self, plan: TestbedPlan, *, wired: bool, chooser: str) -> None:
        self.plan = plan
        self.wired = wired
        self.chooser = chooser
        self.spaces = Namespaces()
        self._backlog_drops = 0

    def prepare(self) -> None:
        """Prepare before the first line of tc."""

    def early_ns(self, port: Port) -> int:
        """Return how early a packet may leave in virtual time."""
        return 0

    def leaf_bytes(self, port: Port, queue: int) -> int:
        """Return the bytes that a queue without a threshold may hold."""
        return queueing.leaf_limit(self.plan, port, queue)

    def leaf_line(self, port: Port, queue: int) -> str:
        return queueing.leaf_line(port, queue, self.leaf_bytes(port, queue))

    @abstractmethod
    def filter_lines(self, port: Port) -> list[str]:
        """Return the `tc` filters of the port."""

    @abstractmethod
    def arrival_lines(self, port: Port, device: str) -> list[str]:
        """Return the `tc` lines of the device at the far end of the port's cable, or its half."""

    def adjust(self) -> None:
        """Adjust after the last line of tc."""

    def check_queues(self) -> None:
        """Compare leaves and filters with the plan."""

    # interface of `SwitchBackend`

    def build(self) -> None:
        plan = self.plan
        devices.make_devices(plan, self.spaces, self.wired, lambda node: routes.route_lines(plan, node, self.chooser))
        for node in range(plan.host_count, plan.node_count):
            if self.chooser == routes.NFT and (text := routes.nft_text(plan, node)):
                with inside(self.spaces[namespace_name(node)]):
                    run_tool(["nft", "-f", "-"], text)
        self.prepare()
        arrivals: dict[str, list[str]] = {}
        for port in plan.ports:
            where, device = (
                (WIRES, wire_device(port.number)) if self.wired else (namespace_name(port.dst), f"p{port.number ^ 1}")
            )
            lines = arrivals.setdefault(where, [])
            lines.append(f"qdisc add dev {device} clsact")
            lines += self.arrival_lines(port, device)
        for node in range(plan.node_count):
            lines = arrivals.pop(namespace_name(node), [])
            for port in plan.ports_of_node(node):
                lines += queueing.htb_lines(plan, port, early_ns=self.early_ns(port))
                lines += [self.leaf_line(port, queue) for queue in range(plan.queues.count)]
                lines += self.filter_lines(port)
            if self.wired:
                lines += self.entrance_lines(node)
            batch("tc", namespace_name(node), lines)
        for where, lines in arrivals.items():
            batch("tc", where, lines)
        if self.wired:
            with inside(self.spaces[WIRES]):
                for port in plan.ports:  # at the end where packets of `port` leave the cable
                    put_wire(WIRE + (port.number ^ 1), self.wire(port), new=True)
        self.adjust()
        self._backlog_drops = softnet_drops()
        self.verify()

    def entrance_lines(self, node: int) -> list[str]:
        """Return further `tc` lines for packets that enter a node from its cables."""
        return []

    def wire(self, port: Port) -> Wire:
        """Return the latency and rate of a port's cable."""
        return Wire(port.latency_ps // 1000, port.rate // 8, 0)

    def verify(self) -> None:
        """Compare everything with the plan; raise TestbedError at the first difference."""
        for node in range(self.plan.node_count):
            queries = [*devices.QUERIES, *routes.queries(self.plan, node)]
            links, neighbours, *others = query_json("ip", namespace_name(node), queries)
            devices.check_node(self.plan, node, links, neighbours)
            routes.check_node(self.plan, node, others, self.spaces, self.chooser)
        if self.wired:
            devices.check_wires(self.plan)
            with inside(self.spaces[WIRES]):
                wires = read_wires()
            for port in self.plan.ports:
                expected, actual = self.wire(port), wires.get(WIRE + (port.number ^ 1))
                if actual != expected:
                    raise TestbedError(f"cable of {port.name} differs: the kernel has {actual}", WIRES, str(expected))
        self.check_queues()

    def namespace(self, host: int) -> int:
        return self.spaces[namespace_name(host)]

    def check(self) -> list[str]:
        lost = softnet_drops() - self._backlog_drops
        return [f"the kernel's backlog dropped {lost} packets: the machine is too slow for this rate"] if lost else []

    def close(self) -> None:
        self.spaces.close()

    def run(self, node: int, command: Sequence[str]) -> str:
        with inside(self.spaces[namespace_name(node)]):
            return run_tool(command)


def softnet_drops() -> int:
    """Return the packets that this machine has dropped between virtual devices since it started."""
    try:
        lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1], 16) for line in lines)
