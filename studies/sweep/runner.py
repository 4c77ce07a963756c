"""`sweep` simulates and measures the missing points of a sweep, in processes of this machine or on a Ray cluster.

Every point is one task of a pool: processes of this machine (`gradwire.studies.parallel.process_pool`) or tasks of a
Ray cluster (`gradwire.studies.parallel.ray_backend`). Its outcome is written at once and atomically, so an interrupted
or killed sweep resumes with the missing points, and an extended one with the new points.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gradwire.result_store.folders.resumable_folder import refuse_other_content, resumable_folder
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError, ScenarioNote
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.loading.toml import read_toml, write_toml
from gradwire.scenarios.readable import wall_text
from gradwire.scenarios.validation.argument_checks import (
    require_integer,
    require_one_of,
    require_path,
    require_positive,
    wrong_type_error,
)
from gradwire.scenarios.validation.effect import keys_without_effect_in_runs
from gradwire.studies.eta import RemainingTime
from gradwire.studies.notebook import heard
from gradwire.studies.parallel.process_pool import (
    Task,
    TaskOutcome,
    engine_is_cached,
    max_parallel_simulations,
    run_tasks,
)
from gradwire.studies.parallel.sweep_worker import measure, measure_and_store
from gradwire.studies.run_logs.sweep_log import SweepLog
from gradwire.studies.run_logs.targets import Logs, check_logs
from gradwire.studies.sweep.checks import check_sweep
from gradwire.studies.sweep.outcome import Sweep
from gradwire.studies.sweep.point_store import PointStore, Record
from gradwire.studies.sweep.points import Point, distinct_points, points_of
from gradwire.studies.sweep.schema import SweepFile, build_sweep, load_sweep
from gradwire.studies.sweep.stored_sweep import with_absolute_sweep_paths, write_declaration

OnProgress = Callable[[float, str], object]
MARK, WHAT = "sweep.txt", "a sweep"
ENGINES = ("local", "ray")


class SweepFailed(GradwireError):
    """A point failed in a sweep with `fail_fast`."""

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
    progress: OnProgress | None = None,
    log: Logs = (),
) -> Sweep:
    """Run every missing point of a sweep, and return its outcome.

        outcome = gradwire.sweep("mine.toml")
        outcome.to_pandas()                     # means with intervals, a row per coordinates
        outcome.plot()                          # the plots that it declares, by name

    source : a sweep file, the name of one in the library, or its tables, such as `{"name": "mine", "scenario":
        "websearch", "axis": [{"key": "traffic.load", "values": [0.2, 0.4]}], "measures": ["slowdown_p99"]}`.
    out : folder of records, tables and plots, by default `results/sweep-NAME`; an earlier sweep in it is resumed.
    engine : "local", processes of this machine; or "ray", a cluster (`address`), by default one started here.
    jobs : simultaneous runs; by default limited by processors and memory (Ray: by the cluster's processors).
    retry_failed : run failed points again.
    fail_fast : end with the first failure (`SweepFailed`).
    max_wall_s : time limit in seconds; runs under way then count as interrupted.
    progress : called with (fraction, message).
    log : logs of the points, as for `gradwire.train`: axes as parameters, measures as metrics.

    Raises `ScenarioError` if the sweep or one of its points is invalid, before anything runs.
    Raises `ResultError` if `out` holds something else, cannot be written, or is in use by another process.
    Raises `MissingExtraError` if Ray, or the package of a log, is not installed.
    Raises `KeyboardInterrupt` on Ctrl-C; everything done so far is kept and is in tables and plots.
    """
    options = _options(engine, jobs, address, retry_failed, fail_fast, max_wall_s)
    targets = check_logs(log, "sweep(log)")
    declared, folder, text = _declared(source)
    points = _points(declared, folder)
    with (
        resumable_folder(_output_dir(out, declared), MARK, WHAT) as output_dir,
        heard(f"sweep {declared.name}", progress) as on_progress,
    ):
        run = _Run.begun(declared, points, output_dir, options, on_progress)
        run.store.make()
        run.store.remove_partial_files()
        write_declaration(output_dir, declared, text)
        logs = SweepLog(targets, declared, text, output_dir, points, run.records)
        try:
            run.run_remaining(logs)
        except BaseException as stop:
            with suppress(ResultError), defer_interrupt():  # the original cause matters more
                outcome = run.outcome()
                if isinstance(stop, KeyboardInterrupt):
                    stop.add_note(f"{outcome.states['done']} of {len(points)} done; the same command resumes")
                outcome.write(output_dir)
            raise
        with defer_interrupt():
            outcome = run.outcome()
            outcome.write(output_dir)
        return outcome


def plan_sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    jobs: int | None = None,
    retry_failed: bool = False,
) -> tuple[Sweep, list[str]]:
    """Describe what `sweep` would run, without running or writing anything: the outcome so far, and lines of text.
    Raises as `sweep`."""
    from gradwire.sim.engine.specialization import engine_fingerprint

    declared, folder, _ = _declared(source)
    points = _points(declared, folder)
    output_dir = _output_dir(out, declared)
    refuse_other_content(output_dir, MARK, WHAT)
    jobs = None if jobs is None else require_integer(jobs, "planned(jobs)", 1, ScenarioError)
    options = _Options("local", jobs, retry_failed=retry_failed)
    run = _Run.begun(declared, points, output_dir, options, lambda share, words: None)
    outcome = run.outcome()
    coordinates = len({point.row for point in points})
    engines = {engine_fingerprint(point.scenario) for point in run.left}
    lines = [
        f"{declared.name}: {coordinates:,} coordinates, {len(points):,} points",
        *(f"  {axis}: {_values(points, axis)}" for axis in outcome.axes),
        f"{outcome.text} in {output_dir}",
    ]
    if run.left:
        missing = sum(not engine_is_cached(engine) for engine in engines)
        compiled = f"engines: {len(engines)}, {missing} to be compiled"
        lines.append(f"would run {len(run.left):,}, {run.jobs} at a time; {compiled}")
        if durations := [record.wall_s for record in run.records.values() if record.state == "done"]:
            seconds = fmean(durations) * len(run.left) / run.jobs
            lines.append(f"about {wall_text(seconds)}, estimated from finished runs")
    return outcome, lines


def _values(points: Sequence[Point], axis: str) -> str:
    """Return the values of an axis as text; of many the first and the last."""
    texts = [str(value) for value in dict.fromkeys(point.at[axis] for point in points) if value is not None]
    return ", ".join(texts) if len(texts) <= 12 else f"{', '.join(texts[:3])}, ..., {texts[-1]} ({len(texts)})"


def _output_dir(out: str | Path | None, declared: SweepFile) -> Path:
    if out is None:
        return Path("results") / f"sweep-{declared.name}"
    return require_path(out, "sweep(out)", "a folder", ScenarioError)


@dataclass(frozen=True)
class _Options:
    engine: str
    jobs: int | None
    address: str | None = None
    retry_failed: bool = False
    fail_fast: bool = False
    until: float | None = None


def _options(engine: Any, jobs: Any, address: Any, retry_failed: bool, fail_fast: bool, max_wall_s: Any) -> _Options:
    """Check the arguments and return them as options."""
    engine = require_one_of(engine, "sweep(engine)", ENGINES, ScenarioError)
    jobs = None if jobs is None else require_integer(jobs, "sweep(jobs)", 1, ScenarioError)
    if address is not None and engine != "ray":
        raise ScenarioError("has no effect on the local engine", "sweep(address)", 'engine "ray"')
    if engine == "ray":
        from gradwire.studies.parallel.ray_backend import check_reachable

        check_reachable(address)
    if max_wall_s is not None:
        max_wall_s = require_positive(max_wall_s, "sweep(max_wall_s)", "seconds above zero, or None", ScenarioError)
    until = None if max_wall_s is None else time.monotonic() + max_wall_s
    return _Options(engine, jobs, address, retry_failed, fail_fast, until)


def _declared(source: Any) -> tuple[SweepFile, Path, str]:
    """Return a sweep, the folder of its relative names, and its text with absolute names."""
    if isinstance(source, Mapping):
        file = build_sweep(source)
        return file, Path.cwd(), write_toml(with_absolute_sweep_paths(source, Path.cwd()))
    if not isinstance(source, str | Path):
        raise wrong_type_error(source, "sweep(source)", "a sweep file, a name of the library, or tables", ScenarioError)
    file, folder, text = load_sweep(source)
    tables = read_toml(text)
    full = with_absolute_sweep_paths(tables, folder)
    return file, folder, text if full == tables else write_toml(full)


def _points(declared: SweepFile, folder: Path) -> list[Point]:
    """Return the points after checking that they can be simulated, measured and plotted."""
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
    """A sweep in progress.

    left : the points still to run, in order.
    """

    declared: SweepFile
    points: list[Point]
    store: PointStore
    output_dir: Path
    records: dict[str, Record]
    left: list[Point]
    options: _Options
    on_progress: OnProgress
    estimate: RemainingTime

    @classmethod
    def begun(
        cls, declared: SweepFile, points: list[Point], output_dir: Path, options: _Options, on_progress: OnProgress
    ) -> _Run:
        """Start from the existing records."""
        store = PointStore(output_dir)
        records = store.read_all(point.key for point in points)
        left = [
            point
            for point in distinct_points(points)
            if (record := records.get(point.key)) is None
            or (options.retry_failed and record.state == "failed")
            or (declared.results and record.state == "done" and not store.has_result(point.key))
        ]
        return cls(declared, points, store, output_dir, records, left, options, on_progress, RemainingTime(len(left)))

    def outcome(self) -> Sweep:
        """Return the outcome so far, with points that other processes finished meanwhile."""
        self.records |= self.store.read_all(point.key for point in self.left)
        keys = dict.fromkeys(point.key for point in self.points)
        folder = self.output_dir if self.store.points.exists() else None
        return Sweep(self.declared, folder, self.points, self.records, self.store.states(keys, self.records))

    def run_remaining(self, logs: SweepLog) -> None:
        """Run the remaining points, and log them. Raises `SweepFailed` at the first failure with `fail_fast`."""
        by_key = {point.key: point for point in self.left}
        total = len({point.key for point in self.points})
        self._say(total, None)
        for ended in self._finished_runs() if self.left else ():
            point = by_key[ended.work.key]
            record = self._record(ended)
            self.records[point.key] = record
            self.left.remove(point)
            logs.write(point.key, record)
            self.estimate.done(1.0)
            self._say(total, point)
            if record.state == "failed" and self.options.fail_fast:
                raise SweepFailed(record.why, point.name)

    def _finished_runs(self) -> Iterator[TaskOutcome]:
        """Yield finished work from the selected engine."""
        keep = self.declared.results
        if self.options.engine == "ray":
            from gradwire.studies.parallel.code_bundle import write_bundle
            from gradwire.studies.parallel.ray_backend import run_on_ray

            works = [Task(point.key, measure, (point.scenario, keep), "") for point in self.left]
            with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
                bundle = write_bundle((point.scenario for point in self.left), Path(folder))
                root = bundle.root if bundle else None
                options = self.options
                yield from run_on_ray(works, options.address, options.jobs, options.until, self.store.begin, root)
            return
        from gradwire.sim.engine.specialization import engine_fingerprint

        works = [
            Task(
                point.key,
                measure_and_store,
                (point.scenario, point.key, self.output_dir, keep),
                engine_fingerprint(point.scenario),
            )
            for point in self.left
        ]
        yield from run_tasks(works, self.jobs, until=self.options.until)

    @property
    def jobs(self) -> int:
        """Simultaneous runs on this machine: as requested, or limited by processors and memory."""
        hosts = max((point.scenario.topology.host_count or 0 for point in self.left), default=0)
        return min(self.options.jobs or max_parallel_simulations(hosts), max(1, len(self.left)))

    def _record(self, ended: TaskOutcome) -> Record:
        """Return the record of finished work, stored if the worker did not."""
        if isinstance(ended.error, ResultError):  # writing failed, not the point
            raise ended.error
        if ended.value is None:
            why = ended.lost and f"its process was {ended.lost}"
            record = Record(
                "failed",
                why=why or f"{type(ended.error).__name__}: {ended.error}",
                detail="\n".join(getattr(ended.error, "__notes__", ())),
            )
            self.store.write(ended.work.key, record)
            return record
        record, packed = ended.value
        if packed is not None:
            self.store.unpack_result(ended.work.key, packed)
        if self.options.engine == "ray":
            self.store.write(ended.work.key, record)
        return record

    def _say(self, total: int, last: Point | None) -> None:
        done = total - len(self.left)
        failed = sum(record.state == "failed" for record in self.records.values())
        parts = (
            f"{done}/{total} runs",
            self.estimate.text(len(self.left)) if last and self.left else "",
            f"{failed} failed" if failed else "",
            last.name if last else "",
        )
        self.on_progress(done / max(total, 1), ", ".join(filter(None, parts)))
