"""Reads the printed output of nccl-tests and rccl-tests.

    #                                                              out-of-place                       in-place
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         1048576        262144     float     sum      -1    72.09   14.55   27.27      0    71.93   14.58   27.33      0

The line of names decides the columns, so older headers (`error` for `#wrong`, no `root`, no `redop`) are read as well.
Launchers' prefixes, such as "[1,0]<stdout>:" of mpirun or "0: " of srun, are removed; other lines are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import read_text

PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]\s*(?:<std\w+>)?:?|[\w.-]+:(?=\s))\s?")
NEEDED = ("size", "count", "time", "algbw", "busbw")
TEST = re.compile(r"Collective test starting:\s*(\w+)")
RANK = re.compile(r"^#\s+Rank\s+(\d+)\b")
EXPECTED = "the printed output of nccl-tests or rccl-tests, with its line of column names"


@dataclass(frozen=True)
class MeasuredRow:
    """A measured size: bytes, elements, out-of-place microseconds, algorithm and bus bandwidth in GB/s, and wrong
    values (-1: not checked). The `in_place` times are None if they were not measured."""

    size: int
    count: int
    time_us: float
    algbw: float
    busbw: float
    wrong: float
    in_place_us: float | None
    in_place_busbw: float | None


@dataclass(frozen=True)
class MeasuredTest:
    """One table of a log. `test` : its name such as "all_reduce", "" if the log does not say so; `ranks` : 0 if it does
    not list them. `skipped` : lines that look like rows but are damaged."""

    path: str
    test: str
    ranks: int
    rows: tuple[MeasuredRow, ...]
    skipped: int = 0


def read_log(path: Path) -> MeasuredTest:
    """Return the table of a log; if there are several, as of repeated runs, the last one.

    Raises ScenarioError if there is none.
    """
    ranks: set[int] = set()
    test, columns, skipped = "", [], 0
    rows: list[MeasuredRow] = []
    for line in read_text(path, EXPECTED).splitlines():
        words = _plain(line)
        if found := TEST.search(words):
            test = found[1].removesuffix("_perf")
        if found := RANK.match(words):
            ranks.add(int(found[1]))
        names = words.lstrip("# ").split()
        if words.startswith("#") and all(name in names for name in NEEDED):
            columns, rows, skipped = names, [], 0
        elif columns and words and words.split()[0].isdigit():
            row = _row(columns, words.split())
            if row is None:
                skipped += 1
            else:
                rows.append(row)
    if not columns:
        raise ScenarioError("has no table", str(path), EXPECTED)
    if not rows:
        what = f"has no whole line below its column names ({skipped} damaged)" if skipped else "has an empty table"
        raise ScenarioError(what, str(path), EXPECTED)
    return MeasuredTest(str(path), test, len(ranks), tuple(rows), skipped)


def _plain(line: str) -> str:
    """Return a line without a launcher's prefix and surrounding spaces."""
    stripped = line.strip()
    return PREFIX.sub("", stripped, count=1).strip() if not stripped.startswith("#") else stripped


def _row(columns: list[str], words: list[str]) -> MeasuredRow | None:
    """Return a line as a row; None if it is damaged."""
    if len(words) != len(columns):
        return None
    first: dict[str, str] = {}
    second: dict[str, str] = {}
    for name, word in zip(columns, words, strict=True):
        (second if name in first else first)[name] = word
    size, count, time, algbw, busbw = (_number(first[name]) for name in NEEDED)
    if size is None or count is None or time is None or algbw is None or busbw is None or time <= 0:
        return None
    wrong = _number(first.get("#wrong", first.get("error", "")))
    in_place, in_place_busbw = (_number(second.get(name, "")) for name in ("time", "busbw"))
    return MeasuredRow(
        int(size), int(count), time, algbw, busbw, -1.0 if wrong is None else wrong, in_place, in_place_busbw
    )


def _number(word: str) -> float | None:
    """Return a finite number that is not negative; None for other words, such as N/A."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None
