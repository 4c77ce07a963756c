"""The Python API: what is exported, comparing and drawing from whatever there is, what notebooks show, pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas
import pytest
from typer.testing import CliRunner

import gradwire
from gradwire import cli

ROOT = Path(gradwire.__file__).resolve().parents[1]
SHORT = ("job.iterations=2", "job.workers=2", "job.servers=1")


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT).stdout


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


@pytest.fixture(scope="module")
def runs() -> Any:
    return gradwire.compare("demo", set=SHORT)


def test_everything_is_exported_that_the_api_needs():
    for name in ("compare", "plot", "ScenarioError", "TraceError", "ResultError", "StallError", "TestbedError", "GradwireError"):
        assert name in gradwire.__all__ and getattr(gradwire, name) is not None
    for name in ("ScenarioError", "TraceError", "ResultError", "StallError", "TestbedError", "MissingExtraError"):
        assert issubclass(getattr(gradwire, name), gradwire.GradwireError)
    assert set(gradwire.__all__) < set(dir(gradwire))


def test_the_star_needs_no_extra():
    """Neither torch nor anything else that is optional; capture, which needs torch, is there by its name."""
    code = WITHOUT.format(names={"torch", "pandas", "scapy", "PIL"}) + "from gradwire import *\nprint(sorted(dir()))"
    shown = python(code)
    assert "'simulate'" in shown and "'compare'" in shown and "'capture'" not in shown
    code = WITHOUT.format(names={"torch"}) + "import gradwire\ntry: gradwire.capture\nexcept gradwire.MissingExtraError as e: print(e)"
    assert "torch is not installed; install it with: pip install -e '.[capture]'" in python(code)


def test_names_of_scenarios_are_simulated_under_every_policy(runs):
    policies = [variant.policy_name for variant in gradwire.load_scenario("demo").variants()]
    assert [entry.policy for entry in runs.flat] == policies
    assert runs.violations == []


def test_whatever_there_is_can_be_compared(runs, tmp_path):
    """A Result, its directory, a comparison's directory, a Scenario, and lists of them."""
    one, other = runs.results[:2]
    place = one.write(tmp_path / "one")
    whole = runs.write(tmp_path / "whole")
    scenario = gradwire.load_scenario("demo", set=SHORT, policy="dlcp")
    found = gradwire.compare(other, place, str(place), [whole, [one]], scenario)
    assert [result.summary["policy"] for result in found.results] == [
        each.summary["policy"] for each in (other, one, one, *runs.results, one)
    ] + ["dlcp"]


def test_overrides_change_nothing_in_what_has_been_run(runs):
    with pytest.raises(gradwire.ResultError, match="has been run already"):
        gradwire.compare(runs.results, set=["seed=2"])


@pytest.mark.parametrize("source, error", [
    ("nosuch", "ScenarioError"), ("job.toml", "ScenarioError"), (Path("/"), "ResultError"), (7, "TypeError"),
])  # fmt: skip
def test_what_cannot_be_compared_is_said_before_anything_runs(source, error, monkeypatch):
    monkeypatch.setattr("gradwire.sim.simulate.simulate", lambda *a, **k: pytest.fail("it ran"))
    expected = getattr(gradwire, error, TypeError)
    with pytest.raises(expected):
        gradwire.compare("demo", source)
    with pytest.raises(ValueError, match="nothing to compare"):
        gradwire.compare()


def test_results_show_what_they_are_in_a_line(runs):
    result = runs.results[0]
    text = repr(result)
    assert len(text) < 300 and "demo" in text and f"{result.messages.num_rows:,} messages" in text
    assert "simulated" in text and "ended by done" in text
    assert f"<td>{result.messages.num_rows:,}</td>" in result._repr_html_()
    text = repr(runs)
    assert text.startswith(f"<Comparison of {len(runs.results)} runs: ") and "every loss bound held" in text


def test_names_are_not_taken_for_markup_in_notebooks():
    result = gradwire.Result.build({"name": "<script>", "policy": "&"}, {})
    assert "<script>" not in result._repr_html_() and "&lt;script&gt; &amp;" in result._repr_html_()


def test_notebooks_show_the_table_of_a_comparison(runs, capsys):
    html = runs._repr_html_()
    runs.print()
    printed = capsys.readouterr().out
    for row in ("exposed communication, mean", "packets sent again"):
        assert row in html and row in printed
    assert html.count("<table>") >= 1


def test_tables_for_pandas(runs):
    frame = runs.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["policy"]) == [entry.policy for entry in runs.flat]
    assert frame["iteration_mean_ps"].tolist() == [entry.iteration.mean_ps for entry in runs.flat]
    assert list(frame.columns) == runs.table.column_names
    messages = runs.results[0].to_pandas()
    assert len(messages) == runs.results[0].messages.num_rows
    assert len(runs.results[0].to_pandas("ports")) == runs.results[0].ports.num_rows
    with pytest.raises(ValueError, match="no such table: port; expected one of iterations, messages"):
        runs.results[0].to_pandas("port")


def test_without_pandas_it_is_said_how_to_get_it():
    code = WITHOUT.format(names={"pandas"}) + (
        "import gradwire\ntry: gradwire.Result.build({}, {}).to_pandas()\nexcept gradwire.MissingExtraError as e: print(e)"
    )
    assert "pandas is not installed; install it with: pip install -e '.[pandas]'" in python(code)


def test_pictures_are_figures(runs):
    found = gradwire.plot(runs)
    assert {"iteration_time", "completion_time"} <= set(found)
    assert all(isinstance(figure, matplotlib.figure.Figure) for figure in found.values())
    assert set(gradwire.plot(runs.results[0])) <= set(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_scenarios(shell):
    answer = CliRunner().invoke(cli.app, [], env={
        "_GRADWIRE_COMPLETE": f"complete_{shell}", "COMP_WORDS": "gradwire run de", "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "gradwire run de", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }, prog_name="gradwire")  # fmt: skip
    assert "demo" in answer.stdout
    help_text = CliRunner().invoke(cli.app, ["--help"]).stdout
    assert "--install-completion" in help_text
