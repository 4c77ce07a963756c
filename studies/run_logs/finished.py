"""Writes logs of training runs and sweeps from their folders."""

from __future__ import annotations

from pathlib import Path

from gradwire.result_store.training_result import MARKER_FILE, SCENARIO, SUMMARY, TrainingResult, training_run_folders
from gradwire.scenarios.errors import ResultError
from gradwire.studies.run_logs.sweep_log import SweepLog
from gradwire.studies.run_logs.targets import Logs, check_logs
from gradwire.studies.run_logs.training_log import log_training
from gradwire.studies.sweep.stored_sweep import SWEEP_FILE, read_sweep


def log_results(folder: str | Path, log: Logs, where: str = "log_results(log)") -> list[str]:
    """Write logs of all training runs, or of the sweep, in a folder; return the names of the runs.

    Raises `ResultError` if it holds neither, or is damaged; otherwise as `gradwire.train` for `log`.
    """
    targets, path = check_logs(log, where), Path(folder)
    if (path / SWEEP_FILE).is_file():
        file, path, points, records, _ = read_sweep(path)
        SweepLog(targets, file, (path / SWEEP_FILE).read_text(encoding="utf-8"), path, points, records)
        return [point.name for point in points if point.key in records]
    runs = [path] if (path / SUMMARY).is_file() else []
    if not runs and (path / MARKER_FILE).is_file():
        runs = training_run_folders(path)
    if not runs:
        raise ResultError("holds no training run and no sweep", str(path), "a folder of gradwire train or sweep")
    results = [(run, TrainingResult.read(run)) for run in runs]
    for run, result in results:
        log_training(result, (run / SCENARIO).read_text(encoding="utf-8"), run, targets)
    return [result.name for _, result in results]
