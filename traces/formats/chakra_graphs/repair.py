"""Repairs Chakra graphs by chaining nodes in the order of their stream and cutting dependency cycles.

PyTorch's converter may let nodes of a GPU depend only on the CPU node that launches them, without the order of their
stream. Control dependencies may close cycles, also in Chakra's own sample.
"""

from __future__ import annotations

import heapq
from collections import Counter

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.chakra_graphs.graph import ChakraGraph, cyclic_nodes

CHAINED_LABEL = "nodes of the GPU that depend on their launcher alone: chained by stream"
UNCHAINED_LABEL = "nodes of the GPU that depend on their launcher alone: without their stream's order"
CUT_LABEL = "control dependencies that close cycles: left out"


def chain_streams(graph: ChakraGraph, doubtful: Counter[str]) -> None:
    """Chain nodes of the GPU by stream in the order of their launchers, if most depend on their launcher only. A
    collective then waits for all earlier launches on the stream with the most computing, as one called by PyTorch
    does."""
    computing = [
        position for position in range(len(graph.ids)) if graph.durations[position] and not graph.cpu[position]
    ]
    launched = {position: key for position in computing if (key := _launcher(graph, position)) is not None}
    if 2 * len(launched) <= len(computing):
        return
    order = sorted(launched, key=lambda position: (launched[position], graph.ids[position]))
    last: dict[int, int] = {}
    for position in order:
        stream = graph.streams.get(position, 0)
        if stream in last:
            graph.extra[position] = last[stream]
        last[stream] = position
    main = Counter(graph.streams.get(position, 0) for position in order).most_common(1)[0][0]
    kernels = [position for position in order if graph.streams.get(position, 0) == main]
    for collective in graph.collectives:
        key = _launcher(graph, collective.place)
        before = [position for position in kernels if key is not None and launched[position] < key]
        if before:
            graph.extra[collective.place] = before[-1]
    if cyclic_nodes(graph):
        graph.extra.clear()
        doubtful[UNCHAINED_LABEL] += len(launched)
    else:
        doubtful[CHAINED_LABEL] += len(launched)


def _launcher(graph: ChakraGraph, position: int) -> int | None:
    """Return the id of the CPU node that launches a node of the GPU; None if it depends on another GPU node."""
    dependencies = graph.dependencies(position)
    if graph.cpu[position] or not dependencies or not all(graph.cpu[dependency] for dependency in dependencies):
        return None
    return max(graph.ids[dependency] for dependency in dependencies)


def cut_cycles(graph: ChakraGraph, where: str, doubtful: Counter[str]) -> None:
    """Leave out control dependencies that close cycles, repeatedly of the waiting node with the smallest id. TraceError
    if data dependencies close one."""
    followers, pending = graph.followers()
    data_followers, data_pending = graph.followers(data_only=True)
    free = [position for position, count in enumerate(pending) if not count]
    ready = [
        (graph.ids[position], position)
        for position, count in enumerate(data_pending)
        if not count and pending[position]
    ]
    heapq.heapify(ready)
    is_done = bytearray(len(graph.ids))
    count = 0
    while True:
        while free:
            position = free.pop()
            if is_done[position]:
                continue
            is_done[position] = 1
            count += 1
            for follower in data_followers[position]:
                data_pending[follower] -= 1
                if not data_pending[follower] and not is_done[follower]:
                    heapq.heappush(ready, (graph.ids[follower], follower))
            for follower in followers[position]:
                pending[follower] -= 1
                if not pending[follower]:
                    free.append(follower)
        while ready and is_done[ready[0][1]]:
            heapq.heappop(ready)
        if not ready:
            break
        _, position = heapq.heappop(ready)
        for dependency in set(graph.dependencies(position)):
            if not is_done[dependency]:
                graph.cut.add((position, dependency))
                doubtful[CUT_LABEL] += 1
        free.append(position)
    if count < len(graph.ids):
        stuck = next(graph.ids[position] for position in range(len(graph.ids)) if not is_done[position])
        raise TraceError(f"data dependencies close a cycle at node {stuck}", where, "an acyclic graph")
