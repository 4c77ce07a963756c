"""Results whose tables disagree with each other or with the totals are refused when they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwire import cli
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ResultError

Rows = dict[str, list[dict[str, Any]]]
ZERO = {"int8": 0, "int32": 0, "int64": 0, "float64": 0.0, "bool": False, "string": "a"}


def rows() -> Rows:
    """Two workers with two iterations each, one gradient and two flows, of which one is under way."""
    iterations = [
        # start, end, compute: end - start - compute is exposed
        (0, 0, 0, 100, 70), (0, 1, 100, 260, 70), (1, 0, -5, 110, 80), (1, 1, 110, 260, 160),
    ]  # fmt: skip
    messages = [(0, "push", 40, 90), (1, "flow", 10, 60), (2, "flow", 20, -1)]
    return {
        "iterations": [
            {
                "job": "t", "worker": worker, "iteration": number, "start_ps": start, "forward_end_ps": start,
                "backward_end_ps": end, "end_ps": end, "compute_ps": compute, "exposed_ps": end - start - compute,
            }
            for worker, number, start, end, compute in iterations
        ],
        "messages": [
            {name: ZERO[kind] for name, kind in TABLES["messages"].items()}
            | {"message": number, "kind": kind, "start_ps": start, "end_ps": end, "bytes": 1000, "received_bytes": 1000}
            for number, kind, start, end in messages
        ],
        "flows": [{"message": 1, "ideal_ps": 40}, {"message": 2, "ideal_ps": 40}],
    }  # fmt: skip


TOTALS = {"iterations": 4, "messages": 3, "messages_under_way": 1, "bytes": 3000}


def written(folder: Path, tables: Rows, **summary: Any) -> Path:
    columns = {name: {key: [row[key] for row in rows] for key in TABLES[name]} for name, rows in tables.items() if rows}
    return Result.build({"name": "x", "totals": TOTALS, **summary}, columns).write(folder / "result")


def change(table: str, row: int, **values: Any) -> Callable[[Rows], None]:
    return lambda tables: tables[table][row].update(values)


def half(table: str) -> Callable[[Rows], None]:
    return lambda tables: tables.__setitem__(table, tables[table][: len(tables[table]) // 2])


def twice(table: str) -> Callable[[Rows], None]:
    return lambda tables: tables.__setitem__(table, tables[table] * 2)


def test_a_consistent_result_is_read(tmp_path: Path) -> None:
    read = Result.read(written(tmp_path, rows()))
    assert read.iterations.to_pylist() == rows()["iterations"]


def test_an_interrupted_result_is_read(tmp_path: Path) -> None:
    """One worker has finished one iteration more than the other."""
    tables = rows()
    del tables["iterations"][3]
    Result.read(written(tmp_path, tables, totals={**TOTALS, "iterations": 3, "ended_by": "interrupt"}))


DAMAGE = {
    "exposed": (change("iterations", 1, exposed_ps=91), "exposed_ps is not end_ps - start_ps - compute_ps, in row 1"),
    "compute": (
        change("iterations", 0, compute_ps=10**13),
        "exposed_ps is not end_ps - start_ps - compute_ps, in row 0",
    ),
    "backwards": (change("iterations", 3, end_ps=-7, exposed_ps=-277), "an iteration ends before it starts, in row 3"),
    "gap": (
        change("iterations", 1, start_ps=120, exposed_ps=70),
        "end_ps is not the next iteration's start_ps, in row 0",
    ),
    "other worker": (change("iterations", 2, worker=0), "repeats an iteration of a worker, in row 2"),
    "other number": (change("iterations", 1, iteration=2), "lacks the iteration before that of this row, in row 1"),
    "first number": (change("iterations", 0, iteration=3), "lacks the iteration before that of this row, in row 0"),
    "half of iterations": (half("iterations"), "iterations.parquet: has 2 rows; expected 4, as totals.iterations"),
    "no iterations": (lambda tables: tables.update(iterations=[]), "has 0 rows; expected 4, as totals.iterations"),
    "iterations twice": (twice("iterations"), "repeats an iteration of a worker"),
    "half of messages": (half("messages"), "flows.parquet: names message 1, which is not in messages.parquet"),
    "bytes": (change("messages", 0, bytes=7), "has 2007 bytes; expected 3000, as totals.bytes"),
    "delivered": (
        change("messages", 2, end_ps=30),
        "has 0 rows with end_ps -1; expected 1, as totals.messages_under_way",
    ),
    "early": (change("messages", 1, end_ps=5), "a message is delivered before it starts, in row 1"),
    "half of flows": (half("flows"), "has 1 rows for 2 messages of kind flow"),
    "no flows": (lambda tables: tables.update(flows=[]), "has 0 rows for 2 messages of kind flow"),
    "flows twice": (twice("flows"), "repeats a flow"),
    "a flow that is none": (change("flows", 0, message=0), "messages of kind flow"),
    "ideal": (change("flows", 0, ideal_ps=0), "ideal_ps is 0 in row 0; expected a number from 1"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_inconsistent_tables_are_rejected(tmp_path: Path, name: str) -> None:
    damage, words = DAMAGE[name]
    tables = rows()
    damage(tables)
    with pytest.raises(ResultError) as raised:
        Result.read(written(tmp_path, tables))
    assert words in str(raised.value)


def test_program_results_allow_any_iteration_numbers(tmp_path: Path) -> None:
    tables = rows()
    change("iterations", 1, iteration=70)(tables)
    change("iterations", 2, iteration=9)(tables)
    Result.read(written(tmp_path, tables, programs={}))


def test_testbed_result_without_ideal_times_is_read(tmp_path: Path) -> None:
    tables = rows()
    tables["flows"] = []
    Result.read(written(tmp_path, tables, engine={"kind": "emulation"}))


@pytest.mark.parametrize("command", ["compare", "report"])
def test_damaged_result_gives_one_error_message(tmp_path: Path, command: str) -> None:
    tables = rows()
    change("iterations", 1, exposed_ps=-(10**12))(tables)
    path = written(tmp_path, tables)
    more = ["--out", str(tmp_path / "out.html")] if command == "report" else [str(path)]
    result = CliRunner().invoke(cli.app, [command, str(path), *more])
    assert result.exit_code == 2 and "exposed_ps is not end_ps - start_ps - compute_ps" in result.output
    assert not (tmp_path / "out.html").exists()
