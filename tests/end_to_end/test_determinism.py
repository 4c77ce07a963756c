"""The same scenario, trace and seed give the same bytes: whatever the number of threads, in any process, and however
often the engine was interrupted. Another seed gives other bytes where anything is random."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import packet_fabric, simulate

ROOT = Path(__file__).parents[2]

SCENARIOS: dict[str, dict[str, Any]] = {
    "ps": {
        "transport": "dlcp",
        "load_balancing": "spray_random",
        "switch": {"queues": 4, "buffer": "64KiB", "ecn_threshold": "32KiB", "selective_drop": True},
        "job": [
            {
                "name": "job", "trace": "resnet50", "iterations": 2, "workers": 3, "servers": 2, "jitter": 0.05,
                "exchange": {"kind": "parameter_server"}, "push_bound": 0.1, "order": "layer",
                "tagging": {"layer_priority": True, "priorities": [1, 2, 3], "magnitude": True},
            }
        ],
    },
    "ring": {
        "transport": {"kind": "dctcp", "min_rto": "200us"},
        "link": {"rate": "100Gbps", "latency": "1us", "loss": 0.0001},
        "switch": {"queues": 1, "ecn_threshold": "64KiB"},
        "job": [{"name": "job", "trace": "resnet50", "iterations": 1, "workers": 4, "exchange": {"kind": "ring"}}],
    },
}  # fmt: skip


def scenario(name: str, seed: int = 1) -> Scenario:
    return Scenario.model_validate({
        "name": name, "seed": seed,
        "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 2},
        **SCENARIOS[name],
    })  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a Result but the one that says how long the simulation took."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop("timing.json")
    assert {"result.json", "messages.parquet", "drops.parquet", "ports.parquet"} <= set(files)
    return files


def together(case: Any, network: Any, routing: Any, threads: int) -> Any:
    """The engine with all threads in every window, however little there is to do in it, and in short calls."""
    fabric = packet_fabric(case, network, routing, threads)
    advance = fabric.advance.workers.advance  # type: ignore[attr-defined]
    fabric.advance.workers.advance = lambda alone: advance(False)  # type: ignore[attr-defined]
    fabric.advance.budget = 17  # type: ignore[attr-defined]
    return fabric


@pytest.fixture(scope="module")
def first_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What every other run is compared with."""
    folder = tmp_path_factory.mktemp("first")
    for name in SCENARIOS:
        gradwire.simulate(scenario(name)).write(folder / name)
    return {name: contents(folder / name) for name in SCENARIOS}


def same(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Names of the files that differ."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_determinism_cases_have_drops_and_messages(name):
    result = gradwire.simulate(scenario(name))
    assert len(result.drops) > 50 and len(result.messages) > 64


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_threads(name, threads, first_runs, tmp_path):
    gradwire.simulate(scenario(name), threads=threads).write(tmp_path / "again")
    assert same(contents(tmp_path / "again"), first_runs[name]) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_results_do_not_depend_on_threads_in_every_window(name, first_runs, tmp_path):
    simulate(scenario(name), threads=2, fabric=together).write(tmp_path / "again")
    assert same(contents(tmp_path / "again"), first_runs[name]) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_results_do_not_depend_on_the_process(name, first_runs, tmp_path):
    code = f"""
import sys; sys.path[:0] = {[str(ROOT), str(Path(__file__).parent), str(ROOT / "tests" / "support")]!r}
import gradwire
from test_determinism import scenario
gradwire.simulate(scenario({name!r})).write({str(tmp_path / "other")!r})
"""
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert same(contents(tmp_path / "other"), first_runs[name]) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_another_seed_changes_results(name, first_runs, tmp_path):
    gradwire.simulate(scenario(name, seed=2)).write(tmp_path / "seed")
    assert {"messages.parquet", "drops.parquet", "ports.parquet"} <= set(
        same(contents(tmp_path / "seed"), first_runs[name])
    )
