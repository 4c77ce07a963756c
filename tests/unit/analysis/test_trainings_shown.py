"""Trainings in tables, pictures and pages: one order, one unit, a name each, and no time where a network takes none."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_cases
import pytest
from sim_cases import ps_job, scenario
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.training.training_comparison import MEASURES, draw_training_runs, rows_of
from gradwire.result_store.training_result import MARKER_FILE, TrainingResult, training_run_folders, write_order
from gradwire.scenarios.loading.toml import write_toml
from gradwire.studies.report.report_inputs import report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return page_cases.trainings(tmp_path / "cmp")


def untimed(one: TrainingResult) -> TrainingResult:
    """As over a network that takes no time."""
    nothing = {"time_ps": 0, "clock_ps": 0}
    tables = {
        name: [{key: nothing.get(key, value) for key, value in row.items()} for row in rows]
        for name, rows in one.tables.items()
    }
    return replace(one, tables=tables)


def page_of(*sources: Any, out: Path) -> str:
    report(*sources, out=out)
    return out.read_text(encoding="utf-8")


def series(text: str) -> list[str]:
    """Names of the curves of the page's first plot, in the order of their colours."""
    begin = text.index('<script type="application/json">') + len('<script type="application/json">')
    return [each["name"] for each in json.loads(text[begin : text.index("</script>", begin)])["series"]]


def test_training_run_folders_follow_the_order_in_the_marker_file(folder: Path, tmp_path: Path) -> None:
    """Folders that the marker file does not name follow in alphabetical order."""
    names = lambda: [each.name for each in training_run_folders(folder)]
    assert names() == ["dctcp", "dlcp"]
    write_order(folder, ["never run", "dlcp", "dctcp"])
    assert names() == ["dlcp", "dctcp"]
    shutil.copytree(folder / "dlcp", folder / "a")
    assert names() == ["dlcp", "dctcp", "a"]
    assert (folder / MARKER_FILE).read_text().startswith("trainings\n"), "what it says else stays"
    shutil.rmtree(folder / "a")
    assert series(page_of(folder, out=tmp_path / "page.html"))[:2] == ["DLCP", "DCTCP"]


def test_train_command_records_the_policy_order_of_the_scenario(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order covers all policies, whichever of them are trained."""
    done = {name: TrainingResult.read(folder / name) for name in ("dctcp", "dlcp")}

    def trained(scenario: Any, out: Path, **_: Any) -> TrainingResult:
        out.mkdir(exist_ok=True)
        done[scenario.policy_name].write(out, "")
        return done[scenario.policy_name]

    monkeypatch.setattr("gradwire.studies.training.run.train", trained)
    for names, words, found in (
        (("dlcp", "dctcp"), ["--all"], ["dlcp", "dctcp"]), (("dctcp", "dlcp"), ["--all"], ["dctcp", "dlcp"]),
        (("dlcp", "dctcp"), ["--policy", "dctcp"], ["dlcp", "dctcp"]),
    ):  # fmt: skip
        policies = [{"name": name, "set": {"transport": name}} for name in names]
        file = tmp_path / "mine.toml"
        file.write_text(write_toml({**scenario(ps_job(2)).as_written(), "policy": policies}))
        ran = CliRunner().invoke(cli.app, ["train", str(file), *words, "--out", str(tmp_path / "out")])
        assert ran.exit_code == 0, ran.output
        assert [each.name for each in training_run_folders(tmp_path / "out")] == found
    assert (tmp_path / "out" / MARKER_FILE).read_text().count("dlcp") == 1, "written anew by each command"


def test_report_sections_keep_argument_order_and_have_unique_names(folder: Path, tmp_path: Path) -> None:
    other = page_cases.trainings(tmp_path / "second")
    twin = page_cases.trainings(tmp_path / "elsewhere" / "cmp")
    made = report(folder, other / "dlcp", other, twin, folder / "dctcp", out=tmp_path / "page.html")
    assert made.sections == [
        f"cmp ({folder}) (2 training runs)",
        "tiny (2 training runs)",
        "second (2 training runs)",
        f"cmp ({twin}) (2 training runs)",
    ]
    text = page_of(folder / "dlcp", twin / "dlcp", folder / "dctcp", out=tmp_path / "alike.html")
    assert series(text) == [f"DLCP ({folder / 'dlcp'})", f"DLCP ({twin / 'dlcp'})", "DCTCP"]


def test_training_plots_and_tables_use_the_same_unit(folder: Path, tmp_path: Path) -> None:
    words, unit = next((words, unit) for column, words, unit in MEASURES if column == "sent_bytes")
    assert words == "sent by all workers, MiB" and unit == 2**20
    text = page_of(folder, out=tmp_path / "page.html")
    assert "workers, MiB" in text and " MB" not in text
    one = TrainingResult.read(folder / "dlcp")
    assert "sent MiB" in one._repr_html_() and draw_training_runs([one]).axes[1].get_xlabel() == words


def test_training_run_without_simulated_time_shows_none(folder: Path, tmp_path: Path) -> None:
    timed, none = TrainingResult.read(folder / "dlcp"), untimed(TrainingResult.read(folder / "dlcp"))
    labels = lambda each: {row.label.strip(): row.cells for row in rows_of(each, 0.2)}
    assert labels([timed, none])["simulated time"] == ["6.00 ms", "none"]
    assert labels([timed, none])["per step, mean"] == ["1.00 ms", "none"]
    assert labels([timed, none])["time to accuracy 0.2"] == ["4.00 ms", "none, after 4 steps"]
    alone = labels([none])
    assert not {"simulated time", "per step, mean"} & set(alone) and alone["time to accuracy 0.2"] == [
        "none, after 4 steps"
    ]
    assert "0 ps" not in page_of(none, out=tmp_path / "page.html")
    assert "simulated" in timed._repr_html_() and "simulated" not in none._repr_html_()
