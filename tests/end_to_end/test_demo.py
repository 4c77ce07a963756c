"""The demo from end to end, small: through the command line and the packet engine to the files it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm import Warm

import gradwire
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result

ROOT = Path(gradwire.__file__).resolve().parents[1]

# A fifth of the hosts and one iteration: a second or so of simulating per policy, once the engine is compiled.
SMALL = [
    "--set", "job.workers=3", "--set", "job.servers=1", "--set", "job.iterations=1",
    "--set", "topology.leaves=2", "--set", "topology.hosts_per_leaf=2", "--set", "topology.spines=2",
]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gradwire", *arguments]


def run(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return Warm.ours().run(*arguments, timeout=timeout)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The demo's three policies on four hosts."""
    out = tmp_path_factory.mktemp("demo") / "out"
    return run("compare", "demo", *SMALL, "--out", str(out)), out


@pytest.mark.slow
def test_demo_compares_three_policies_in_a_table(compared: tuple[subprocess.CompletedProcess[str], Path]):
    done, _ = compared
    assert done.returncode == 0, done.stderr
    lines = {line.split("|")[0].strip(): line.split("|")[1:] for line in done.stdout.splitlines() if "|" in line}
    for label in ("iteration time, mean", "iteration time, max", "exposed communication, mean", "CE marks"):
        assert len(lines[label]) == 3
    assert all(" ms" in cell for cell in lines["iteration time, mean"])
    assert all(float(cell.strip().removesuffix(" M").replace(",", "")) > 0 for cell in lines["packet-hops"])
    assert lines["worst loss of a message"][0].strip() == lines["worst loss of a message"][1].strip() == "none"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_demo_output_files_are_consistent(compared: tuple[subprocess.CompletedProcess[str], Path]):
    _, out = compared
    data = json.loads((out / "comparison.json").read_text())
    assert data["sound"] is True
    results = {name: Result.read(out / "results" / name) for name in ("dctcp", "dctcp-priority", "dlcp")}
    assert [run["summary"]["policy"] for run in data["runs"]] == list(results)
    trace_bytes = 94_114_088  # 23,528,522 float32 values of the bundled trace
    for entry, (name, result) in zip(data["runs"], results.items(), strict=True):
        job = entry["jobs"][0]
        assert check_loss_invariant(result) == []
        assert result.iterations.num_rows == job["iteration"]["count"] == 3
        times = result.iterations["end_ps"].to_numpy() - result.iterations["start_ps"].to_numpy()
        assert job["iteration"]["mean_ps"] == times.mean()
        # Every worker pushes the whole model once and pulls it once.
        assert sum(result.messages["bytes"].to_pylist()) == 2 * 3 * trace_bytes
        assert job["under_way"] == 0
        lost = sum(result.messages["lost_bytes"].to_pylist())
        assert (lost > 0) == (name == "dlcp")
        assert job["drops_selective"] == 0 or name == "dlcp"
    for picture in ("iteration_time.png", "completion_time.png"):
        assert (out / picture).stat().st_size > 5000


@pytest.mark.slow
def test_run_and_compare_reproduce_the_demo_figures(
    compared: tuple[subprocess.CompletedProcess[str], Path], own_directory: Path
):
    _, out = compared
    done = run("run", "demo", "--policy", "dlcp", *SMALL, "--out", "again", "--json")
    assert done.returncode == 0, done.stderr
    first, again = Result.read(out / "results" / "dlcp"), Result.read("again")
    assert first.summary == again.summary
    assert first.messages.equals(again.messages) and first.ports.equals(again.ports)
    assert json.loads(done.stdout)["runs"][0]["summary"]["policy"] == "dlcp"
    both = run("compare", "again", str(out / "results" / "dlcp"))
    assert both.returncode == 0
    assert "DLCP [1]" in both.stdout and "DLCP [2]" in both.stdout


def test_demo_runs_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gradwire, gradwire.analysis.comparison.compare, gradwire.analysis.comparison.plots, gradwire.sim.simulate\n"
        "from gradwire.traces.trace import load_trace\n"
        "assert load_trace('resnet50').total_bytes == 94_114_088\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_interrupted_demo_keeps_partial_result(own_directory: Path):
    # Long enough that it cannot be over; interrupted as soon as some of it has been simulated.
    arguments = ["run", "demo", *SMALL, "--set", "job.iterations=400", "--out", "partial"]
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests started in the background of a shell inherit an ignored SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        limit = time.monotonic() + 240
        for line in process.stderr:
            done = int(line.split("%")[1].split("/")[0]) if "iterations" in line else 0
            if done or time.monotonic() > limit:
                break
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in output
    partial = Result.read("partial")
    assert 0 < partial.iterations.num_rows < 3 * 400
    assert partial.summary["totals"]["finished"] is False
