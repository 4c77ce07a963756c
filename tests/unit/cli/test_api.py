"""The Python API: what is exported, comparing and drawing from whatever there is, what notebooks show, pandas."""

from __future__ import annotations

import ast
import os
import re
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
from gradwire.analysis.comparison.compare import Comparison
from gradwire.sim.processes.user_process import Wires
from gradwire.traces.formats import export_trace, import_trace

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


def test_package_exports_api_functions_and_errors():
    for name in (
        "compare",
        "plot",
        "ScenarioError",
        "TraceError",
        "ResultError",
        "StallError",
        "TestbedError",
        "GradwireError",
    ):
        assert name in gradwire.__all__ and getattr(gradwire, name) is not None
    for name in ("ScenarioError", "TraceError", "ResultError", "StallError", "TestbedError", "MissingExtraError"):
        assert issubclass(getattr(gradwire, name), gradwire.GradwireError)
    assert set(gradwire.__all__) < set(dir(gradwire))


def test_star_import_needs_no_optional_package():
    """`capture`, which needs torch, is available by name only."""
    code = WITHOUT.format(names={"torch", "pandas", "scapy", "PIL"}) + "from gradwire import *\nprint(sorted(dir()))"
    shown = python(code)
    assert "'simulate'" in shown and "'compare'" in shown and "'capture'" not in shown
    code = (
        WITHOUT.format(names={"torch"})
        + "import gradwire\ntry: gradwire.capture\nexcept gradwire.MissingExtraError as e: print(e)"
    )
    assert "torch is not installed; install it with: pip install -e '.[capture]'" in python(code)


def test_compare_simulates_a_named_scenario_under_every_policy(runs):
    policies = [variant.policy_name for variant in gradwire.load_scenario("demo").variants()]
    assert [entry.policy for entry in runs.flat] == policies
    assert runs.violations == []


def test_compare_accepts_results_folders_scenarios_and_lists(runs, tmp_path):
    """Sources are Results, their directories, comparisons, their directories, Scenarios and lists of these."""
    one, other = runs.results[:2]
    place = one.write(tmp_path / "one")
    whole = runs.write(tmp_path / "whole")
    scenario = gradwire.load_scenario("demo", set=SHORT, policy="dlcp")
    found = gradwire.compare(other, place, str(place), [whole, [one]], scenario, runs, (each for each in [one]))
    expected = [each.summary["policy"] for each in (other, one, one, *runs.results, one)] + ["dlcp"]
    expected += [each.summary["policy"] for each in (*runs.results, one)]
    assert [result.summary["policy"] for result in found.results] == expected
    assert set(gradwire.plot(runs, runs)) >= {"iteration_time"}


def test_compare_refuses_overrides_for_finished_results(runs):
    with pytest.raises(gradwire.ResultError, match="has been run already"):
        gradwire.compare(runs.results, set=["seed=2"])


