"""`scenario_of` translates a command of htsim_uec to a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.wire import UDP_OVERHEAD
from gradwire.studies.htsim.command import HtsimCommand
from gradwire.topology.kinds.htsim import read_tiers

ACK_BYTES = 64  # of htsim's acknowledgements and trimmed packets
SLOW = 0.25  # rate, buffer and thresholds of a slow cable, relative to others
LARGEST_WINDOW = 1.5  # bandwidth-delay products
LAST_HOPS = "edge*->h*"


@dataclass(frozen=True)
class Tree:
    """The sizes of a fat-tree. `up` : cables up from a switch, by tier but the last. `rates` : bits per second and
    `latencies` : picoseconds of the cables below each tier."""

    hosts: int
    edges: int
    up: tuple[int, ...]
    rates: tuple[int, ...]
    latencies: tuple[int, ...]

    @property
    def tiers(self) -> int:
        """Tiers of switches."""
        return len(self.rates)


def scenario_of(command: HtsimCommand, folder: Path) -> dict[str, Any]:
    """Return the tables of a scenario for a command, whose files are relative to `folder`.

    Raises
    ------
    GradwireError
        If a file is damaged, or the topology has no counterpart.
    """
    tree = tree_of(command, folder)
    rate = tree.rates[0]
    packets = bandwidth_delay_packets(command, tree)
    queue = command.queue or packets * (1 if command.trims else 5)
    low, high = command.ecn or (math.ceil(packets * 0.2), math.ceil(packets * 0.8))
    size = command.mtu
    switch: dict[str, Any] = {
        "queues": 2,
        "buffer": f"{(3 if command.trims else 1) * queue * size}B",
        "ecn_threshold": f"{low * size}B",
        "ecn_ceiling": f"{high * size}B",
        "override": [],
    }
    if command.paths > 1:
        switch["path_entropies"] = command.paths
    if command.trims:
        switch |= {"trim_threshold": f"{queue * size}B", "trim_size": f"{ACK_BYTES}B"}
    if command.receiver:
        switch["override"].append({"ports": LAST_HOPS, "ecn": False})
    slow = _slow_cables(command, tree)
    for cable in slow:
        limits = {key: f"{int(int(switch[key][:-1]) * SLOW)}B" for key in ("buffer", "ecn_threshold", "ecn_ceiling")}
        if command.trims:
            limits["trim_threshold"] = f"{int(queue * size * SLOW)}B"
        for ends in (cable, cable[::-1])[: 1 if tree.tiers == 3 else 2]:
            switch["override"].append({"ports": "->".join(ends), **limits})
    slow_rate = f"{round(tree.rates[-1] * SLOW)}bps"
    transport: dict[str, Any] = {
        "kind": "nscc",
        "payload": f"{size - UDP_OVERHEAD}B",
        "trimming": command.trims,
        "control": command.control,
        "ack_every": max(1, math.ceil(command.sack_bytes / size)),
        "max_window": LARGEST_WINDOW,
        "min_rto": f"{15_000_000 + queue * size * 48 * 10**12 // rate}ps",
    }
    if command.window:
        products = command.window * size * 8 * 1e12 / (rate * base_rtt_ps(command, tree))
        transport["initial_window"] = min(round(products, 6), LARGEST_WINDOW)
    if command.sender:
        target = round(command.target_us * 1e6) or base_rtt_ps(command, tree) * (3 if command.trims else 4) // 4
        transport |= {"averaging": "samples", "target_delay": f"{target}ps", "qa_threshold": f"{4 * target}ps"}
    return {
        "name": "htsim",
        "duration": f"{command.end_us}us",
        "load_balancing": command.balancing if command.paths > 1 else "ecmp",
        **_network(command, folder, tree),
        "fault": [
            {
                "kind": "link_degraded",
                "at": "0us",
                "between": list(cable),
                "rate": slow_rate,
                "one_way": tree.tiers == 3,
            }
            for cable in slow
        ],
        "switch": {key: value for key, value in switch.items() if value != []},
        "transport": transport,
        "host": {"software_latency": f"{max(tree.latencies) + 100_000}ps"},
        "traffic": [{"name": "matrix", "kind": "matrix", "file": str(folder / command.matrix), "start_unit": "us"}],
    }


def tree_of(command: HtsimCommand, folder: Path) -> Tree:
    """Return the tree of a command. Raises GradwireError as `scenario_of` does."""
    if not command.topology:
        return _fat_tree(command, _nodes(folder / command.matrix))
    file = read_tiers(folder / command.topology)
    tiers = range(file.header["tiers"])
    rates, latencies, _ = zip(*(file.link(tier) for tier in tiers), strict=True)
    up = tuple(file.tiers[tier]["radix_up"] for tier in tiers[:-1])
    return Tree(file.header["nodes"], file.header["nodes"] // file.tiers[0]["radix_down"], up, rates, latencies)


def base_rtt_ps(command: HtsimCommand, tree: Tree) -> int:
    """Return htsim's longest unloaded round trip, picoseconds: a full packet one way, an acknowledgement back."""
    return round(4 * sum(tree.latencies) + 2 * tree.tiers * 8e12 * (command.mtu + ACK_BYTES) / tree.rates[0])


