"""Compares port counters (drops, marks) of a simulated and an emulated run, per port, in total and by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gradwire.analysis.fidelity.fidelity_measure import PACKETS, Measure, only_in_one, relative
from gradwire.analysis.metrics import DROPS
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.schema.fidelity import Fidelity

COUNTERS = ("packets", "bytes", *DROPS, "marks", "peak_queue_bytes")
CAUSES = {**DROPS, "marks": "marks"}
ALWAYS_SHOWN = ("drops_tail", "drops_selective", "marks")
"""Figures that appear even if they are zero."""


def ports_of(sim: Result, emu: Result) -> tuple[list[Json], list[str]]:
    """Return [sim, emu] of every counter of every port that both runs have, and the faults of the other ports."""
    tables = [
        {row["port"]: row for row in result.ports.select(["port", *COUNTERS]).to_pylist()} for result in (sim, emu)
    ]
    faults = list(only_in_one("ports", tables, lambda name: (name,)))
    both = [name for name in tables[0] if name in tables[1]]
    ports = [
        {"port": name, **{counter: [table[name][counter] for table in tables] for counter in COUNTERS}} for name in both
    ]
    return ports, faults


def packet_measures(ports: Sequence[JsonView], tolerances: Fidelity) -> Iterator[Measure]:
    """Yield drops (in all and by cause) and marks: at all ports together, and at each."""
    for counter, words in CAUSES.items():
        what = "marks" if counter == "marks" else "drops"
        tolerance = getattr(tolerances, what)
        slack = getattr(tolerances, f"{what}_packets")
        pairs = [port[counter] for port in ports]
        total = [-1 if any(pair[side] < 0 for pair in pairs) else sum(p[side] for p in pairs) for side in (0, 1)]
        if counter not in ALWAYS_SHOWN and total == [0, 0]:
            continue
        # One packet more or less before it decides whether a packet is dropped selectively or at the tail, so only the
        # sum over the causes is judged.
        whole = what == "marks"
        where = "all ports" if whole else f"all ports, {words}"
        yield _count(what, where, total, tolerance if whole else None, slack)
        for port, pair in zip(ports, pairs, strict=True):
            if pair != [0, 0] and min(pair) >= 0:
                where = port["port"] if whole else f"{port['port']}, {words}"
                yield _count(what, where, pair, tolerance if whole and tolerances.per_port else None, slack)
    per_port = {
        port["port"]: [sum(max(0, port[counter][side]) for counter in DROPS) for side in (0, 1)] for port in ports
    }
    unknown = any(min(port[counter]) < 0 for port in ports for counter in DROPS)
    total = [-1 if unknown else sum(pair[side] for pair in per_port.values()) for side in (0, 1)]
    yield _count("drops", "all ports", total, tolerances.drops, tolerances.drops_packets)
    if tolerances.per_port:
        for name, pair in per_port.items():
            if pair != [0, 0]:
                yield _count("drops", name, pair, tolerances.drops, tolerances.drops_packets)


def _count(what: str, where: str, pair: Sequence[int], tolerance: float | None, slack: int) -> Measure:
    one, other = pair
    apart = None if min(pair) < 0 else relative(one, other)
    return Measure(what, where, PACKETS, one, other, apart, tolerance, slack)


def classes(sim: Result, emu: Result) -> list[Json]:
    """Return, by priority, drops recorded one by one and data that arrived marked."""
    drops, marked = [], []
    for result in (sim, emu):
        counted = sum(int(np.maximum(to_numpy(result.ports[counter]), 0).sum()) for counter in DROPS)
        by_priority = Counter(result.drops["priority"].to_pylist())
        drops.append(by_priority if by_priority.total() == counted else None)
        marks: Counter[int] = Counter()
        columns = [result.messages[name].to_pylist() for name in ("priority", "marked")]
        for priority, count in zip(*columns, strict=True):
            marks[priority] += count
        marked.append(marks if min(columns[1], default=0) >= 0 else None)
    tables = [table for table in (*drops, *marked) if table is not None]
    used = sorted({priority for table in tables for priority, count in table.items() if count})
    return [
        {
            "priority": priority,
            "drops": [-1 if table is None else table[priority] for table in drops],
            "marked": [-1 if table is None else table[priority] for table in marked],
        }
        for priority in used
    ]
