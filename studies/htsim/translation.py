"""`scenario_of` translates a command of htsim_uec to a scenario."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.wire import UDP_OVERHEAD
from gradwire.studies.htsim.command import HtsimCommand
from gradwire.studies.htsim.topology_file import TreeShape, read_topology

ACK_BYTES = 64  # of htsim's acknowledgements and trimmed packets
SLOW = 0.25  # rate, buffer and thresholds of a slow cable, relative to others
LARGEST_WINDOW = 1.5  # bandwidth-delay products
LAST_HOPS = "{lowest}*->h*"


def scenario_of(command: HtsimCommand, folder: Path) -> dict[str, Any]:
    """Return the tables of a scenario for a command, whose files are relative to `folder`.

    Raises
    ------
    GradwireError
        If a file is damaged, or the topology has no counterpart.
    """
    shape = shape_of(command, folder)
    rate = round(shape.rates[0] * 1e9)
    packets = bandwidth_delay_packets(command, shape)
    queue = command.queue or packets * (1 if command.trims else 5)
    low, high = command.ecn or (math.ceil(packets * 0.2), math.ceil(packets * 0.8))
    topology, lowest = _topology(shape)
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
        switch["override"].append({"ports": LAST_HOPS.format(lowest=lowest), "ecn": False})
    slow = _slow_cables(command, shape)
    for cable in slow:
        limits = {key: f"{int(int(switch[key][:-1]) * SLOW)}B" for key in ("buffer", "ecn_threshold", "ecn_ceiling")}
        if command.trims:
            limits["trim_threshold"] = f"{int(queue * size * SLOW)}B"
        for ends in (cable, cable[::-1])[: 1 if shape.tiers == 3 else 2]:
            switch["override"].append({"ports": "->".join(ends), **limits})
    slow_rate = f"{round(shape.rates[-1] * SLOW * 1e9)}bps"
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
        products = command.window * size * 8 * 1e12 / (rate * base_rtt_ps(command, shape))
        transport["initial_window"] = min(round(products, 6), LARGEST_WINDOW)
    if command.sender:
        target = round(command.target_us * 1e6) or base_rtt_ps(command, shape) * (3 if command.trims else 4) // 4
        transport |= {"averaging": "samples", "target_delay": f"{target}ps", "qa_threshold": f"{4 * target}ps"}
    return {
        "name": "htsim",
        "duration": f"{command.end_us}us",
        "load_balancing": command.balancing if command.paths > 1 else "ecmp",
        "topology": topology,
        "link": {"rate": f"{rate}bps", "latency": f"{round(shape.latencies[0] * 1000)}ps"},
        "fault": [
            {
                "kind": "link_degraded",
                "at": "0us",
                "between": list(cable),
                "rate": slow_rate,
                "one_way": shape.tiers == 3,
            }
            for cable in slow
        ],
        "switch": {key: value for key, value in switch.items() if value != []},
        "transport": transport,
        "host": {"software_latency": f"{round(shape.latencies[0] * 1000) + 100_000}ps"},
        "traffic": [{"name": "matrix", "kind": "matrix", "file": str(folder / command.matrix), "start_unit": "us"}],
    }


def shape_of(command: HtsimCommand, folder: Path) -> TreeShape:
    """Return the shape of a command's network. Raises GradwireError as `scenario_of` does."""
    if command.topology:
        return read_topology(folder / command.topology)
    return _fat_tree(command, _nodes(folder / command.matrix))


def base_rtt_ps(command: HtsimCommand, shape: TreeShape) -> int:
    """Return htsim's longest unloaded round trip, picoseconds: a full packet one way, an acknowledgement back."""
    hops = 2 * shape.tiers
    return round(2 * 2000 * sum(shape.latencies) + hops * 8000 * (command.mtu + ACK_BYTES) / shape.rates[0])


def bandwidth_delay_packets(command: HtsimCommand, shape: TreeShape) -> int:
    """Return the bandwidth-delay product of the longest path in full packets."""
    return math.ceil(base_rtt_ps(command, shape) * shape.rates[0] / 8000 / command.mtu)


def return_trip_ps(shape: TreeShape) -> int:
    """Return the time of an acknowledgement over the longest path, which htsim's completion times include."""
    return round(2000 * sum(shape.latencies) + 2 * shape.tiers * 8000 * ACK_BYTES / shape.rates[0])


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


def _fat_tree(command: HtsimCommand, nodes: int) -> TreeShape:
    """Return the fat-tree that htsim makes for a number of nodes."""
    k = round((4 * nodes) ** (1 / 3)) if command.tiers == 3 else round((2 * nodes) ** 0.5)
    if (k**3 // 4 if command.tiers == 3 else k * k // 2) != nodes or k % 2:
        raise GradwireError(f"no fat-tree has {nodes} nodes", command.matrix, "k^3/4 nodes, such as 16, 128, 1024")
    half, rate, latency = k // 2, command.rate / 1000, command.hop_us * 1000
    down = (half, half, k) if command.tiers == 3 else (half, k)
    return TreeShape(nodes, down, (half,) * (command.tiers - 1), (rate,) * command.tiers, (latency,) * command.tiers)


def _topology(shape: TreeShape) -> tuple[dict[str, Any], str]:
    """Return the topology's table, and the name of the switches above hosts."""
    if len(set(shape.latencies)) > 1:
        raise GradwireError("cables of different latencies are not translated", "topology", "one latency")
    if shape.tiers == 2:
        leaves = shape.hosts // shape.down[0]
        upper = f"{round(shape.rates[1] * 1e9)}bps"
        table = {"kind": "leaf_spine", "leaves": leaves, "hosts_per_leaf": shape.down[0], "spines": shape.up[0]}
        return table | {"uplink_rate": upper}, "leaf"
    k = 2 * shape.down[0]
    if shape.down != (k // 2, k // 2, k) or shape.up != (k // 2, k // 2) or len(set(shape.rates)) > 1:
        raise GradwireError("a tree of three tiers that is no k-port fat-tree", "topology", "k/2, k/2 and k ports down")
    return {"kind": "fat_tree", "k": k}, "edge"


def _slow_cables(command: HtsimCommand, shape: TreeShape) -> list[tuple[str, str]]:
    """Return the ends of slow cables, upper switch first.

    htsim slows, with three tiers, the way from cores to the first aggregation switch; with two, both ways between all
    leaves and the first spines.
    """
    count = command.slow_cables
    if not count:
        return []
    if shape.tiers == 2:
        leaves = shape.hosts // shape.down[0]
        return [(f"spine{spine}", f"leaf{leaf}") for spine in range(min(count, shape.up[0])) for leaf in range(leaves)]
    if count > shape.up[1]:
        raise GradwireError(f"{count} slow cables", "-failed", f"at most {shape.up[1]}, the first switch's")
    return [(f"core{core}", "agg0") for core in range(count)]