@pytest.mark.parametrize("source, error", [
    ("nosuch", "ScenarioError"), ("job.toml", "ScenarioError"), (Path("/"), "ResultError"), (7, "ResultError"), (b"demo", "ResultError"),
])  # fmt: skip
def test_compare_refuses_invalid_sources_before_the_first_run(source, error, monkeypatch):
    monkeypatch.setattr("gradwire.sim.simulate.simulate", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(getattr(gradwire, error)):
        gradwire.compare("demo", source)
    with pytest.raises(gradwire.ResultError, match="nothing to compare"):
        gradwire.compare()


SCENARIOS = "expected (a Scenario, )?a scenario file, or a name of the library"
TRACES = "expected (a Trace, )?a trace directory, or the name of a bundled trace"


@pytest.mark.parametrize("call, said", [
    (lambda: gradwire.load_scenario(3), rf"load_scenario\(source\): is 3, of type int; {SCENARIOS}"),
    (lambda: gradwire.load_scenario(None), rf"load_scenario\(source\): is None; {SCENARIOS}"),
    (lambda: gradwire.load_scenario(""), rf"load_scenario\(source\): is empty; {SCENARIOS}"),
    (lambda: gradwire.load_scenario("demo", set=[3]), r"load_scenario\(set\): is 3, of type int; expected overrides"),
    (lambda: gradwire.load_scenario("demo", set=3), r"load_scenario\(set\): is 3, of type int; expected overrides"),
    (lambda: gradwire.load_scenario("demo", policy=3), r"load_scenario\(policy\): is 3, of type int"),
    (lambda: gradwire.load_trace(7), rf"load_trace\(name\): is 7, of type int; {TRACES}"),
    (lambda: gradwire.load_trace(b"x"), r"load_trace\(name\): is b'x', of type bytes"),
    (lambda: gradwire.load_trace("a\0b"), r"load_trace\(name\): has a zero byte in it"),
    (lambda: gradwire.simulate({"a": 1}), rf"simulate\(scenario\): is {{'a': 1}}, of type dict; {SCENARIOS}"),
    (lambda: gradwire.simulate("demo", 5), rf"simulate\(trace\): is 5, of type int; {TRACES}"),
    (lambda: gradwire.simulate("demo", threads="2"), r"simulate\(threads\): is '2', of type str; expected a whole number"),
    (lambda: gradwire.simulate("demo", threads=0), r"simulate\(threads\): is 0; expected a whole number from 1"),
    (lambda: gradwire.simulate("demo", max_wall_s="5"), r"simulate\(max_wall_s\): is '5', of type str"),
    (lambda: gradwire.simulate("demo", max_wall_s=-1), r"simulate\(max_wall_s\): is -1; expected seconds above zero"),
    (lambda: gradwire.compare("demo", progress=3), r"compare\(progress\): is 3, of type int"),
    (lambda: gradwire.train("train-tiny", until="x"), r"train\(until\): is 'x', of type str; expected a number from 0 to 1"),
    (lambda: gradwire.train("train-tiny", threads=0), r"train\(threads\): is 0; expected a whole number from 1"),
    (lambda: gradwire.train("train-tiny", progress=3), r"train\(progress\): is 3, of type int"),
    (lambda: gradwire.report("demo", out=3), r"report\(out\): is 3, of type int"),
    (lambda: gradwire.report("demo", out=""), r"report\(out\): is empty"),
    (lambda: gradwire.report("demo", out="."), r"report\(out\) \.: is a folder"),
    (lambda: gradwire.report("demo", title=3), r"report\(title\): is 3, of type int"),
    (lambda: gradwire.report("demo", trace=3), rf"report\(trace\): is 3, of type int; {TRACES}"),
    (lambda: gradwire.breakdown(None), r"source: is None; expected a Result"),
    (lambda: gradwire.tensors("demo", 3), rf"trace: is 3, of type int; {TRACES}"),
    (lambda: gradwire.timeline(None, "x.json"), r"source: is None; expected a Result"),
    (lambda: gradwire.TrainingResult.read(None), r"TrainingResult\.read\(folder\): is None"),
    (lambda: gradwire.simulate("demo", max_wall_s=float("nan")), r"simulate\(max_wall_s\): is nan"),
    (lambda: gradwire.simulate("demo", max_wall_s=True), r"simulate\(max_wall_s\): is True, of type bool"),
    (lambda: gradwire.simulate("demo", progress=3), r"simulate\(progress\): is 3, of type int; expected a function"),
    (lambda: gradwire.load_scenario("demo").variant("nope"), r'.*demo\.toml: no policy "nope"; expected dctcp, '),
    (lambda: gradwire.load_scenario("demo").variant(3), r"variant\(policy\): is 3, of type int; expected a policy, or the name"),
    (lambda: gradwire.compare({"a": 1}), r"compare\(sources\): is \{'a': 1\}, of type dict"),
    (lambda: Comparison([], [], []).write("x", plots="bmp"), r"plots bmp: is not a format of plots; expected one of png"),
    (lambda: Wires(3), rf"Wires\(scenario\): is 3, of type int; {SCENARIOS}"),
    (lambda: import_trace(3), r"import_trace\(path\): is 3, of type int; expected a file"),
    (lambda: export_trace(3, "x", format="csv"), r"export_trace\(trace\): is 3, of type int; expected a Trace"),
    (lambda: export_trace(gradwire.load_trace("lstm"), 3, format="csv"), r"export_trace\(out\): is 3, of type int"),
    (lambda: export_trace(gradwire.load_trace("lstm"), "x", format="csv", iterations=["a"]), r"export_trace\(iterations\): is 'a'"),
    (lambda: export_trace(gradwire.load_trace("lstm"), "x", format="csv", ranks="a"), r"export_trace\(ranks\): is 'a', of type str"),
    (lambda: gradwire.emulate(3), rf"emulate\(scenario\): is 3, of type int; {SCENARIOS}"),
    (lambda: gradwire.emulate("demo", 3), rf"emulate\(trace\): is 3, of type int; {TRACES}"),
    (lambda: gradwire.emulate("demo", None, 3), r"emulate\(request\): is 3, of type int"),
    (lambda: gradwire.compare("demo", set=[3]), r"compare\(set\): is 3, of type int; expected overrides"),
    (lambda: gradwire.compare("demo", threads=None), r"compare\(threads\): is None"),
    (lambda: gradwire.compare(None), r"compare\(sources\): is None; expected Results, Scenarios, and names of these"),
    (lambda: gradwire.plot(3), r"compare\(sources\): is 3, of type int"),
    (lambda: gradwire.Result.read(5), r"Result.read\(directory\): is 5, of type int; expected a Result directory"),
    (lambda: gradwire.Result.build({}, {}).write(3), r"directory: is 3, of type int; expected a directory that"),
    (lambda: gradwire.Result.build({}, {}).write(""), r"directory: is empty"),
    (lambda: gradwire.Result.build({}, {}).to_pandas(["ports"]), r"to_pandas\(table\): no table \['ports'\]"),
    (lambda: gradwire.load_trace("resnet50").save(3), r"directory: is 3, of type int"),
    (lambda: gradwire.capture(3, 4, out="x").__enter__(), r"capture\(model\): is 3, of type int; expected a torch"),
    (lambda: gradwire.capture(3, 4, out=5).__enter__(), r"capture\(out\): is 5, of type int; expected a directory"),
])  # fmt: skip
def test_api_functions_name_arguments_of_wrong_type(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gradwire.GradwireError) as caught:
        call()
    assert re.match(said, str(caught.value)), str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_error_messages_shorten_unprintable_and_long_values():
    class Strange:
        def __repr__(self) -> str:
            raise RuntimeError("not even that")

    with pytest.raises(gradwire.ScenarioError, match=r"is something, of type Strange"):
        gradwire.simulate(Strange())
    with pytest.raises(gradwire.ScenarioError) as caught:
        gradwire.load_scenario(dict.fromkeys(range(10_000)))
    assert len(str(caught.value)) < 250


def test_simulate_accepts_scenario_files_and_trace_names(runs):
    """As in `gradwire run`, the scenario runs without a policy; a single override needs no list."""
    named = gradwire.simulate(str(ROOT / "gradwire/scenarios/library/demo.toml"), "resnet50-v100", max_wall_s=1)
    assert (named.summary["name"], named.summary["policy"]) == ("demo", "base")
    assert gradwire.load_scenario("demo", set="job.iterations=2").job[0].iterations == 2
    assert gradwire.load_scenario("demo").variant("dlcp").policy_name == "dlcp"
    assert len(Wires("incast").hosts) == len(Wires(gradwire.load_scenario("incast")).hosts)


def test_negative_tensor_numbers_count_from_the_end():
    trace = gradwire.load_trace("resnet20")
    last = len(trace.tensors) - 1
    assert trace.magnitudes(0, -1)[0].tolist() == trace.magnitudes(0, last)[0].tolist() != []
    with pytest.raises(IndexError):
        trace.chunk_mean(0, last + 1)


def test_repr_of_results_and_comparisons_is_one_line(runs):
    result = runs.results[0]
    text = repr(result)
    assert len(text) < 300 and "demo" in text and f"{result.messages.num_rows:,} messages" in text
    assert "simulated" in text and "ended by done" in text
    assert f"<td>{result.messages.num_rows:,}</td>" in result._repr_html_()
    text = repr(runs)
    assert text.startswith(f"<Comparison of {len(runs.results)} runs: ") and "every loss bound held" in text


def test_notebook_output_escapes_names():
    result = gradwire.Result.build({"name": "<script>", "policy": "&"}, {})
    assert "<script>" not in result._repr_html_() and "&lt;script&gt; &amp;" in result._repr_html_()


def test_notebook_output_of_a_comparison_is_its_table(runs, capsys):
    html = runs._repr_html_()
    runs.print()
    printed = capsys.readouterr().out
    for row in ("exposed communication, mean", "retransmissions"):
        assert row in html and row in printed
    assert html.count("<table>") >= 1


def test_to_pandas_returns_the_tables(runs):
    frame = runs.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["policy"]) == [entry.policy for entry in runs.flat]
    assert frame["iteration_mean_ps"].tolist() == [entry.iteration.mean_ps for entry in runs.flat]
    assert list(frame.columns) == runs.table.column_names
    messages = runs.results[0].to_pandas()
    assert len(messages) == runs.results[0].messages.num_rows
    assert len(runs.results[0].to_pandas("ports")) == runs.results[0].ports.num_rows
    with pytest.raises(gradwire.ResultError, match="no table 'port'; expected one of iterations, messages"):
        runs.results[0].to_pandas("port")


