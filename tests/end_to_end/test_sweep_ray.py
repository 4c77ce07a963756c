"""Sweeps on Ray: a cluster of this machine, two nodes of which one is killed, and the same tables as here."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.analysis.sweeps.points import points_of
from gradwire.analysis.sweeps.schema import build_sweep
from gradwire.scenarios.errors import GradwireError
from tests.support.sweep_cases import sweep_tables

ray = pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.slow
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


def same_tables(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def test_a_lost_node_costs_nothing(cluster: Any, here: Path, tmp_path: Path) -> None:
    """One of two nodes is killed, with everything on it, while it is at work: all points are done."""
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[str] = []

    def told(share: float, words: str) -> None:
        if share > 0.2 and not lost:
            lost.append(words)
            cluster.remove_node(second, allow_graceful=False)

    found = gradwire.sweep(sweep_tables(seeds=10), out=tmp_path / "out", engine="ray", address=cluster.address, progress=told)
    assert lost and found.complete and same_tables(tmp_path / "out", here)


def test_what_comes_back_is_whole(cluster: Any, here: Path, tmp_path: Path) -> None:
    """Results, too; what is done is not run again on the other engine."""
    found = gradwire.sweep(sweep_tables(results=True), out=tmp_path / "out", engine="ray", address=cluster.address)
    assert found.complete
    result = gradwire.Result.read(tmp_path / "out" / "results" / found.points[-1].key)
    assert result.summary["seed"] == 2
    said: list[str] = []
    gradwire.sweep(sweep_tables(seeds=10), out=tmp_path / "out", jobs=2, progress=lambda share, words: said.append(words))
    assert said[0] == "8/40 runs" and same_tables(tmp_path / "out", here)


def test_a_task_that_kills_its_process_costs_its_point(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handed out again as often as is promised; the others are done."""
    tables = sweep_tables(seeds=1)
    victim = points_of(build_sweep(tables), tmp_path)[1].scenario.digest()

    def measured(scenario: Any, keep: bool) -> Any:
        from gradwire.sweeping import measured as really

        if scenario.digest() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(scenario, keep)

    measured.__module__ = "__main__"  # sent by value, as the cluster has no tests
    monkeypatch.setattr("gradwire.sweeping.measured", measured)
    found = gradwire.sweep(tables, out=tmp_path / "out", engine="ray", address=cluster.address)
    assert (found.states["done"], found.states["failed"]) == (3, 1)
    assert found.failures[0][1].why.startswith("its process was lost 3 times")


def test_no_cluster_is_said(tmp_path: Path) -> None:
    with pytest.raises(GradwireError, match="no Ray cluster"):
        gradwire.sweep(sweep_tables(), out=tmp_path / "out", engine="ray", address="127.0.0.1:1")
