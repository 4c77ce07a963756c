"""What is sent to a cluster: a scenario is the same there, with nothing left of the folders that it came from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gradwire.protocols.registry import resolve_component
from gradwire.result_store.provenance import scenario_text
from gradwire.scenarios.errors import ScenarioNote
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.parallel.code_bundle import CodeBundle, write_bundle
from gradwire.studies.sweep.points import key_of
from gradwire.traces.storage.writer import write
from gradwire.traces.trace import load_trace
from gradwire.workload.traffic.poisson import distribution
from tests.support.trace_cases import small_trace

SCENARIO = """
name = "own"
load_balancing = "mine:Mine"
[topology]
kind = "graph"
file = "net.edges"
[[job]]
name = "own"
trace = "./recorded"
workers = 2
exchange = { kind = "ring" }
[[job]]
name = "bundled"
trace = "resnet20"
workers = 2
exchange = { kind = "ring" }
[[traffic]]
name = "web"
kind = "poisson"
sizes = "sizes.txt"
load = 0.1
flows = 20
"""
NET = "".join(f"h{host} s0\n" for host in range(4))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a scenario and everything that it names."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own.toml").write_text(SCENARIO)
    (folder / "net.edges").write_text(NET)
    (folder / "sizes.txt").write_text("1000 0\n30000 1\n")
    balancer = (
        "from numba import njit\nfrom beside import FIRST\n@njit\n"
        "def select(switch, next_hops, hop_count, header, body, draws, now):\n"
    )
    (folder / "mine.py").write_text(f"{balancer}    return FIRST\nclass Mine:\n    select = staticmethod(select)\n")
    (folder / "beside.py").write_text("FIRST = 0\n")
    (folder / "thesis.pdf").write_text("not asked for")
    write(small_trace(), folder / "recorded")
    (folder / "recorded" / "raw").mkdir()
    (folder / "recorded" / "raw" / "gradients.npy").write_text("not needed")
    return folder


def sent(own: Path, tmp_path: Path) -> tuple[Scenario, CodeBundle]:
    """A scenario, and what is sent of it, moved to where nobody has said it would be; the rest is gone."""
    scenario = load_scenario(own / "own.toml")
    assert write_bundle([scenario, scenario], tmp_path / "laid") is not None
    (tmp_path / "laid").rename(tmp_path / "node")
    found = CodeBundle.read(tmp_path / "node")
    assert found is not None
    return scenario, found


def test_bundled_scenario_keeps_its_key_without_the_original_folder(own: Path, tmp_path: Path) -> None:
    """The key covers the content of every file that the scenario names."""
    scenario, found = sent(own, tmp_path)
    key = key_of(scenario)
    shutil.rmtree(own)
    there = found.scenario(scenario)
    assert key_of(there) == key and there.folder is not None
    assert load_trace(there.job[0].trace).name == "small" and there.job[1].trace == "resnet20"
    assert resolve_component("load_balancing", there.load_balancing, there.folder).__name__ == "Mine"
    assert distribution(there.traffic[0].path, "sizes").size.max() == 30_000
    assert scenario_text(found.scenario(scenario)) != scenario_text(scenario)  # which is why a Result gets it back
    names = {file.name for file in found.root.rglob("*") if file.is_file()}
    assert {"mine.py", "beside.py", "net.edges", "sizes.txt"} < names
    assert not names & {"thesis.pdf", "gradients.npy", "own.toml"}


def test_bundle_messages_name_the_original_paths(own: Path, tmp_path: Path) -> None:
    scenario, found = sent(own, tmp_path)
    there = found.scenario(scenario)
    words = f"{there.job[0].trace}/layers.parquet: is damaged; {there.folder}/mine.py:3: no; {there.topology.path}"
    expected = f"{own}/recorded/layers.parquet: is damaged; {own}/mine.py:3: no; {own}/net.edges"
    assert found.text(words) == expected


def test_library_scenarios_need_no_bundle(tmp_path: Path) -> None:
    assert write_bundle([load_scenario("websearch"), load_scenario("demo")], tmp_path / "laid") is None
    assert not (tmp_path / "laid").exists() and CodeBundle.read(tmp_path) is None


def test_missing_trace_is_left_out_of_the_bundle(own: Path, tmp_path: Path) -> None:
    """The run reports the missing trace with the path that the user knows."""
    scenario = load_scenario(own / "own.toml")
    shutil.rmtree(own / "recorded")
    found = write_bundle([scenario], tmp_path / "laid")
    assert found is not None and found.scenario(scenario).job[0].trace == str(own / "recorded")


def test_large_trace_is_left_out_of_the_bundle_with_a_note(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.studies.parallel.code_bundle.MAX_BYTES", 2000)
    scenario = load_scenario(own / "own.toml")
    with pytest.warns(ScenarioNote, match=r"recorded .* at the same place on every node"):
        found = write_bundle([scenario], tmp_path / "laid")
    assert found is not None and found.scenario(scenario).job[0].trace == str(own / "recorded")
    assert found.scenario(scenario).folder != scenario.folder
