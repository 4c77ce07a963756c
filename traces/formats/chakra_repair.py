"""Dependencies that a Chakra graph lacks or has too many of: the order of streams, and circles.

PyTorch's converter may let nodes of a GPU depend on the CPU node that launches them alone; that a stream runs them one
after the other is not in the graph. Control dependencies may close circles, also in Chakra's own sample.
"""

from __future__ import annotations

import heapq
from collections import Counter

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.chakra_graph import Graph

CHAINED = "nodes of the GPU that depend on their launcher alone: chained by stream"
UNCHAINED = "nodes of the GPU that depend on their launcher alone: without their stream's order"
CUT = "control dependencies that close circles: left out"


def chain_streams(graph: Graph, doubtful: Counter[str]) -> None:
    """Chain nodes of the GPU by stream in the order of their launchers, if most depend on their launcher alone.

    A collective then waits for what had been launched before it on the stream with the most computing, as one that
    PyTorch calls does.
    """
    computing = [place for place in range(len(graph.ids)) if graph.durations[place] and not graph.cpu[place]]
    launched = {place: key for place in computing if (key := _launcher(graph, place)) is not None}
    if 2 * len(launched) <= len(computing):
        return
    order = sorted(launched, key=lambda place: (launched[place], graph.ids[place]))
    last: dict[int, int] = {}
    for place in order:
        stream = graph.streams.get(place, 0)
        if stream in last:
            graph.extra[place] = last[stream]
        last[stream] = place
    main = Counter(graph.streams.get(place, 0) for place in order).most_common(1)[0][0]
    kernels = [place for place in order if graph.streams.get(place, 0) == main]
    for collective in graph.collectives:
        key = _launcher(graph, collective.place)
        before = [place for place in kernels if key is not None and launched[place] < key]
        if before:
            graph.extra[collective.place] = before[-1]
    if _stuck(graph):
        graph.extra.clear()
        doubtful[UNCHAINED] += len(launched)
    else:
        doubtful[CHAINED] += len(launched)


def _launcher(graph: Graph, place: int) -> int | None:
    """Return the id of the CPU node that launches a node of the GPU; None if it depends on another one of the GPU."""
    before = graph.dependencies(place)
    if graph.cpu[place] or not before or not all(graph.cpu[each] for each in before):
        return None
    return max(graph.ids[each] for each in before)


def _stuck(graph: Graph) -> list[int]:
    """Return the nodes that wait for each other, or for those that do."""
    following, waiting = graph.followers()
    free = [place for place, count in enumerate(waiting) if not count]
    for place in free:  # which grows meanwhile
        for after in following[place]:
            waiting[after] -= 1
            if not waiting[after]:
                free.append(after)
    return [place for place, count in enumerate(waiting) if count]


def cut_circles(graph: Graph, where: str, doubtful: Counter[str]) -> None:
    """Leave out control dependencies that close circles: of the waiting node with the smallest id, again and again.

    TraceError if data dependencies close one.
    """
    following, waiting = graph.followers()
    data_following, data_waiting = graph.followers(data_only=True)
    free = [place for place, count in enumerate(waiting) if not count]
    ready = [
        (graph.ids[place], place) for place, count in enumerate(data_waiting) if not count and waiting[place]
    ]
    heapq.heapify(ready)
    is_done = bytearray(len(graph.ids))
    count = 0
    while True:
        while free:
            place = free.pop()
            if is_done[place]:
                continue
            is_done[place] = 1
            count += 1
            for after in data_following[place]:
                data_waiting[after] -= 1
                if not data_waiting[after] and not is_done[after]:
                    heapq.heappush(ready, (graph.ids[after], after))
            for after in following[place]:
                waiting[after] -= 1
                if not waiting[after]:
                    free.append(after)
        while ready and is_done[ready[0][1]]:
            heapq.heappop(ready)
        if not ready:
            break
        _, place = heapq.heappop(ready)
        for before in set(graph.dependencies(place)):
            if not is_done[before]:
                graph.cut.add((place, before))
                doubtful[CUT] += 1
        free.append(place)
    if count < len(graph.ids):
        stuck = next(graph.ids[place] for place in range(len(graph.ids)) if not is_done[place])
        raise TraceError(f"data dependencies close a circle (node {stuck})", where, "an acyclic graph")
