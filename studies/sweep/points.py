"""Builds the points of a sweep, each a scenario with its coordinates, a seed, and the key of its outcome.

A key is a SHA-256 over everything that determines the figures: the resolved scenario, the content of its traces and
files, its measured window, and the simulator's sources. So a point keeps its key when a sweep is extended or its axes
are written differently, and two points with equal scenarios are simulated once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from gradwire.analysis.source_digests import engine_digest
from gradwire.result_store.provenance import input_digests
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, list_library, load_tables
from gradwire.scenarios.loading.overrides import apply_overrides_and_traces, last_key, with_absolute_paths
from gradwire.scenarios.loading.toml import inline_toml
from gradwire.scenarios.schema.policy import Policy, overlay
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.sweep.axes import AxisRow, coordinates, expand
from gradwire.studies.sweep.quantity import Scalar
from gradwire.studies.sweep.schema import SweepFile
from gradwire.traces.trace import load_trace

STORE_VERSION = 1
"""Version of stored points: to be raised when a figure of the same run changes."""


@dataclass(frozen=True)
class PointPlace:
    """Position of a point in the sweep, and the key of its outcome.

    row : index of its coordinates, in the order of the table.
    at : its value on every axis, by column; None if an axis does not apply.
    labels : of these values in plots.
    """

    row: int
    at: Mapping[str, Scalar | None]
    labels: Mapping[str, str]
    seed: int
    key: str

    @property
    def name(self) -> str:
        """Readable name such as "load 0.5, transport ndp, seed 2"."""
        return ", ".join([*name_of(self.at), f"seed {self.seed}"])


@dataclass(frozen=True)
class Point(PointPlace):
    """A place with the scenario that runs there."""

    scenario: Scenario


AnyPlace = TypeVar("AnyPlace", bound=PointPlace)


def name_of(at: Mapping[str, Scalar | None]) -> list[str]:
    """Return the coordinates as texts, without axes that do not apply."""
    return [f"{column} {value}" for column, value in at.items() if value is not None]


def points_of(sweep: SweepFile, folder: Path) -> list[Point]:
    """Return all points, in the order of the table; seeds of the same coordinates follow each other.

    folder : of the sweep's file, the base of relative names.

    Raises `ScenarioError` if the base or a point is not a valid scenario; the message names the coordinates.
    """
    tables, policies, base_folder = _base(sweep, folder)
    columns = [axis.column for axis in sweep.axis]
    points = []
    for number, row in enumerate(expand(sweep, policies)):
        at = coordinates(row, columns)
        scenario = _resolved(sweep, tables, row, at, folder).at(base_folder)
        labels = {column: choice.label or str(choice.shown) for column, choice in row.items()}
        for seed in seeds_of(sweep, scenario):
            seeded = scenario.model_copy(update={"seed": seed})
            points.append(Point(number, at, labels, seed, key_of(seeded), seeded))
    return points


def seeds_of(sweep: SweepFile, scenario: Scenario) -> Sequence[int]:
    """Return the seeds of every point."""
    if sweep.seeds is None:
        return (scenario.seed,)
    return range(1, sweep.seeds + 1) if isinstance(sweep.seeds, int) else sweep.seeds


def key_of(scenario: Scenario) -> str:
    """Return the key of one scenario's run with this version of the engine."""
    return _key([STORE_VERSION, *_inputs(scenario), engine_digest()])


def scenario_key(scenario: Scenario) -> str:
    """Return a key of all that a scenario's run reads, whatever the version of the engine."""
    return _key(_inputs(scenario))


def _inputs(scenario: Scenario) -> list[Any]:
    traces = [trace_digest(job.trace) for job in scenario.job]
    return [scenario.digest(), traces, input_digests(scenario), scenario.measure.model_dump(mode="json")]


def _key(inputs: list[Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]


def trace_digest(name: str) -> str:
    """Return the digest of a trace's content, read again if its files changed. Raises TraceError if it is
    unreadable."""
    path = Path(name)
    files = sorted(path.iterdir()) if path.is_dir() else []
    return _digest(name, tuple((file.name, (stat := file.stat()).st_mtime_ns, stat.st_size) for file in files))


@lru_cache(maxsize=256)
def _digest(name: str, stamp: tuple[tuple[str, int, int], ...]) -> str:
    return load_trace(name).digest()


def _base(sweep: SweepFile, folder: Path) -> tuple[dict[str, Any], tuple[Policy, ...], Path]:
    """Return the base tables of all points, the policies of the scenario, and the folder of its relative names."""
    if isinstance(sweep.scenario, dict):
        tables, base_folder, where = sweep.scenario, folder, f"{sweep.name}: scenario"
    else:
        path = folder / Path(sweep.scenario).expanduser()
        of_library = sweep.scenario in list_library() and not path.exists()
        tables = load_tables(sweep.scenario if of_library else path)
        base_folder, where = (folder if of_library else path.parent), sweep.scenario
    policies = build_scenario(tables, where).policy
    bare = {key: value for key, value in tables.items() if key != "policy"}
    return overlay(bare, with_absolute_paths("", sweep.set, folder)), policies, base_folder


def _resolved(
    sweep: SweepFile, tables: dict[str, Any], row: AxisRow, at: Mapping[str, Scalar | None], folder: Path
) -> Scenario:
    """Return the scenario at some coordinates, as a variant named by them."""
    words = name_of(at)
    where = f"{sweep.name} at {', '.join(words)}" if words else sweep.name
    for column, choice in row.items():
        if not choice.keys:
            tables = overlay(tables, with_absolute_paths("", choice.laid, folder))
            continue
        overrides = [
            f"{key}={inline_toml(with_absolute_paths(last_key(key), choice.value, folder))}" for key in choice.keys
        ]
        try:
            tables = apply_overrides_and_traces(tables, overrides)
        except ScenarioError as error:
            what = f"{', '.join(choice.keys)}: {error.what}"
            raise ScenarioError(what, f"{sweep.name}: axis {column}", error.expected) from None
    scenario = build_scenario(tables, where)
    if not words:
        return scenario
    name = re.sub(r"[^\w.+-]+", "-", "-".join(str(value) for value in at.values() if value is not None))
    return scenario.under(Policy(name=name or "point", label=", ".join(words)))


def distinct_points(points: Sequence[Point]) -> list[Point]:
    """Return every run once: all coordinates with their first seed, then with the second, and so on. So early results
    show all of the sweep, and allow an estimate of the remaining time."""
    first: dict[str, Point] = {}
    for point in points:
        first.setdefault(point.key, point)
    seeds_so_far: dict[int, int] = {}
    order = []
    for point in first.values():
        seeds_so_far[point.row] = seeds_so_far.get(point.row, -1) + 1
        order.append((seeds_so_far[point.row], point.row, point))
    return [point for _, _, point in sorted(order, key=lambda entry: entry[:2])]


def rows_of(points: Sequence[AnyPlace]) -> Iterator[list[AnyPlace]]:
    """Yield the points of the same coordinates together, in order."""
    together: list[AnyPlace] = []
    for point in points:
        if together and together[0].row != point.row:
            yield together
            together = []
        together.append(point)
    if together:
        yield together
