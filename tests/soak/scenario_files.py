"""Writes the files that random scenarios name: traces, networks, flow lists, traffic matrices and a distribution of sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from gradwire.traces.parts import COLLECTIVES as CALLED
from gradwire.traces.parts import DIMENSIONS, GRADIENT_DIMENSIONS, Communication
from gradwire.traces.rank_graphs import RankCall, RankGraphs
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace


def small_trace(number: int) -> Trace:
    """A model of a few small layers, in two phases."""
    rng = np.random.default_rng(number)
    layers = 1 + number * 2
    sizes = rng.integers(1, (50, 1500, 6000)[number], layers)
    tensors = [TensorInfo(f"t{n}", (int(size),), int(size), "float32", n) for n, size in enumerate(sizes)]
    captured = []
    for index in range(2):
        ends = np.cumsum(rng.integers(1, 10**7, layers)).astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        ready = (ends[-1] + np.cumsum(rng.integers(1, 10**7, layers))[::-1]).astype(np.int64)
        end, optimizer = int(ready.max()) + 3, int(rng.integers(0, 10**6))
        phase = ("early", "late")[index]
        captured.append(
            Iteration(
                index, phase, index, 1.0, starts, ends, np.ascontiguousarray(ready), end, optimizer, end + optimizer
            )
        )
    chunks = sum(-(-tensor.numel // CHUNK_ELEMENTS) for tensor in tensors)
    draws = rng.random((2, chunks)).astype(np.float16)
    calls: list[Communication] = []
    if number:  # the others are split over workers
        kinds = rng.choice(CALLED, 2 * layers)
        for place, kind in enumerate(kinds):
            layer, turn = (place, "forward") if place < layers else (2 * layers - 1 - place, "backward")
            size, group = int(rng.integers(1, 20_000)), str(rng.choice(DIMENSIONS))
            calls.append(Communication(f"c{place}", layer, turn, str(kind), group, size))
        tensors = [replace(info, group=str(rng.choice(GRADIENT_DIMENSIONS))) for info in tensors]
        captured = [
            replace(each, asked_ps=np.concatenate([each.forward_end_ps, np.sort(rng.integers(
                each.forward_end_ps[-1], each.backward_end_ps, layers
            ))])) for each in captured
        ]  # fmt: skip
    names = [f"layer{n}" for n in range(layers)]
    return Trace({"name": f"small{number}"}, names, tensors, captured, draws, draws, communications=calls)


def graphs_trace() -> Trace:
    """Graphs of two ranks: computing, messages both ways, and collectives."""
    base, rows = small_trace(0), []
    for rank in range(2):
        rows += [
            (rank, 2 * 10**6, -1, ()),
            (rank, 0, rank, (0,)),
            (rank, 0, 1 - rank, (0,)),
            (rank, 10**6 * (1 + rank), -1, (2,)),
        ]
        rows += [(rank, 0, 2, (1, 3)), (rank, 5 * 10**5, -1, (3,)), (rank, 0, 3, (5,))]
    needs = [[place // 7 * 7 + each for each in row[3]] for place, row in enumerate(rows)]
    columns = [np.array([row[n] for row in rows], dtype=np.int64) for n in range(3)]
    zeros = np.zeros(len(rows), dtype=np.int64)
    graphs = RankGraphs(
        names=[f"n{n}" for n in range(len(rows))], rank=columns[0], unit=zeros, role=zeros, effort_ps=columns[1],
        call=columns[2], first=np.cumsum([0, *map(len, needs)]), needs=np.array([e for each in needs for e in each]),
        calls=[RankCall("send", (0, 1), 5000), RankCall("send", (1, 0), 7001), RankCall("all_reduce", (0, 1), 9000), RankCall("all_gather", (0, 1), 300)],
    )  # fmt: skip
    return Trace({"name": "ranks"}, base.layers, base.tensors, base.iterations, base._mean, base._max, graphs=graphs)


def write_files(folder: Path) -> None:
    """Files that scenarios name: networks, flow lists, traffic matrices, a distribution of sizes."""
    import networkx

    rng = Random(5)
    switches_only = networkx.Graph([("s0", "s1"), ("s1", "s2"), ("s0", "s2")])
    networkx.write_graphml(switches_only, folder / "switches.graphml")
    for number in range(3):
        graph = networkx.Graph()
        switches = [f"s{n}" for n in range(1 + 2 * number)]
        for n, name in enumerate(switches):
            graph.add_node(name, kind="switch")
            for other in switches[:n]:
                if other == switches[n - 1] or rng.random() < 0.5:
                    graph.add_edge(name, other, rate=rng.choice(("10Gbps", "100Gbps")), latency="500ns")
        for n in range(3 + number):
            graph.add_node(f"h{n}", kind="host")
            graph.add_edge(f"h{n}", rng.choice(switches))
        networkx.write_graphml(graph, folder / f"graph{number}.graphml")
        cables = [(n, 4 + n % 2) for n in range(4)] + [(4, 5)]
        lines = [f"6 2 {len(cables)}", "4 5", *(f"{a} {b} {rng.choice((10, 100))}Gbps 0.001ms 0" for a, b in cables)]
        (folder / f"hpcc{number}.txt").write_text("\n".join(lines) + "\n")
        tiers = [f"Tier {n}\nDownlink_speed_Gbps 100\nRadix_Down 2\nDownlink_Latency_ns 500" for n in range(2)]
        shape = f"Nodes 4\nTiers 2\nPodsize 4\n{tiers[0]}\nRadix_Up {1 + number % 2}\n{tiers[1]}\n"
        (folder / f"htsim{number}.topo").write_text(shape)
        flows = [(rng.randrange(2), rng.randrange(1, 2), rng.randrange(1, 20_000), n * 1e-6) for n in range(4)]
        flows = [(a, b if a != b else 1 - a, size, at) for a, b, size, at in flows]
        text = [str(len(flows)), *(f"{a} {b} 3 100 {size} {at:.9f}" for a, b, size, at in flows)]
        (folder / f"flows{number}.txt").write_text("\n".join(text) + "\n")
        text = ["Nodes 2", "Connections 2", "0->1 id 1 start 0 size 5000", "1->0 id 2 start 1000000 size 700"]
        (folder / f"matrix{number}.txt").write_text("\n".join(text) + "\n")
    (folder / "matrix-us.txt").write_text(
        "Nodes 2\nConnections 2\n0->1 id 1 start 0 size 5000\n1->0 id 2 start 3 size 700\n"
    )
    (folder / "sizes.txt").write_text("100 0\n5000 0.5\n20000 1\n")
