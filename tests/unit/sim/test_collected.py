"""What is over is handed over while a run goes on: the Result is the same, and memory grows with what is under way."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire.result_store import lazy_table, row_blocks
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.sim import simulate as module
from gradwire.sim import stall_timeout
from gradwire.sim.engine import logs, time_advance
from gradwire.sim.progress import ProgressReport
from gradwire.sim.run import submitted_messages
from gradwire.sim.simulate import Stalled, packet_fabric, simulate

SHORT = {
    "job": lambda: load_scenario("incast", policy="dlcp", set=["job.iterations=4"]),
    "traffic": lambda: load_scenario("incast-mix", policy="dlcp"),
    "both": lambda: load_scenario("shared", policy="dctcp", set=["duration=20ms"]),
    "cut": lambda: load_scenario("incast", policy="dlcp", set=["job.iterations=4", "duration=3000ms"]),
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is handed over and packed as soon as it can be."""
    monkeypatch.setattr(time_advance, "CLOSE_BATCH", 1)
    monkeypatch.setattr(logs, "MAX_PENDING_DROPS", 10)
    monkeypatch.setattr(row_blocks, "ROWS", 500)
    monkeypatch.setattr(row_blocks, "IN_MEMORY", 10_000)
    monkeypatch.setattr(lazy_table, "GROUP", 700)


@pytest.fixture
def fabrics(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The packet engines that `simulate` makes from now on."""
    made: list[Any] = []

    def make(*given: Any, **more: Any) -> Any:
        made.append(packet_fabric(*given, **more))
        return made[-1]

    monkeypatch.setattr(module, "packet_fabric", make)
    return made


@pytest.mark.parametrize("which", SHORT)
def test_streamed_result_equals_result_kept_in_engine(
    which: str, eager: None, fabrics: list[Any], tmp_path: Path
) -> None:
    scenario = SHORT[which]()
    whole = simulate(scenario, fabric=packet_fabric)
    streamed = simulate(scenario)
    (fabric,) = fabrics
    assert sum(track.handed.messages for track in fabric._programs.tracks) > 0
    assert fabric.flows.book.first > 0 or which == "both"  # of which the job's first step is not over yet
    assert whole.stored_rows("messages").num_rows > 1000
    assert streamed.summary == whole.summary
    for name in TABLES:
        assert getattr(streamed, name).equals(getattr(whole, name)), name
    folders = [result.write(tmp_path / each) for each, result in (("a", whole), ("b", simulate(scenario)))]
    for path in folders[0].iterdir():
        assert path.name == "timing.json" or path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name


def test_streamed_rows_are_in_order(eager: None) -> None:
    result = simulate(SHORT["job"]())
    numbers = result.messages["message"].to_numpy()
    assert numbers.tolist() == list(range(len(numbers)))
    missing = list(zip(*(result.missing[name].to_pylist() for name in ("message", "packet")), strict=True))
    assert len(missing) > 1000 and missing == sorted(missing)
    drops = result.drops["time_ps"].to_numpy()
    assert len(drops) > 100 and (np.diff(drops) >= 0).all()


def live(fabric: Any) -> dict[str, int]:
    """What an engine still has of messages, by what it is: rows."""
    (track,) = fabric._programs.tracks
    return {
        "steps": len(track.steps),
        "book": fabric.flows.book.count - fabric.flows.book.first,
        "missing": sum(map(len, fabric._deliveries._missing)),
        "drops": sum(map(len, fabric._logs.drops)),
        "records": fabric.flows.records.used,
    }


def test_engine_memory_does_not_grow_with_iterations(
    eager: None, fabrics: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs are cut in the middle of a job, as little is left at its end in any case."""
    monkeypatch.setattr(
        time_advance, "CALL_SECONDS", 1e9
    )  # else how often records are freed goes by the machine's speed

    def run(duration: str, iterations: int = 99) -> tuple[dict[str, int], Result]:
        settings = [f"duration={duration}", f"job.iterations={iterations}"]
        result = simulate(load_scenario("incast", policy="dlcp", set=settings))
        return live(fabrics.pop()), result

    (few, small), (many, large), (_, two) = run("4s"), run("12s"), run("12s", 2)
    assert large.stored_rows("messages").num_rows > 2.5 * small.stored_rows("messages").num_rows
    assert 0 < few["steps"] <= 3 and few["book"] <= 3 * two.stored_rows("messages").num_rows // 2
    assert all(many[name] <= 1.2 * few[name] + 20 for name in few), (few, many)


def test_custom_fabric_keeps_all_rows(eager: None) -> None:
    made = []

    def make(*given: Any, **more: Any) -> Any:
        made.append(packet_fabric(*given, **more))
        return made[-1]

    result = simulate(SHORT["job"](), fabric=make)
    tables = made[0].finish()
    assert tables.first == 0 and len(tables.end_ps) == result.stored_rows("messages").num_rows
    assert len(tables.drops["message"]) == result.stored_rows("drops").num_rows


@pytest.mark.parametrize("which", ["both", "cut"])
def test_progress_counts_released_messages(which: str, eager: None, fabrics: list[Any]) -> None:
    """If a run is cut, an engine that releases messages reports the same progress as one that keeps them."""
    told: list[ProgressReport] = []
    plain: list[ProgressReport] = []
    keeps: list[Any] = []

    def make(*given: Any, **more: Any) -> Any:
        keeps.append(packet_fabric(*given, **more))
        return keeps[-1]

    simulate(SHORT[which](), progress=told.append)
    simulate(SHORT[which](), progress=plain.append, fabric=make)
    assert sum(track.handed.nbytes for track in fabrics[0]._programs.tracks) > 0
    assert fabrics[0].settled_bytes == keeps[0].settled_bytes > 0
    assert told[-1] == plain[-1]
    for forgets, whole in zip(fabrics[0]._programs.tracks, keeps[0]._programs.tracks, strict=True):
        assert submitted_messages(forgets) == submitted_messages(whole)
        assert len(whole.steps) == forgets.handed.steps + len(forgets.steps)


@pytest.mark.slow
def test_stall_report_is_equal_with_streamed_and_kept_messages(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's cable is cut in the third iteration, after the first has been released. The stall timeout is reduced
    to one second, ten times the longest gap of the run."""
    monkeypatch.setattr(stall_timeout, "MIN_STALL_TIMEOUT", Ps(10**12))
    tables = tomllib.loads((files("gradwire.scenarios") / "library" / "incast.toml").read_text(encoding="utf-8"))
    tables["job"][0]["iterations"] = 6
    tables["fault"] = [{"kind": "link_down", "between": ["h1", "s0"], "at": "2600ms"}]
    scenario = build_scenario(tables).variants()[1]
    found = []
    for fabric in (None, packet_fabric):
        with pytest.raises(Stalled) as caught:
            simulate(scenario, fabric=fabric)
        found.append(caught.value)
    streamed, whole = found
    assert "of iteration 2" in str(streamed) and str(streamed) == str(whole)
    assert streamed.result.summary == whole.result.summary
    assert streamed.result.summary["totals"]["messages_under_way"] > 0
    for name in TABLES:
        assert getattr(streamed.result, name).equals(getattr(whole.result, name)), name
