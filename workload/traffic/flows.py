"""Declares the traffic `flows`, and reads its list of flows from a file in the format of HPCC's simulator. The file
holds the number of flows, then one flow per line.

    2
    0 1 3 100 20000 0.000001
    2 1 3 100 20000 0.0000015

A line has source, destination, priority group, destination port, bytes, start in seconds. Lists of ConWeave's simulator
have no port [recalled]; lines of five words are read this way, and all lines of a list have the same length. The first
line is the number of flows to read; the rest is skipped, as in the simulator, whose own list says 2 and has 256 [code].

Ends are node ids if the topology is read from a file that numbers its nodes (kind "hpcc"), where hosts and switches are
numbered together. Otherwise hosts are counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.network.traffic import FileTraffic
from gradwire.scenarios.units import MAX_INNER, S, parse_decimal, parse_whole
from gradwire.workload.traffic.base import ABSENT, BATCH_FLOWS, Flows, TrafficSetting
from gradwire.workload.traffic.text_reader import TextReader

MOST_HOSTS = 2**31  # until the number of hosts is known
LINE, SHORT_LINE = "src dst group port bytes start-in-seconds", "src dst group bytes start-in-seconds"
WIDTHS = (5, 6)
"""Words of a line, without the port and with it."""


class FlowList(FileTraffic):
    """Flows from a file in the format of HPCC: their number, then lines `src dst group port bytes start-in-seconds`."""

    kind: Literal["flows"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. Lines without the port, as in ConWeave, are accepted; all lines have the
    same number of words. The group and the port are ignored: `priority` sets the queue. In a topology of kind "hpcc"
    the ends are its node ids and `hosts` lists the allowed ones; otherwise they count `hosts` from 0, in order."""
    align: Flag = False
    """If true, times of the file are shifted so that the first flow starts at `start`."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        return "file", int(read_flow_list(Path(self.file), f"{where}.file", hosts)[:, 2].max(initial=0))

    def check_hosts(self, setting: TrafficSetting) -> None:
        read_flow_list(Path(self.file), f"{setting.where}.file", len(setting.hosts), setting.node_hosts)

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        hosts = setting.hosts if setting.node_hosts is None else setting.node_hosts
        rows = read_flow_list(Path(self.file), f"{setting.where}.file", len(setting.hosts), setting.node_hosts)
        src, dst, nbytes, start = rows.T
        order = np.argsort(start, kind="stable")
        start = start[order]
        if self.align:
            start = start - start[0]
        start = start + self.start
        count = len(order) if setting.end_ps is None else int(np.searchsorted(start, setting.end_ps))
        for first in range(0, count, BATCH_FLOWS):
            part = slice(first, min(count, first + BATCH_FLOWS))
            flow = order[part]
            yield Flows(
                hosts[src[flow]], hosts[dst[flow]], nbytes[flow], start[part], np.zeros(len(flow), dtype=np.int64), flow
            )


def read_flow_list(path: Path, where: str, hosts: int | None, node_hosts: Ints | None = None) -> Ints:
    """Return the flows of a file, int64[flows, 4]: the ends as the file numbers them, bytes, start in picoseconds.

    where : the key of the scenario that names it, for messages.
    hosts : number of participating hosts; None if unknown before the network has been read.
    node_hosts : `TrafficSetting.node_hosts` if the ends are node ids of the topology's file.

    Raises ScenarioError if the file is missing or damaged; the message names the lines.
    """
    reader = TextReader(path, where)
    ends = _Ends(hosts, node_hosts)
    rows: list[tuple[int, int, int, int]] = []
    width = 0
    lines = reader.lines()
    number, words = next(lines, (None, [""]))
    count = parse_whole(words[0]) if len(words) == 1 else None
    if count is None:
        reader.wrong(number, "is not a number of flows", " ".join(words), "a line with the number of flows only")
        count = -1
    for number, words in lines:
        if len(rows) >= count >= 0 and not reader.mistakes:
            break  # the simulators read no further
        if width and width != len(words) in WIDTHS:
            expected = f"{width} words in every line, as in the first: {LINE if width == 6 else SHORT_LINE}"
            reader.wrong(number, f"has {len(words)} words", " ".join(words), expected)
            continue
        width = width or (len(words) if len(words) in WIDTHS else 0)
        flow = _flow(reader, number, words, ends)
        if flow:
            rows.append(flow)
    if not reader.mistakes:
        if len(rows) != count:
            reader.wrong(1, f"announces {count} flows, but {len(rows)} follow", count, f"{len(rows)}, or other lines")
        elif not rows:
            reader.wrong(1, "announces no flows", count, "at least one")
    reader.finish("a flow list")
    return np.array(rows, dtype=np.int64)


class _Ends:
    """Valid ends of flows: node ids of the topology's file, or the hosts counted from 0."""

    def __init__(self, hosts: int | None, node_hosts: Ints | None) -> None:
        self.hosts = MOST_HOSTS if hosts is None else hosts
        self.node_hosts = node_hosts

    def fault(self, number: int) -> tuple[str, str] | None:
        """Return the fault of a number and the expected value; None if it is a participating host."""
        if self.node_hosts is None:
            expected = f"0 to {self.hosts - 1}"
            return None if number < self.hosts else ("names a host that does not take part", expected)
        expected = "the id of a host in the topology's file"
        if number >= len(self.node_hosts):
            return "names a node that the topology does not have", f"{expected}, at most {len(self.node_hosts) - 1}"
        if self.node_hosts[number] == ABSENT:
            return "names a host that does not take part", f"{expected}, of one of `hosts`"
        return None if self.node_hosts[number] >= 0 else ("names a switch of the topology", expected)


def _flow(reader: TextReader, line: int, words: list[str], ends: _Ends) -> tuple[int, int, int, int] | None:
    text = " ".join(words)
    if len(words) not in WIDTHS:
        reader.wrong(line, f"has {len(words)} words", text, LINE)
        return None
    numbers = [parse_whole(word) for word in words[:-1]]
    src, dst, nbytes = numbers[0], numbers[1], numbers[-1]
    if src is None or dst is None or nbytes is None or None in numbers:
        reader.wrong(line, "has a word that is not a whole number", text, LINE)
        return None
    seconds = parse_decimal(words[-1])
    try:
        exact = seconds * S if seconds is not None else None
    except ArithmeticError:
        exact = None
    if exact is None:
        reader.wrong(line, "has no start", words[-1], "seconds, such as 0.001")
        return None
    start = round(exact) if 0 <= exact < MAX_INNER else -1  # rounding 1e999980 would take long
    if not 0 <= start < MAX_INNER or not 0 < nbytes < MAX_INNER:
        reader.wrong(line, "has a size or a start that is out of range", text, "bytes above 0, seconds from 0")
    elif src == dst:
        reader.wrong(line, "goes from a host to itself", text, "two different hosts")
    elif fault := ends.fault(src) or ends.fault(dst):
        reader.wrong(line, fault[0], src if ends.fault(src) else dst, fault[1])
    else:
        return src, dst, nbytes, start
    return None
