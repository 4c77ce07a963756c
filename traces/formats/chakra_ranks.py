"""Chakra graphs of all ranks of a job, run together once: `gradwire.traces.formats.chakra` for several files.

Files are NAME.RANK.et, beside each other. A collective is among the ranks whose graphs have its process group,
`pg_name` (all ranks where it has none); the k-th of a group at one rank is the k-th of it at the others. A send
(`comm_src`, `comm_dst`, `comm_tag`) belongs to the receive of the same ends and tag, of several the k-th to the k-th.
`comm_size` is what ASTRA-sim takes it for: of an all-gather what each rank has before.

Running all of them with a network that takes no time says in which order each unit of a rank computes - as for one
rank, by when a node's dependencies are met, of several the smallest id - and that they come to an end.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import protobuf as pb
from gradwire.traces.formats.chakra_graph import (
    BACKWARD,
    COLLECTIVES,
    COMM_COLL,
    FORWARD,
    INPUT,
    SENDS,
    Graph,
    Node,
)
from gradwire.traces.formats.chakra_repair import chain_streams, cut_circles
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.source import opened
from gradwire.traces.graphs import SEND, Call, Graphs

if TYPE_CHECKING:
    from gradwire.traces.formats.base import ReadOptions

_FILE = re.compile(r"(.+)\.(\d{1,7})\.et(\.gz)?")
_KINDS = {
    0: "all_reduce", 2: "all_gather", 5: "broadcast", 6: "all_to_all", 7: "reduce_scatter", 8: "reduce_scatter",
    9: "all_reduce",
}  # fmt: skip
BARRIER, BARRIER_BYTES = 9, 4
_ROLES = {FORWARD: 0, INPUT: 1, BACKWARD: 1}
Place = tuple[int, int]
"""A rank, and the place of a node in its graph."""


def files_of(path: Path) -> list[Path]:
    """The files of all ranks, rank by rank, one of which is `path`. TraceError unless they are ranks 0 to the last."""
    found = _FILE.fullmatch(path.name)
    if found is None:
        raise TraceError("has no rank in its name", str(path), "NAME.RANK.et, such as job.0.et")
    files: dict[int, Path] = {}
    for each in path.parent.iterdir():
        other = _FILE.fullmatch(each.name)
        if other is not None and other[1] == found[1]:
            files[int(other[2])] = each
    missing = set(range(len(files))) - set(files)
    if missing:
        raise TraceError(f"the graph of rank {min(missing)} is missing", str(path), f"ranks 0 to {max(files)}")
    return [files[rank] for rank in range(len(files))]


def read_graphs(path: Path, options: ReadOptions, draft: Draft) -> Graphs:
    """The graphs of all ranks. TraceError for files that do not fit together."""
    from gradwire.traces.formats.chakra import read_message

    graphs = []
    for file in files_of(path):
        graph, told = Graph(), Draft("chakra")
        graph.names = []
        with opened(file, options.progress, options.notes) as source:
            for number, data in enumerate(pb.messages(source)):
                read_message(data, number, source, graph, told)
        if not len(graph.ids):
            raise TraceError("has no node in it", str(file), "a Chakra execution trace")
        if options.repair:
            cut_circles(graph, str(file), told.doubtful)
        chain_streams(graph, told.doubtful)
        if file != path:
            draft.doubtful.update(told.doubtful)
        graphs.append(graph)
    draft.understood["graphs of ranks"] = len(graphs)
    for name in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        if count := draft.skipped.pop(name, 0):
            draft.understood[name] += count
    calls, call_of = _calls(graphs, str(path))
    order = _Together(graphs, calls, call_of, str(path)).run()
    return _written(graphs, calls, call_of, order)


def _calls(graphs: Sequence[Graph], where: str) -> tuple[list[Call], dict[Place, int]]:
    """What ranks do together, and which node is which of it."""
    groups: dict[str, dict[int, list[tuple[int, Call]]]] = {}
    ends: dict[tuple[int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for rank, graph in enumerate(graphs):
        for place, node in graph.called:
            if node.type == COMM_COLL:
                group, call = _collective(node, rank, where)
                groups.setdefault(group, {}).setdefault(rank, []).append((place, call))
            else:
                key, size = _transfer(node, rank, len(graphs), where)
                ends.setdefault(key, ([], []))[node.type != SENDS[0]].append((place, size))
    calls: list[Call] = []
    call_of: dict[Place, int] = {}
    for group, by_rank in groups.items():
        members = tuple(by_rank)
        if len({len(each) for each in by_rank.values()}) > 1:
            counts = ", ".join(f"{len(each)} by rank {rank}" for rank, each in by_rank.items())
            raise TraceError(f"process group {group or 'of all ranks'} is called {counts}", where, "as often by each")
        if not group and len(members) != len(graphs):
            raise TraceError("collectives without pg_name that not all ranks call", where, "pg_name, or calls of all")
        for several in zip(*by_rank.values(), strict=True):
            kinds = {call for _, call in several}
            if len(kinds) > 1:
                what = f"process group {group or 'of all ranks'}: ranks call " + " and ".join(
                    f"{kind.kind} of {kind.bytes} bytes" for kind in sorted(kinds)
                )
                raise TraceError(what, where, "the same at the same turn")
            (call,) = kinds
            whole = call.bytes * len(members) if call.kind == "all_gather" else call.bytes
            for rank, (place, _) in zip(members, several, strict=True):
                call_of[rank, place] = len(calls)
            calls.append(Call(call.kind, members, whole))
    for (src, dst, tag), (sends, receives) in ends.items():
        if [size for _, size in sends] != [size for _, size in receives]:
            what = f"{len(sends)} sends and {len(receives)} receives from rank {src} to {dst} with tag {tag}"
            raise TraceError(what, where, "a receive of the same size for each send")
        for (place, size), (other, _) in zip(sends, receives, strict=True):
            call_of[src, place] = call_of[dst, other] = len(calls)
            calls.append(Call(SEND, (src, dst), size))
    return calls, call_of


def _collective(node: Node, rank: int, where: str) -> tuple[str, Call]:
    """(process group, what is called; its bytes as the file says them)."""
    told, kind = node.attributes, node.attributes.get("comm_type")
    place = f"{where}: node {node.id} of rank {rank}"
    if kind not in _KINDS:
        what = f"is a {COLLECTIVES.get(kind, f'collective {kind}')}" if isinstance(kind, int) else "has no comm_type"
        raise TraceError(what, place, ", ".join(COLLECTIVES[each] for each in _KINDS))
    group = str(told.get("pg_name", ""))
    if not group and not all(told.get("involved_dim", [True])):
        raise TraceError("is called along some dimensions of a network", place, "its process group, pg_name")
    size = BARRIER_BYTES if kind == BARRIER else told.get("comm_size")
    if not isinstance(size, int) or not 0 < size < 2**53:
        raise TraceError(f"has a comm_size of {size}", place, "bytes, 1 or more")
    return group, Call(_KINDS[kind], (), size)


def _transfer(node: Node, rank: int, ranks: int, where: str) -> tuple[tuple[int, int, int], int]:
    """((source, destination, tag), bytes) of a send or a receive."""
    told, sends = node.attributes, node.type == SENDS[0]
    src = rank if sends else told.get("comm_src")
    dst = told.get("comm_dst") if sends else rank
    tag, size = told.get("comm_tag", 0), told.get("comm_size")
    sound = all(isinstance(each, int) and 0 <= each < ranks for each in (src, dst)) and src != dst
    if not sound or not isinstance(size, int) or not 0 < size < 2**53:
        place = f"{where}: node {node.id} of rank {rank}"
        raise TraceError(f"goes from {src} to {dst}, {size} bytes", place, f"ranks 0 to {ranks - 1}, and comm_size")
    return (src, dst, tag), size  # type: ignore[return-value]


class _Together:
    """All ranks, run once with a network that takes no time."""

    def __init__(
        self, graphs: Sequence[Graph], calls: Sequence[Call], call_of: dict[Place, int], where: str
    ) -> None:
        self.graphs, self.calls, self.call_of, self.where = graphs, calls, call_of, where
        made = [graph.followers() for graph in graphs]
        self.following, self.waiting = [each[0] for each in made], [each[1] for each in made]
        self.met = [[0] * len(graph.ids) for graph in graphs]
        self.came: dict[int, list[Place]] = {}
        self.queue: list[tuple[int, int, int, int]] = []
        self.order: list[Place] = []

    def run(self) -> list[Place]:
        """Nodes in the order in which they begin. TraceError if some never do."""
        for rank, waiting in enumerate(self.waiting):
            for place, count in enumerate(waiting):
                if not count:
                    self._ready(rank, place)
        free: dict[tuple[int, int], int] = {}
        while self.queue:
            moment, _, rank, place = heapq.heappop(self.queue)
            graph = self.graphs[rank]
            if (call := self.call_of.get((rank, place))) is not None:
                self._called(call, rank, place)
                continue
            if spent := graph.durations[place]:
                unit = rank, graph.cpu[place]
                moment = free[unit] = max(moment, free.get(unit, 0)) + spent
            self._done(rank, place, moment)
        for rank, graph in enumerate(self.graphs):
            for place, count in enumerate(self.waiting[rank]):
                if count >= 0:
                    what = f"node {graph.ids[place]} of rank {rank} waits for what never happens"
                    raise TraceError(what, self.where, "graphs without circles, also through calls between ranks")
        return self.order

    def _ready(self, rank: int, place: int) -> None:
        heapq.heappush(self.queue, (self.met[rank][place], self.graphs[rank].ids[place], rank, place))

    def _called(self, call: int, rank: int, place: int) -> None:
        """A member comes to a call: a collective is over when all have, a send at once, a receive behind it."""
        here = self.came.setdefault(call, [])
        here.append((rank, place))
        each = self.calls[call]
        moment = max(self.met[r][p] for r, p in here)
        if each.kind == SEND:
            if rank == each.members[0]:
                self._done(rank, place, self.met[rank][place])
            if len(here) == 2:
                self._done(*next(who for who in here if who[0] == each.members[1]), moment)
        elif len(here) == len(each.members):
            for who in here:
                self._done(*who, moment)

    def _done(self, rank: int, place: int, moment: int) -> None:
        self.order.append((rank, place))
        self.waiting[rank][place] = -1
        for after in self.following[rank][place]:
            self.met[rank][after] = max(self.met[rank][after], moment)
            self.waiting[rank][after] -= 1
            if not self.waiting[rank][after]:
                self._ready(rank, after)


def _written(
    graphs: Sequence[Graph], calls: Sequence[Call], call_of: dict[Place, int], order: Sequence[Place]
) -> Graphs:
    """Rows of all nodes in an order in which they could run. A call of one rank is none."""
    number = {who: row for row, who in enumerate(order)}
    alone = [each.kind != SEND and len(each.members) == 1 for each in calls]
    kept = np.cumsum([not each for each in alone]) - 1
    needs = [sorted({number[rank, each] for each in graphs[rank].waits_for(place)}) for rank, place in order]
    first = np.concatenate([[0], np.cumsum([len(each) for each in needs])]).astype(np.int64)
    numbers = [call_of.get(who, -1) for who in order]

    def column(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(list(values), dtype=np.int64)

    return Graphs(
        names=[(graphs[rank].names or [])[place] for rank, place in order],
        rank=column(rank for rank, _ in order),
        unit=column(graphs[rank].cpu[place] for rank, place in order),
        role=column(_ROLES.get(graphs[rank].roles[place], 2) for rank, place in order),
        effort_ps=column(graphs[rank].durations[place] for rank, place in order),
        call=column(-1 if each < 0 or alone[each] else kept[each] for each in numbers),
        first=first,
        needs=column(each for several in needs for each in several),
        calls=[each for each, one in zip(calls, alone, strict=True) if not one],
    )
