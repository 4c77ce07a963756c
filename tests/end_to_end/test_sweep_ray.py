"""Sweeps on Ray: clusters of this machine whose nodes are killed, or have nothing of one's own, and the same tables as
here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.scenarios.errors import GradwireError
from gradwire.studies.sweep.points import points_of
from gradwire.studies.sweep.schema import build_sweep
from gradwire.traces.storage.writer import write
from tests.support.sweep_cases import sweep_tables
from tests.support.trace_cases import small_trace

ray = pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TABLES = ("sweep.csv", "sweep.parquet", "points.csv", "points.parquet")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sweep by processes of this machine."""
    out = tmp_path_factory.mktemp("here") / "out"
    gradwire.sweep(sweep_tables(seeds=10), out=out, jobs=2)
    return out


@pytest.fixture
def cluster() -> Any:
    """Two nodes, of one processor each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a sweep over a trace, sizes and a transport of one's own, which imports another module."""
    folder = tmp_path / "own"
    folder.mkdir()
    text = (EXAMPLES / "constant_rate.py").read_text()
    beside = "return flow.ps_per_byte * 100 // percent"
    assert text.count("flow.ps_per_byte * 100 // params.percent") == 1
    text = text.replace("flow.ps_per_byte * 100 // params.percent", "gap(flow, params.percent)")
    (folder / "rate.py").write_text(
        text.replace("from numba import njit", "from numba import njit\nfrom beside import gap")
    )
    (folder / "beside.py").write_text(f"from numba import njit\n@njit\ndef gap(flow, percent):\n    {beside}\n")
    (folder / "sizes.txt").write_text("1000 0\n30000 1\n")
    write(small_trace(), folder / "recorded")
    (folder / "own.toml").write_text(OWN)
    return folder


OWN = """
name = "own"
seeds = 2
measures = ["iteration_mean_ps", "web.slowdown_mean"]
results = true
[scenario]
name = "own"
transport = { kind = "rate:ConstantRate", percent = 50 }
topology = { kind = "star", hosts = 4 }
[[scenario.job]]
name = "own"
trace = "./recorded"
workers = 4
iterations = 2
exchange = { kind = "ring" }
[[scenario.traffic]]
name = "web"
kind = "poisson"
sizes = "./sizes.txt"
load = 0.05
flows = 20
[[axis]]
key = "transport.percent"
values = [40, 80]
"""


@pytest.fixture
def strangers(own: Path, tmp_path: Path) -> Iterator[str]:
    """A cluster whose two nodes have processors and not the folder: an empty one lies over it in the world they see. Each
    runs in a folder of its own. Gives the address."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("may not hide a folder from a process (unshare -m)")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
        for name in ("one", "two"):  # one after the other: they take names of sockets in one folder
            (tmp_path / name).mkdir()
            start = [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                f"--address={made.address}",
                "--num-cpus=1",
                "--block",
            ]
            hidden = f'mount -t tmpfs none "{own}" && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", hidden, "sh", *start]
            with (tmp_path / f"{name}.log").open("w") as log:
                nodes.append(
                    subprocess.Popen(command, cwd=tmp_path / name, stdout=log, stderr=log, start_new_session=True)
                )
            end = time.monotonic() + 120
            while ray.cluster_resources().get("CPU", 0) < len(nodes) and time.monotonic() < end:
                time.sleep(0.5)
            assert ray.cluster_resources().get("CPU", 0) == len(nodes), (tmp_path / f"{name}.log").read_text()
        ray.shutdown()
        yield made.address
    finally:
        ray.shutdown()
        for node in nodes:
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
        made.shutdown()


def test_ray_nodes_receive_traces_sizes_and_modules(strangers: str, own: Path, tmp_path: Path) -> None:
    """The tables equal those of a local sweep, and Results name the paths of this machine. After a change of the
    trace all points run anew."""
    found = gradwire.sweep(own / "own.toml", out=tmp_path / "there", engine="ray", address=strangers)
    assert found.complete, found.failures
    gradwire.sweep(own / "own.toml", out=tmp_path / "here", jobs=1)
    assert same_tables(tmp_path / "there", tmp_path / "here")
    for point in found.points:
        there, here = (gradwire.Result.read(tmp_path / place / "results" / point.key) for place in ("there", "here"))
        assert there.summary == here.summary and there.scenario == here.scenario
        assert there.messages.equals(here.messages)
    shutil.rmtree(own / "recorded")
    said: list[str] = []
    write(small_trace(seed=1), own / "recorded")  # another trace: everything is run anew, from what is sent now
    again = gradwire.sweep(
        own / "own.toml", out=tmp_path / "there", engine="ray", address=strangers,
        progress=lambda share, words: said.append(words),
    )  # fmt: skip
    assert said[0] == "0/4 runs" and again.complete
    assert not same_tables(tmp_path / "there", tmp_path / "here")


def same_tables(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def test_ray_sweep_completes_after_loss_of_a_node(cluster: Any, here: Path, tmp_path: Path) -> None:
    """One of two nodes is killed with all its processes during the sweep; all points complete."""
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[str] = []

    def told(share: float, words: str) -> None:
        if share > 0.2 and not lost:
            lost.append(words)
            cluster.remove_node(second, allow_graceful=False)

    found = gradwire.sweep(
        sweep_tables(seeds=10), out=tmp_path / "out", engine="ray", address=cluster.address, progress=told
    )
    assert lost and found.complete and same_tables(tmp_path / "out", here)


def test_ray_sweep_returns_results_and_resumes_on_local_engine(cluster: Any, here: Path, tmp_path: Path) -> None:
    """Results are returned, too; completed points do not run again on the other engine."""
    found = gradwire.sweep(sweep_tables(results=True), out=tmp_path / "out", engine="ray", address=cluster.address)
    assert found.complete
    result = gradwire.Result.read(tmp_path / "out" / "results" / found.points[-1].key)
    assert result.summary["seed"] == 2
    said: list[str] = []
    gradwire.sweep(
        sweep_tables(seeds=10), out=tmp_path / "out", jobs=2, progress=lambda share, words: said.append(words)
    )
    assert said[0] == "8/40 runs" and same_tables(tmp_path / "out", here)


def test_ray_task_that_kills_its_process_fails_only_its_point(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The point is retried as often as documented; the others complete."""
    tables = sweep_tables(seeds=1)
    victim = points_of(build_sweep(tables), tmp_path)[1].scenario.digest()

    def measured(scenario: Any, keep: bool) -> Any:
        from gradwire.studies.parallel.sweep_worker import measure as really

        if scenario.digest() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(scenario, keep)

    measured.__module__ = "__main__"  # sent by value, as the cluster has no tests
    monkeypatch.setattr("gradwire.studies.sweep.runner.measure", measured)
    found = gradwire.sweep(tables, out=tmp_path / "out", engine="ray", address=cluster.address)
    assert (found.states["done"], found.states["failed"]) == (3, 1)
    assert found.failures[0][1].why.startswith("its process was lost 3 times")


def test_missing_ray_cluster_is_reported(tmp_path: Path) -> None:
    """The error comes before any output is written."""
    with pytest.raises(GradwireError, match="no Ray cluster"):
        gradwire.sweep(sweep_tables(), out=tmp_path / "out", engine="ray", address="127.0.0.1:1")
    assert not (tmp_path / "out").exists()
