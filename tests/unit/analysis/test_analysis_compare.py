"""Comparisons: what is printed, what is written, and how a broken bound is reported."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from analysis_cases import iterations, messages, ports, small_result
from typer.testing import CliRunner

import gradwire.analysis.comparison.plots
from gradwire import cli
from gradwire.analysis.comparison.compare import compare
from gradwire.analysis.comparison.tables import headings
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError


def broken() -> Result:
    """A Result in which message 1 lost 50 of 1000 bytes though 40 were allowed."""
    return small_result(messages(bound=[0.1, 0.04, 0.04, 0.0, 0.0]), policy="broken", label="Broken")


def faster() -> Result:
    return small_result(
        iteration_columns=iterations(end_ps=[100, 300, 120, 300], exposed_ps=[40, 140, 60, 120]),
        policy="fast",
        label="Fast",
    )


def cells(text: str, label: str) -> list[str]:
    """The cells of the line of a printed table that starts with `label`."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith(label)]
    assert len(lines) == 1, text
    return [cell.strip() for cell in lines[0].split("|")[1:]]


def test_print_shows_metrics_of_both_runs_within_100_columns(capsys: pytest.CaptureFixture[str]):
    compare([small_result(), faster()]).print()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text  # no colours where nobody sees them
    assert cells(text, "iteration time, mean") == ["200 ps", "150 ps"]
    assert cells(text, "against the first") == ["-", "-25.0 %"]
    assert cells(text, "averaged iterations") == ["all of 0-1"] * 2
    assert cells(text, "samples") == ["4", "4"]
    assert cells(text, "iteration time, max") == ["300 ps (4 samples)", "200 ps (4 samples)"]
    assert cells(text, "share of the iteration") == ["70.0 %", "60.0 %"]
    assert cells(text, "push completion, p50") == ["20 ps"] * 2
    lines = [line.split("|")[0].strip() for line in text.splitlines()]
    assert lines[lines.index("push completion, p50") + 1] == "max"
    assert cells(text, "drops: selective") == ["5", "5"]
    assert cells(text, "drops: evicted") == ["2", "2"]
    assert cells(text, "drops: link down") == ["7", "7"]
    assert cells(text, "drops: no route") == ["1", "1"]
    assert cells(text, "CE marks") == ["30", "30"]
    assert cells(text, "on acknowledgements") == ["4", "4"]
    assert cells(text, "packets trimmed") == ["4", "4"]
    assert cells(text, "pauses") == ["3", "3"]
    assert cells(text, "worst loss of a message") == ["3.00 %", "3.00 %"]
    assert cells(text, "lost / allowed bytes") == ["30 / 40", "30 / 40"]
    assert cells(text, "simulated per second") == ["5.00 M", "5.00 M"]
    assert cells(text, "messages not delivered") == ["1", "1"]
    assert "of them simulated" not in text


def test_table_separates_simulated_packet_hops_from_all_packet_hops(capsys: pytest.CaptureFixture[str]):
    skipped = small_result()
    skipped.timing["packet_hops_simulated"] = 34
    compare([small_result(), skipped]).print()
    text = capsys.readouterr().out
    assert cells(text, "packet-hops") == ["1,234", "1,234"]
    assert cells(text, "of them simulated") == ["1,234", "34"]


def test_table_omits_rare_drop_causes_that_never_occur(capsys: pytest.CaptureFixture[str]):
    rare = ("drops_evicted", "drops_down", "drops_no_route", "control_marks", "trimmed", "pauses")
    plain = ports() | {column: [0, 0] for column in rare}
    compare([small_result(port_columns=plain)]).print()
    text = capsys.readouterr().out
    assert cells(text, "drops: link loss") == ["1"]
    for words in ("evicted", "link down", "no route", "acknowledgements", "trimmed", "pauses"):
        assert words not in text
    compare([small_result(port_columns=plain), small_result()]).print()
    assert cells(capsys.readouterr().out, "drops: link down") == ["0", "7"]


def test_table_of_nine_runs_fits_in_100_columns(capsys: pytest.CaptureFixture[str]):
    label = "a rather long label of a policy that somebody wrote"
    compare([small_result(label=f"{label} {number}") for number in range(9)]).print()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("CE marks") for line in lines) == 3


def test_table_of_a_single_run_has_no_relative_difference(capsys: pytest.CaptureFixture[str]):
    compare([small_result()]).print()
    assert "against the first" not in capsys.readouterr().out


