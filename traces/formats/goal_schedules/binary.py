"""Reads a binary schedule, as txt2bin of LogGOPSim writes it [code: Parser.hpp]; all numbers are little-endian.

u64 4223, u32 ranks, u8 highest cpu, u8 highest nic, then of each rank u64 begin, u64 end (counted after the first
eight bytes). A rank: u32 nodes, u32 roots, u32 of each root, 39 bytes of each node, u32 of each dependent node.
A node: u32 dependencies, u8 kind, u32 peer, u64 size, u32 tag, u8 cpu, u8 nic, then number and first place of the
nodes that depend on its end, and the same of those that depend on its start.
"""

from __future__ import annotations

from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import np
from gradwire.traces.formats.base import ReadOptions
from gradwire.traces.formats.chakra_graphs.graph import ChakraGraph
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.goal_schedules.operations import CALC, MAX_RANKS, RECV, SEND, GoalOperation, RankSchedule
from gradwire.traces.formats.source import open_source
from gradwire.traces.storage.memory_limits import refuse_beyond

COOKIE = (4223).to_bytes(8, "little")
KINDS = {1: SEND, 2: RECV, 3: CALC}
NODE = [
    ("needs", "<u4"),
    ("kind", "u1"),
    ("peer", "<u4"),
    ("size", "<u8"),
    ("tag", "<u4"),
    ("cpu", "u1"),
    ("nic", "u1"),
    ("after", "<u4"),
    ("first_after", "<u4"),
    ("with_start", "<u4"),
    ("first_with_start", "<u4"),
]
_HEADER, _NODE_BYTES, _OBJECT_BYTES = 14, 39, 40
"""Bytes of the header and of a node; memory for a node is _OBJECT_BYTES times that of the file [measured]."""


def read_binary(path: Path, options: ReadOptions, draft: Draft) -> list[ChakraGraph]:
    """Return the graph of each rank; TraceError for a file that is cut off or whose numbers lead outside of it."""
    refuse_beyond(path.stat().st_size * _OBJECT_BYTES, "a schedule of this size", str(path))
    with open_source(path, options.progress, options.notes) as source:
        blocks = []
        while block := source.read():
            blocks.append(block)
    data = b"".join(blocks)
    where = str(path)
    ranks = int.from_bytes(data[8:12], "little")
    if not 0 < ranks <= MAX_RANKS or len(data) < _HEADER + 16 * ranks:
        raise TraceError(f"announces {ranks} ranks", where, f"1 to {MAX_RANKS}, with a table of where they begin")
    table = np.frombuffer(data, "<u8", 2 * ranks, _HEADER).reshape(ranks, 2)
    graphs = []
    for rank, (begin, end) in enumerate(table.tolist()):
        if not _HEADER - 8 + 16 * ranks <= begin <= end <= len(data) - 8:
            raise TraceError(f"rank {rank} is at bytes {begin} to {end}", where, "a place in the file")
        graphs.append(_rank(data[8 + begin : 8 + end], f"{where}: rank {rank}", draft))
    return graphs


def _rank(data: bytes, where: str, draft: Draft) -> ChakraGraph:
    count, roots = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4))
    first = 8 + 4 * roots
    if len(data) < 8 or first + _NODE_BYTES * count > len(data):
        raise TraceError(f"has {count} operations in {len(data)} bytes", where, "a whole schedule")
    nodes = np.frombuffer(data, np.dtype(NODE), count, first)
    rest = data[first + _NODE_BYTES * count :]
    appendix = np.frombuffer(rest, "<u4", len(rest) // 4)
    if len(appendix) and int(appendix.max()) >= count:
        raise TraceError(f"names operation {appendix.max()}", where, f"0 to {count - 1}")
    schedule = RankSchedule()
    for number, node in enumerate(nodes.tolist()):
        _, kind, peer, size, tag, cpu, nic, *_ = node
        if kind not in KINDS:
            raise TraceError(f"operation {number} has kind {kind}", where, "1 (send), 2 (recv) or 3 (calc)")
        draft.understood[KINDS[kind]] += 1
        draft.skipped["numbers of NICs"] += nic > 0
        schedule.add(GoalOperation(KINDS[kind], f"operation {number}", size, peer, tag, cpu > 0))
    for number, node in enumerate(nodes.tolist()):
        after, first_after, with_start, first_with_start = node[7:]
        for lists, length, begin in (
            (schedule.after, after, first_after),
            (schedule.with_start, with_start, first_with_start),
        ):
            if length and begin + length > len(appendix):
                raise TraceError(f"operation {number} has {length} dependents", where, "numbers inside the file")
            for other in appendix[begin : begin + length].tolist() if length else ():
                lists[other].append(number)
    return schedule.graph(where, draft.doubtful)
