"""`SweepLog` writes each finished point of a sweep as a run: axes are its parameters, measures its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.result_store.training_result import EVENTS_FOLDER
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.studies.run_logs import tensorboard_log, wandb_log
from gradwire.studies.run_logs.logged_run import LoggedRun
from gradwire.studies.run_logs.targets import LogFunction, LogTarget, RunLogs, guarded
from gradwire.studies.sweep.point_store import Record
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import SweepFile
from gradwire.studies.sweep.sweep_tables import value_of


class SweepLog:
    """Logs of a sweep in a folder, with the records of earlier commands.

    text : the sweep as TOML.
    """

    def __init__(
        self,
        targets: Sequence[LogTarget | LogFunction],
        file: SweepFile,
        text: str,
        folder: Path,
        points: Sequence[PointPlace],
        records: Mapping[str, Record],
    ) -> None:
        self._targets, self._file, self._text = targets, file, text
        self._folder, self._points, self._broken = folder, points, set[str]()
        for target in targets:
            if isinstance(target, LogTarget) and target.kind == "tensorboard":
                with guarded(target.kind, file.name, self._broken):
                    self._declare(target)
        for point in points if targets else ():
            if (record := records.get(point.key)) is not None:
                self._write_point(record, point, is_earlier=True)

    def write(self, key: str, record: Record) -> None:
        """Log the points with a key, whose record has just been stored."""
        for point in self._points if self._targets else ():
            if point.key == key:
                self._write_point(record, point)

    def _write_point(self, record: Record, point: PointPlace, is_earlier: bool = False) -> None:
        figures = {name: value_of(record, name) for name in self._file.measures}
        values = {name: value for name, value in figures.items() if value is not None}
        parameters = _parameters(point)
        name = ",".join(re.sub(r"[^\w.+=-]+", "-", f"{axis}={value}") for axis, value in parameters.items())
        run = LoggedRun(name, self._file.name, parameters, self._folder, self._text, point.key)
        for target in self._targets if record.state == "done" else ():
            if is_earlier and not _may_lack(target, run):
                continue
            with defer_interrupt():
                logs = RunLogs([target], run, lambda target: self._events_dir(target) / name, self._broken)
                logs.write(0, values)
                logs.close({}, 0)

    def _events_dir(self, target: LogTarget) -> Path:
        default = self._folder / EVENTS_FOLDER
        return Path(target.place) / self._file.name if target.place else default

    def _declare(self, target: LogTarget) -> None:
        columns: dict[str, list[Any]] = {}
        for point in self._points:
            for name, value in _parameters(point).items():
                columns.setdefault(name, []).append(value)
        identity = LoggedRun("", "", {}, self._folder).identity
        tensorboard_log.write_experiment(self._events_dir(target), columns, self._file.measures, identity)


def _parameters(point: PointPlace) -> dict[str, Any]:
    return {axis: value for axis, value in point.at.items() if value is not None} | {"seed": point.seed}


def _may_lack(target: LogTarget | LogFunction, run: LoggedRun) -> bool:
    """Return True if a log may lack a point of an earlier command: rewriting event files is cheap."""
    return isinstance(target, LogTarget) and (target.kind == "tensorboard" or not wandb_log.has_offline_copy(run))
