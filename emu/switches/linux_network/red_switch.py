"""Builds networks of the backend `red` from features of most kernels (htb, red, netem, nftables), without BPF.

A queue with a threshold is a `red` whose average is the instantaneous queue
(`gradwire.emu.switches.linux_network.netlink`), otherwise a bfifo. Not possible: a buffer shared by the queues of a
port (every queue has all of it), a list of lost packets, the peak queue length. Counts come from `tc -s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradwire.emu.planning.plan import Port, TestbedPlan
from gradwire.emu.switches.backend_kind import PortCounts, TestbedError
from gradwire.emu.switches.linux_network import queueing
from gradwire.emu.switches.linux_network.devices import DEVICE, WIRE, WIRES, namespace_name, wire_device
from gradwire.emu.switches.linux_network.kernel_switch import KernelSwitch
from gradwire.emu.switches.linux_network.netlink import Wire, loss_word, make_instantaneous, put_wire, red_words
from gradwire.emu.switches.linux_network.routes import KERNEL, NFT
from gradwire.emu.system.namespaces import inside, query_json

COUNTED = ("packets", "bytes", "drops_tail", "drops_selective", "marks")


class RedSwitch(KernelSwitch):
    """A network whose ports mark and drop by red."""

    name = "red"

    def __init__(self, plan: TestbedPlan, *, wired: bool) -> None:
        super().__init__(plan, wired=wired, chooser=KERNEL if plan.balancing == "ecmp" else NFT)

    def threshold(self, port: Port, queue: int) -> int | None:
        """Return K of a queue in bytes; None if it does not mark."""
        if port.src < self.plan.host_count or self.plan.queues.thresholds is None:
            return None
        return self.plan.queues.thresholds[queue]

    def leaf_line(self, port: Port, queue: int) -> str:
        threshold = self.threshold(port, queue)
        if threshold is None:
            return super().leaf_line(port, queue)
        words = red_words(
            threshold,
            queueing.leaf_limit(self.plan, port, queue),
            self.plan.largest_frame(),
            port.rate,
            self.plan.queues.selective_drop,
        )
        handle, parent = queueing.handle_of(queue), queueing.class_of(queue)
        return f"qdisc add dev {port.device} parent {parent} handle {handle} {words}"

    def filter_lines(self, port: Port) -> list[str]:
        return queueing.dscp_filters(self.plan, port)

    def arrival_lines(self, port: Port, device: str) -> list[str]:
        if not self.wired:
            return []
        far = wire_device(port.number ^ 1)
        return [
            f"filter add dev {device} ingress protocol all prio 1 u32 match u32 0 0 "
            f"action mirred egress redirect dev {far}"
        ]

    def wire(self, port: Port) -> Wire:
        return replace(super().wire(port), loss=loss_word(port.loss))

    def set_loss(self, port: int, probability: float) -> None:
        changed = replace(self.wire(self.plan.ports[port]), loss=loss_word(probability))
        with inside(self.spaces[WIRES]):
            put_wire(WIRE + (port ^ 1), changed, new=False)

    def adjust(self) -> None:
        for node in range(self.plan.host_count, self.plan.node_count):
            with inside(self.spaces[namespace_name(node)]):
                for port in self.plan.ports_of_node(node):
                    for queue in range(self.plan.queues.count):
                        threshold = self.threshold(port, queue)
                        if threshold is None:
                            continue
                        minor = queueing.FIRST_CLASS + queue
                        make_instantaneous(
                            DEVICE + port.number,
                            2 << 16 | minor,
                            minor << 16,
                            threshold,
                            queueing.leaf_limit(self.plan, port, queue),
                            self.plan.queues.selective_drop,
                        )

    def check_queues(self) -> None:
        plan = self.plan
        for node in range(plan.node_count):
            ports = plan.ports_of_node(node)
            reds = {
                (port.number, queue): threshold
                for port in ports
                for queue in range(plan.queues.count)
                if (threshold := self.threshold(port, queue)) is not None
            }
            questions = queueing.dscp_queries(ports)
            disciplines, answers = queueing.check_htb(
                plan, node, namespace_name(node), reds, self.leaf_bytes, questions
            )
            options = {(each["dev"], each.get("parent")): each["options"] for each in disciplines}
            for (number, queue), threshold in reds.items():
                port = plan.ports[number]
                expected = {
                    "limit": plan.queues.limit(queue),
                    "min": max(1, threshold),
                    "max": max(1, threshold),
                    "ecn": True,
                    "ewma": 0,
                    "nodrop": not plan.queues.selective_drop,
                }
                actual = options[port.device, queueing.class_of(queue)]
                actual = {key: actual.get(key, False) for key in expected}
                differing = {key: value for key, value in actual.items() if value != expected[key]}
                if differing:
                    raise TestbedError(
                        f"{port.name}, queue {queue}: red in the kernel has {differing}",
                        port.device,
                        str({key: expected[key] for key in differing}),
                    )
            queueing.check_dscp_filters(plan, ports, answers)

    def counts(self) -> list[PortCounts]:
        plan = self.plan
        lost: dict[str, int] = {}
        if self.wired:
            (disciplines,) = query_json("tc", WIRES, ["qdisc show"], counters=True)
            lost = {each["dev"]: each["drops"] for each in disciplines if each["kind"] == "netem"}
        counts_by_port: dict[int, PortCounts] = {}
        for node in range(plan.node_count):
            (disciplines,) = query_json("tc", namespace_name(node), ["qdisc show"], counters=True)
            leaves = {(each["dev"], each.get("parent")): each for each in disciplines}
            for port in plan.ports_of_node(node):
                queues = [leaves[port.device, queueing.class_of(queue)] for queue in range(plan.queues.count)]
                lost_on_cable = lost.get(wire_device(port.number ^ 1), 0)
                counts_by_port[port.number] = _sum(port, queues, lost_on_cable, plan.queues.selective_drop)
        return [counts_by_port[port.number] for port in plan.ports]


def _sum(port: Port, leaves: list[Any], lost: int, selective: bool) -> PortCounts:
    by_queue = [_queue_counts(leaf, selective) for leaf in leaves]
    return PortCounts(
        port.name,
        **{key: sum(counts[key] for counts in by_queue) for key in COUNTED},
        drops_loss=lost,
        queue_bytes=sum(leaf.get("backlog", 0) for leaf in leaves),
        by_queue=by_queue,
    )


def _queue_counts(leaf: Any, selective: bool) -> Mapping[str, int]:
    counts = dict.fromkeys(COUNTED, 0) | {"packets": leaf["packets"], "bytes": leaf["bytes"]}
    if leaf["kind"] == "red":
        # red marks before it tests the limit, so marked packets that are then dropped must not count. With selective
        # drop only marked packets reach the limit; otherwise others do too and cannot be distinguished.
        tail = leaf["pdrop"]
        counts |= {
            "drops_tail": tail,
            "drops_selective": leaf["early"],
            "marks": max(0, leaf["marked"] - tail) if selective else leaf["marked"],
        }
    else:
        counts["drops_tail"] = leaf["drops"]
    return counts
