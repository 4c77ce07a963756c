"""Schedules in GOAL, text and binary, by hand: graphs, dependencies, what is played, what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from sim_cases import scenario

from gradwire.scenarios.errors import TraceError
from gradwire.sim.simulate import simulate
from gradwire.traces.formats import import_trace
from gradwire.traces.trace import Trace

TEXT = """\
// a schedule
num_ranks 3
rank 0 {
l1: calc 8000
l2: send 4096b to 1 tag 7
l2 requires l1
l3: recv 512b from 2 tag 0 cpu 1 nic 1
}
rank 1 { /* the other
end */
a: recv 4096b from 0 tag 7
b: calc 1000 cpu 1
b requires a
send 1024b to 2
c: send 512b to 2 tag 9
c irequires b
}
rank 2 {
x: recv 1024b from 1
y: recv 512b from 1 tag 9
z: send 512b to 0 tag 0
z requires x
z requires y
}
"""
CALLS = [("send", (0, 1), 4096), ("send", (1, 2), 512), ("send", (1, 2), 1024), ("send", (2, 0), 512)]


def read(folder: Path, text: str | bytes) -> Trace:
    path = folder / "job.goal"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return import_trace(path, ranks=True)


def needs_by_name(trace: Trace) -> dict[tuple[int, str], set[str]]:
    graphs = trace.graphs
    assert graphs is not None
    rows = range(len(graphs.names))
    return {(int(graphs.rank[row]), graphs.names[row]): {graphs.names[need] for need in graphs.of(row)} for row in rows}


def test_a_text_schedule(tmp_path: Path) -> None:
    trace = read(tmp_path, TEXT)
    graphs = trace.graphs
    assert graphs is not None and graphs.ranks == 3
    assert sorted(tuple(call) for call in graphs.calls) == CALLS
    needs = needs_by_name(trace)
    assert needs[0, "l2"] == {"l1"} and needs[1, "b"] == {"a"} and needs[2, "z"] == {"x", "y"}
    assert needs[1, "c"] == {"a"}  # starts with b, which waits for a
    row = {graphs.names[row]: row for row in range(len(graphs.names))}
    assert graphs.effort_ps[row["l1"]] == 8_000_000 and graphs.unit[row["b"]] == 1 and graphs.unit[row["l1"]] == 0
    source = trace.manifest["source"]
    assert source["understood"] == {"calc": 2, "recv": 4, "send": 4} and source["skipped"]["numbers of NICs"] == 1
    assert source["doubtful"]["irequires, read as: what the other operation waits for"] == 1


def test_a_schedule_is_played(tmp_path: Path) -> None:
    trace = read(tmp_path, TEXT)
    made = scenario({"workers": 3, "exchange": {"kind": "graph"}})
    messages = simulate(made, trace).messages.to_pydict()
    assert sorted(messages["bytes"]) == [512, 512, 1024, 4096]
    start = dict(zip(messages["bytes"], messages["start_ps"], strict=True))
    assert start[4096] == 8_000_000  # after the computation
    assert max(messages["start_ps"]) > min(messages["end_ps"])


def binary(ranks: list[list[tuple[int, int, int, int, list[int], list[int]]]]) -> bytes:
    """Return a schedule of nodes (kind, peer, size, tag, dependents, those that depend on the start)."""
    parts, table = [], []
    at = 6 + 16 * len(ranks)
    for nodes in ranks:
        appendix: list[int] = []
        data = struct.pack("<II", len(nodes), 1) + struct.pack("<I", 0)
        for kind, peer, size, tag, after, with_start in nodes:
            data += struct.pack("<IBIQIBB", 0, kind, peer, size, tag, 0, 0)
            for others in (after, with_start):
                data += struct.pack("<II", len(others), len(appendix))
                appendix += others
        data += struct.pack(f"<{len(appendix)}I", *appendix)
        table.append((at, at + len(data)))
        at += len(data)
        parts.append(data)
    head = struct.pack("<QIBB", 4223, len(ranks), 0, 0)
    return head + b"".join(struct.pack("<QQ", *place) for place in table) + b"".join(parts)


SEND, RECV, CALC = 1, 2, 3
BINARY = [
    [(CALC, 0, 8000, 0, [1], []), (SEND, 1, 4096, 7, [], []), (RECV, 2, 512, 0, [], [])],
    [(RECV, 0, 4096, 7, [1], []), (CALC, 0, 1000, 0, [], [3]), (SEND, 2, 1024, 0, [], []), (SEND, 2, 512, 9, [], [])],
    [(RECV, 1, 1024, 0, [2], []), (RECV, 1, 512, 9, [2], []), (SEND, 0, 512, 0, [], [])],
]


def test_a_binary_schedule_is_the_same_as_its_text(tmp_path: Path) -> None:
    trace = read(tmp_path, binary(BINARY))
    graphs = trace.graphs
    assert graphs is not None and sorted(tuple(call) for call in graphs.calls) == CALLS
    needs = needs_by_name(trace)
    assert needs[0, "operation 1"] == {"operation 0"} and needs[1, "operation 3"] == {"operation 0"}
    assert needs[2, "operation 2"] == {"operation 0", "operation 1"}


def test_ranks_without_operations_take_part(tmp_path: Path) -> None:
    trace = read(
        tmp_path, "num_ranks 4\nrank 0 {\nsend 8b to 3\n}\nrank 1 {\n}\nrank 2 {\n}\nrank 3 {\nrecv 8b from 0\n}\n"
    )
    assert trace.graphs is not None and trace.graphs.ranks == 4
    assert trace.manifest["source"]["doubtful"]["ranks without operations"] == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("calc 8000", "calc eight", "line 4: .*calc eight"),
        ("l2 requires l1", "l2 requires l9", "line 6: .*l9"),
        ("l3: recv", "l2: recv", "line 7: repeats the label l2"),
        ("to 1 tag 7", "from 1 tag 7", "send to, or recv from"),
        ("rank 2 {", "rank 3 {", "rank 3; expected 0 to 2"),
        ("num_ranks 3", "num_ranks 4", "ends after 3 of 4 ranks"),
        ("z: send 512b", "z: send 513b", "sends and 1 receives from rank 2 to 0"),
        ("c irequires b", "c irequires b\nb irequires c", "waits for its own start"),
        ("calc 1000", "calc 999999999999999999", "a smaller number"),
    ],
)
def test_damaged_text_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read(tmp_path, TEXT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (8, b"\x00\x00\x00\x00", "announces 0 ranks"),
        (8, b"\xff\xff\xff\x00", "announces 16777215 ranks"),
        (14, b"\xff\xff\x00\x00", "rank 0 is at bytes 65535"),
        (62, b"\xff\x00\x00\x00", "has 255 operations in"),
        (62 + 12 + 4, b"\x09", "operation 0 has kind 9"),
        (62 + 12 + 23, b"\x09\x00\x00\x00", "operation 0 has 9 dependents"),
    ],
)
def test_damaged_binary_is_refused(tmp_path: Path, at: int, value: bytes, says: str) -> None:
    data = bytearray(binary(BINARY))
    data[at : at + len(value)] = value
    with pytest.raises(TraceError, match=says):
        read(tmp_path, bytes(data))