def test_to_pandas_without_pandas_names_the_extra():
    code = WITHOUT.format(names={"pandas"}) + (
        "import gradwire\ntry: gradwire.Result.build({}, {}).to_pandas()\nexcept gradwire.MissingExtraError as e: print(e)"
    )
    assert "pandas is not installed; install it with: pip install -e '.[pandas]'" in python(code)


def test_repr_of_metrics_and_breakdowns_is_one_line(runs):
    """A notebook shows the parts of an iteration as a table."""
    (entry,) = gradwire.metrics(runs.results[2])
    assert re.fullmatch(
        r"<Metrics of demo dlcp resnet50: [\d.]+ ms per iteration, [\d.]+ % of it waiting>", repr(entry)
    )
    parts = gradwire.breakdown(runs.results[2])
    assert repr(parts) == "<Breakdown of 4 iterations of resnet50>"
    assert "<td>computing</td>" in parts._repr_html_() and "resnet50" in parts._repr_html_()
    (flows,) = gradwire.metrics(gradwire.simulate(gradwire.load_scenario("incast", set=["duration=1us"])))
    assert re.fullmatch(r"<Metrics of incast base.*: \d+ messages>", repr(flows))


@pytest.mark.parametrize("jobs", [1, 2])
def test_compare_reports_monotonic_progress(jobs: int):
    """Shares cover the whole comparison, whether runs are sequential or parallel."""
    shares: list[float] = []
    gradwire.compare("demo", set=SHORT, jobs=jobs, progress=lambda share, words: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) >= 2


