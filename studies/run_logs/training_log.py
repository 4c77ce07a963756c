"""`TrainingLog` writes the rows of a training run's tables to its logs, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.result_store.training_result import EVENTS_FOLDER, TrainingResult
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.loading.toml import read_toml
from gradwire.studies.run_logs.logged_run import LoggedRun
from gradwire.studies.run_logs.targets import LogFunction, LogTarget, RunLogs

PS_PER_S, PS_PER_MS = 1e12, 1e9
STEP_VALUES = {
    "train/loss": ("loss", 1.0),
    "train/learning_rate": ("rate", 1.0),
    "network/time_ms": ("time_ps", PS_PER_MS),
    "network/lost_share": ("lost", 1.0),
    "network/lost_back_share": ("lost_back", 1.0),
    "network/retransmitted_packets": ("retransmitted", 1.0),
    "network/sent_bytes": ("sent_bytes", 1.0),
    "network/pulled_bytes": ("pulled_bytes", 1.0),
}
"""Column of the table of steps, and its unit, by logged name."""
SCORE_VALUES = {"validation/accuracy": ("accuracy", 1.0), "validation/loss": ("loss", 1.0)}
Row = Mapping[str, Any]


class TrainingLog:
    """Logs of one training run. `update` writes what is new in its tables.

    until : target accuracy, for the time to it.
    """

    def __init__(
        self,
        targets: Sequence[LogTarget | LogFunction],
        summary: Row,
        text: str,
        folder: Path | None,
        until: float | None = None,
    ) -> None:
        name = f"{summary['name']}/{summary['policy']}/seed-{summary.get('seed')}"
        config = {"policy": summary["policy"], "seed": summary.get("seed"), **flat_tables(read_toml(text))}
        run = LoggedRun(name, str(summary["name"]), config, folder, text)

        def events_dir(target: LogTarget) -> Path:
            if target.place or folder is None:
                return Path(target.place or EVENTS_FOLDER) / name
            return folder / EVENTS_FOLDER

        self._logs = RunLogs(targets, run, events_dir)
        self._until = until
        self._steps = self._scores = 0

    def update(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """Log the rows that are new, in order of their steps. The score of step n was taken before step n began."""
        if not self._logs.any:
            return
        steps, scores = tables.get("steps", ()), tables.get("scores", ())
        rows = [(row["step"], 1, row) for row in steps[self._steps :]]
        rows += [(row["step"], 0, row) for row in scores[self._scores :]]
        self._steps, self._scores = len(steps), len(scores)
        for step, is_step, row in sorted(rows, key=lambda each: each[:2]):
            columns = STEP_VALUES if is_step else SCORE_VALUES
            values = {
                name: row[column] / unit for name, (column, unit) in columns.items() if row.get(column) is not None
            }
            self._logs.write(step, values, row["clock_ps"] / PS_PER_S)

    @contextmanager
    def closed_at_end(self, tables: Mapping[str, Sequence[Row]]) -> Iterator[None]:
        """Close the logs at the end of the work, also if that fails or is interrupted."""
        try:
            yield
        except BaseException:
            with defer_interrupt():
                self.close(tables, complete=False)
            raise
        with defer_interrupt():
            self.close(tables)

    def close(self, tables: Mapping[str, Sequence[Row]], complete: bool = True) -> None:
        """Log the rows that are new, and final values."""
        self.update(tables)
        steps = tables.get("steps", ())
        last = steps[-1]["step"] + 1 if steps else 0
        self._logs.close(final_values(tables, self._until), last, complete)


def final_values(tables: Mapping[str, Sequence[Row]], until: float | None = None) -> dict[str, float]:
    """Return final accuracy and loss, the simulated time, and the time to accuracy `until`, if it was reached."""
    steps, scores = tables.get("steps", ()), tables.get("scores", ())
    values: dict[str, float] = {}
    if scores:
        values |= {"final/accuracy": scores[-1]["accuracy"], "final/loss": scores[-1]["loss"]}
    if steps and steps[-1]["clock_ps"]:
        values["final/simulated_s"] = steps[-1]["clock_ps"] / PS_PER_S
    reached = next((row for row in scores if until is not None and row["accuracy"] >= until), None)
    if reached is not None:
        values["final/steps_to_accuracy"] = reached["step"]
        if reached["clock_ps"]:
            values["final/time_to_accuracy_s"] = reached["clock_ps"] / PS_PER_S
    return values


def log_training(
    result: TrainingResult,
    text: str,
    folder: Path | None,
    targets: Sequence[LogTarget | LogFunction],
    until: float | None = None,
) -> None:
    """Log a training run that has ended."""
    done = result.summary["steps_done"]
    steps = [row for row in result.steps if row["step"] < done]  # a killed run may have rows of later steps
    tables = {"steps": steps, "scores": [row for row in result.scores if row["step"] <= done]}
    TrainingLog(targets, result.summary, text, folder, until).close(tables)


def flat_tables(tables: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted key, such as "job[0].workers"."""
    if isinstance(tables, Mapping):
        parts = {f"{prefix}.{key}" if prefix else str(key): value for key, value in tables.items() if key != "policy"}
    elif isinstance(tables, list) and tables and all(isinstance(each, Mapping) for each in tables):
        parts = {f"{prefix}[{number}]": each for number, each in enumerate(tables)}
    else:
        return {prefix: tables}
    return {key: value for name, part in parts.items() for key, value in flat_tables(part, name).items()}