def test_headings_distinguish_runs():
    def names(*results: Result) -> list[str]:
        return headings(compare(results).flat)

    assert names(small_result(), faster()) == ["Policy", "Fast"]
    assert names(small_result(), small_result()) == ["Policy [1]", "Policy [2]"]
    stopped = small_result()
    stopped.summary["totals"] = {"finished": False}
    assert names(stopped) == ["Policy (interrupted)"]
    other = faster()
    other.summary["name"] = "other"
    assert names(small_result(), other) == ["case: Policy", "other: Fast"]
    two_jobs = small_result(messages(job=["a", "a", "b", "b", "b"]), iterations(job=["a", "a", "b", "b"]))
    assert names(two_jobs) == ["Policy, a", "Policy, b"]


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_write_creates_tables_figures_report_and_results(own_directory: Path):
    comparison = compare([small_result(), faster()])
    folder = comparison.write("out")
    assert sorted(path.name for path in folder.iterdir()) == [
        "comparison.csv", "comparison.json", "comparison.parquet", "completion_time.png", "iteration_time.png",
        "packets_again.png", "report.md", "results",
    ]  # fmt: skip
    assert [path.name for path in own_directory.iterdir()] == ["out"]  # nothing half-written beside it
    for picture in folder.glob("*.png"):
        width, height = png_size(picture)
        assert 600 <= width <= 1400 and 250 <= height <= 800
        assert picture.stat().st_size < 200_000
    assert Result.read(folder / "results" / "fast").messages.equals(faster().messages)

    data = json.loads((folder / "comparison.json").read_text())
    assert data["sound"] is True
    assert [run["jobs"][0]["iteration"]["mean_ps"] for run in data["runs"]] == [200, 150]
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert [row["run"] for row in rows] == ["Policy", "Fast"]
    assert [float(row["iteration_mean_ps"]) for row in rows] == [200, 150]
    assert [row["push_p99_ps"] for row in rows] == ["", ""]  # three values have none
    assert [int(row["push_max_ps"]) for row in rows] == [30, 30]
    table = pyarrow.parquet.read_table(folder / "comparison.parquet")
    assert table["iteration_max_ps"].to_pylist() == [300, 200]
    assert table["iteration_samples"].to_pylist() == [4, 4]
    assert set(table.column_names) == set(rows[0])


def test_report_states_iteration_times_drops_and_losses(own_directory: Path):
    text = (compare([small_result(), faster()]).write("out") / "report.md").read_text()
    assert "**Fast is fastest: 150 ps per iteration, 25.0 % less than Policy. " in text
    assert "Policy: 200 ps per iteration, 60 ps of it computing and 140 ps (70.0 %) waiting" in text
    assert (
        "19 packets were dropped, most of them at b->c 68.4 %, a->b 31.6 %; 4 were trimmed to their headers, 3 were retransmitted"
        in text
    )
    assert "No message of 8 was delivered with more loss than its bound." in text
    for name in ("iteration_time.png", "completion_time.png", "comparison.json"):
        assert name in text


def test_write_refuses_an_existing_directory(own_directory: Path):
    Path("out").mkdir()
    Path("out/mine").touch()
    with pytest.raises(ResultError, match="exists already"):
        compare([small_result()]).write("out")
    assert list(Path("out").iterdir()) == [Path("out/mine")]


def test_write_removes_output_if_plotting_fails(own_directory: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(gradwire.analysis.figure_files, "save_all", fail)
    with pytest.raises(ResultError, match="no space"):
        compare([small_result()]).write("out")
    assert list(own_directory.iterdir()) == []


def test_results_of_the_same_policy_get_distinct_folders(own_directory: Path):
    folder = compare([small_result(), small_result(policy="a/b"), small_result()]).write("out")
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["a_b", "p", "p-2"]


def test_comparison_handles_empty_results(own_directory: Path, capsys: pytest.CaptureFixture[str]):
    empty = Result.build({"name": "case", "policy": "none", "label": "None"}, {})
    comparison = compare([empty, small_result()])
    comparison.print()
    assert cells(capsys.readouterr().out, "iteration time, mean") == ["-", "200 ps"]
    assert (comparison.write("out") / "iteration_time.png").exists()
    assert not list(compare([empty]).write("empty").glob("*.png"))


def test_comparison_reports_a_loss_bound_violation(own_directory: Path):
    comparison = compare([small_result(), broken()])
    assert [violation.message for violation in comparison.violations] == [1]
    folder = comparison.write("out")
    data = json.loads((folder / "comparison.json").read_text())
    assert data["sound"] is False
    assert data["violations"][0]["lost_bytes"] == 50
    assert "The loss bound is broken 1 times" in (folder / "report.md").read_text()


def test_loss_with_zero_bound_yields_valid_json(own_directory: Path):
    folder = compare([small_result(messages(bound=[0.0] * 5))]).write("out")
    json.loads((folder / "comparison.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("doctor", [broken, lambda: small_result(messages(received_bytes=[900, 950, 970, 1000, 0]))])
def test_compare_command_exits_with_1_on_loss_bound_violation(doctor: Any, own_directory: Path):
    doctor().write("doctored")
    small_result().write("sound")
    assert CliRunner().invoke(cli.app, ["compare", "sound"]).exit_code == 0
    done = CliRunner().invoke(cli.app, ["compare", "sound", "doctored", "--out", "out"])
    assert done.exit_code == 1
    assert done.stderr.count("loss bound broken: message") == 1
    assert "drops: tail" in done.stdout
    assert Path("out/report.md").exists()  # what is wrong can be looked at


def test_compare_json_prints_only_json(own_directory: Path):
    small_result().write("sound")
    done = CliRunner().invoke(cli.app, ["compare", "sound", "--json"])
    assert json.loads(done.stdout)["runs"][0]["jobs"][0]["marks"] == 30


def test_compare_json_contains_no_infinity(own_directory: Path):
    small_result(messages(bound=[0.0] * 5)).write("none-allowed")
    done = CliRunner().invoke(cli.app, ["compare", "none-allowed", "--json"])
    json.loads(done.stdout, parse_constant=pytest.fail)
