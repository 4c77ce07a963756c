"""Measures build times and peak memory of networks, routes and engines (`python -m gradwire.benchmarks.topologies`).

One row per network, each in a separate process: seconds for the network, its routes and an engine on it (two threads,
DCTCP; the engine's code is loaded, not compiled), and the process's peak memory after the routes and at the end,
including interpreter and libraries.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise

from gradwire.benchmarks.rows import Columns, Row, markdown_header, markdown_line, run_command, run_module
from gradwire.topology import LinkSpec, Network, dragonfly, fat_tree, from_networkx, leaf_spine, torus

LINK = LinkSpec(100 * 10**9, 10**6)
ROW_TIMEOUT_S = 600


def jellyfish() -> Network:
    import networkx

    return from_networkx(networkx.random_regular_graph(16, 1024, seed=1), LINK, hosts_per_switch=8)


CASES: dict[str, Callable[[], Network]] = {
    "fat_tree k = 8": lambda: fat_tree(8, LINK),
    "fat_tree k = 12": lambda: fat_tree(12, LINK),
    "fat_tree k = 16": lambda: fat_tree(16, LINK),
    "fat_tree k = 24": lambda: fat_tree(24, LINK),
    "fat_tree k = 32": lambda: fat_tree(32, LINK),
    "leaf_spine 256 x 32, 32 spines": lambda: leaf_spine(256, 32, 32, LINK),
    "dragonfly p = 8, 65 groups": lambda: dragonfly(8, LINK, groups=65),
    "random regular graph, 1024 x 8": jellyfish,
    "torus 8 x 8 x 16, 8 hosts each": lambda: torus((8, 8, 16), LINK, hosts_per_switch=8),
    "torus 16 x 16 x 32": lambda: torus((16, 16, 32), LINK),
}

COLUMNS: Columns = {
    "network": lambda row: row["case"],
    "hosts": lambda row: str(row["hosts"]),
    "switches": lambda row: str(row["switches"]),
    "cables": lambda row: str(row["cables"]),
    "network s": lambda row: f"{row['seconds'][0]:.2f}",
    "routes s": lambda row: f"{row['seconds'][1]:.2f}",
    "engine s": lambda row: f"{row['seconds'][2]:.2f}",
    "all s": lambda row: f"{sum(row['seconds']):.2f}",
    "peak MB, routes": lambda row: f"{row['routes_mb']:.0f}",
    "peak MB": lambda row: f"{row['peak_mb']:.0f}",
}


def run_row(case: str) -> Row:
    """Build one network in this process. Times in seconds, memory in MB."""
    from gradwire.protocols.transports.tcp.dctcp import Dctcp
    from gradwire.scenarios.schema.network.network import Switch
    from gradwire.sim.engine.fabric import Fabric
    from gradwire.topology.routing import build_routing

    clock = [time.perf_counter()]
    network = CASES[case]()
    clock.append(time.perf_counter())
    routing = build_routing(network)
    clock.append(time.perf_counter())
    routes_mb = peak_mb()
    fabric = Fabric(network, routing, switch=Switch(), transports=[Dctcp(kind="dctcp")], threads=2)
    clock.append(time.perf_counter())
    fabric.close()
    return {
        "case": case,
        "hosts": network.host_count,
        "switches": network.switch_count,
        "cables": network.link_count // 2,
        "seconds": [b - a for a, b in pairwise(clock)],
        "routes_mb": routes_mb,
        "peak_mb": peak_mb(),
    }


def peak_mb() -> float:
    """Return the peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main(names: list[str]) -> int:
    """Print the rows of the cases called `names`, by default of all; return 2 if a case is unknown."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"unknown case: got {unknown[0]}; expected one of: {'; '.join(CASES)}", file=sys.stderr)
        return 2
    row_in_process(next(iter(CASES)))  # compiles the engine if it is new
    print(markdown_header(COLUMNS))
    for name in names or CASES:
        print(markdown_line(row_in_process(name), COLUMNS), flush=True)
    return 0


def row_in_process(case: str) -> Row:
    """Return the result of `run_row` in a separate process, whose peak memory is that of the case."""
    return run_module(["gradwire.benchmarks.topologies", json.dumps({"case": case})], case, ROW_TIMEOUT_S)


if __name__ == "__main__":
    run_command(run_row, main)
