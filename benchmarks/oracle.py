"""The oracle's speed, for scale beside the engine's."""

from __future__ import annotations

import resource
import time
from typing import Any

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, run_oracle
from gradwire.topology import LinkSpec, leaf_spine

HOSTS, BYTES = 16, 500_000


def run_row() -> dict[str, Any]:
    """Run sixteen hosts on a leaf-spine, each of which sends half a megabyte to the fifth next host (DCTCP)."""
    case = Case(
        leaf_spine(4, 4, 2, LinkSpec(10**11, 10**6)),
        [Dctcp.model_validate({"kind": "dctcp"})],
        [MessageSpec(0, host, (host + 5) % HOSTS, BYTES) for host in range(HOSTS)],
        Switch.model_validate({"ecn_threshold": "100KiB"}),
    )
    wall, cpu = time.perf_counter(), time.process_time()
    hops = len(run_oracle(case).transmissions)
    wall = time.perf_counter() - wall
    return {
        "case": "oracle",
        "hosts": HOSTS,
        "transport": "dctcp",
        "threads": 1,
        "packet_hops": hops,
        "wall_s": wall,
        "cpu_s": time.process_time() - cpu,
        "hops_per_s": hops / wall,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compile_s": 0.0,
    }
