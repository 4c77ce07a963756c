"""Flow lists as HPCC's simulator reads them: the number of flows, then one flow a line.

    2
    0 1 3 100 20000 0.000001
    2 1 3 100 20000 0.0000015

that is: source, destination, priority group, destination port, bytes, start in seconds. Lists of ConWeave's simulator
have no port [recalled]; five words are read as such a line. Hosts are counted from 0. The first line says how many
flows are read; what follows them is skipped, as in the simulator, whose own list says 2 and has 256 [code].
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np

from gradwire.experiment.program import Ints
from gradwire.experiment.traffic.base import BATCH, Flows, Setting
from gradwire.experiment.traffic.kinds.flows import FlowList
from gradwire.experiment.traffic.reading import Reader
from gradwire.scenarios.units import MAX_INNER, S

MOST_HOSTS = 2**31  # where it is not known yet how many there are
LINE = "src dst group port bytes start-in-seconds"


def flow_list(setting: Setting, table: FlowList) -> Iterator[Flows]:
    """Flows of a `FlowList` table."""
    src, dst, nbytes, start = read(Path(table.file), f"{setting.where}.file", len(setting.hosts)).T
    order = np.argsort(start, kind="stable")
    start = start[order]
    if table.align:
        start = start - start[0]
    start = start + table.start
    kept = len(order) if setting.end_ps is None else int(np.searchsorted(start, setting.end_ps))
    for first in range(0, kept, BATCH):
        part = slice(first, min(kept, first + BATCH))
        rows = order[part]
        yield Flows(
            setting.hosts[src[rows]], setting.hosts[dst[rows]], nbytes[rows], start[part],
            np.zeros(len(rows), dtype=np.int64), rows,
        )  # fmt: skip


def read(path: Path, where: str, hosts: int | None) -> Ints:
    """int64[flows, 4]: source, destination, bytes, start in picoseconds; by line.

    Raises
    ------
    ScenarioError
        The file is missing or damaged; says in which lines. `hosts`: how many there are, None if that is not known yet.
    """
    reader = Reader(path, where)
    rows: list[tuple[int, int, int, int]] = []
    lines = reader.lines()
    number, words = next(lines, (None, [""]))
    count = _whole(words[0]) if len(words) == 1 else None
    if count is None:
        reader.wrong(number, "is no number of flows", " ".join(words), "the number of flows alone")
        count = -1
    for number, words in lines:
        if len(rows) >= count >= 0 and not reader.mistakes:
            break  # the simulators read no further
        flow = _flow(reader, number, words, hosts)
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


def _whole(word: str) -> int | None:
    """The whole number from 0 that a word is; None if it is none, or has digits beyond all measure."""
    return int(word) if word.isdecimal() and len(word) < 20 else None


def _flow(reader: Reader, line: int, words: list[str], hosts: int | None) -> tuple[int, int, int, int] | None:
    text = " ".join(words)
    if len(words) not in (5, 6):
        reader.wrong(line, f"has {len(words)} words", text, LINE)
        return None
    numbers = [_whole(word) for word in words[:-1]]
    src, dst, nbytes = numbers[0], numbers[1], numbers[-1]
    if src is None or dst is None or nbytes is None or None in numbers:
        reader.wrong(line, "has a word that is no whole number", text, LINE)
        return None
    try:
        exact = Decimal(words[-1]) * S
        start = round(exact) if 0 <= exact < MAX_INNER else -1  # rounding 1e999980 would take long
    except (ArithmeticError, ValueError):
        reader.wrong(line, "has no start", words[-1], "seconds, such as 0.001")
        return None
    if not 0 <= start < MAX_INNER or not 0 < nbytes < MAX_INNER:
        reader.wrong(
            line, "has a size or a start that is out of range", text, "bytes above 0, seconds from 0"
        )
    elif src == dst:
        reader.wrong(line, "goes from a host to itself", text, "two different hosts")
    elif max(src, dst) >= (MOST_HOSTS if hosts is None else hosts):
        known = MOST_HOSTS if hosts is None else hosts
        reader.wrong(line, "names a host that does not take part", max(src, dst), f"0 to {known - 1}")
    else:
        return src, dst, nbytes, start
    return None
