"""Result: a directory that is complete or absent, and the loss invariant."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from star_cases import star_scenario

from gradwire.analysis.pcap.packet_capture import MessageColumns
from gradwire.result_store import result as results
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result, summarise
from gradwire.result_store.table_schema import make_table
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.loss import allowed_loss, allowed_loss_per_message


def message(**changes: Any) -> dict[str, list[Any]]:
    """The columns of one delivered message of 1000 bytes, 100 of them lost, which its bound allows."""
    row = {
        "message": 7, "job": "j", "iteration": 0, "tensor": 3, "layer": 1, "part": 0, "kind": "push", "src": "h0", "dst": "h1",
        "bytes": 1000, "packets": 10, "priority": 1, "start_ps": 5, "released_ps": 6, "end_ps": 50, "received_bytes": 900,
        "lost_bytes": 100, "bound": 0.1, "share": 0.1, "retransmitted": 0, "sent_packets": 10, "marked": 0, "trimmed": 0, "timeouts": 0,
    }  # fmt: skip
    return {name: [value] for name, value in {**row, **changes}.items()}


def build(**changes: Any) -> Result:
    summary = summarise(star_scenario(), "abc", {"packet_hops": 12}, {"drops": 1})
    return Result.build(summary, {"messages": message(**changes)}, {"wall_s": 0.5})


def test_result_round_trips_through_directory(tmp_path: Path):
    result = build()
    again = Result.read(result.write(tmp_path / "a" / "out"))
    assert again.summary == result.summary
    assert again.timing == {"wall_s": 0.5}
    for name in results.TABLES:
        assert getattr(again, name).equals(getattr(result, name)), name
    assert again.iterations.num_rows == 0


def test_equal_results_write_identical_files_except_timing(tmp_path: Path):
    first = build().write(tmp_path / "first")
    other = build()
    other.timing["wall_s"] = 9.0
    second = other.write(tmp_path / "second")
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted([*(f"{table}.parquet" for table in results.TABLES), "result.json", "timing.json"])
    differ = [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()]
    assert differ == ["timing.json"]


def test_existing_directory_is_refused_and_untouched(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ResultError, match="exists already") as caught:
        build().write(tmp_path / "out")
    assert caught.value.exit_code == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_result_is_written_into_empty_directory(tmp_path: Path):
    (tmp_path / "out").mkdir()
    assert Result.read(build().write(tmp_path / "out")).summary == build().summary
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(results, "_write_json", full)
    with pytest.raises(ResultError, match="disk full"):
        build().write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def _cut(folder: Path) -> None:
    data = (folder / "messages.parquet").read_bytes()
    (folder / "messages.parquet").write_bytes(data[: len(data) // 2])


def _other_format(folder: Path) -> None:
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text.replace('"format": 6', '"format": 99'))


def _other_columns(folder: Path) -> None:
    (folder / "ports.parquet").write_bytes((folder / "drops.parquet").read_bytes())


def _change(folder: Path, name: str, **values: Any) -> None:
    data = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(data | values))


def _nulls(folder: Path) -> None:
    schema = pyarrow.parquet.read_schema(folder / "drops.parquet")
    zero = {"string": "x", "bool": False}
    row = {column.name: zero.get(str(column.type), 0) for column in schema} | {"cause": None}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row], schema), folder / "drops.parquet")


def _strange(folder: Path) -> None:
    schema = pyarrow.parquet.read_schema(folder / "drops.parquet")
    zero = {"string": "x", "bool": False}
    row = {column.name: zero.get(str(column.type), 0) for column in schema}
    row |= {"message": 99, "port": "a->b", "cause": "tail"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row], schema), folder / "drops.parquet")


def _twice(folder: Path) -> None:
    table = pyarrow.parquet.read_table(folder / "messages.parquet")
    pyarrow.parquet.write_table(pyarrow.concat_tables([table, table]), folder / "messages.parquet")


def _folder(folder: Path) -> None:
    (folder / "drops.parquet").rename(folder / "part.parquet")
    (folder / "drops.parquet").mkdir()
    (folder / "part.parquet").rename(folder / "drops.parquet" / "part.parquet")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "drops.parquet").unlink(), ["drops.parquet", "no such file"]),
        (lambda folder: (folder / "result.json").unlink(), ["result.json", "no such file"]),
        (lambda folder: (folder / "result.json").write_text("{"), ["result.json", "cannot be read"]),
        (lambda folder: (folder / "result.json").write_text("[]"), ["result.json", "not a JSON object"]),
        (_cut, ["messages.parquet", "damaged"]),
        (_other_format, ["format 99", "expected format 6"]),
        (lambda folder: _change(folder, "result.json", engine=3), ["result.json: engine is 3", "a JSON object"]),
        (lambda folder: _change(folder, "result.json", totals=[]), ["result.json: totals is []", "a JSON object"]),
        (lambda folder: _change(folder, "result.json", policy=None), ["policy is null", "expected text"]),
        (lambda folder: _change(folder, "result.json", seed=True), ["seed is true", "expected a whole number"]),
        (
            lambda folder: _change(folder, "result.json", totals={"simulated_ps": "x"}),
            ["totals.simulated_ps is", "whole"],
        ),
        (lambda folder: _change(folder, "result.json", transports={"j": 4}), ["transports.j is 4", "a JSON object"]),
        (lambda folder: _change(folder, "timing.json", hops_per_s="x"), ["timing.json: hops_per_s is", "a number"]),
        (_nulls, ["drops.parquet", "column cause has 2 empty values"]),
        (_strange, ["drops.parquet", "names message 99, which is not in messages.parquet"]),
        (_twice, ["messages.parquet", "repeats a message"]),
        (_folder, ["drops.parquet", "is a folder"]),
        (_other_columns, ["ports.parquet", "other columns", "peak_queue_bytes"]),
        (lambda folder: (folder / "scenario.toml").write_text('name = "cut'), ["scenario.toml", "is not TOML"]),
        (
            lambda folder: (folder / "scenario.toml").write_text(""),
            ["scenario.toml", "is empty", "the scenario that ran"],
        ),
        (lambda folder: (folder / "scenario.toml").write_text("# nothing\n"), ["scenario.toml", "is empty"]),
        (lambda folder: (folder / "scenario.toml").write_text("x = 3"), ["scenario.toml", "has no name"]),
        (lambda folder: (folder / "scenario.toml").write_text("name = 3"), ["has name = 3"]),
        (lambda folder: (folder / "scenario.toml").write_text('name = "a"'), ["has no topology"]),
        (lambda folder: (folder / "scenario.toml").write_text('name = "a"\ntopology = [1]'), ["has topology = [1]"]),
        (lambda folder: (folder / "result.json").write_text('{"format": 6}'), ["result.json", "has no name, totals"]),
        (lambda folder: (folder / "result.json").write_text('{"format": "6"}'), ['is of format "6"', "format 6"]),
        (
            lambda folder: (folder / "scenario.toml").write_text("job = 3"),
            ["job = 3 is not a list of tables", "[[job]]"],
        ),
        (lambda folder: (folder / "scenario.toml").write_text("job = [3]"), ["job = [3] is not a list of tables"]),
        (
            lambda folder: (folder / "scenario.toml").write_text("[job]\nx = 1"),
            ["job = {'x': 1} is not a list of tables"],
        ),
        (
            lambda folder: (folder / "scenario.toml").write_text("traffic = 'x'"),
            ['traffic = "x" is not a list of tables'],
        ),
        (lambda folder: (folder / "scenario.toml").write_bytes(b"a = '\xff'"), ["scenario.toml", "cannot be read"]),
    ],
)
def test_damaged_result_is_refused(tmp_path: Path, damage: Any, words: list[str]):
    folder = build().write(tmp_path / "out")
    damage(folder)
    with pytest.raises(ResultError) as caught:
        Result.read(folder)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_missing_directory_is_refused(tmp_path: Path):
    with pytest.raises(ResultError, match="no such directory"):
        Result.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"port": ["a->b"]}, "missing columns"),
        ({**{name: [1] for name in results.TABLES["ports"]}, "x": [1]}, r"unknown columns \['x'\]"),
        ({**{name: [1] for name in results.TABLES["ports"]}, "port": ["a", "b"]}, "unequal length"),
    ],
)
def test_make_table_rejects_wrong_columns(columns: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        make_table("ports", columns)


def test_summary_records_seed_policy_hash_and_versions():
    scenario = star_scenario(seed=9)
    summary = summarise(scenario, "abc", {"packet_hops": 12}, {})
    assert summary["seed"] == 9
    assert summary["policy"] == "base"
    assert summary["scenario_hash"] == scenario.digest()
    assert set(summary["versions"]) == {"gradwire", "python", "numpy", "numba"}


@pytest.mark.parametrize(
    ("size", "bound", "allowed"),
    [(1000, 0.0, 0), (1000, 0.1, 100), (100, 0.07, 7), (100, 0.29, 29), (999, 0.1, 99), (10, 1.0, 10), (0, 0.5, 0)],
)
def test_allowed_loss(size: int, bound: float, allowed: int):
    assert allowed_loss(size, bound) == allowed
    assert allowed_loss_per_message([size, 7], [bound, 1.0]).tolist() == [allowed, 7]


def test_allowed_loss_of_very_long_message_is_exact():
    """A relative error of 1e-12 would amount to a hundred bytes."""
    assert allowed_loss(10**14, 0.1) == 10**13 and allowed_loss(10**14 - 1, 0.1) == 10**13 - 1


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, False),
        ({"lost_bytes": 101, "received_bytes": 899}, True),
        ({"lost_bytes": 0, "received_bytes": 1000, "bound": 0.0}, False),
        ({"lost_bytes": 4, "received_bytes": 996, "bound": 0.0}, True),
        ({"lost_bytes": 0, "received_bytes": 500}, True),  # a loss that was not counted
        ({"lost_bytes": 200, "received_bytes": 100, "end_ps": -1}, False),  # still under way
        ({"lost_bytes": -100, "received_bytes": 1100}, True),
    ],
)
def test_loss_invariant_reports_violating_messages(changes: dict[str, Any], broken: bool):
    violations = check_loss_invariant(build(**changes))
    assert [violation.message for violation in violations] == ([7] if broken else [])
    assert all("message 7" in str(violation) for violation in violations)


def test_message_columns_need_transport_in_summary():
    with pytest.raises(ResultError, match=r"result.json: has no transport of 'j'"):
        MessageColumns(Result.build({}, {"messages": message()}), {"h0": 0, "h1": 1})
