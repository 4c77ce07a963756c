"""Declares the traffic `matrix`, and reads its flows from a traffic matrix of htsim (.cm).

    Nodes 4
    Connections 3
    Triggers 1
    0->1 id 1 start 0 size 2000000 recv_done_trigger 1
    2->1 id 2 start 1000 size 2000000 recv_done_trigger 1
    1->3 id 3 trigger 1 size 1000000
    trigger id 1 barrier 2

Nodes are counted from 0. Starts are microseconds in htsim_uec of uet-htsim, which drops fractions of one, and
picoseconds in csg-htsim and in uet-htsim's own htsim_ndp and htsim_roce [code]. So the file does not determine the
unit, and the scenario has to set it (`start_unit`) unless all starts are 0. Fractions are kept here.

With `msg` a line is a message of the connection `id` (uet-htsim): lines of one id have the same ends. They may have
distinct numbers; htsim_uec always numbers messages by their order in the file [code]. The transport decides if they
share a window (`connections`).

A trigger fires when a flow has been received (`recv_done_trigger`), or when its sender learns of it
(`send_done_trigger`), and starts the flows that name it: `oneshot` the first time, `barrier n` the n-th time,
`multishot` one flow each time.

Here a flow can wait for its own host only. So a trigger is accepted if all flows that fire it do so at the host that
sends the flows it starts, as their receiver or their sender, and if their order does not matter: `oneshot` and
`multishot` with one firing flow, `barrier n` with n. A flow started this way enters the network one software latency
later; in htsim it does at once. Keywords without a counterpart (`prio`, `addon`, failures) are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.network.traffic import FileTraffic
from gradwire.scenarios.units import MAX_INNER, parse_decimal, parse_whole
from gradwire.workload.traffic.base import Flows, TrafficSetting
from gradwire.workload.traffic.text_reader import TextReader

HEADERS = ("Nodes", "Connections", "Triggers", "Failures")
LINE = "src->dst id N start TIME size BYTES"
NAMES = ("id", "msg", "start", "size", "trigger", "recv_done_trigger", "send_done_trigger")
MOST_DIGITS = 20
"""Digits of a start before the decimal point; more is out of range in any unit."""
UNNUMBERED = 0
"""Number of a message whose line has none; uet-htsim rejects this number itself [code]."""
KINDS = ("oneshot", "multishot", "barrier")
UNSUPPORTED = {
    "addon": "adds to a flow in flight, which is not supported",
    "prio": "is a priority of receivers' pulls, which is not supported",
}


PS_PER_UNIT = {"us": 1_000_000, "ps": 1}


class Matrix(FileTraffic):
    """A traffic matrix of htsim (.cm): `Nodes`, `Connections`, and lines `src->dst id N start TIME size BYTES`."""

    kind: Literal["matrix"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. A flow may wait for triggers that fire at its own host."""
    start_unit: Literal["us", "ps"] | None = None
    """Unit of `start` in the file: "us" as in htsim_uec of uet-htsim, which truncates to whole microseconds (here they
    are exact); "ps" as in csg-htsim, and in htsim_ndp, htsim_hpcc, htsim_eqds and htsim_roce of uet-htsim. The file
    does not contain it, so it is required unless every start is 0."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        connections, *_ = read_matrix(Path(self.file), f"{where}.file", hosts, self.start_unit)
        return "file", max((connection.nbytes for connection in connections), default=0)

    def check_hosts(self, setting: TrafficSetting) -> None:
        self.largest(setting.where, len(setting.hosts))

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        connections, edges, settled = read_matrix(
            Path(self.file), f"{setting.where}.file", len(setting.hosts), self.start_unit
        )
        start = np.array([self.start + max(0, connection.start) for connection in connections], dtype=np.int64)
        late = np.array([setting.is_over(begin) for begin in start.tolist()])
        order, edges, settled = _sorted(len(connections), start, edges, settled, late)
        if not len(order):
            return
        rows = [(item.src, item.dst, item.nbytes, item.flow) for item in connections]
        src, dst, nbytes, flow = np.array(rows, dtype=np.int64)[order].T
        none = np.zeros(len(order), dtype=np.int64)
        yield Flows(setting.hosts[src], setting.hosts[dst], nbytes, start[order], none, flow, edges, settled=settled)


@dataclass(frozen=True)
class Connection:
    """One flow of the file; `start` is -1 if it waits for `trigger`."""

    line: int
    src: int
    dst: int
    flow: int
    nbytes: int
    start: int
    trigger: int | None
    fires: int | None
    """The trigger that its delivery fires."""
    fires_done: int | None
    """The trigger that fires when its sender is done."""
    message: int | None
    """Its number if it is a message of a connection, UNNUMBERED if the line has none, else None."""
    named: bool
    """True if the file gives its `flow`, the id."""


@dataclass(frozen=True)
class Trigger:
    line: int
    kind: str
    count: int


@dataclass
class MatrixEntries:
    """Content of a file, line by line."""

    header: dict[str, tuple[int, int]] = field(default_factory=dict)
    """word -> (line, number)"""
    connections: list[Connection] = field(default_factory=list)
    triggers: dict[int, Trigger] = field(default_factory=dict)


def read_matrix(
    path: Path, where: str, hosts: int | None, unit: str | None = None
) -> tuple[list[Connection], Ints, Ints]:
    """Return the flows of a file, and their dependencies on deliveries and on senders: twice int64[m, 2] (before,
    after).

    hosts : number of hosts, None if unknown.
    unit : of starts, "us" or "ps"; None if the scenario does not set it.

    Raises ScenarioError if the file is missing, damaged, or not supported; the message names the lines.
    """
    reader = TextReader(path, where)
    entries = MatrixEntries()
    for number, words in reader.lines():
        if words[0] in HEADERS:
            _header(reader, number, words, entries)
        elif words[0] == "trigger":
            _trigger(reader, number, words, entries)
        elif "->" in words[0]:
            connection = _connection(reader, number, words, unit)
            if connection:
                entries.connections.append(connection)
        else:
            reader.wrong(number, "is not a line of a traffic matrix", " ".join(words), LINE)
    if not reader.mistakes:
        _totals(reader, entries, hosts)
        _messages(reader, entries)
    edges = [] if reader.mistakes else _edges(reader, entries)
    reader.finish("a traffic matrix that can be run")
    delivered, settled = (
        np.array([(before, after) for before, after, done in edges if done == which], dtype=np.int64).reshape(-1, 2)
        for which in (False, True)
    )
    return entries.connections, delivered, settled


def _header(reader: TextReader, line: int, words: list[str], entries: MatrixEntries) -> None:
    if len(words) != 2 or parse_whole(words[1]) is None:
        reader.wrong(line, "has no number", " ".join(words), f"{words[0]} and a number")
    elif words[0] in entries.header:
        reader.wrong(line, f"repeats the header {words[0]}", " ".join(words), "each header once")
    else:
        entries.header[words[0]] = (line, int(words[1]))


def _trigger(reader: TextReader, line: int, words: list[str], entries: MatrixEntries) -> None:
    expected = "trigger id N oneshot, multishot or barrier COUNT"
    kind = words[3] if len(words) > 3 else ""
    numbers = [words[2], *words[4:]] if len(words) > 3 else []
    if kind not in KINDS or words[1] != "id" or len(numbers) != 1 + (kind == "barrier"):
        reader.wrong(line, "is not a trigger", " ".join(words), expected)
    elif None in map(parse_whole, numbers):
        reader.wrong(line, "has a word that is not a number", " ".join(words), expected)
    elif int(numbers[0]) in entries.triggers:
        reader.wrong(line, "repeats a trigger", int(numbers[0]), "each trigger once")
    else:
        entries.triggers[int(numbers[0])] = Trigger(line, kind, int(numbers[-1]) if kind == "barrier" else 1)


def _connection(reader: TextReader, line: int, words: list[str], unit: str | None) -> Connection | None:
    text = " ".join(words)
    ends = words[0].split("->")
    values = _values(reader, line, words[1:])
    if values is None:
        return None
    if len(ends) != 2 or None in map(parse_whole, ends):
        reader.wrong(line, "is not a connection", text, LINE)
        return None
    start = _start(reader, line, values.get("start", "0"), unit)
    src, dst = map(int, ends)
    if start is None:
        return None
    if src == dst:
        reader.wrong(line, "goes from a host to itself", text, "two different hosts")
    elif not int(values.get("size", "0")):
        reader.wrong(line, "has no size", text, "size and a number of bytes above 0")
    elif ("start" in values) == ("trigger" in values):
        reader.wrong(line, "does not have exactly one of start and trigger", text, LINE)
    else:
        numbers = {name: int(values[name]) for name in values if name != "start"}
        start = start if "start" in values else -1
        flow, nbytes = numbers.get("id", line), numbers["size"]
        fired = numbers.get("trigger"), numbers.get("recv_done_trigger"), numbers.get("send_done_trigger")
        return Connection(line, src, dst, flow, nbytes, start, *fired, numbers.get("msg"), "id" in values)
    return None


def _values(reader: TextReader, line: int, words: list[str]) -> dict[str, str] | None:
    """Return the words of a connection by name; None if they are wrong. A `msg` without a number is UNNUMBERED."""
    values: dict[str, str] = {}
    position = 0
    while position < len(words):
        name, value = words[position], "".join(words[position + 1 : position + 2])
        position += 2
        if name == "msg" and not value[:1].isdecimal():
            value, position = str(UNNUMBERED), position - 1
        elif name == "msg" and parse_whole(value) == UNNUMBERED:
            reader.wrong(line, "has a message number of 0", " ".join(words), "msg alone, or a number from 1")
            return None
        if name in UNSUPPORTED:
            reader.wrong(line, f"{name} {UNSUPPORTED[name]}", " ".join(words), LINE)
        elif name not in NAMES or name in values:
            reader.wrong(line, f"has an unexpected word, {name}", " ".join(words), LINE)
        elif name != "start" and ((number := parse_whole(value)) is None or number >= MAX_INNER):
            reader.wrong(line, f"has no number for {name}", value, LINE)
        else:
            values[name] = value
            continue
        return None
    return values


def _start(reader: TextReader, line: int, text: str, unit: str | None) -> int | None:
    """Return a start in picoseconds; None if it is invalid, or if its unit is unknown."""
    value = parse_decimal(text)
    if value is None or value < 0:
        reader.wrong(line, "has no number for start", text, LINE)
        return None
    if value == 0:
        return 0
    if unit is None:
        expected = 'start_unit = "us" in the scenario for a file of uet-htsim, or "ps" for one of csg-htsim'
        reader.wrong(line, "has a start without a unit", text, expected)
        return None
    if value.adjusted() > MOST_DIGITS or value * PS_PER_UNIT[unit] >= MAX_INNER:
        reader.wrong(line, f"has a start out of range, in {unit}", text, LINE)
        return None
    return round(value * PS_PER_UNIT[unit])


def _messages(reader: TextReader, entries: MatrixEntries) -> None:
    """Check lines with the same id: messages of one connection, each with a different number."""
    connections: dict[int, Connection] = {}
    numbers: set[tuple[int, int]] = set()
    for item in entries.connections:
        if not item.named:
            continue
        first = connections.setdefault(item.flow, item)
        if item.message not in (None, UNNUMBERED):
            if (item.flow, item.message) in numbers:
                what = f"repeats message {item.message} of id {item.flow}"
                reader.wrong(item.line, what, None, "each message of a connection once")
            numbers.add((item.flow, item.message))
        if first is item:
            continue
        if item.message is None or first.message is None:
            what = f"has the id {item.flow} of line {first.line}"
            reader.wrong(item.line, what, None, "a different id, or msg in both lines")
        elif (item.src, item.dst) != (first.src, first.dst):
            what = f"is a message of id {item.flow}, which goes from {first.src} to {first.dst} in line {first.line}"
            reader.wrong(item.line, what, None, "the same ends")


def _totals(reader: TextReader, entries: MatrixEntries, hosts: int | None) -> None:
    header = entries.header
    counts = {"Nodes": None, "Connections": len(entries.connections), "Triggers": len(entries.triggers)}
    for word, count in counts.items():
        if word not in header:
            if word != "Triggers":
                reader.wrong(None, f"has no header {word}", None, f"{word} and a number, at the top")
        elif count is not None and header[word][1] != count:
            reader.wrong(
                header[word][0], f"announces {header[word][1]} {word}, but there are {count}", None, f"{count}"
            )
    if header.get("Failures", (0, 0))[1]:
        reader.wrong(header["Failures"][0], "has failures, which are not supported", None, "Failures 0")
    if not entries.connections:
        reader.wrong(None, "has no connection", None, "at least one")
    if "Nodes" not in header:
        return
    line, nodes = header["Nodes"]
    if hosts is not None and nodes > hosts:
        reader.wrong(line, f"needs {nodes} hosts, but {hosts} take part", nodes, f"at most {hosts}")
    for item in entries.connections:
        if max(item.src, item.dst) >= nodes:
            reader.wrong(item.line, "names a node beyond Nodes", max(item.src, item.dst), f"0 to {nodes - 1}")


def _edges(reader: TextReader, entries: MatrixEntries) -> list[tuple[int, int, bool]]:
    """Return the order of flows set by triggers: (before, after, True if the sender of `before` has to be done).

    Record a mistake for unsupported triggers."""
    firing: dict[int, list[tuple[int, bool]]] = {}
    waiting: dict[int, list[int]] = {}
    for position, item in enumerate(entries.connections):
        for trigger_id, done in ((item.fires, False), (item.fires_done, True), (item.trigger, None)):
            if trigger_id is None:
                continue
            if trigger_id not in entries.triggers:
                reader.wrong(item.line, "names an undefined trigger", trigger_id, "a line trigger id N ...")
            if done is None:
                waiting.setdefault(trigger_id, []).append(position)
            else:
                firing.setdefault(trigger_id, []).append((position, done))
    edges: list[tuple[int, int, bool]] = []
    for number, started in waiting.items():
        before = firing.get(number, [])
        trigger = entries.triggers.get(number)
        if trigger is None:
            continue
        if len(before) != trigger.count or (trigger.kind == "multishot" and len(started) > 1):
            what = f"trigger {number} ({trigger.kind}) is fired by {len(before)} flows and starts {len(started)}"
            expected = "as many firing flows as it needs, and one started flow for a multishot"
            reader.wrong(trigger.line, what, None, expected)
            continue
        for after in started:
            flow = entries.connections[after]
            ends = [(entries.connections[position], done) for position, done in before]
            if any((item.src if done else item.dst) != flow.src for item, done in ends):
                what = f"waits for trigger {number}, which fires at another host than {flow.src}"
                reader.wrong(flow.line, what, None, "triggers that fire at the sending host")
                break
            edges += [(b, after, done) for b, done in before]
    if not reader.mistakes:
        order = _topological(len(entries.connections), [(before, after) for before, after, _ in edges])
        if stuck := sorted(set(range(len(entries.connections))) - set(order)):
            line = entries.connections[stuck[0]].line
            reader.wrong(line, "waits for itself, through others", None, "triggers without a cycle")
    return edges


def _topological(n: int, edges: list[tuple[int, int]]) -> list[int]:
    """Return positions in topological order; those in a cycle are left out."""
    sorter = TopologicalSorter(dict.fromkeys(range(n), ()))
    for before, after in edges:
        sorter.add(after, before)
    with suppress(CycleError):
        sorter.prepare()
    order: list[int] = []
    while ready := sorter.get_ready():
        order += ready
        sorter.done(*ready)
    return order


def _sorted(n: int, start: Ints, edges: Ints, settled: Ints, late: Flags) -> tuple[Ints, Ints, Ints]:
    """Return the flows in an order that `Flows` allows, without late ones and their successors, and both kinds of
    edges in that order."""
    pairs = [*edges.tolist(), *settled.tolist()]
    by_start = np.argsort(start, kind="stable")
    index_of = np.empty(n, dtype=np.int64)
    index_of[by_start] = np.arange(n)
    order = by_start[_topological(n, [(int(index_of[a]), int(index_of[b])) for a, b in pairs])]
    excluded = late.copy()
    before: dict[int, list[int]] = {}
    for a, b in pairs:
        before.setdefault(b, []).append(a)
    for position in order.tolist():
        excluded[position] |= any(excluded[a] for a in before.get(position, []))
    order = order[~excluded[order]]
    index_of = np.full(n, -1)
    index_of[order] = np.arange(len(order))
    kept, kept_settled = (pairs[~excluded[pairs[:, 1]]] for pairs in (edges, settled))
    return order, index_of[kept], index_of[kept_settled]
