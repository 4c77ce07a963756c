"""Switch backend `red`: what most kernels have - htb, red, netem, nftables - and no BPF.

A queue with a threshold is a `red` whose average is the instantaneous queue (`gradwire.emu.kernel.netlink`); without, a
bfifo. What this cannot do: a buffer that the queues of a port share (every queue gets all of it), lost packets one by
one, the longest queue. It counts with `tc -s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradwire.emu.kernel import queueing
from gradwire.emu.kernel.devices import DEVICE, WIRE, WIRES, space, wire_device
from gradwire.emu.kernel.netlink import Wire, loss_word, make_instantaneous, put_wire, red_words
from gradwire.emu.kernel.routes import KERNEL, NFT
from gradwire.emu.planning.plan import Plan, Port, Queues
from gradwire.emu.planning.probe import Kernel
from gradwire.emu.switches.base import PortCounts, TestbedError
from gradwire.emu.switches.kernel import (
    AHEAD_NS,
    KernelSwitch,
    missing_everywhere,
    netem_works,
    substitutions_everywhere,
)
from gradwire.emu.system.namespaces import inside, shown

if TYPE_CHECKING:
    from gradwire.components.engines import Work


class RedSwitch(KernelSwitch):
    """A network whose ports mark and drop by red."""

    name = "red"

    def __init__(self, plan: Plan, *, wired: bool) -> None:
        super().__init__(plan, wired=wired, chooser=KERNEL if plan.balancing == "ecmp" else NFT)

    def threshold(self, port: Port, queue: int) -> int | None:
        """K of a queue, in bytes; None where nothing is marked."""
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
            with inside(self.spaces[space(node)]):
                for port in self.plan.of_node(node):
                    for queue in range(self.plan.queues.count):
                        threshold = self.threshold(port, queue)
                        if threshold is None:
                            continue
                        minor = queueing.FIRST_CLASS + queue
                        make_instantaneous(
                            DEVICE + port.number, 2 << 16 | minor, minor << 16, threshold,
                            queueing.leaf_limit(self.plan, port, queue), self.plan.queues.selective_drop,
                        )  # fmt: skip

    def check_queues(self) -> None:
        plan = self.plan
        for node in range(plan.node_count):
            ports = plan.of_node(node)
            reds = {
                (port.number, queue): threshold
                for port in ports
                for queue in range(plan.queues.count)
                if (threshold := self.threshold(port, queue)) is not None
            }
            questions = queueing.dscp_questions(ports)
            found, answers = queueing.check_htb(plan, node, space(node), reds, self.leaf_bytes, questions)
            options = {(each["dev"], each.get("parent")): each["options"] for each in found}
            for (number, queue), threshold in reds.items():
                port = plan.ports[number]
                wanted = {
                    "limit": plan.queues.limit(queue), "min": max(1, threshold), "max": max(1, threshold), "ecn": True,
                    "ewma": 0,
                    "nodrop": not plan.queues.selective_drop,
                }  # fmt: skip
                got = options[port.device, queueing.class_of(queue)]
                differing = {
                    key: got.get(key, False) for key, value in wanted.items() if got.get(key, False) != value
                }
                if differing:
                    raise TestbedError(
                        f"{port.name}, queue {queue}: red has {differing}, read back from the kernel",
                        port.device, str({key: wanted[key] for key in differing}),
                    )  # fmt: skip
            queueing.check_dscp_filters(plan, ports, answers)

    def counts(self) -> list[PortCounts]:
        plan = self.plan
        lost: dict[str, int] = {}
        if self.wired:
            lost = {
                each["dev"]: each["drops"]
                for each in shown("tc", WIRES, ["qdisc show"], counters=True)[0]
                if each["kind"] == "netem"
            }
        found: dict[int, PortCounts] = {}
        for node in range(plan.node_count):
            (disciplines,) = shown("tc", space(node), ["qdisc show"], counters=True)
            leaves = {(each["dev"], each.get("parent")): each for each in disciplines}
            for port in plan.of_node(node):
                queues = [leaves[port.device, queueing.class_of(queue)] for queue in range(plan.queues.count)]
                found[port.number] = _sum(
                    port, queues, lost.get(wire_device(port.number ^ 1), 0), plan.queues.selective_drop
                )
        return [found[port.number] for port in plan.ports]


def _sum(port: Port, leaves: list[Any], lost: int, selective: bool) -> PortCounts:
    by_queue = [_queue_counts(leaf, selective) for leaf in leaves]

    def total(key: str) -> int:
        return sum(each[key] for each in by_queue)

    return PortCounts(
        port.name, packets=total("packets"), bytes=total("bytes"), drops_tail=total("drops_tail"),
        drops_selective=total("drops_selective"), drops_loss=lost, marks=total("marks"),
        queue_bytes=sum(leaf.get("backlog", 0) for leaf in leaves), by_queue=list(by_queue),
    )  # fmt: skip


def _queue_counts(leaf: Any, selective: bool) -> Mapping[str, int]:
    counts = {
        "packets": leaf["packets"],
        "bytes": leaf["bytes"],
        "drops_tail": 0,
        "drops_selective": 0,
        "marks": 0,
    }
    if leaf["kind"] == "red":
        # Red marks first and finds the queue full afterwards: a marked packet that did not fit is no mark. With
        # selective drop nothing else gets that far; without, others do, and who they were is not known.
        tail = leaf["pdrop"]
        counts |= {
            "drops_tail": tail,
            "drops_selective": leaf["early"],
            "marks": max(0, leaf["marked"] - tail) if selective else leaf["marked"],
        }
    else:
        counts["drops_tail"] = leaf["drops"]
    return counts


class RedKind:
    """See `gradwire.emu.switches.base.BackendKind`."""

    name = "red"
    ahead_ns = AHEAD_NS
    keeps_time = False

    def missing(self, kernel: Kernel, plan: Plan) -> list[str]:
        missing = missing_everywhere(kernel, plan)
        wanted = [("classifier", "u32")]
        if plan.queues.thresholds is not None:
            wanted.append(("qdisc", "red"))
        if _losses(plan):
            wanted += [("qdisc", "netem"), ("qdisc", "clsact")]
        if netem_works(kernel):
            wanted.append(("action", "mirred"))
        missing += [kernel.why_not(kind, name) for kind, name in wanted if not kernel.has(kind, name)]
        if plan.balancing != "ecmp":
            if not kernel.has("tool", "nft"):
                missing.append(kernel.why_not("tool", "nft"))
            elif kernel.nft_numgen:
                missing.append(f"nftables cannot deal packets out: {kernel.nft_numgen}")
        return missing

    def substitutions(self, kernel: Kernel, plan: Plan) -> list[str]:
        done = substitutions_everywhere(kernel, plan)
        if plan.queues.count > 1:
            done.append(
                f"red: every queue of a port has {_each(plan.queues)} bytes to itself, which the scenario's share"
            )
        if plan.queues.thresholds is not None and plan.queues.selective_drop:
            done.append(
                "red: the threshold is looked at before the buffer, so a droppable packet that finds both full counts "
                "as dropped by choice"
            )
        elif plan.queues.thresholds is not None:
            done.append("red: a packet that is marked and then finds the buffer full counts as marked, too")
        if plan.balancing in ("ecmp", "spray_random") and any(len(ways) > 1 for ways in plan.routes.values()):
            done.append("red: ways are drawn by the kernel, not from the scenario's seed")
        if any(0 < loss < 1 for loss in _losses(plan)):
            done.append("red: losses on cables are drawn by netem, not from the scenario's seed")
        done.append("red: lost packets are counted and not listed one by one; the longest queue is not known")
        return done

    def ready(self) -> dict[str, str]:
        return {}

    def works(self) -> Mapping[str, Work]:
        return {}

    def make(self, plan: Plan, kernel: Kernel) -> RedSwitch:
        return RedSwitch(plan, wired=netem_works(kernel))


def _losses(plan: Plan) -> list[float]:
    """With which probabilities cables lose packets, at first and later; empty if they never do."""
    later = [loss for change in plan.changes for _, loss in change.loss]
    return [loss for loss in (*(port.loss for port in plan.ports), *later) if loss]


def _each(queues: Queues) -> str:
    """What every queue has to itself."""
    sizes = {queues.limit(queue) for queue in range(queues.count)}
    return " to ".join(f"{size}" for size in sorted({min(sizes), max(sizes)}))


KIND = RedKind()
