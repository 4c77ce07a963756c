"""Reads the Chakra graphs of all ranks of a job, matches their collectives and transfers, and schedules them together.

Files are NAME.RANK.et in one folder. A collective is among the ranks whose graphs have its process group, `pg_name`
(all ranks if it has none); the k-th of a group at one rank is the k-th of it at the others. A send (`comm_src`,
`comm_dst`, `comm_tag`) belongs to the receive of the same ends and tag, of several the k-th to the k-th. `comm_size`
has ASTRA-sim's meaning: for an all-gather, the input of each rank, and so for a gather (our choice). A file
comm_group.json beside them, as of ASTRA-sim, gives the members of groups and their order.

Running all of them with a network that takes no time gives the order in which each unit of a rank computes - as for one
rank, by when a node's dependencies are met, of several the smallest id - and shows that they end.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import ReadOptions
from gradwire.traces.formats.chakra_graphs import COMM_COLL
from gradwire.traces.formats.chakra_graphs.graph import (
    BACKWARD,
    COLLECTIVES,
    FORWARD,
    INPUT,
    SENDS,
    ChakraGraph,
    ChakraNode,
)
from gradwire.traces.formats.chakra_graphs.reader import read_graph
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.source import open_source
from gradwire.traces.rank_graphs import SEND, RankCall, RankGraphs

_FILE = re.compile(r"(.+)\.(\d{1,7})\.et(\.gz)?")
_KINDS = {
    0: "all_reduce",
    1: "reduce",
    3: "gather",
    4: "scatter",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
    8: "reduce_scatter",
    9: "all_reduce",
}
BARRIER, BARRIER_BYTES = 9, 4
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
ROOTS = ("root_rank", "comm_root", "root")
"""Attributes that name the root of a collective by its global rank; without any it is the first member."""
GROUP_FILE, GROUP_FORM = "comm_group.json", 'process groups, such as {"1": [0, 1]}'
MAX_GROUP_FILE_BYTES = 1 << 26
_ROLES = {FORWARD: 0, INPUT: 1, BACKWARD: 1}
NodeKey = tuple[int, int]
"""A rank, and the position of a node in its graph."""


def rank_files(path: Path) -> list[Path]:
    """Return the files of all ranks, rank by rank, one of which is `path`; TraceError if a rank is missing."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        raise TraceError("has no rank in its name", str(path), "NAME.RANK.et, such as job.0.et")
    files: dict[int, Path] = {}
    for file in path.parent.iterdir():
        other_match = _FILE.fullmatch(file.name)
        if other_match is not None and other_match[1] == match[1]:
            files[int(other_match[2])] = file
    missing = set(range(len(files))) - set(files)
    if missing:
        raise TraceError(f"the graph of rank {min(missing)} is missing", str(path), f"ranks 0 to {max(files)}")
    return [files[rank] for rank in range(len(files))]


def read_graphs(path: Path, options: ReadOptions, draft: Draft) -> RankGraphs:
    """Return the graphs of all ranks; TraceError for files that do not fit together."""
    graphs = []
    for file in rank_files(path):
        file_draft = Draft("chakra")
        graphs.append(read_graph(file, options, file_draft, with_names=True))
        if file != path:
            draft.doubtful.update(file_draft.doubtful)
    draft.understood["graphs of ranks"] = len(graphs)
    for name in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        if count := draft.skipped.pop(name, 0):
            draft.understood[name] += count
    groups = read_groups(path.parent / GROUP_FILE, len(graphs))
    draft.understood[f"process groups of {GROUP_FILE}"] += len(groups)
    return join_graphs(graphs, str(path), groups)


def read_groups(path: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """Return the members of process groups from a file of ASTRA-sim, {"1": [0, 1], ...}; none if there is no file.

    Raises TraceError for a file that is not such an object, and for members that are no ranks or repeated.
    """
    if not path.exists():
        return {}
    with open_source(path) as source:
        data = b""
        while block := source.read():
            data += block
            if len(data) > MAX_GROUP_FILE_BYTES:
                raise TraceError("has more than 64 MiB", str(path), GROUP_FORM)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"is not JSON ({str(error)[:80]})", str(path), 'process groups, such as {"1": [0, 1]}'
        ) from None
    if not isinstance(content, dict):
        raise TraceError(f"is {str(content)[:60]}", str(path), GROUP_FORM)
    groups = {}
    for name, members in content.items():
        whole = isinstance(members, list) and all(type(rank) is int and 0 <= rank < ranks for rank in members)
        if not whole or not members or len(set(members)) < len(members):
            raise TraceError(
                f"process group {name} is {str(members)[:60]}", str(path), f"distinct ranks, 0 to {ranks - 1}"
            )
        groups[str(name)] = tuple(members)
    return groups


def join_graphs(
    graphs: Sequence[ChakraGraph], where: str, groups: Mapping[str, tuple[int, ...]] | None = None
) -> RankGraphs:
    """Return the graphs of all ranks as one, in an order in which they could run. `groups` : members of process groups,
    in order; those of others are the ranks that call them. TraceError for graphs that do not fit together."""
    calls, call_of = _calls(graphs, where, groups or {})
    order = _JointRun(graphs, calls, call_of, where).run()
    if not order:
        raise TraceError("has no operations", where, "graphs with nodes")
    return _rank_graphs(graphs, calls, call_of, order)


