"""Consistency of a Result's tables with each other and with its summary, checked when a Result is read.

Values that no single column rules out are refused here: iterations that do not follow each other, exposed time that
is no difference of the others, ideal times of what is no flow, and fewer or more rows than the totals count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.kept import numbered

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.arrays import Flags, Ints

Tables = Mapping[str, "pyarrow.Table"]
WHOLE = "a complete Result directory"


def check_consistency(summary: Mapping[str, Any], tables: Tables, folder: Path) -> None:
    """Check tables against each other and against the summary's totals, as far as it has them.

    Raises
    ------
    ResultError
        A table says what cannot be; with its first such row, or the two counts.
    """
    _check_iterations(summary, tables["iterations"], folder / "iterations.parquet")
    is_emulated = _is_emulated(summary)
    _check_messages(tables, folder)
    if not is_emulated:  # clocks of several machines may differ
        _check_deliveries(tables["messages"], folder / "messages.parquet")
    _check_flows(tables, is_emulated, folder / "flows.parquet")
    _check_totals(summary["totals"], tables, folder)


def _is_emulated(summary: Mapping[str, Any]) -> bool:
    return "kind" in summary.get("engine", {})


def _check_messages(tables: Tables, folder: Path) -> None:
    """Refuse a message that comes twice, and tables that name one that does not exist; below zero is none."""
    import numpy as np

    known = numpy_of(tables["messages"]["message"].unique())
    if len(known) != tables["messages"].num_rows:
        raise ResultError("has a message twice", str(folder / "messages.parquet"), "each number once")
    for name in ("flows", "drops", "missing", "packets"):
        named = numpy_of(tables[name]["message"].unique())
        strange = named[(named >= 0) & ~np.isin(named, known)]
        if len(strange):
            what = f"names message {strange[0]}, which is not in messages.parquet"
            raise ResultError(what, str(folder / f"{name}.parquet"), WHOLE)


def _check_iterations(summary: Mapping[str, Any], table: pyarrow.Table, path: Path) -> None:
    import numpy as np

    if not table.num_rows:
        return
    start, end, compute, exposed, worker, iteration = (
        numpy_of(table[name])
        for name in ("start_ps", "end_ps", "compute_ps", "exposed_ps", "worker", "iteration")
    )
    _refuse(end < start, "an iteration ends before it starts", "end_ps from start_ps", path)
    is_other = exposed != end - start - compute
    _refuse(is_other, "exposed_ps is not end_ps - start_ps - compute_ps", "the difference", path)
    if "programs" in summary:  # programs number their iterations themselves
        return
    job, _ = numbered(table["job"])
    order = np.lexsort((iteration, worker, job))
    is_same_worker = (np.diff(job[order]) == 0) & (np.diff(worker[order]) == 0)
    step = np.diff(iteration[order])
    later, earlier = order[1:], order[:-1]
    again = later[is_same_worker & (step == 0)]
    _refuse(_rows(again, len(order)), "has an iteration of a worker twice", "each once", path)
    is_gap = np.where(is_same_worker, step > 1, iteration[later] > 0)
    gaps = [*later[is_gap].tolist(), *([int(order[0])] if iteration[order[0]] > 0 else [])]
    expected = "every iteration of a worker from 0"
    _refuse(_rows(gaps, len(order)), "lacks the iteration before that of this row", expected, path)
    if "approximate" in summary or _is_emulated(summary):  # where stretches meet they are apart; real clocks go on
        return
    apart = earlier[is_same_worker & (end[earlier] != start[later])]
    expected = "iterations that follow each other"
    _refuse(_rows(apart, len(order)), "end_ps is not the next iteration's start_ps", expected, path)


def _check_deliveries(table: pyarrow.Table, path: Path) -> None:
    start, end = numpy_of(table["start_ps"]), numpy_of(table["end_ps"])
    _refuse((end >= 0) & (end < start), "a message is delivered before it starts", "end_ps from start_ps, or -1", path)


def _check_flows(tables: Tables, is_emulated: bool, path: Path) -> None:
    import numpy as np

    flows, messages = numpy_of(tables["flows"]["message"]), tables["messages"]
    if len(np.unique(flows)) != len(flows):
        raise ResultError("has a flow twice", str(path), "each message once")
    if is_emulated and not len(flows):  # the testbed may know no ideal times
        return
    kind, kinds = numbered(messages["kind"])
    numbers = numpy_of(messages["message"])[np.array([each == "flow" for each in kinds], dtype=bool)[kind]]
    if not np.array_equal(np.sort(flows), np.sort(numbers)):
        what = f"has {len(flows)} rows for {len(numbers)} messages of kind flow"
        raise ResultError(what, str(path), "one row for each of them")


def _check_totals(totals: Mapping[str, Any], tables: Tables, folder: Path) -> None:
    messages = tables["messages"]
    counts = {
        "iterations": ("iterations", tables["iterations"].num_rows, "rows"),
        "messages": ("messages", messages.num_rows, "rows"),
        "messages_under_way": ("messages", int((numpy_of(messages["end_ps"]) < 0).sum()), "rows with end_ps -1"),
        "bytes": ("messages", int(numpy_of(messages["bytes"]).sum()), "bytes"),
    }
    for key, (name, count, unit) in counts.items():
        total = totals.get(key)
        if total is not None and total != count:
            what = f"has {count} {unit}"
            raise ResultError(what, str(folder / f"{name}.parquet"), f"{total}, as totals.{key} in result.json")


def _rows(which: Ints | list[int], count: int) -> Flags:
    """Return a mask of `count` rows that is true for these."""
    import numpy as np

    mask = np.zeros(count, dtype=bool)
    mask[which] = True
    return mask


def _refuse(wrong: Flags, what: str, expected: str, path: Path) -> None:
    import numpy as np

    if wrong.any():
        raise ResultError(f"{what}, in row {int(np.flatnonzero(wrong)[0])}", str(path), expected)