def bandwidth_delay_packets(command: HtsimCommand, tree: Tree) -> int:
    """Return the bandwidth-delay product of the longest path in full packets."""
    return math.ceil(base_rtt_ps(command, tree) * tree.rates[0] / 8e12 / command.mtu)


def return_trip_ps(tree: Tree) -> int:
    """Return the time of an acknowledgement over the longest path, which htsim's completion times include."""
    return round(2 * sum(tree.latencies) + 2 * tree.tiers * 8e12 * ACK_BYTES / tree.rates[0])


def _nodes(matrix: Path) -> int:
    """Return the number of nodes that a matrix declares."""
    try:
        with matrix.open(encoding="utf-8") as lines:
            words = next((line.split() for line in lines if line.startswith("Nodes")), [])
    except OSError as error:
        raise GradwireError(f"cannot be read: {error.strerror}", str(matrix), "a traffic matrix of htsim") from error
    if len(words) != 2 or not words[1].isdecimal():
        raise GradwireError("has no number of nodes", str(matrix), "Nodes and a number")
    return int(words[1])


def _fat_tree(command: HtsimCommand, nodes: int) -> Tree:
    """Return the fat-tree that htsim makes for a number of nodes."""
    k = round((4 * nodes) ** (1 / 3)) if command.tiers == 3 else round((2 * nodes) ** 0.5)
    if (k**3 // 4 if command.tiers == 3 else k * k // 2) != nodes or k % 2:
        raise GradwireError(f"no fat-tree has {nodes} nodes", command.matrix, "k^3/4 nodes, such as 16, 128, 1024")
    rate, latency = command.rate * 1_000_000, round(command.hop_us * 1_000_000)
    up = (k // 2,) * (command.tiers - 1)
    return Tree(nodes, 2 * nodes // k, up, (rate,) * command.tiers, (latency,) * command.tiers)


def _network(command: HtsimCommand, folder: Path, tree: Tree) -> dict[str, Any]:
    """Return the tables [topology] and [link]; a file has the properties of its cables itself."""
    if command.topology:
        return {"topology": {"kind": "htsim", "file": str(folder / command.topology)}}
    return {
        "topology": {"kind": "fat_tree", "k": 2 * tree.up[0], "tiers": tree.tiers},
        "link": {"rate": f"{tree.rates[0]}bps", "latency": f"{tree.latencies[0]}ps"},
    }


def _slow_cables(command: HtsimCommand, tree: Tree) -> list[tuple[str, str]]:
    """Return the ends of slow cables, upper switch first.

    htsim slows, with three tiers, the way from cores to the first aggregation switch; with two, both ways between all
    edge switches and the first cores.
    """
    count = command.slow_cables
    if count and tree.tiers == 2:
        return [(f"core{core}", f"edge{edge}") for core in range(min(count, tree.up[0])) for edge in range(tree.edges)]
    if count > tree.up[-1]:
        raise GradwireError(f"{count} slow cables", "-failed", f"at most {tree.up[-1]}, the first switch's")
    return [(f"core{core}", "agg0") for core in range(count)]
