"""Traffic `tree_chunks`: dependencies of chunks along two trees, and their times on an idle network."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from gradwire.workload.collectives.allreduce.double_tree import parents_of_workers, second_parents, tree_depths
from gradwire.workload.traffic.tree_chunks import chunk_plan


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("rails", [1, 3])
def test_every_host_gets_the_sum_of_every_chunk(hosts: int, rails: int) -> None:
    chunks, window = 5, 2
    plan = chunk_plan(hosts, chunks, window, rails)
    per_chunk = 4 * (hosts - 1) * rails
    assert len(plan.src) == chunks * per_chunk
    waits: dict[int, list[int]] = {}
    for before, after in plan.arrivals.tolist():
        assert before < after and plan.dst[before] == plan.src[after] and plan.rail[before] == plan.rail[after]
        waits.setdefault(after, []).append(before)
    for before, after in plan.slots.tolist():  # the same edge, `window` chunks later
        assert after - before == window * per_chunk
        assert (plan.src[before], plan.dst[before]) == (plan.src[after], plan.dst[after])
    # follow the sums: what a chunk holds is its sender's own value and all that it waits for
    held: list[frozenset[int]] = []
    received: dict[tuple[int, int, int], set[frozenset[int]]] = {}
    for chunk in range(len(plan.src)):
        content = frozenset({int(plan.src[chunk])}).union(*(held[before] for before in waits.get(chunk, [])))
        held.append(content)
        received.setdefault((chunk // per_chunk, int(plan.rail[chunk]), int(plan.dst[chunk])), set()).add(content)
    everyone = frozenset(range(hosts))
    roots = [tree.index(-1) for tree in (parents_of_workers(hosts), second_parents(parents_of_workers(hosts)))]
    for (_, _, host), contents in received.items():
        downs = [content for content in contents if content == everyone]
        assert downs or host in roots  # a root has the sum without receiving it


def test_one_chunk_takes_the_depth_of_the_trees() -> None:
    def time(size: str, chunks: int = 1, hosts: int = 8) -> float:
        table = {"kind": "tree_chunks", "name": "t", "size": size, "chunks": chunks}
        tables = {
            "name": "t",
            "topology": {"kind": "star", "hosts": hosts},
            "link": {"rate": "100Gbps", "latency": "10us"},
            "transport": "constant_rate",
            "host": {"software_latency": "11us"},
            "switch": {"buffer": "64MiB"},
            "traffic": [table],
        }
        return float(np.max(simulate(build_scenario(tables)).messages.column("end_ps").to_numpy())) / 1e6

    depth = max(tree_depths(parents_of_workers(8)))
    assert depth == 3
    one_way, software = 20.0, 11.0  # two cables; a packet of 64 bytes takes no time beside them
    assert time("64B") == pytest.approx(2 * depth * one_way + (2 * depth - 1) * software, rel=0.02)
    # in steady state a chunk more takes the serialisation of the busiest port: 4 halves
    slope = (time("256KiB", 40) - time("256KiB", 20)) / 20
    assert slope == pytest.approx(4 * 262144 * 8 / 100e3, rel=0.06)
