"""Checks a Result's tables for consistency with each other and with its summary, when a Result is read.

The checks reject errors that no single column shows: iterations that do not follow each other, exposed time that is not
the difference of the others, ideal times of messages that are not flows, and row counts that differ from the totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.reader import RESULT_EXPECTED
from gradwire.scenarios.errors import ResultError

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.arrays import Flags, Ints

Tables = Mapping[str, "pyarrow.Table"]


def check_consistency(summary: Mapping[str, Any], tables: Tables, folder: Path) -> None:
    """Check tables against each other and against the totals in the summary. Raises ResultError if a table is
    inconsistent; with its first such row, or the two counts."""
    _check_iterations(summary, tables["iterations"], folder / "iterations.parquet")
    is_emulated = _is_emulated(summary)
    _check_messages(tables, folder)
    if not is_emulated:  # clocks of several machines may differ
        start, end = (to_numpy(tables["messages"][name]) for name in ("start_ps", "end_ps"))
        what, expected = "a message is delivered before it starts", "end_ps from start_ps, or -1"
        _refuse((end >= 0) & (end < start), what, expected, folder / "messages.parquet")
    _check_flows(tables, is_emulated, folder / "flows.parquet")
    _check_totals(summary["totals"], tables, folder)


def _is_emulated(summary: Mapping[str, Any]) -> bool:
    return "kind" in summary.get("engine", {})


def _check_messages(tables: Tables, folder: Path) -> None:
    """Raise if a message appears twice, or a table names an unknown one; negative numbers name none."""
    import numpy as np

    known = to_numpy(tables["messages"]["message"].unique())
    if len(known) != tables["messages"].num_rows:
        raise ResultError("repeats a message", str(folder / "messages.parquet"), "each number once")
    for name in ("flows", "drops", "missing", "packets"):
        named = to_numpy(tables[name]["message"].unique())
        unknown = named[(named >= 0) & ~np.isin(named, known)]
        if len(unknown):
            what = f"names message {unknown[0]}, which is not in messages.parquet"
            raise ResultError(what, str(folder / f"{name}.parquet"), RESULT_EXPECTED)


def _check_iterations(summary: Mapping[str, Any], table: pyarrow.Table, path: Path) -> None:
    import numpy as np

    if not table.num_rows:
        return
    start, end, compute, exposed, worker, iteration = (
        to_numpy(table[name]) for name in ("start_ps", "end_ps", "compute_ps", "exposed_ps", "worker", "iteration")
    )
    _refuse(end < start, "an iteration ends before it starts", "end_ps from start_ps", path)
    is_other = exposed != end - start - compute
    _refuse(is_other, "exposed_ps is not end_ps - start_ps - compute_ps", "the difference", path)
    if "programs" in summary:  # programs number their iterations themselves
        return
    job, _ = dictionary_encoded(table["job"])
    order = np.lexsort((iteration, worker, job))
    is_same_worker = (np.diff(job[order]) == 0) & (np.diff(worker[order]) == 0)
    step = np.diff(iteration[order])
    later, earlier = order[1:], order[:-1]
    repeated = later[is_same_worker & (step == 0)]
    _refuse(_rows(repeated, len(order)), "repeats an iteration of a worker", "each once", path)
    is_gap = np.where(is_same_worker, step > 1, iteration[later] > 0)
    gaps = [*later[is_gap].tolist(), *([int(order[0])] if iteration[order[0]] > 0 else [])]
    expected = "every iteration of a worker from 0"
    _refuse(_rows(gaps, len(order)), "lacks the iteration before that of this row", expected, path)
    if _is_emulated(summary):  # real clocks leave gaps
        return
    apart = earlier[is_same_worker & (end[earlier] != start[later])]
    expected = "iterations that follow each other"
    _refuse(_rows(apart, len(order)), "end_ps is not the next iteration's start_ps", expected, path)


def _check_flows(tables: Tables, is_emulated: bool, path: Path) -> None:
    import numpy as np

    flows, messages = to_numpy(tables["flows"]["message"]), tables["messages"]
    if len(np.unique(flows)) != len(flows):
        raise ResultError("repeats a flow", str(path), "each message once")
    if is_emulated and not len(flows):  # the testbed may have no ideal times
        return
    kind, kinds = dictionary_encoded(messages["kind"])
    numbers = to_numpy(messages["message"])[np.array([each == "flow" for each in kinds], dtype=bool)[kind]]
    if not np.array_equal(np.sort(flows), np.sort(numbers)):
        what = f"has {len(flows)} rows for {len(numbers)} messages of kind flow"
        raise ResultError(what, str(path), "one row per message")


def _check_totals(totals: Mapping[str, Any], tables: Tables, folder: Path) -> None:
    messages = tables["messages"]
    counts = {
        "iterations": ("iterations", tables["iterations"].num_rows, "rows"),
        "messages": ("messages", messages.num_rows, "rows"),
        "messages_under_way": ("messages", int((to_numpy(messages["end_ps"]) < 0).sum()), "rows with end_ps -1"),
        "bytes": ("messages", int(to_numpy(messages["bytes"]).sum()), "bytes"),
    }
    for key, (name, count, unit) in counts.items():
        total = totals.get(key)
        if total is not None and total != count:
            what = f"has {count} {unit}"
            raise ResultError(what, str(folder / f"{name}.parquet"), f"{total}, as totals.{key} in result.json")


def _rows(which: Ints | list[int], count: int) -> Flags:
    """Return a mask of `count` rows that is True for these."""
    import numpy as np

    mask = np.zeros(count, dtype=bool)
    mask[which] = True
    return mask


def _refuse(wrong: Flags, what: str, expected: str, path: Path) -> None:
    import numpy as np

    if wrong.any():
        raise ResultError(f"{what}, in row {int(np.flatnonzero(wrong)[0])}", str(path), expected)
