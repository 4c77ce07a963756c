"""Computes a lower bound of a job's iteration time, which no transport, load balancer or queue can beat.

In the steady state an iteration takes at least as long as its computing, and as what it must deliver takes on any link
of a host, or on all links together between the switch of a rack and the other switches, if all of these are busy all
the time. What must be delivered is the payload of the messages without the share that their bounds allow to be lost;
headers, latencies and the order of the messages are left out, so the bound is a little optimistic.
"""

from __future__ import annotations

import numpy as np

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import SCENARIO_FILE
from gradwire.scenarios.arrays import AnyInts, Floats, Ints
from gradwire.scenarios.loading.load import build_scenario
from gradwire.topology import network_of
from gradwire.topology.network import Network

BIT_PS = 8e12
"""Bits of a byte times picoseconds of a second."""


def fluid_bound(result: Result) -> float | None:
    """Return the bound of an iteration in picoseconds; None unless the traffic of the run is that of one job alone."""
    tables = result.tables
    if len(tables.get("job", ())) != 1 or tables.get("traffic") or not result.iterations.num_rows:
        return None
    network = network_of(build_scenario(dict(tables), SCENARIO_FILE))
    table = result.messages
    iteration = to_numpy(table["iteration"])
    middle = iteration == iteration.max() // 2  # the last one is pulled by nobody
    src, dst = (_nodes(network, dictionary_encoded(table[name]))[middle] for name in ("src", "dst"))
    required = (to_numpy(table["bytes"]) * (1 - to_numpy(table["bound"])))[middle]
    computing = float(np.median(to_numpy(result.iterations["compute_ps"])))
    return max(computing, BIT_PS * _longest_stage(network, src, dst, required))


def _nodes(network: Network, column: tuple[AnyInts, list[str]]) -> Ints:
    """Return the node of each row of a column of host names."""
    codes, names = column
    return np.array([network.index[name] for name in names], dtype=np.int64)[codes]


def _longest_stage(network: Network, src: Ints, dst: Ints, required: Floats) -> float:
    """Return the largest quotient of bytes and capacity (bit/s) over all hosts and racks, in both directions."""
    hosts = network.host_count
    from_host = network.link_src < hosts
    edge = np.zeros(network.node_count, dtype=np.int64)  # the switch of each host
    edge[network.link_src[from_host]] = network.link_dst[from_host]
    core = ~from_host & (network.link_dst >= hosts)
    crossing = edge[src] != edge[dst]
    longest = 0.0
    for mine, ends in ((src, network.link_src), (dst, network.link_dst)):
        for rows, links, node in ((np.ones(len(src), dtype=bool), ends < hosts, mine), (crossing, core, edge[mine])):
            load = np.bincount(node[rows], required[rows], network.node_count)
            capacity = np.bincount(ends[links], network.link_rate[links], network.node_count)
            busy = load > 0
            longest = max(longest, float((load[busy] / capacity[busy]).max(initial=0.0)))
    return longest
