"""sweep: many scenarios, run and measured; the door hands the simulator to `gradwire.analysis.sweeps`.

Every point is one piece of work for a pool: processes of this machine (`gradwire.processes`) or tasks of a Ray cluster
(`gradwire.on_ray`). What has become of it is written at once, complete or not at all, so a sweep that was
interrupted or killed goes on with what is missing, and an extended one with what is new.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.measuring import measure_into, measured
from gradwire.notebook import heard
from gradwire.processes import Ended, Work, cores, fitting, play
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError, ScenarioNote
from gradwire.scenarios.given import one_of, path_of, positive_number, unfit, whole_number
from gradwire.scenarios.gone_on_with import gone_on_with, refuse_other
from gradwire.scenarios.interrupt import deferred

if TYPE_CHECKING:
    from gradwire.analysis.sweeps.outcome import Sweep
    from gradwire.analysis.sweeps.points import Point
    from gradwire.analysis.sweeps.schema import SweepFile
    from gradwire.analysis.sweeps.store import Record, Store
    from gradwire.scenarios.schema.scenario import Scenario

Told = Callable[[float, str], object]
MARK, WHAT = "sweep.txt", "a sweep"
ENGINES = ("local", "ray")
FIRST_GUESS = 2
"""Runs of every worker from which on the time of the rest is told."""


class SweepFailed(GradwireError):
    """A point has failed in a sweep that was to end with the first failure."""

    exit_code = 1


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    retry_failed: bool = False,
    fail_fast: bool = False,
    max_wall_s: float | None = None,
    progress: Told | None = None,
) -> Sweep:
    """Run every point of a sweep that is not there yet, and return what is there then.

        found = gradwire.sweep("mine.toml")
        found.to_pandas()                       # means with intervals, a row for every coordinates
        found.plot()                            # the pictures that it declares, by name

    Parameters
    ----------
    source : a sweep file, the name of one of the library, or its tables, such as `{"name": "mine", "scenario":
        "websearch", "axis": [{"key": "traffic.load", "values": [0.2, 0.4]}], "measures": ["slowdown_p99"]}`.
    out : folder of records, tables and pictures, by default `results/sweep-NAME`; one of an earlier sweep is gone on
        with.
    engine : "local", processes of this machine; or "ray", a cluster (`address`), by default one that is started here.
    jobs : runs at a time; as many as there are processors and memory for, if absent (Ray: as the cluster has
        processors).
    retry_failed : run points again that have failed.
    fail_fast : end with the first failure (`SweepFailed`).
    max_wall_s : begin and wait for nothing after so many seconds; what is under way then counts as interrupted.
    progress : called with the share that is done, and words.

    Raises
    ------
    ScenarioError
        The sweep or one of its points is no valid one; before anything is run.
    ResultError
        `out` holds something else, cannot be written, or is another program's at the moment.
    MissingExtraError
        Ray is not installed.
    KeyboardInterrupt
        Ctrl-C; everything that was done is kept, and tables and pictures are of that.
    """
    from gradwire.analysis.sweeps.stored import declare

    asked = _asked(engine, jobs, address, retry_failed, fail_fast, max_wall_s)
    declared, folder, text = _declared(source)
    points = _points(declared, folder)
    with gone_on_with(_place(out, declared), MARK, WHAT) as place, heard(f"sweep {declared.name}", progress) as told:
        run = _Run.begun(declared, points, place, asked, told)
        run.store.make()
        run.store.tidy()
        declare(place, declared, text)
        try:
            run.work()
        except BaseException as stop:
            with suppress(ResultError), deferred():  # what has ended the work matters more
                found = run.outcome()
                if isinstance(stop, KeyboardInterrupt):
                    stop.add_note(f"{found.states['done']} of {len(points)} done; the same command resumes")
                found.write(place)
            raise
        with deferred():
            found = run.outcome()
            found.write(place)
        return found


def planned(
    source: str | Path | Mapping[str, Any], out: str | Path | None = None, jobs: int | None = None,
    retry_failed: bool = False,
) -> tuple[Sweep, list[str]]:  # fmt: skip
    """What `sweep` would run, without running or writing anything: what is there of it, and that in lines for people.
    Raises as `sweep`."""
    declared, folder, _ = _declared(source)
    points = _points(declared, folder)
    place = _place(out, declared)
    refuse_other(place, MARK, WHAT)
    jobs = None if jobs is None else whole_number(jobs, "planned(jobs)", 1, ScenarioError)
    asked = _Asked("local", jobs, retry_failed=retry_failed)
    run = _Run.begun(declared, points, place, asked, lambda share, words: None)
    found = run.outcome()
    coordinates = len({point.row for point in points})
    engines = {engine_of(point.scenario) for point in run.left}
    lines = [
        f"{declared.name}: {coordinates:,} coordinates, {len(points):,} points",
        *(f"  {axis}: {_values(points, axis)}" for axis in found.axes),
        f"{found.words} in {place}",
    ]
    if run.left:
        missing = sum(not _is_compiled(engine) for engine in engines)
        compiled = f"engines: {len(engines)}, {missing} to be compiled"
        lines.append(f"would run {len(run.left):,}, {run.jobs} at a time; {compiled}")
        if (seconds := run.costs.left_s(run.left, run.jobs)) is not None:
            from gradwire.scenarios.readable import wall_text

            lines.append(f"about {wall_text(seconds)}, after what those that are done took")
    return found, lines


def _values(points: Sequence[Point], axis: str) -> str:
    """The values of an axis, of many the first and the last."""
    found = [str(each) for each in dict.fromkeys(point.at[axis] for point in points) if each is not None]
    return ", ".join(found) if len(found) <= 12 else f"{', '.join(found[:3])}, ..., {found[-1]} ({len(found)})"


def _place(out: str | Path | None, declared: SweepFile) -> Path:
    if out is None:
        return Path("results") / f"sweep-{declared.name}"
    return path_of(out, "sweep(out)", "a folder", ScenarioError)


@dataclass(frozen=True)
class _Asked:
    engine: str
    jobs: int | None
    address: str | None = None
    retry_failed: bool = False
    fail_fast: bool = False
    until: float | None = None


def _asked(
    engine: Any, jobs: Any, address: Any, retry_failed: bool, fail_fast: bool, max_wall_s: Any
) -> _Asked:
    """The arguments, once they are known to be of a kind that can be used."""
    engine = one_of(engine, "sweep(engine)", ENGINES, ScenarioError)
    jobs = None if jobs is None else whole_number(jobs, "sweep(jobs)", 1, ScenarioError)
    if address is not None and engine != "ray":
        raise ScenarioError("has no effect on the engine local", "sweep(address)", 'engine "ray"')
    if engine == "ray":
        from gradwire.on_ray import check_reachable

        check_reachable(address)
    if max_wall_s is not None:
        max_wall_s = positive_number(max_wall_s, "sweep(max_wall_s)", "seconds above zero, or None", ScenarioError)
    until = None if max_wall_s is None else time.monotonic() + max_wall_s
    return _Asked(engine, jobs, address, retry_failed, fail_fast, until)


def _declared(source: Any) -> tuple[SweepFile, Path, str]:
    """A sweep, the folder from which it names files, and its text, as it means the same from anywhere."""
    from gradwire.analysis.sweeps.located import located
    from gradwire.analysis.sweeps.schema import build_sweep, load_sweep
    from gradwire.scenarios.toml import read_toml, write_toml

    if isinstance(source, Mapping):
        found = build_sweep(source)
        return found, Path.cwd(), write_toml(located(source, Path.cwd()))
    if not isinstance(source, str | Path):
        raise unfit(source, "sweep(source)", "a sweep file, a name of the library, or tables", ScenarioError)
    found, folder, text = load_sweep(source)
    tables = read_toml(text)
    full = located(tables, folder)
    return found, folder, text if full == tables else write_toml(full)


def _points(declared: SweepFile, folder: Path) -> list[Point]:
    """The points, once it is known that they can be simulated and have what is to be measured and drawn."""
    from gradwire.analysis.sweeps.checks import check_sweep
    from gradwire.analysis.sweeps.points import points_of
    from gradwire.scenarios.checks.effect import keys_without_effect_in_runs
    from gradwire.sim.simulate import check_simulated

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        points = points_of(declared, folder)
    for text, category in {str(note.message): note.category for note in notes}.items():
        warnings.warn(text, category, stacklevel=3)
    check_sweep(declared, points)
    for text in keys_without_effect_in_runs(*(point.scenario for point in points)):
        warnings.warn(text, ScenarioNote, stacklevel=3)
    for point in {id(point.scenario.transport): point for point in points}.values():
        check_simulated(point.scenario)
    return points


@dataclass
class _Run:
    """A sweep that is being run.

    Attributes
    ----------
    left : the points that are still to be run, in their order.
    """

    declared: SweepFile
    points: list[Point]
    store: Store
    place: Path
    records: dict[str, Record]
    left: list[Point]
    asked: _Asked
    told: Told
    costs: _Costs

    @classmethod
    def begun(cls, declared: SweepFile, points: list[Point], place: Path, asked: _Asked, told: Told) -> _Run:
        """With everything that is there already."""
        from gradwire.analysis.sweeps.points import different
        from gradwire.analysis.sweeps.store import Store

        store = Store(place)
        records = store.read_all(point.key for point in points)
        left = [
            point
            for point in different(points)
            if (record := records.get(point.key)) is None
            or (asked.retry_failed and record.state == "failed")
            or (declared.results and record.state == "done" and not store.has_result(point.key))
        ]
        return cls(declared, points, store, place, records, left, asked, told, _Costs(points, records))

    def outcome(self) -> Sweep:
        """What is there now, with what a process may have finished after it was asked for the last time."""
        from gradwire.analysis.sweeps.outcome import Sweep

        self.records |= self.store.read_all(point.key for point in self.left)
        keys = dict.fromkeys(point.key for point in self.points)
        there = self.place if self.store.points.exists() else None
        return Sweep(self.declared, there, self.points, self.records, self.store.states(keys, self.records))

    def work(self) -> None:
        """Run what is left. Raises `SweepFailed` at the first failure if that is wanted."""
        by_key = {point.key: point for point in self.left}
        total = len({point.key for point in self.points})
        self._say(total, None)
        for ended in self._ended() if self.left else ():
            point = by_key[ended.work.key]
            record = self._record(ended)
            self.records[point.key] = record
            self.left.remove(point)
            self.costs.note(point, record)
            self._say(total, point)
            if record.state == "failed" and self.asked.fail_fast:
                raise SweepFailed(record.why, point.name)

    def _ended(self) -> Iterator[Ended]:
        """What ends, on the engine that is asked for."""
        keep = self.declared.results
        if self.asked.engine == "ray":
            from gradwire.on_ray import play_on_ray
            from gradwire.shipped import lay_out

            works = [Work(point.key, measured, (point.scenario, keep), "") for point in self.left]
            with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
                shipped = lay_out((point.scenario for point in self.left), Path(folder))
                yield from play_on_ray(
                    works, self.asked.address, self.asked.jobs, self.asked.until, self.store.begin,
                    shipped.root if shipped else None,
                )  # fmt: skip
            return
        works = [
            Work(point.key, measure_into, (point.scenario, point.key, self.place, keep), engine_of(point.scenario))
            for point in self.left
        ]
        yield from play(works, self.jobs, _is_compiled, self.asked.until)

    @property
    def jobs(self) -> int:
        """Runs at a time on this machine."""
        return min(jobs_for(self.left, self.asked.jobs), max(1, len(self.left)))

    def _record(self, ended: Ended) -> Record:
        """The record of what has ended, which is kept then."""
        from gradwire.analysis.sweeps.store import Record

        if isinstance(ended.error, ResultError):  # it could not be kept: no fault of the point's
            raise ended.error
        if ended.value is None:
            why = ended.lost and f"its process was {ended.lost}"
            record = Record("failed", why=why or f"{type(ended.error).__name__}: {ended.error}",
                            detail="\n".join(getattr(ended.error, "__notes__", ())))  # fmt: skip
            self.store.write(ended.work.key, record)
            return record
        record, packed = ended.value
        if packed is not None:
            self.store.unpack_result(ended.work.key, packed)
        if self.asked.engine == "ray":
            self.store.write(ended.work.key, record)
        return record

    def _say(self, total: int, last: Point | None) -> None:
        done = total - len(self.left)
        failed = sum(record.state == "failed" for record in self.records.values())
        jobs = self.jobs if self.asked.engine == "local" else self.asked.jobs or cores()
        parts = (f"{done}/{total} runs", self.costs.left_words(self.left, jobs), f"{failed} failed" if failed else "",
                 last.name if last else "")  # fmt: skip
        self.told(done / max(total, 1), ", ".join(filter(None, parts)))


class _Costs:
    """What runs take, to tell how long the rest will: a point takes what others of its coordinates took, else what all
    took in the mean."""

    def __init__(self, points: Sequence[Point], records: Mapping[str, Record]) -> None:
        self.by_row: dict[int, list[float]] = {}
        self.noted = 0
        for point in points:
            record = records.get(point.key)
            if record is not None and record.state == "done":
                self.by_row.setdefault(point.row, []).append(record.wall_s)

    def note(self, point: Point, record: Record) -> None:
        """A point has ended in this run."""
        self.noted += 1
        if record.state == "done":
            self.by_row.setdefault(point.row, []).append(record.wall_s)

    def left_s(self, left: Sequence[Point], jobs: int) -> float | None:
        """Seconds that the rest will take; None before there is enough to tell from."""
        if not self.by_row or not left:
            return None
        means = {row: sum(taken) / len(taken) for row, taken in self.by_row.items()}
        usual = sum(means.values()) / len(means)
        return sum(means.get(point.row, usual) for point in left) / max(1, jobs)

    def left_words(self, left: Sequence[Point], jobs: int) -> str:
        """The same in words; empty if it is too early."""
        from gradwire.scenarios.readable import wall_text

        seconds = self.left_s(left, jobs) if self.noted >= FIRST_GUESS * jobs else None
        return "" if seconds is None else f"about {wall_text(seconds)} left"


def jobs_for(points: Sequence[Point], asked: int | None) -> int:
    """How many points are run at a time here: as many as are asked for, else as there are processors and memory for."""
    hosts = max((point.scenario.topology.host_count or 0 for point in points), default=0)
    return asked or fitting(hosts)


def engine_of(scenario: Scenario) -> str:
    """The identity of the compiled engine that a scenario needs."""
    from gradwire.sim.fabric.specialise import identity_of

    return identity_of(scenario)


def _is_compiled(identity: str) -> bool:
    from gradwire.components.engines import is_kept

    return is_kept(identity)
