"""A sweep keeps one record per point and refuses damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.studies.sweep.point_store import PointStore, Record
from tests.support.sweep_cases import sweep_tables


def test_running_marker_beside_a_record_is_removed(tmp_path: Path) -> None:
    """The record counts, and the next run removes the marker of a running point."""
    gradwire.sweep(sweep_tables(seeds=1), out=tmp_path / "a", jobs=1)
    points = tmp_path / "a" / "points"
    key = next(path.stem for path in points.iterdir())
    (points / f"{key}.running").touch()
    (points / "gone.running").touch()
    gradwire.sweep(sweep_tables(seeds=1), out=tmp_path / "a", jobs=1)
    assert [path.name for path in points.glob("*.running")] == ["gone.running"]


@pytest.fixture(scope="module")
def point_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a sweep keeps of one point."""
    out = tmp_path_factory.mktemp("point") / "out"
    gradwire.sweep(sweep_tables(seeds=1), out=out, jobs=1)
    return next((out / "points").glob("*.json")).read_text()


def test_deeply_nested_record_counts_as_missing(point_text: str, tmp_path: Path) -> None:
    store = PointStore(tmp_path)
    store.make()
    (store.points / "a.json").write_text(point_text)
    (store.points / "b.json").write_text("[" * 100_000)
    assert list(store.read_all(["a", "b"])) == ["a"]


def test_record_with_an_altered_figure_is_refused(point_text: str) -> None:
    """Each figure of each job is changed to another valid value."""
    changed = 0
    for job, each in json.loads(point_text)["jobs"].items():
        for name, value in each["figures"].items():
            data = json.loads(point_text)
            data["jobs"][job]["figures"][name] = 1 if value == 0 else value / 2
            with pytest.raises(ValueError, match="altered"):
                Record.of_text(json.dumps(data))
            changed += 1
    assert changed > 10


@pytest.mark.parametrize("value", [-1, True, None, "7", [], float("nan"), float("inf"), 10**400])
def test_record_with_a_figure_out_of_range_is_refused(point_text: str, value: object) -> None:
    """The file has no checksum, as in older versions."""
    data = json.loads(point_text)
    data.pop("checksum", None)
    assert Record.of_text(json.dumps(data)).state == "done"
    figures = next(iter(data["jobs"].values()))["figures"]
    assert {"messages", "dropped"} & set(figures)
    figures["dropped"] = value
    with pytest.raises((ValueError, TypeError)):
        Record.of_text(json.dumps(data))


@pytest.mark.parametrize("damage", [
    lambda data: data.update(jobs={}), lambda data: data.update(wall_s=-1.0), lambda data: data.update(digest=7),
    lambda data: next(iter(data["jobs"].values()))["figures"].pop("dropped"),
    lambda data: next(iter(data["jobs"].values()))["figures"].update(lost_share=1.5),
    lambda data: next(iter(data["jobs"].values()))["distributions"]["completion"]["counts"].__setitem__(0, -1),
    lambda data: next(iter(data["jobs"].values()))["distributions"]["completion"]["values"].reverse(),
])  # fmt: skip
def test_record_with_missing_or_impossible_parts_is_refused(point_text: str, damage: Any) -> None:
    data = json.loads(point_text)
    data.pop("checksum", None)
    damage(data)
    with pytest.raises((ValueError, TypeError)):
        Record.of_text(json.dumps(data))
