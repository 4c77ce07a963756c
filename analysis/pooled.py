"""Pooled runs: several runs of one experiment, with seeds of their own, as one Result in which they follow each other.

What is asked of one run - means, percentiles, counts of ports, pairs of hosts - can then be asked of all of them
together, by the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.result import TABLES, Result

if TYPE_CHECKING:
    import pyarrow

COUNTED = ("messages", "iterations", "flows", "drops", "missing")
"""Tables of which every run's rows are kept; ports are summed, and what was sampled is the first run's."""
TIMES = ("start_ps", "end_ps", "released_ps", "forward_end_ps", "backward_end_ps", "time_ps")
"""Columns that say when, not how long."""
LARGEST = "peak_queue_bytes"
APART = 10**6
"""Iterations of a run are numbered from so many after those of the run before, however far that one came: a message is
then called the same in both worlds, though one of them was cut off in an earlier iteration."""


def pooled(runs: Sequence[Result]) -> Result:
    """The runs, one after the other in time; messages and iterations of later ones have numbers of their own: the third
    run's iteration 5 is 2,000,005.

    What ports have counted is summed, -1 (unknown) where one run does not know; a port's longest queue is the longest
    of all. Samples, delays, packets and the summary are those of the first run, but: totals are of all, the testbed was
    disturbed if it was in any run, the duration has ended them if it ended each, and `pooled` are their seeds.
    """
    if not runs:
        raise ResultError("is empty", "pooled(runs)", "one Result or several")
    first = runs[0]
    if len(runs) == 1:
        return first
    parts: dict[str, list[pyarrow.Table]] = {name: [] for name in COUNTED}
    ahead = {"_ps": 0, "message": 0, "iteration": 0}
    for run in runs:
        for name in COUNTED:
            parts[name].append(_later(getattr(run, name), ahead))
        tables = [parts["messages"][-1], parts["iterations"][-1]]
        reached = {what: max([ahead[what], *(_largest(table, what) + 1 for table in tables)]) for what in ahead}
        further = max(1, -(-(reached["iteration"] - ahead["iteration"]) // APART))
        ahead = {**reached, "iteration": ahead["iteration"] + further * APART}
    import pyarrow

    joined = {name: pyarrow.concat_tables(tables) for name, tables in parts.items()}
    others = {name: getattr(first, name) for name in TABLES if name not in (*COUNTED, "ports")}
    return Result(_summary(runs), **joined, **others, ports=_ports(runs), timing=first.timing, scenario=first.scenario)


def pooled_runs(result: Result) -> int:
    """How many runs a Result is of."""
    return len(result.summary.get("pooled", ())) or 1


def by_its_seed(result: Result, key: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """A key with an iteration at a place, for people: of pooled runs with that of its own run, and its seed before."""
    seeds, iteration = result.summary.get("pooled", ()), key[place]
    run, own = divmod(iteration, APART)
    if iteration < 0 or run >= len(seeds):
        return key
    named = (*key[:place], own, *key[place + 1 :])
    return f"seed {seeds[run]}: {named[0]}", *named[1:]


def _column(name: str) -> str:
    """What a column counts: "_ps", "message", "iteration", or nothing that runs have in common."""
    return "_ps" if name in TIMES else name


def _later(table: pyarrow.Table, ahead: dict[str, int]) -> pyarrow.Table:
    """The rows behind what earlier runs have taken; -1 stays what it is."""
    import pyarrow

    for place, name in enumerate(table.column_names):
        by = ahead.get(_column(name), 0)
        if by:
            field, values = table.schema.field(name), numpy_of(table[name])
            moved = np.where(values >= 0, values + by, values)
            table = table.set_column(place, field, pyarrow.array(moved, field.type))
    return table


def _largest(table: pyarrow.Table, what: str) -> int:
    columns = [name for name in table.column_names if _column(name) == what]
    return max((int(numpy_of(table[name]).max()) for name in columns if table.num_rows), default=-1)


def _ports(runs: Sequence[Result]) -> pyarrow.Table:
    """Every port that a run has, in the order in which they come."""
    import pyarrow

    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for row in run.ports.to_pylist():
            so_far = found.setdefault(row["port"], row)
            if so_far is row:
                continue
            for name, value in row.items():
                if name == LARGEST:
                    so_far[name] = max(so_far[name], value)
                elif name != "port":
                    so_far[name] = -1 if min(so_far[name], value) < 0 else so_far[name] + value
    return pyarrow.Table.from_pylist(list(found.values()), schema=runs[0].ports.schema)


def _summary(runs: Sequence[Result]) -> dict[str, Any]:
    first = runs[0].summary
    engines = [run.summary.get("engine", {}) for run in runs]
    engine = dict(engines[0])
    if not all(each.get("valid", True) for each in engines):
        disturbed = [
            f"seed {run.summary.get('seed')}: {reason}"
            for run, each in zip(runs, engines, strict=True)
            if not each.get("valid", True)
            for reason in each.get("disturbed", ()) or ["the testbed was disturbed"]
        ]
        engine |= {"valid": False, "disturbed": disturbed}
    totals = [run.summary.get("totals", {}) for run in runs]
    counted = [name for name, value in totals[0].items() if type(value) is int]
    counts = {name: sum(each.get(name, 0) for each in totals) for name in counted}
    finished = all(each.get("finished", True) for each in totals)
    ended = next((end for each in totals if (end := each.get("ended_by", "done")) != "duration"), "duration")
    totals_of_all = {**totals[0], **counts, "finished": finished, "ended_by": ended}
    return {**first, "engine": engine, "totals": totals_of_all, "pooled": [run.summary.get("seed") for run in runs]}
