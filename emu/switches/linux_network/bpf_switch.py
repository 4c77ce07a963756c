"""Builds networks of the backend `bpf`, where htb and a BPF program drop and mark exactly as in the plan.

The program (`port.c`) runs as the classifier of a port's htb and, at the far end of the cable, when a packet has been
released. From the difference it knows the queues of each port, and so applies the plan's rules: first the buffer of the
whole port and the queue's part of it, then K of the queue, and no test for a packet that finds the port idle. Counters
are exact, in memory shared with this process; lost packets are listed individually, with their message.

All randomness comes from the scenario's seed: loss on cables, spraying and ECMP are hashes of seed, place and count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.emu.planning.plan import Port, TestbedPlan
from gradwire.emu.switches.backend_kind import BALANCERS, Drop, PortCounts, TestbedError
from gradwire.emu.switches.linux_network import queueing
from gradwire.emu.switches.linux_network.devices import DEVICE, WIRE, WIRES, namespace_name, wire_device
from gradwire.emu.switches.linux_network.kernel_switch import KernelSwitch
from gradwire.emu.switches.linux_network.routes import BPF
from gradwire.emu.system import bpf
from gradwire.emu.system.namespaces import mount, query_json, unmount
from gradwire.scenarios.wire import GRADWIRE_PORT

COUNTED = ("in_packets", "in_bytes", "out_packets", "out_bytes", "drops_tail", "drops_selective", "drops_loss", "marks")
PORT = (
    # parameters
    "node", "classes", "buffer", "selective", "byte_ps", "epoch", "loss", "key", "list_first", "list_size",
    # the wire: busy until (picoseconds since the epoch), and the packet released last (bytes, entry of `queues`)
    "wire_until", "last_bytes", "last_queue",
    *COUNTED, "peak", "listed",
)  # fmt: skip
MAPS = {
    "ports": PORT,
    "queues": ("threshold", "limit", *COUNTED),
    "ways": ("count",),
    "nodes": ("first_way", "balancing", "key", "dealt"),
    "drops": ("time", "port", "cause", "important", "priority", "known", "message", "packet"),
}
"""Fields of the entries of every map; its C type has the name in the singular."""

CAUSES = ("tail", "selective", "link_loss")
UNLIMITED = 1 << 62
LISTED = 1 << 19
"""Maximum number of listed lost packets of all ports; more are only counted."""
SOURCE = Path(__file__).with_name("port.c")
BPFFS = "/run/gradwire-bpf"
EARLY_NS = 1_500
"""Rounded to a microsecond by tc."""


def object_file(cache: Path | None = None) -> Path:
    """Return the compiled programs, from the cache or by clang."""
    prologue = "".join(bpf.declare(name[:-1], fields) for name, fields in MAPS.items())
    prologue += f"enum {{ DEVICE = {DEVICE}, WIRE = {WIRE}, GRADWIRE_PORT = {GRADWIRE_PORT} }};"
    return bpf.compile_program(SOURCE, prologue, cache)


def make_maps(sizes: Mapping[str, int]) -> dict[str, bpf.ArrayMap]:
    """Return the maps of the programs with these numbers of entries."""
    return {name: bpf.ArrayMap(name, MAPS[name], count) for name, count in sizes.items()}


def pin_programs(program: Path, maps: Mapping[str, bpf.ArrayMap], folder: str) -> None:
    """Load the programs of an object file and pin them in a new BPF file system, where `tc` looks for them."""
    mount("bpf", folder)
    for name, section in bpf.read_object(program).items():
        fd = bpf.load(section, {key: array.fd for key, array in maps.items()}, name)
        bpf.pin(fd, f"{folder}/{name}")
        os.close(fd)


class BpfSwitch(KernelSwitch):
    """A network with exact ports; `program`: the object file, for machines without clang."""

    name = "bpf"

    def __init__(self, plan: TestbedPlan, *, wired: bool, program: Path | None = None) -> None:
        super().__init__(plan, wired=wired, chooser=BPF)
        self._program = program
        self._maps: dict[str, bpf.ArrayMap] = {}

    def prepare(self) -> None:
        plan = self.plan
        bpf.lift_memory_limit()
        self._maps = make_maps(
            {
                "ports": len(plan.ports),
                "queues": 8 * len(plan.ports),
                "ways": plan.node_count * plan.host_count,
                "nodes": plan.node_count,
                "drops": LISTED,
            }
        )
        self._fill()
        pin_programs(self._program or object_file(), self._maps, BPFFS)

    def _fill(self) -> None:
        """Write the plan's parameters to the maps."""
        plan = self.plan
        ports, queues = self._maps["ports"].entries, self._maps["queues"].entries
        epoch = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        dropping = [port for port in plan.ports if port.src >= plan.host_count or port.loss > 0]
        share = LISTED // max(1, len(dropping))
        for nth, port in enumerate(dropping):
            ports[port.number]["list_first"], ports[port.number]["list_size"] = nth * share, share
        thresholds = plan.queues.thresholds
        for port in plan.ports:
            entry = ports[port.number]
            is_switch = port.src >= plan.host_count
            entry["node"], entry["classes"], entry["epoch"] = port.src, plan.queues.count, epoch
            entry["buffer"] = plan.queues.buffer if is_switch else UNLIMITED
            entry["selective"] = is_switch and plan.queues.selective_drop
            entry["byte_ps"] = max(1, round(8e12 / port.rate))
            entry["loss"] = round(port.loss * (1 << 32))
            entry["key"] = key(plan.seed, 1, port.number)
            for queue in range(8):
                limited = is_switch and queue < plan.queues.count
                queues[8 * port.number + queue]["limit"] = plan.queues.limit(queue) if limited else UNLIMITED
                marked = is_switch and thresholds is not None and queue < len(thresholds)
                queues[8 * port.number + queue]["threshold"] = thresholds[queue] if marked and thresholds else UNLIMITED
        nodes, ways = self._maps["nodes"].entries, self._maps["ways"].entries
        for node in range(plan.node_count):
            nodes[node]["first_way"] = node * plan.host_count
            nodes[node]["balancing"] = BALANCERS.index(plan.balancing)
            nodes[node]["key"] = key(plan.seed, 2, node)
        for (node, host), ports_to_host in plan.routes.items():
            ways[node * plan.host_count + host]["count"] = len(ports_to_host)

    def _bpf_line(self, where: str, program: str, order: int) -> str:
        return f"filter add {where} protocol all prio {order} bpf object-pinned {BPFFS}/{program} direct-action"

    def early_ns(self, port: Port) -> int:
        # At equal times packets must leave before others are tested, as in the rules; the program uses the right
        # time. With short packets more than one would be early.
        return EARLY_NS if self.plan.largest_frame() * 8e9 >= 2 * EARLY_NS * port.rate else 0

    def leaf_bytes(self, port: Port, queue: int) -> int:
        # slightly more than the program admits, which does not count the packet on the wire
        return super().leaf_bytes(port, queue) + 2 * self.plan.largest_frame()

    def filter_lines(self, port: Port) -> list[str]:
        return [self._bpf_line(f"dev {port.device} parent 2:", "enqueue", 1) + " classid 2:"]

    def arrival_lines(self, port: Port, device: str) -> list[str]:
        lines = [self._bpf_line(f"dev {device} ingress", "release", 1)]
        if not self.wired and port.dst >= self.plan.host_count:
            lines.append(self._bpf_line(f"dev {device} ingress", "choose", 2))
        return lines

    def entrance_lines(self, node: int) -> list[str]:
        if node < self.plan.host_count:
            return []
        lines = []
        for port in self.plan.ports_of_node(node):
            lines.append(f"qdisc add dev {port.device} clsact")
            lines.append(self._bpf_line(f"dev {port.device} ingress", "choose", 2))
        return lines

    def check_queues(self) -> None:
        for node in range(self.plan.node_count):
            ports = self.plan.ports_of_node(node)
            is_switch = node >= self.plan.host_count
            entrance = {"choose": True} if is_switch and self.wired else {"release": True, "choose": is_switch}
            if not is_switch and self.wired:
                entrance = {}
            questions = [f"filter show dev {port.device} {hook}" for port in ports for hook in ("parent 2:", "ingress")]
            _, filter_answers = queueing.check_htb(
                self.plan, node, namespace_name(node), {}, self.leaf_bytes, questions
            )
            answers = iter(filter_answers)
            for port in ports:
                where = f"{port.device} of {self.plan.names[node]}"
                self._same_programs(["enqueue"], next(answers), where)
                self._same_programs([name for name, is_there in entrance.items() if is_there], next(answers), where)
        if self.wired:
            middles = [wire_device(port.number) for port in self.plan.ports]
            for device, answer in zip(
                middles,
                query_json("tc", WIRES, [f"filter show dev {device} ingress" for device in middles]),
                strict=True,
            ):
                self._same_programs(["release"], answer, device)

    @staticmethod
    def _same_programs(expected: Sequence[str], answer: Any, where: str) -> None:
        actual = [
            str(entry["options"].get("prog", {}).get("name", entry["options"].get("bpf_name")))
            for entry in answer
            if "options" in entry and entry.get("kind") == "bpf"
        ]
        if actual != list(expected):
            raise TestbedError(f"{where}: the kernel has the programs {actual}", where, ", ".join(expected))

    def begin(self, time_ns: int) -> None:
        self._maps["ports"].entries["peak"] = 0

    def set_loss(self, port: int, probability: float) -> None:
        self._maps["ports"].entries[port]["loss"] = round(probability * (1 << 32))

    def counts(self) -> list[PortCounts]:
        ports, queues = self._maps["ports"].entries.copy(), self._maps["queues"].entries.copy()
        return [self._count(port, ports[port.number], queues[8 * port.number :]) for port in self.plan.ports]

    def _count(self, port: Port, entry: np.void, queues: Any) -> PortCounts:
        return PortCounts(
            port.name,
            **_counts(entry),
            peak_queue_bytes=int(entry["peak"]),
            queue_bytes=max(0, int(entry["in_bytes"]) - int(entry["out_bytes"])),
            by_queue=[_counts(queues[queue]) for queue in range(self.plan.queues.count)],
        )

    def drops(self) -> list[Drop]:
        ports, listed = self._maps["ports"].entries.copy(), self._maps["drops"].entries
        drops = []
        for port in self.plan.ports:
            entry = ports[port.number]
            first, count = int(entry["list_first"]), int(min(entry["listed"], entry["list_size"]))
            for drop in listed[first : first + count].copy():
                is_known = bool(drop["known"])
                drops.append(
                    Drop(
                        int(drop["message"]) if is_known else -1,
                        int(drop["packet"]) if is_known else -1,
                        port.name,
                        int(drop["time"]),
                        CAUSES[int(drop["cause"])],
                        bool(drop["important"]),
                        int(drop["priority"]),
                    )
                )
        return sorted(drops, key=lambda drop: drop.time_ns)

    def notes(self) -> list[str]:
        """Return a note about lost packets that are not listed."""
        ports = self._maps["ports"].entries.copy()
        unlisted = int(sum(max(0, int(entry["listed"]) - int(entry["list_size"])) for entry in ports))
        return [f"bpf: {unlisted} lost packets are counted but not listed"] if unlisted else []

    def close(self) -> None:
        for array in self._maps.values():
            array.close()
        self._maps = {}
        unmount(BPFFS)
        super().close()


def _counts(entry: np.void) -> dict[str, int]:
    """Return the counters of a port or queue, named as in `PortCounts`."""
    return {name.removeprefix("out_"): int(entry[name]) for name in COUNTED[2:]}


def key(seed: int, kind: int, number: int) -> int:
    """Return 64 bits unique to this seed, kind and number."""
    mask = (1 << 64) - 1
    state = 0
    for value in (seed & mask, kind, number):
        state = ((state ^ value) + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state