def _calls(
    graphs: Sequence[ChakraGraph], where: str, listed: Mapping[str, tuple[int, ...]]
) -> tuple[list[RankCall], dict[NodeKey, int]]:
    """Return the calls of all ranks, and the call of each communication node."""
    groups: dict[str, dict[int, list[tuple[int, RankCall]]]] = {}
    ends: dict[tuple[int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for rank, graph in enumerate(graphs):
        for position, node in graph.called:
            if node.type == COMM_COLL:
                group, call = _collective(node, rank, where)
                groups.setdefault(group, {}).setdefault(rank, []).append((position, call))
            else:
                key, size = _transfer(node, rank, len(graphs), where)
                ends.setdefault(key, ([], []))[node.type != SENDS[0]].append((position, size))
    calls: list[RankCall] = []
    call_of: dict[NodeKey, int] = {}
    for group, by_rank in groups.items():
        members = listed.get(group, tuple(by_rank))
        if set(members) != set(by_rank):
            what = f"process group {group} has ranks {sorted(members)[:8]}, and is called by {sorted(by_rank)[:8]}"
            raise TraceError(what, where, f"calls by the ranks in {GROUP_FILE}")
        if len({len(entries) for entries in by_rank.values()}) > 1:
            counts = ", ".join(f"{len(entries)} by rank {rank}" for rank, entries in by_rank.items())
            what = f"process group {group or 'of all ranks'} is called {counts}"
            raise TraceError(what, where, "equally many calls by each rank")
        if not group and len(members) != len(graphs):
            raise TraceError("collectives without pg_name that not all ranks call", where, "pg_name, or calls of all")
        for entries in zip(*(by_rank[member] for member in members), strict=True):
            kinds = {call for _, call in entries}
            if len(kinds) > 1:
                what = f"process group {group or 'of all ranks'}: ranks call " + " and ".join(
                    f"{kind.kind} of {kind.bytes} bytes" for kind in sorted(kinds)
                )
                raise TraceError(what, where, "the same calls in the same order")
            (call,) = kinds
            size_of_buffer = call.bytes * len(members) if call.kind in ("all_gather", "gather") else call.bytes
            for rank, (position, _) in zip(members, entries, strict=True):
                call_of[rank, position] = len(calls)
            ordered = _root_first(members, call, group, where) if call.kind in _ROOTED else members
            calls.append(RankCall(call.kind, ordered, size_of_buffer))
    for (src, dst, tag), (sends, receives) in ends.items():
        if [size for _, size in sends] != [size for _, size in receives]:
            what = f"{len(sends)} sends and {len(receives)} receives from rank {src} to {dst} with tag {tag}"
            raise TraceError(what, where, "a receive of the same size for each send")
        for (position, size), (other, _) in zip(sends, receives, strict=True):
            call_of[src, position] = call_of[dst, other] = len(calls)
            calls.append(RankCall(SEND, (src, dst), size))
    return calls, call_of


def _collective(node: ChakraNode, rank: int, where: str) -> tuple[str, RankCall]:
    """Return (process group, call); its bytes are those in the file."""
    attributes, kind = node.attributes, node.attributes.get("comm_type")
    position = f"{where}: node {node.id} of rank {rank}"
    if kind not in _KINDS:
        what = f"is a {COLLECTIVES.get(kind, f'collective {kind}')}" if isinstance(kind, int) else "has no comm_type"
        raise TraceError(what, position, ", ".join(COLLECTIVES[number] for number in _KINDS))
    group = str(attributes.get("pg_name", ""))
    if not group and not all(attributes.get("involved_dim", [True])):
        raise TraceError("is called along some dimensions of a network", position, "its process group, pg_name")
    size = BARRIER_BYTES if kind == BARRIER else attributes.get("comm_size")
    if not isinstance(size, int) or not 0 < size < 2**53:
        raise TraceError(f"has a comm_size of {size}", position, "bytes, 1 or more")
    root = next((attributes[name] for name in ROOTS if isinstance(attributes.get(name), int)), None)
    return group, RankCall(_KINDS[kind], () if root is None else (root,), size)


def _root_first(members: tuple[int, ...], call: RankCall, group: str, where: str) -> tuple[int, ...]:
    """Return the members with the root of a call first; TraceError if it is not a member."""
    if not call.members:
        return members
    (root,) = call.members
    if root not in members:
        what = f"process group {group or 'of all ranks'}: root {root} of a {call.kind} is not a member"
        raise TraceError(what, where, f"one of {', '.join(map(str, members[:8]))}")
    return root, *(member for member in members if member != root)


def _transfer(node: ChakraNode, rank: int, ranks: int, where: str) -> tuple[tuple[int, int, int], int]:
    """Return ((source, destination, tag), bytes) of a send or a receive."""
    attributes, is_send = node.attributes, node.type == SENDS[0]
    src = rank if is_send else attributes.get("comm_src")
    dst = attributes.get("comm_dst") if is_send else rank
    tag, size = attributes.get("comm_tag", 0), attributes.get("comm_size")
    is_valid = all(isinstance(end, int) and 0 <= end < ranks for end in (src, dst)) and src != dst
    if not is_valid or not isinstance(size, int) or not 0 < size < 2**53:
        position = f"{where}: node {node.id} of rank {rank}"
        raise TraceError(f"goes from {src} to {dst}, {size} bytes", position, f"ranks 0 to {ranks - 1}, and comm_size")
    return (src, dst, tag), size  # type: ignore[return-value]


class _JointRun:
    """Joint run of all ranks with a network that takes no time."""

    def __init__(
        self, graphs: Sequence[ChakraGraph], calls: Sequence[RankCall], call_of: dict[NodeKey, int], where: str
    ) -> None:
        self.graphs, self.calls, self.call_of, self.where = graphs, calls, call_of, where
        pairs = [graph.followers() for graph in graphs]
        self.followers, self.pending = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.ready_at = [[0] * len(graph.ids) for graph in graphs]
        self.arrivals: dict[int, list[NodeKey]] = {}
        self.queue: list[tuple[int, int, int, int]] = []
        self.order: list[NodeKey] = []

    def run(self) -> list[NodeKey]:
        """Return the nodes in the order in which they begin; TraceError if some never do."""
        for rank, waiting in enumerate(self.pending):
            for position, count in enumerate(waiting):
                if not count:
                    self._enqueue(rank, position)
        free: dict[tuple[int, int], int] = {}
        while self.queue:
            moment, _, rank, position = heapq.heappop(self.queue)
            graph = self.graphs[rank]
            if (call := self.call_of.get((rank, position))) is not None:
                self._join_call(call, rank, position)
                continue
            if duration := graph.durations[position]:
                unit = rank, graph.cpu[position]
                moment = free[unit] = max(moment, free.get(unit, 0)) + duration
            self._finish(rank, position, moment)
        for rank, graph in enumerate(self.graphs):
            for position, count in enumerate(self.pending[rank]):
                if count >= 0:
                    what = f"node {graph.ids[position]} of rank {rank} waits forever"
                    raise TraceError(what, self.where, "graphs without cycles, also through calls between ranks")
        return self.order

    def _enqueue(self, rank: int, position: int) -> None:
        heapq.heappush(self.queue, (self.ready_at[rank][position], self.graphs[rank].ids[position], rank, position))

    def _join_call(self, call: int, rank: int, position: int) -> None:
        """Add a member to a call: a collective ends when all have come, a send at once, a receive after it."""
        arrived = self.arrivals.setdefault(call, [])
        arrived.append((rank, position))
        details = self.calls[call]
        moment = max(self.ready_at[r][p] for r, p in arrived)
        if details.kind == SEND:
            if rank == details.members[0]:
                self._finish(rank, position, self.ready_at[rank][position])
            if len(arrived) == 2:
                self._finish(*next(key for key in arrived if key[0] == details.members[1]), moment)
        elif len(arrived) == len(details.members):
            for key in arrived:
                self._finish(*key, moment)

    def _finish(self, rank: int, position: int, moment: int) -> None:
        self.order.append((rank, position))
        self.pending[rank][position] = -1
        for follower in self.followers[rank][position]:
            self.ready_at[rank][follower] = max(self.ready_at[rank][follower], moment)
            self.pending[rank][follower] -= 1
            if not self.pending[rank][follower]:
                self._enqueue(rank, follower)


def _rank_graphs(
    graphs: Sequence[ChakraGraph], calls: Sequence[RankCall], call_of: dict[NodeKey, int], order: Sequence[NodeKey]
) -> RankGraphs:
    """Return rows of all nodes in an order in which they could run, without calls of a single rank."""
    number = {key: row for row, key in enumerate(order)}
    is_single = [call.kind != SEND and len(call.members) == 1 for call in calls]
    new_number = np.cumsum([not single for single in is_single]) - 1
    needs = [sorted({number[rank, before] for before in graphs[rank].waits_for(position)}) for rank, position in order]
    first = np.concatenate([[0], np.cumsum([len(rows) for rows in needs])]).astype(np.int64)
    numbers = [call_of.get(key, -1) for key in order]

    def column(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(list(values), dtype=np.int64)

    return RankGraphs(
        names=[(graphs[rank].names or [])[position] for rank, position in order],
        rank=column(rank for rank, _ in order),
        unit=column(graphs[rank].cpu[position] for rank, position in order),
        role=column(_ROLES.get(graphs[rank].roles[position], 2) for rank, position in order),
        effort_ps=column(graphs[rank].durations[position] for rank, position in order),
        call=column(-1 if call < 0 or is_single[call] else new_number[call] for call in numbers),
        first=first,
        needs=column(row for rows in needs for row in rows),
        calls=[call for call, single in zip(calls, is_single, strict=True) if not single],
    )
