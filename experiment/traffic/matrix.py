"""Traffic matrices of htsim (.cm).

    Nodes 4
    Connections 3
    Triggers 1
    0->1 id 1 start 0 size 2000000 recv_done_trigger 1
    2->1 id 2 start 1000 size 2000000 recv_done_trigger 1
    1->3 id 3 trigger 1 size 1000000
    trigger id 1 barrier 2

Nodes are counted from 0, starts are picoseconds. A trigger fires when a flow has been received (`recv_done_trigger`)
and starts the flows that name it: `oneshot` the first time, `barrier n` the n-th time, `multishot` one flow each time.

Here a flow can wait for deliveries to its own host only: nothing else can make a host act. So a trigger is taken where
all flows that fire it go to the host that sends the flows it starts, and where it does not depend on which of several
comes first: `oneshot` and `multishot` with one flow that fires, `barrier n` with n. A flow so started enters the
network one software latency after the delivery; in htsim it does at once. What has no counterpart
(`send_done_trigger`, which fires at the sender; `prio`; failures) is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.program import Ints
from gradwire.experiment.traffic.base import Flows, Setting
from gradwire.experiment.traffic.kinds.matrix import Matrix
from gradwire.experiment.traffic.reading import Reader
from gradwire.scenarios.units import MAX_INNER

HEADERS = ("Nodes", "Connections", "Triggers", "Failures")
LINE = "src->dst id N start PS size BYTES"
KINDS = ("oneshot", "multishot", "barrier")
UNKNOWN = {
    "send_done_trigger": "fires at the sender, which has no counterpart here",
    "prio": "is a priority of receivers' pulls, which has no counterpart here",
}


@dataclass(frozen=True)
class Connection:
    """One flow of the file; `start` is -1 where it waits for `trigger`."""

    line: int
    src: int
    dst: int
    flow: int
    nbytes: int
    start: int
    trigger: int | None
    fires: int | None


@dataclass(frozen=True)
class Trigger:
    line: int
    kind: str
    count: int


@dataclass
class Entries:
    """What a file says, line by line."""

    header: dict[str, tuple[int, int]] = field(default_factory=dict)
    """word -> (line, number)"""
    connections: list[Connection] = field(default_factory=list)
    triggers: dict[int, Trigger] = field(default_factory=dict)


def matrix(setting: Setting, table: Matrix) -> Iterator[Flows]:
    """Flows of a `Matrix` table, all in one batch."""
    connections, edges = read(Path(table.file), f"{setting.where}.file", len(setting.hosts))
    start = np.array([table.start + max(0, each.start) for each in connections], dtype=np.int64)
    late = np.array([setting.over(begin) for begin in start.tolist()])
    order, edges = _sorted(len(connections), start, edges, late)
    if not len(order):
        return
    rows = [(each.src, each.dst, each.nbytes, each.flow) for each in connections]
    src, dst, nbytes, flow = np.array(rows, dtype=np.int64)[order].T
    none = np.zeros(len(order), dtype=np.int64)
    yield Flows(setting.hosts[src], setting.hosts[dst], nbytes, start[order], none, flow, edges)


def read(path: Path, where: str, hosts: int | None) -> tuple[list[Connection], Ints]:
    """The flows of a file, and int64[m, 2]: which waits for which (before, after), by position in the list.

    Raises
    ------
    ScenarioError
        The file is missing, damaged, or asks for what cannot be done; says in which lines. `hosts`: how many there are,
        None if that is not known yet.
    """
    reader = Reader(path, where)
    entries = Entries()
    for number, words in reader.lines():
        if words[0] in HEADERS:
            _header(reader, number, words, entries)
        elif words[0] == "trigger":
            _trigger(reader, number, words, entries)
        elif "->" in words[0]:
            connection = _connection(reader, number, words)
            if connection:
                entries.connections.append(connection)
        else:
            reader.wrong(number, "is no line of a traffic matrix", " ".join(words), LINE)
    if not reader.mistakes:
        _totals(reader, entries, hosts)
    edges = [] if reader.mistakes else _edges(reader, entries)
    reader.finish("a traffic matrix that can be run")
    return entries.connections, np.array(edges, dtype=np.int64).reshape(-1, 2)


def _header(reader: Reader, line: int, words: list[str], entries: Entries) -> None:
    if len(words) != 2 or not words[1].isdecimal():
        reader.wrong(line, "gives no number", " ".join(words), f"{words[0]} and a number")
    elif words[0] in entries.header:
        reader.wrong(line, f"says {words[0]} a second time", " ".join(words), "each header once")
    else:
        entries.header[words[0]] = (line, int(words[1]))


def _trigger(reader: Reader, line: int, words: list[str], entries: Entries) -> None:
    expected = "trigger id N oneshot, multishot or barrier COUNT"
    kind = words[3] if len(words) > 3 else ""
    numbers = [words[2], *words[4:]] if len(words) > 3 else []
    if kind not in KINDS or words[1] != "id" or len(numbers) != 1 + (kind == "barrier"):
        reader.wrong(line, "is no trigger", " ".join(words), expected)
    elif not all(word.isdecimal() for word in numbers):
        reader.wrong(line, "has a word that is no number", " ".join(words), expected)
    elif int(numbers[0]) in entries.triggers:
        reader.wrong(line, "describes a trigger a second time", int(numbers[0]), "each trigger once")
    else:
        entries.triggers[int(numbers[0])] = Trigger(line, kind, int(numbers[-1]) if kind == "barrier" else 1)


def _connection(reader: Reader, line: int, words: list[str]) -> Connection | None:
    text = " ".join(words)
    ends = words[0].split("->")
    if len(ends) != 2 or not all(end.isdecimal() for end in ends) or len(words) % 2 == 0:
        reader.wrong(line, "is no connection", text, LINE)
        return None
    values: dict[str, int] = {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        if name in UNKNOWN:
            reader.wrong(line, f"{name} {UNKNOWN[name]}", text, LINE)
            return None
        if name not in ("id", "start", "size", "trigger", "recv_done_trigger") or name in values:
            reader.wrong(line, f"has a word too many, {name}", text, LINE)
            return None
        if not value.isdecimal() or int(value) >= MAX_INNER:
            reader.wrong(line, f"gives no number for {name}", value, LINE)
            return None
        values[name] = int(value)
    src, dst = map(int, ends)
    if src == dst:
        reader.wrong(line, "goes from a host to itself", text, "two different hosts")
    elif not values.get("size"):
        reader.wrong(line, "has no size", text, "size and a number of bytes above 0")
    elif ("start" in values) == ("trigger" in values):
        reader.wrong(line, "has not just one of start and trigger", text, LINE)
    else:
        return Connection(
            line, src, dst, values.get("id", line), values["size"], values.get("start", -1),
            values.get("trigger"), values.get("recv_done_trigger"),
        )  # fmt: skip
    return None


def _totals(reader: Reader, entries: Entries, hosts: int | None) -> None:
    """Whether the headers say what is there."""
    header = entries.header
    counts = {"Nodes": None, "Connections": len(entries.connections), "Triggers": len(entries.triggers)}
    for word, count in counts.items():
        if word not in header:
            if word != "Triggers":
                reader.wrong(None, f"does not say {word}", None, f"{word} and a number, at the top")
        elif count is not None and header[word][1] != count:
            reader.wrong(
                header[word][0], f"says {header[word][1]} {word}, but there are {count}", None, f"{count}"
            )
    if header.get("Failures", (0, 0))[1]:
        reader.wrong(
            header["Failures"][0], "has failures, which are not read from a matrix", None, "Failures 0"
        )
    if not entries.connections:
        reader.wrong(None, "has no connection", None, "at least one")
    if "Nodes" not in header:
        return
    line, nodes = header["Nodes"]
    if hosts is not None and nodes > hosts:
        reader.wrong(line, f"needs {nodes} hosts, but {hosts} take part", nodes, f"at most {hosts}")
    for each in entries.connections:
        if max(each.src, each.dst) >= nodes:
            reader.wrong(each.line, "names a node beyond Nodes", max(each.src, each.dst), f"0 to {nodes - 1}")


def _edges(reader: Reader, entries: Entries) -> list[tuple[int, int]]:
    """What triggers mean for the order of flows; notes what cannot be expressed."""
    firing: dict[int, list[int]] = {}
    waiting: dict[int, list[int]] = {}
    for position, each in enumerate(entries.connections):
        for named, found in ((each.fires, firing), (each.trigger, waiting)):
            if named is None:
                continue
            if named not in entries.triggers:
                reader.wrong(
                    each.line, "names a trigger that is not described", named, "a line trigger id N ..."
                )
            found.setdefault(named, []).append(position)
    edges: list[tuple[int, int]] = []
    for number, those in waiting.items():
        before = firing.get(number, [])
        trigger = entries.triggers.get(number)
        if trigger is None:
            continue
        if len(before) != trigger.count or (trigger.kind == "multishot" and len(those) > 1):
            what = (
                f"trigger {number} ({trigger.kind}) is fired by {len(before)} flows and starts {len(those)}"
            )
            expected = "as many flows that fire it as it needs, and one flow started by a multishot"
            reader.wrong(trigger.line, what, None, expected)
            continue
        for after in those:
            flow = entries.connections[after]
            if any(entries.connections[b].dst != flow.src for b in before):
                what = f"waits for trigger {number}, which fires at another host than {flow.src}"
                reader.wrong(flow.line, what, None, "triggers of deliveries to the sending host")
                break
            edges += [(b, after) for b in before]
    if not reader.mistakes:
        _acyclic(reader, entries.connections, edges)
    return edges


def _acyclic(reader: Reader, connections: list[Connection], edges: list[tuple[int, int]]) -> None:
    """Note flows that wait for each other in a circle."""
    order = _topological(len(connections), edges)
    if len(order) < len(connections):
        stuck = sorted(set(range(len(connections))) - set(order))
        reader.wrong(
            connections[stuck[0]].line, "waits for itself, by way of others", None, "no circle of triggers"
        )


def _topological(n: int, edges: list[tuple[int, int]]) -> list[int]:
    """Positions in an order in which each comes after what it waits for; those in a circle are left out."""
    left = [0] * n
    after: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges:
        after[a].append(b)
        left[b] += 1
    ready = deque(position for position in range(n) if not left[position])
    order = []
    while ready:
        position = ready.popleft()
        order.append(position)
        for other in after[position]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return order


def _sorted(n: int, start: Ints, edges: Ints, late: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """The flows in an order that `Flows` allows, without those that start too late and what waits for them; and the
    edges in that order."""
    pairs = edges.tolist()
    by_start = np.argsort(start, kind="stable")
    place = np.empty(n, dtype=np.int64)
    place[by_start] = np.arange(n)
    order = by_start[_topological(n, [(int(place[a]), int(place[b])) for a, b in pairs])]
    gone = late.copy()
    before: dict[int, list[int]] = {}
    for a, b in pairs:
        before.setdefault(b, []).append(a)
    for position in order.tolist():
        gone[position] |= any(gone[a] for a in before.get(position, []))
    order = order[~gone[order]]
    place = np.full(n, -1)
    place[order] = np.arange(len(order))
    kept = edges[~gone[edges[:, 1]]]
    return order, place[kept]