def test_plot_returns_matplotlib_figures(runs):
    found = gradwire.plot(runs)
    assert {"iteration_time", "completion_time"} <= set(found)
    assert all(isinstance(figure, matplotlib.figure.Figure) for figure in found.values())
    assert set(gradwire.plot(runs.results[0])) <= set(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_offers_commands_and_scenarios(shell):
    answer = CliRunner().invoke(cli.app, [], env={
        "_GRADWIRE_COMPLETE": f"complete_{shell}", "COMP_WORDS": "gradwire run de", "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "gradwire run de", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }, prog_name="gradwire")  # fmt: skip
    assert "demo" in answer.stdout
    help_text = CliRunner().invoke(cli.app, ["--help"]).stdout
    assert "--install-completion" in help_text


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gradwire run demo --policy d", "dctcp dctcp-priority dlcp"),
        ("gradwire train train-tiny --policy t", "topk"),
        ("gradwire run nothing --policy d", ""),
        ("gradwire reproduce mi", "mipd"),
        ("gradwire trace info vgg", "vgg16 vgg16-gpu vgg16-h100"),
        ("gradwire run --trace resnet50-v", "resnet50-v100"),
        ("gradwire sweep tail-load --engine r", "ray"),
        ("gradwire emulate testbed --clock v", "virtual"),
        ("gradwire sweep bo", "bound-buffer"),
    ],
)
def test_shell_completion_offers_names_for_options(typed: str, offered: str) -> None:
    count = str(len(typed.split()) - 1)
    answer = CliRunner().invoke(cli.app, [], prog_name="gradwire", env={
        "_GRADWIRE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count,
    })  # fmt: skip
    assert answer.stdout.split() == offered.split()


def test_type_checker_imports_match_lazy_imports():
    """The names under TYPE_CHECKING and their modules equal the lazily imported ones."""
    tree = ast.parse(Path(gradwire.__file__).read_text(encoding="utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    found = {
        alias.asname: each.module
        for node in guarded
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
        if alias.asname == alias.name
    }
    assert found == {**gradwire.PUBLIC, **gradwire.OPTIONAL}


@pytest.mark.parametrize("first", ["", "import numpy\n"])
def test_blas_threads_sleep_while_idle(first: str):
    """NumPy keeps its number of threads; if NumPy was imported before, nothing changes."""
    script = first + (
        "import gradwire, os, sys, time\n"
        "assert ('numpy' in sys.modules) == bool(sys.argv[1:])\n"
        "gradwire.simulate\n"
        "assert 'numpy' in sys.modules and 'OPENBLAS_THREAD_TIMEOUT' not in os.environ\n"
        "time.sleep(0.3)\n"
        "print(time.process_time() - time.thread_time(), len(os.listdir('/proc/self/task')))\n"
    )
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("OPENBLAS") and not key.endswith("_NUM_THREADS")
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *(["imported"] if first else [])], capture_output=True, text=True, cwd=ROOT, check=False,
        env=environment, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    others, threads = done.stdout.split()
    assert first or float(others) < 0.005
    assert int(threads) == min(os.cpu_count() or 1, 64)
