"""Flow lists as HPCC's simulator reads them: the number of flows, then one flow a line.

    2
    0 1 3 100 20000 0.000001
    2 1 3 100 20000 0.0000015

that is: source, destination, priority group, destination port, bytes, start in seconds. Lists of ConWeave's simulator
have no port [recalled]; five words are read as such a line, and a list has lines of one length. The first line says how
many flows are read; what follows them is skipped, as in the simulator, whose own list says 2 and has 256 [code].

Ends are node ids where the topology is read from a file that numbers its nodes (kind "hpcc"): hosts and switches are
numbered together there. Elsewhere hosts are counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gradwire.experiment.program import Ints
from gradwire.experiment.traffic.base import ABSENT, BATCH, Flows, Setting
from gradwire.experiment.traffic.kinds.flows import FlowList
from gradwire.experiment.traffic.reading import Reader
from gradwire.scenarios.units import MAX_INNER, S, parse_decimal, parse_whole

MOST_HOSTS = 2**31  # where it is not known yet how many there are
LINE, SHORT_LINE = "src dst group port bytes start-in-seconds", "src dst group bytes start-in-seconds"
WIDTHS = (5, 6)
"""Words of a line, without the port and with it."""


def flow_list(setting: Setting, table: FlowList) -> Iterator[Flows]:
    """Flows of a `FlowList` table."""
    hosts = setting.hosts if setting.node_hosts is None else setting.node_hosts
    rows = read(Path(table.file), f"{setting.where}.file", len(setting.hosts), setting.node_hosts)
    src, dst, nbytes, start = rows.T
    order = np.argsort(start, kind="stable")
    start = start[order]
    if table.align:
        start = start - start[0]
    start = start + table.start
    kept = len(order) if setting.end_ps is None else int(np.searchsorted(start, setting.end_ps))
    for first in range(0, kept, BATCH):
        part = slice(first, min(kept, first + BATCH))
        flow = order[part]
        yield Flows(
            hosts[src[flow]], hosts[dst[flow]], nbytes[flow], start[part], np.zeros(len(flow), dtype=np.int64), flow,
        )  # fmt: skip


def read(path: Path, where: str, hosts: int | None, node_hosts: Ints | None = None) -> Ints:
    """Return the flows of a file.

    Parameters
    ----------
    path : the file.
    where : the key of the scenario that names it, for messages.
    hosts : how many take part; None if that is unknown before the network has been read.
    node_hosts : `Setting.node_hosts` where the ends are node ids of the topology's file.

    Returns
    -------
    int64[flows, 4]
        Source and destination as the file numbers them, bytes, start in picoseconds; by line.

    Raises
    ------
    ScenarioError
        The file is missing or damaged; says in which lines.
    """
    reader = Reader(path, where)
    ends = _Ends(hosts, node_hosts)
    rows: list[tuple[int, int, int, int]] = []
    width = 0
    lines = reader.lines()
    number, words = next(lines, (None, [""]))
    count = parse_whole(words[0]) if len(words) == 1 else None
    if count is None:
        reader.wrong(number, "is no number of flows", " ".join(words), "the number of flows alone")
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
            reader.wrong(
                1, f"says {count} flows, but {len(rows)} follow", count, f"{len(rows)}, or other lines"
            )
        elif not rows:
            reader.wrong(1, "says that there is no flow", count, "at least one")
    reader.finish("a flow list")
    return np.array(rows, dtype=np.int64)


class _Ends:
    """The numbers that may be ends of flows: node ids of the topology's file, or the hosts counted from 0."""

    def __init__(self, hosts: int | None, node_hosts: Ints | None) -> None:
        self.hosts = MOST_HOSTS if hosts is None else hosts
        self.node_hosts = node_hosts

    def fault(self, number: int) -> tuple[str, str] | None:
        """Return what is wrong with a number and what is expected; None if it is a host that takes part."""
        if self.node_hosts is None:
            expected = f"0 to {self.hosts - 1}"
            return None if number < self.hosts else ("names a host that does not take part", expected)
        expected = "the id that a host has in the topology's file"
        if number >= len(self.node_hosts):
            return "names a node that the topology does not have", f"{expected}, at most {len(self.node_hosts) - 1}"
        if self.node_hosts[number] == ABSENT:
            return "names a host that does not take part", f"{expected}, of one of `hosts`"
        return None if self.node_hosts[number] >= 0 else ("names a switch of the topology", expected)


def _flow(reader: Reader, line: int, words: list[str], ends: _Ends) -> tuple[int, int, int, int] | None:
    text = " ".join(words)
    if len(words) not in WIDTHS:
        reader.wrong(line, f"has {len(words)} words", text, LINE)
        return None
    numbers = [parse_whole(word) for word in words[:-1]]
    src, dst, nbytes = numbers[0], numbers[1], numbers[-1]
    if src is None or dst is None or nbytes is None or None in numbers:
        reader.wrong(line, "has a word that is no whole number", text, LINE)
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
        reader.wrong(
            line, "has a size or a start that is out of range", text, "bytes above 0, seconds from 0"
        )
    elif src == dst:
        reader.wrong(line, "goes from a host to itself", text, "two different hosts")
    elif fault := ends.fault(src) or ends.fault(dst):
        reader.wrong(line, fault[0], src if ends.fault(src) else dst, fault[1])
    else:
        return src, dst, nbytes, start
    return None
