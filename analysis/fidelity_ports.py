"""What the ports of a simulated and an emulated network have counted, side by side; see
`gradwire.analysis.fidelity`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gradwire.analysis.fidelity_measure import PACKETS, Measure, examples, relative
from gradwire.analysis.metrics import DROPS
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.result import Result
from gradwire.scenarios.schema.fidelity import Fidelity

COUNTERS = ("packets", "bytes", *DROPS, "marks", "peak_queue_bytes")
CAUSES = {**DROPS, "marks": "marks"}
ALWAYS = ("drops_tail", "drops_selective", "marks")
"""Figures that are shown even if there is nothing of them."""


def ports_of(sim: Result, emu: Result) -> tuple[list[Json], list[str]]:
    """[sim, emu] of every counter of every port that both runs have; and what is wrong with the others."""
    tables = [
        {row["port"]: row for row in result.ports.select(["port", *COUNTERS]).to_pylist()}
        for result in (sim, emu)
    ]
    faults = []
    for one, other, words in ((0, 1, "simulated"), (1, 0, "emulated")):
        alone = [(name,) for name in tables[one] if name not in tables[other]]
        if alone:
            faults.append(f"{len(alone)} ports were {words} only: {examples(alone)}")
    both = [name for name in tables[0] if name in tables[1]]
    ports = [
        {"port": name, **{counter: [table[name][counter] for table in tables] for counter in COUNTERS}}
        for name in both
    ]
    return ports, faults


def packets(ports: Sequence[JsonView], tolerances: Fidelity) -> Iterator[Measure]:
    """Drops, in all and by cause, and marks: at all ports together, and at each."""
    for counter, words in CAUSES.items():
        what = "marks" if counter == "marks" else "drops"
        tolerance = getattr(tolerances, what)
        slack = getattr(tolerances, f"{what}_packets")
        pairs = [port[counter] for port in ports]
        total = [
            -1 if any(pair[side] < 0 for pair in pairs) else sum(p[side] for p in pairs) for side in (0, 1)
        ]
        if counter not in ALWAYS and total == [0, 0]:
            continue
        # Whether a packet that has no place is dropped by choice or for want of room is a matter of one packet more or
        # less before it, so the sum over the causes is judged.
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
    """By priority: drops that were seen one by one, and data that arrived marked."""
    drops, marked = [], []
    for result in (sim, emu):
        counted = sum(int(np.maximum(numpy_of(result.ports[counter]), 0).sum()) for counter in DROPS)
        each = Counter(result.drops["priority"].to_pylist())
        drops.append(each if each.total() == counted else None)
        found: Counter[int] = Counter()
        columns = [result.messages[name].to_pylist() for name in ("priority", "marked")]
        for priority, many in zip(*columns, strict=True):
            found[priority] += many
        marked.append(found if min(columns[1], default=0) >= 0 else None)
    tables = [each for each in (*drops, *marked) if each is not None]
    used = sorted({priority for each in tables for priority, many in each.items() if many})
    return [
        {
            "priority": priority,
            "drops": [-1 if each is None else each[priority] for each in drops],
            "marked": [-1 if each is None else each[priority] for each in marked],
        }
        for priority in used
    ]
