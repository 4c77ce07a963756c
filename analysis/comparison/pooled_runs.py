"""`pooled` concatenates runs of one experiment with different seeds into one Result.

The runs follow each other in time, so the functions for one run (means, percentiles, ports, pairs of hosts) apply to
all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ResultError

if TYPE_CHECKING:
    import pyarrow

CONCATENATED_TABLES = ("messages", "iterations", "flows", "drops", "missing")
"""Tables that hold the rows of every run; ports are summed, and samples are those of the first run."""
TIMES = ("start_ps", "end_ps", "released_ps", "forward_end_ps", "backward_end_ps", "time_ps")
"""Columns with points in time, not durations."""
MAXIMUM_COLUMN = "peak_queue_bytes"
ITERATION_OFFSET = 10**6
"""Offset between the iteration numbers of successive runs, however far a run came: a message then has the same number
in both worlds, even if one of them was cut off in an earlier iteration."""


def pooled(runs: Sequence[Result]) -> Result:
    """Concatenate runs in time; later runs get new message and iteration numbers.

    The third run's iteration 5 is 2,000,005. Counters of ports are summed, -1 (unknown) if one run does not know; a
    port's longest queue is the longest of all. Samples, delays, packets and the summary are those of the first run,
    except that totals cover all runs, the testbed counts as disturbed if it was in any run, "duration" ended them only
    if it ended each, and `pooled` lists their seeds.
    """
    if not runs:
        raise ResultError("is empty", "pooled(runs)", "one Result or several")
    first = runs[0]
    if len(runs) == 1:
        return first
    parts: dict[str, list[pyarrow.Table]] = {name: [] for name in CONCATENATED_TABLES}
    ahead = {"_ps": 0, "message": 0, "iteration": 0}
    for run in runs:
        for name in CONCATENATED_TABLES:
            parts[name].append(_later(getattr(run, name), ahead))
        tables = [parts["messages"][-1], parts["iterations"][-1]]
        reached = {what: max([ahead[what], *(_largest(table, what) + 1 for table in tables)]) for what in ahead}
        further = max(1, -(-(reached["iteration"] - ahead["iteration"]) // ITERATION_OFFSET))
        ahead = {**reached, "iteration": ahead["iteration"] + further * ITERATION_OFFSET}
    import pyarrow

    joined = {name: pyarrow.concat_tables(tables) for name, tables in parts.items()}
    others = {name: getattr(first, name) for name in TABLES if name not in (*CONCATENATED_TABLES, "ports")}
    return Result(_summary(runs), **joined, **others, ports=_ports(runs), timing=first.timing, scenario=first.scenario)


def pooled_run_count(result: Result) -> int:
    """Return the number of runs in a Result."""
    return len(result.summary.get("pooled", ())) or 1


def key_with_seed(result: Result, key: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """Return a readable key: in pooled runs with its run's own iteration number (at `place`), and its seed in front."""
    seeds, iteration = result.summary.get("pooled", ()), key[place]
    run, iteration_in_run = divmod(iteration, ITERATION_OFFSET)
    if iteration < 0 or run >= len(seeds):
        return key
    named = (*key[:place], iteration_in_run, *key[place + 1 :])
    return f"seed {seeds[run]}: {named[0]}", *named[1:]


def _column(name: str) -> str:
    """Return the counter that a column belongs to: "_ps" for times, else its own name."""
    return "_ps" if name in TIMES else name


def _later(table: pyarrow.Table, ahead: dict[str, int]) -> pyarrow.Table:
    """Shift rows behind those of earlier runs; -1 is unchanged."""
    import pyarrow

    for index, name in enumerate(table.column_names):
        shift = ahead.get(_column(name), 0)
        if shift:
            field, values = table.schema.field(name), to_numpy(table[name])
            shifted = np.where(values >= 0, values + shift, values)
            table = table.set_column(index, field, pyarrow.array(shifted, field.type))
    return table


def _largest(table: pyarrow.Table, what: str) -> int:
    columns = [name for name in table.column_names if _column(name) == what]
    return max((int(to_numpy(table[name]).max()) for name in columns if table.num_rows), default=-1)


def _ports(runs: Sequence[Result]) -> pyarrow.Table:
    """Return every port that a run has, in order of appearance."""
    import pyarrow

    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        for row in run.ports.to_pylist():
            total = rows.setdefault(row["port"], row)
            if total is row:
                continue
            for name, value in row.items():
                if name == MAXIMUM_COLUMN:
                    total[name] = max(total[name], value)
                elif name != "port":
                    total[name] = -1 if min(total[name], value) < 0 else total[name] + value
    return pyarrow.Table.from_pylist(list(rows.values()), schema=runs[0].ports.schema)


def _summary(runs: Sequence[Result]) -> dict[str, Any]:
    first = runs[0].summary
    engines = [run.summary.get("engine", {}) for run in runs]
    engine = dict(engines[0])
    disturbed = [
        f"seed {run.summary.get('seed')}: {reason}"
        for run, engine_of_run in zip(runs, engines, strict=True)
        if not engine_of_run.get("valid", True)
        for reason in engine_of_run.get("disturbed", ()) or ["the testbed was disturbed"]
    ]
    if disturbed:
        engine |= {"valid": False, "disturbed": disturbed}
    totals = [run.summary.get("totals", {}) for run in runs]
    counter_names = [name for name, value in totals[0].items() if type(value) is int]
    counts = {name: sum(totals_of_run.get(name, 0) for totals_of_run in totals) for name in counter_names}
    finished = all(totals_of_run.get("finished", True) for totals_of_run in totals)
    ends = (totals_of_run.get("ended_by", "done") for totals_of_run in totals)
    ended = next((end for end in ends if end != "duration"), "duration")
    totals_of_all = {**totals[0], **counts, "finished": finished, "ended_by": ended}
    return {**first, "engine": engine, "totals": totals_of_all, "pooled": [run.summary.get("seed") for run in runs]}
