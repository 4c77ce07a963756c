"""Sweeps resume after interrupts, kills and failures, and the command and Python report on them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import gradwire
from gradwire import cli
from gradwire.scenarios.errors import MissingExtraError, ResultError, ScenarioError, ScenarioNote
from gradwire.scenarios.loading.toml import write_toml
from gradwire.studies.sweep.points import points_of
from gradwire.studies.sweep.runner import SweepFailed, plan_sweep
from gradwire.studies.sweep.schema import build_sweep
from tests.support.sweep_cases import sweep_tables, sweep_text

ROOT = Path(gradwire.__file__).resolve().parents[1]
TABLES = ("sweep.csv", "sweep.parquet", "points.csv", "points.parquet")
PLOT = [{"name": "mean", "kind": "lines", "x": "load", "y": "slowdown_mean", "by": "buffer", "formats": ["png", "svg"]}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A sweep that nobody has interrupted."""
    return gradwire.sweep(sweep_tables(plot=PLOT), out=tmp_path_factory.mktemp("sweep") / "whole", jobs=2)


def same_tables(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_sweep_tables_hold_means_intervals_and_points(whole: Any) -> None:
    """The test recomputes means from the points; two seeds have no interval."""
    table, points = whole.to_pandas(), whole.to_pandas(points=True)
    assert list(table.columns)[:4] == ["load", "buffer", "runs", "failed"] and len(table) == 4 and len(points) == 8
    values = points[(points.load == 0.6) & (points.buffer == "1MiB")].slowdown_p99
    row = table[(table.load == 0.6) & (table.buffer == "1MiB")].iloc[0]
    assert row.slowdown_p99 == pytest.approx(values.mean()) and row.runs == row.slowdown_p99_count == 2
    assert pandas.isna(row.slowdown_p99_low) and pandas.isna(row.slowdown_p99_high) and values.std(ddof=1) > 0
    assert pyarrow.parquet.read_table(whole.folder / "sweep.parquet").equals(whole.table)
    assert pandas.read_csv(whole.folder / "points.csv").key.tolist() == points.key.tolist()


def test_figures_of_a_point_equal_those_of_a_single_run(whole: Any, tmp_path: Path) -> None:
    point = points_of(build_sweep(sweep_tables()), tmp_path)[5]
    run = gradwire.compare(point.scenario).to_pandas().iloc[0]
    row = whole.to_pandas(points=True).iloc[5]
    assert row.all_mean_ps == run.all_mean_ps and row.seed == point.seed == 2


def test_repeated_sweep_runs_no_finished_point(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sweep in the same folder starts no process and leaves the tables unchanged."""
    monkeypatch.setattr("gradwire.studies.sweep.runner.run_tasks", lambda *arguments: pytest.fail("something is run"))
    before = [(whole.folder / name).read_bytes() for name in TABLES]
    again = gradwire.sweep(sweep_tables(plot=PLOT), out=whole.folder)
    assert again.complete and [(whole.folder / name).read_bytes() for name in TABLES] == before


def test_sweep_writes_plot_files(whole: Any) -> None:
    assert (whole.folder / "mean.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (whole.folder / "mean.svg").read_bytes()[:500]
    assert list(whole.plot()) == ["mean"]


def test_extended_sweep_runs_only_new_points(tmp_path: Path) -> None:
    """With more values and seeds, the tables equal those of a complete new sweep."""
    small = {"axis": [{"key": "traffic.load", "values": [0.2]}], "seeds": 1}
    large = {"axis": [{"key": "traffic.load", "values": [0.1, 0.2, 0.3]}]}
    gradwire.sweep(sweep_tables(**small), out=tmp_path / "a", jobs=1)
    (key,) = [path.stem for path in (tmp_path / "a" / "points").iterdir()]
    stamp = (tmp_path / "a" / "points" / f"{key}.json").stat().st_mtime_ns
    said: list[str] = []
    gradwire.sweep(sweep_tables(**large), out=tmp_path / "a", jobs=2, progress=lambda share, words: said.append(words))
    assert said[0] == "1/6 runs" and (tmp_path / "a" / "points" / f"{key}.json").stat().st_mtime_ns == stamp
    gradwire.sweep(sweep_tables(**large), out=tmp_path / "b", jobs=2)
    assert same_tables(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_killed_sweep_resumes(tmp_path: Path, whole: Any) -> None:
    """SIGKILL ends the sweep at random moments, without its workers, until it completes."""
    rng = random.Random(os.getpid())
    (tmp_path / "sweep.toml").write_text(sweep_text(plot=PLOT))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "gradwire", "sweep", "sweep.toml", "--out", str(out), "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(5):
        run = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            run.wait(rng.uniform(0.5, 3.0))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.wait()
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True).returncode == 0
    assert same_tables(out, whole.folder)
    end = time.monotonic() + 60
    while (
        list((out / "points").glob("*.running")) and time.monotonic() < end
    ):  # workers left to themselves, at the last
        time.sleep(0.1)
    assert {path.suffix for path in (out / "points").iterdir()} == {".json"}


def test_interrupted_sweep_keeps_finished_points(tmp_path: Path) -> None:
    """The exit code is 130, tables hold the finished points, and the same command resumes the sweep."""
    (tmp_path / "sweep.toml").write_text(sweep_text(seeds=40))
    command = [sys.executable, "-m", "gradwire", "sweep", "sweep.toml", "--out", "out", "--jobs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    points = tmp_path / "out" / "points"
    while run.poll() is None and len(list(points.glob("*.json"))) < 3:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate()
    assert run.returncode == 130 and "Traceback" not in said
    done = len(list(points.glob("*.json")))
    assert 3 <= done < 160
    states = pandas.read_csv(tmp_path / "out" / "points.csv").state
    assert (states == "done").sum() == done
    found, lines = plan_sweep(tmp_path / "sweep.toml", tmp_path / "out")
    assert found.states["done"] == done and f"would run {160 - done}" in "\n".join(lines)


def test_points_with_damaged_records_are_repeated(whole: Any, tmp_path: Path) -> None:
    """Records are empty, truncated, of another format, or not an object."""
    out = tmp_path / "out"
    gradwire.sweep(sweep_tables(), out=out, jobs=2)
    files = sorted((out / "points").glob("*.json"))
    text = files[1].read_text()
    for file, content in zip(
        files, ("", text[: len(text) // 2], text.replace('"format":1', '"format":0'), "[]"), strict=False
    ):
        file.write_text(content)
    said: list[str] = []
    gradwire.sweep(sweep_tables(), out=out, jobs=2, progress=lambda share, words: said.append(words))
    assert said[0] == "4/8 runs" and same_tables(out, whole.folder)


def test_crashed_worker_fails_only_its_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other points finish; only --retry-failed repeats the failed one."""
    tables = sweep_tables(seeds=1)
    victim = points_of(build_sweep(tables), tmp_path)[2]
    monkeypatch.setattr("gradwire.studies.sweep.runner.measure_and_store", _Killing(victim.key))
    found = gradwire.sweep(tables, out=tmp_path / "out", jobs=2)
    assert found.states["done"] == 3 and found.states["failed"] == 1
    ((point, record),) = found.failures
    assert point.key == victim.key and record.why == "its process was killed by signal 9 (out of memory?)"
    monkeypatch.undo()
    assert gradwire.sweep(tables, out=tmp_path / "out").states["failed"] == 1
    assert gradwire.sweep(tables, out=tmp_path / "out", retry_failed=True, jobs=1).complete


class _Killing:
    """Measures a point, unless it is the one that kills its process."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, scenario: Any, key: str, place: Path, keep: bool) -> Any:
        from gradwire.studies.parallel.sweep_worker import measure_and_store

        if key == self.key:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure_and_store(scenario, key, place, keep)


def test_failed_points_are_named_and_the_sweep_exits_with_1(tmp_path: Path) -> None:
    """A missing file is detected when its point runs; the other point finishes."""
    (tmp_path / "sweep.toml").write_text(
        sweep_text(seeds=1, axis=[{"key": "traffic.sizes", "values": ["1kB", "./none.txt"]}])
    )
    result = invoke("sweep", "sweep.toml", "--out", "out")
    assert result.exit_code == 1 and "failed: sizes ./none.txt, seed 1: " in result.stderr
    assert "1 done, 1 failed" in result.stdout


def test_full_disk_ends_the_sweep_without_failing_points(tmp_path: Path) -> None:
    """A file size limit prevents the first record: one message, exit code 2, and no failed point. Without the limit
    the same command resumes."""
    (tmp_path / "sweep.toml").write_text(sweep_text(seeds=1))
    command = [sys.executable, "-m", "gradwire", "sweep", "sweep.toml", "--out", "out", "--jobs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    small = subprocess.run(
        ["sh", "-c", 'ulimit -f 2; exec "$@"', "sh", *command], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert small.returncode == 2 and "Traceback" not in small.stderr, small.stderr
    assert "out/points: exceeds the file size limit" in small.stderr
    # The next point may have begun before anybody looked at what became of the first one: markers, but no record.
    assert {path.suffix for path in (tmp_path / "out" / "points").iterdir()} == {".running"}
    found, _ = plan_sweep(tmp_path / "sweep.toml", tmp_path / "out")
    assert found.states["failed"] == 0
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120).returncode == 0


def test_folder_of_another_sweep_keeps_its_records_with_a_note(tmp_path: Path) -> None:
    """Records are reused; plots that are no longer declared are removed, and other files remain."""
    small = sweep_tables(seeds=1, axis=[{"key": "traffic.load", "values": [0.2, 0.6]}])
    out = tmp_path / "out"
    plot = {"kind": "lines", "x": "load", "y": "slowdown_mean"}
    gradwire.sweep({**small, "plot": [{"name": "a", **plot}, {"name": "b", **plot}]}, out=out, jobs=1)
    (out / "mine.png").write_text("drawn by somebody")
    said: list[str] = []
    with pytest.warns(ScenarioNote, match=r"out held the sweep small: its records are kept"):
        gradwire.sweep(
            {**small, "name": "other", "plot": [{"name": "b", **plot, "formats": ["svg"]}]}, out=out,
            progress=lambda share, words: said.append(words),
        )  # fmt: skip
    assert said == ["2/2 runs"]
    assert {path.name for path in out.iterdir() if path.suffix in (".png", ".svg")} == {"b.svg", "mine.png"}


def test_sweep_resumes_from_the_copy_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy works from any directory; relative files refer to the original sweep's folder."""
    (tmp_path / "sizes.txt").write_text("1000 0\n2000 1\n")
    (tmp_path / "sweep.toml").write_text(
        sweep_text(seeds=1, axis=[{"key": "traffic.sizes", "values": ["./sizes.txt", "1kB"]}])
    )
    monkeypatch.chdir(tmp_path)
    gradwire.sweep("sweep.toml", out="out", jobs=1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said: list[str] = []
    again = gradwire.sweep("../out/sweep.toml", out="../out", progress=lambda share, words: said.append(words))
    assert again.complete and said == ["2/2 runs"]


def test_dry_run_counts_failed_points_with_retry_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run refuses an unrelated folder as the sweep does."""
    (tmp_path / "sweep.toml").write_text(
        sweep_text(seeds=1, axis=[{"key": "traffic.sizes", "values": ["1kB", "./none.txt"]}])
    )
    invoke("sweep", "sweep.toml", "--out", "out")
    assert "would run" not in invoke("sweep", "sweep.toml", "--out", "out", "--dry-run").stdout
    assert "would run 1," in invoke("sweep", "sweep.toml", "--out", "out", "--dry-run", "--retry-failed").stdout
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert "does not hold a sweep" in invoke("sweep", "sweep.toml", "--out", "mine", "--dry-run").stderr


def test_fail_fast_ends_the_sweep_at_the_first_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = sweep_tables()
    monkeypatch.setattr(
        "gradwire.studies.sweep.runner.measure_and_store", _Killing(points_of(build_sweep(tables), tmp_path)[0].key)
    )
    with pytest.raises(SweepFailed, match=r"load 0\.2, buffer 128KiB, seed 1: its process was killed"):
        gradwire.sweep(tables, out=tmp_path / "out", jobs=1, fail_fast=True)
    assert "failed" in (tmp_path / "out" / "points.csv").read_text()


@pytest.mark.slow
def test_sweep_stops_at_the_time_limit(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(sweep_text(seeds=500))
    result = invoke("sweep", "sweep.toml", "--out", "out", "--jobs", "1", "--max-wall", "4s")
    assert result.exit_code == 1 and "time limit reached" in result.stderr
    assert "waiting" in result.stdout


def test_sweep_writes_whole_results_on_request(tmp_path: Path) -> None:
    """Points that finished before without a Result get one."""
    tables = sweep_tables(seeds=1, axis=[{"key": "traffic.load", "values": [0.2]}])
    gradwire.sweep(tables, out=tmp_path / "out", jobs=1)
    found = gradwire.sweep({**tables, "results": True}, out=tmp_path / "out", jobs=1)
    result = gradwire.Result.read(tmp_path / "out" / "results" / found.points[0].key)
    assert result.summary["policy"] == "0.2"


def test_dry_run_writes_no_files(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(sweep_text())
    result = invoke("sweep", "sweep.toml", "--dry-run", "--out", "out")
    assert result.exit_code == 0 and not (tmp_path / "out").exists()
    assert "small: 4 coordinates, 8 points" in result.stdout and "buffer: 128KiB, 1MiB" in result.stdout
    assert json.loads(invoke("sweep", "sweep.toml", "--dry-run", "--json").stdout)["states"]["waiting"] == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measures": ["slowdown_p98"]}, "no measure 'slowdown_p98'; expected slowdown_p99"),
        ({"measures": ["job.slowdown_p99"]}, "'job' is neither a job nor traffic; expected web"),
        ({"measures": ["iteration_mean_ps"]}, "'iteration_mean_ps' exists for jobs only: got web; expected a scenario with jobs"),
        ({"scenario": "nothing"}, "no such file"),
        ({"skip": "load < much"}, "which have no order"),
        ({"axis": [{"key": "job.workers", "values": [2]}]}, "small: axis workers: job.workers: the scenario has no [[job]]"),
        ({"plot": [{"name": "p", "kind": "lines", "x": "loads", "y": "marks"}]}, "x = 'loads' is not an axis; expected load, buffer"),
        ({"plot": [{"name": "p", "kind": "lines", "x": "load", "y": "marks"}]}, "does not use axis buffer, which has 2 values"),
        ({"plot": [{"name": "p", "kind": "cdf", "of": "job", "by": "load", "panels": "buffer"}]}, "neither a job nor traffic"),
        ({"axis": [{"name": "marks", "key": "traffic.load", "values": [0.2]}], "measures": ["marks"]}, "the name of a measure's column"),
    ],
)  # fmt: skip
def test_invalid_sweep_yields_one_message(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """The command exits with 2 before it runs a point or creates a folder."""
    (tmp_path / "sweep.toml").write_text(sweep_text(**changes))
    result = invoke("sweep", "sweep.toml", "--out", "out")
    assert result.exit_code == 2 and words in result.stderr and not (tmp_path / "out").exists()
    assert result.stderr.startswith("gradwire: ") and result.stderr.count("gradwire: ") == 1


def test_invalid_sweep_sources_options_and_folders_are_refused(tmp_path: Path) -> None:
    assert invoke("sweep", "nothing").exit_code == 2
    (tmp_path / "no.toml").write_text("a = [")
    assert "is not TOML" in invoke("sweep", "no.toml").stderr
    (tmp_path / "sweep.toml").write_text(sweep_text())
    assert "one of local, ray" in invoke("sweep", "sweep.toml", "--engine", "spark").stderr
    assert "engine" in invoke("sweep", "sweep.toml", "--address", "auto").stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ResultError, match="does not hold a sweep"):
        gradwire.sweep(sweep_tables(), out=tmp_path / "mine")
    with pytest.raises(ScenarioError, match=r"sweep\(source\)"):
        gradwire.sweep(3)  # type: ignore[arg-type]


def test_ray_engine_without_ray_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        gradwire.sweep(sweep_tables(), out=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_sweep_repr_is_one_line_and_html_is_a_table(whole: Any) -> None:
    assert repr(whole) == "<Sweep small over load x buffer, 8 runs: 8 done>"
    assert "<table>" in whole._repr_html_() and "slowdown_p99" in whole._repr_html_()
    assert '<th scope="col">load</th><th scope="col">buffer</th>' in whole._repr_html_()


@pytest.mark.slow
def test_parallel_comparison_equals_sequential_comparison(tmp_path: Path) -> None:
    """Results are identical byte for byte and in the same order."""
    from tests.support.sweep_cases import SCENARIO

    (tmp_path / "two.toml").write_text(write_toml(SCENARIO))
    for out, jobs in (("one", "1"), ("two", "2")):
        assert invoke("compare", "two.toml", "--out", out, "--jobs", jobs).exit_code == 0
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one" / "results").rglob("*.*"))
    assert len(files) > 20
    for file in files:
        if file.name != "timing.json":
            assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert repr(gradwire.compare("two.toml", jobs=2)) == repr(gradwire.compare("two.toml"))


def test_flow_measure_of_a_job_is_refused_with_valid_alternatives(tmp_path: Path) -> None:
    """The first sender is a job, which has no flows; the traffic after it has flows."""
    job = {"name": "ps", "trace": "resnet20", "workers": 2, "servers": 1, "exchange": {"kind": "parameter_server"}}
    web = {"name": "web", "kind": "incast", "size": "10kB", "fan_in": 2}
    (tmp_path / "both.toml").write_text(
        write_toml({"name": "both", "topology": {"kind": "star", "hosts": 4}, "job": [job], "traffic": [web]})
    )
    sweep = (
        'name = "s"\nscenario = "both.toml"\nmeasures = ["MEASURE"]\n[[axis]]\nkey = "link.rate"\nvalues = ["10Gbps"]\n'
    )
    for measure, code in (
        ("slowdown_p99", 2),
        ("web.slowdown_p99", 0),
        ("ps.completion_mean_ps", 2),
        ("push_mean_ps", 0),
    ):
        (tmp_path / "s.toml").write_text(sweep.replace("MEASURE", measure))
        result = invoke("sweep", "s.toml", "--dry-run")
        assert result.exit_code == code, result.stderr
        if code:
            name = measure.rpartition(".")[2]
            assert f"measure '{measure}' exists for traffic only: got ps; expected web.{name}" in result.stderr
