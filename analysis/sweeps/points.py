"""Points: the scenarios of a sweep, each with its coordinates, a seed, and the key by which its outcome is known.

A key is a SHA-256 over everything that decides what is measured: the resolved scenario, the content of the traces and
files that it names, its measured window, and the simulator's sources. So a point keeps its key when a sweep is
extended or its axes are written differently, and two points that come to the same are simulated once.

A scenario comes about in this order: the sweep's `set` is laid over the base, then each axis, in the order of the file;
a later one writes over an earlier one.
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

from gradwire.analysis.sources import engine
from gradwire.analysis.sweeps.axes import Row, coordinates, expand
from gradwire.analysis.sweeps.quantity import Scalar
from gradwire.analysis.sweeps.schema import SweepFile
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.load import build_scenario, list_library, load_tables
from gradwire.scenarios.overrides import from_folder, last_of, put_in_traces
from gradwire.scenarios.record import input_digests
from gradwire.scenarios.schema.policy import Policy, overlay
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.toml import inline
from gradwire.traces.trace import load_trace

EDITION = 1
"""Of what is kept of a point: to be raised when a figure of the same run becomes another one."""


@dataclass(frozen=True)
class Place:
    """Where a point of a sweep is, and the key by which its outcome is known.

    Attributes
    ----------
    row : number of its coordinates, from 0, in the order of the table.
    at : its value on every axis, by column; None where an axis does not apply.
    labels : the same for plots.
    """

    row: int
    at: Mapping[str, Scalar | None]
    labels: Mapping[str, str]
    seed: int
    key: str

    @property
    def name(self) -> str:
        """For people, such as "load 0.5, transport ndp, seed 2"."""
        return ", ".join([*name_of(self.at), f"seed {self.seed}"])


@dataclass(frozen=True)
class Point(Place):
    """A place with the scenario that is run there."""

    scenario: Scenario


AnyPlace = TypeVar("AnyPlace", bound=Place)


def name_of(at: Mapping[str, Scalar | None]) -> list[str]:
    """The coordinates in words, without axes that do not apply."""
    return [f"{column} {value}" for column, value in at.items() if value is not None]


def points_of(sweep: SweepFile, folder: Path) -> list[Point]:
    """All points, in the order of the table, seeds of the same coordinates after each other.

    Parameters
    ----------
    folder : that of the sweep's file, from which it names others.

    Raises
    ------
    ScenarioError
        The base or a point is no valid scenario; says at which coordinates.
    """
    tables, policies, place = _base(sweep, folder)
    columns = [axis.column for axis in sweep.axis]
    found = []
    for number, row in enumerate(expand(sweep, policies)):
        at = coordinates(row, columns)
        scenario = _resolved(sweep, tables, row, at, folder).at(place)
        labels = {column: choice.label or str(choice.shown) for column, choice in row.items()}
        for seed in seeds_of(sweep, scenario):
            seeded = scenario.model_copy(update={"seed": seed})
            found.append(Point(number, at, labels, seed, key_of(seeded), seeded))
    return found


def seeds_of(sweep: SweepFile, scenario: Scenario) -> Sequence[int]:
    """The seeds that every point has."""
    if sweep.seeds is None:
        return (scenario.seed,)
    return range(1, sweep.seeds + 1) if isinstance(sweep.seeds, int) else sweep.seeds


def key_of(scenario: Scenario) -> str:
    """The key of one scenario's run."""
    window = scenario.measure.model_dump(mode="json")
    traces = [trace_digest(job.trace) for job in scenario.job]
    asked = [EDITION, scenario.digest(), traces, input_digests(scenario), window, engine()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]


def trace_digest(name: str) -> str:
    """The digest of a trace's content, read again when its files have changed. Raises TraceError if it cannot be."""
    place = Path(name)
    files = sorted(place.iterdir()) if place.is_dir() else []
    return _digest(name, tuple((file.name, (now := file.stat()).st_mtime_ns, now.st_size) for file in files))


@lru_cache(maxsize=256)
def _digest(name: str, stamp: tuple[tuple[str, int, int], ...]) -> str:
    return load_trace(name).digest()


def _base(sweep: SweepFile, folder: Path) -> tuple[dict[str, Any], tuple[Policy, ...], Path]:
    """The tables that all points begin with, the policies of the scenario, and the folder from which it names files."""
    if isinstance(sweep.scenario, dict):
        tables, place, where = sweep.scenario, folder, f"{sweep.name}: scenario"
    else:
        path = folder / Path(sweep.scenario).expanduser()
        of_library = sweep.scenario in list_library() and not path.exists()
        tables = load_tables(sweep.scenario if of_library else path)
        place, where = (folder if of_library else path.parent), sweep.scenario
    policies = build_scenario(tables, where).policy
    bare = {key: value for key, value in tables.items() if key != "policy"}
    return overlay(bare, from_folder("", sweep.set, folder)), policies, place


def _resolved(
    sweep: SweepFile, tables: dict[str, Any], row: Row, at: Mapping[str, Scalar | None], folder: Path
) -> Scenario:
    """The scenario at some coordinates, as a variant that is named by them."""
    words = name_of(at)
    where = f"{sweep.name} at {', '.join(words)}" if words else sweep.name
    for column, choice in row.items():
        if not choice.keys:
            tables = overlay(tables, from_folder("", choice.laid, folder))
            continue
        overrides = [f"{key}={inline(from_folder(last_of(key), choice.value, folder))}" for key in choice.keys]
        try:
            tables = put_in_traces(tables, overrides)
        except ScenarioError as error:
            what = f"{', '.join(choice.keys)}: {error.what}"
            raise ScenarioError(what, f"{sweep.name}: axis {column}", error.expected) from None
    scenario = build_scenario(tables, where)
    if not words:
        return scenario
    name = re.sub(r"[^\w.+-]+", "-", "-".join(str(value) for value in at.values() if value is not None))
    return scenario.under(Policy(name=name or "point", label=", ".join(words)))


def different(points: Sequence[Point]) -> list[Point]:
    """Every run once. First all coordinates with their first seed, then with the second, and so on: so that what is
    there early shows everything a little, and the time of the rest can be told from what it is like."""
    first: dict[str, Point] = {}
    for point in points:
        first.setdefault(point.key, point)
    turns: dict[int, int] = {}
    order = []
    for point in first.values():
        turns[point.row] = turns.get(point.row, -1) + 1
        order.append((turns[point.row], point.row, point))
    return [point for _, _, point in sorted(order, key=lambda each: each[:2])]


def rows_of(points: Sequence[AnyPlace]) -> Iterator[list[AnyPlace]]:
    """The points of the same coordinates together, in order."""
    together: list[AnyPlace] = []
    for point in points:
        if together and together[0].row != point.row:
            yield together
            together = []
        together.append(point)
    if together:
        yield together
