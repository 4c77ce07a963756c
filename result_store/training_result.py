"""`TrainingResult` reads and writes a training run's tables; other functions list and order the runs of a folder.

A training run can be resumed, so its folder fills while it runs: every file is replaced as a whole at each evaluation
and each checkpoint, and the checkpoint last, so that tables always contain the steps before it, even if the run is
killed. They may contain more, which resuming from the checkpoint rewrites.

    scenario.toml       the scenario, with all overrides applied
    training.json       progress, devices, versions, and the command
    steps.parquet       a row per step
    scores.parquet      a row per evaluation on validation data
    lost.parquet        losses per step, worker and tensor, if any; per push of a worker that pushed several times in
                        a step
    turns.parquet       every push to an asynchronous server, in the order in which they were merged
    checkpoint.pt       torch's state for resuming
    tensorboard/        event files, if logged (`gradwire.studies.run_logs`)
    prices.json         step times at other rates, if computed (`gradwire.studies.training.step_time_model`)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.folders.output_folder import atomic_replace, write_error
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.readable import accuracy_text
from gradwire.scenarios.validation.argument_checks import require_path

if TYPE_CHECKING:
    import pandas
    import pyarrow

FORMAT = 2
SUMMARY, CHECKPOINT, SCENARIO, PRICES = "training.json", "checkpoint.pt", "scenario.toml", "prices.json"
EVENTS_FOLDER = "tensorboard"
MARKER_FILE = "trainings.txt"
"""File that marks a folder of several training runs, and lists their order."""
ORDER = "In the order of their scenario:"
SEED_PREFIX = "seed-"
"""Prefix of the folders with the training runs of one seed."""

TABLES: Mapping[str, Mapping[str, str]] = {
    "steps": {
        "step": "int64", "loss": "float64", "rate": "float64", "sent_bytes": "int64", "lost": "float64",
        "time_ps": "int64", "clock_ps": "int64", "apart_max": "float64", "apart_rms": "float64", "lost_back": "float64",
        "encode_ps": "int64", "decode_ps": "int64", "pulled_bytes": "int64", "retransmitted": "int64",
    },
    "scores": {
        "step": "int64", "loss": "float64", "accuracy": "float64", "clock_ps": "int64", "sent_bytes": "int64",
        "pulled_bytes": "int64",
    },
    "lost": {"step": "int64", "turn": "int64", "worker": "int32", "tensor": "int32", "lost": "float64"},
    "turns": {
        "step": "int64", "turn": "int64", "worker": "int32", "clock_ps": "int64", "stale": "int64", "loss": "float64",
        "sent_bytes": "int64", "pulled_bytes": "int64", "lost": "float64",
    },
    "predictions": {
        "step": "int64", "predictor": "string", "error": "float64", "accuracy": "float64", "loss": "float64",
    },
}  # fmt: skip
"""Columns and their types, by table."""

OPTIONAL_TABLES = ("turns", "predictions")
"""Tables that exist only if they have rows."""

ADDED_COLUMNS = {"lost": {"turn": None}, "steps": {"retransmitted": None}}
"""Columns that earlier versions did not write, and their substitutes."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, repr=False)
class TrainingResult:
    """One training run.

    summary : name, policy, label, steps done and total, parameters, versions, command; the measured processor time of
        all workers' encoding, of the server, and of the whole training run; `devices` of the steps, in order:
        `from_step`, `device`, `name`, `deterministic_algorithms`, `not_deterministic`, `slower`.
    tables : rows by table, with the columns of `TABLES`.
    """

    summary: Mapping[str, Any]
    tables: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Display name among other training runs."""
        return str(self.summary.get("label") or self.summary.get("policy") or "?")

    def __repr__(self) -> str:
        return f"<TrainingResult: {self._summary_text()}>"

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: progress and scores."""
        timed = ["simulated ms"] if self.timed else []
        head = "".join(f"<th>{each}</th>" for each in ("step", "accuracy", "loss", *timed, "sent MiB"))
        lines = "".join(
            f"<tr><td>{row['step']:,}</td><td>{accuracy_text(row['accuracy'])}</td><td>{row['loss']:.4f}</td>"
            + (f"<td>{row['clock_ps'] / 1e9:,.1f}</td>" if timed else "")
            + f"<td>{row['sent_bytes'] / 2**20:,.1f}</td></tr>"
            for row in self.scores
        )
        return f"<p><b>TrainingResult</b>: {escape(self._summary_text())}</p><table><tr>{head}</tr>{lines}</table>"

    def _summary_text(self) -> str:
        """Return a summary: scenario, progress and accuracy."""
        done, wanted = self.summary.get("steps_done", 0), self.summary.get("steps", 0)
        last = f", accuracy {accuracy_text(self.scores[-1]['accuracy'])}" if self.scores else ""
        return f"{self.summary.get('name', '?')} {self.summary.get('policy', '?')}, {done:,} of {wanted:,} steps{last}"

    def table(self, name: str = "steps") -> pyarrow.Table:
        """Return one of the tables, as a pyarrow table. Raises ResultError if it does not exist."""
        if name not in TABLES:
            raise ResultError(f"no table {name!r}", "table(name)", f"one of {', '.join(TABLES)}")
        return _table(self.tables.get(name, ()), TABLES[name])

    def to_pandas(self, table: str = "steps") -> pandas.DataFrame:
        """Return one of the tables as a pandas DataFrame. Raises MissingExtraError if pandas is not installed."""
        from gradwire.result_store.table_schema import as_pandas

        return as_pandas(self.table(table))

    @property
    def steps(self) -> Rows:
        """See `TABLES`."""
        return self.tables.get("steps", ())

    @property
    def scores(self) -> Rows:
        """See `TABLES`."""
        return self.tables.get("scores", ())

    @property
    def turns(self) -> Rows:
        """See `TABLES`."""
        return self.tables.get("turns", ())

    @property
    def timed(self) -> bool:
        """True if its network took any time."""
        return bool(self.steps and self.steps[-1]["clock_ps"])

    @property
    def seed(self) -> int | None:
        """Seed of its scenario; None for older training runs."""
        return self.summary.get("seed")

    @property
    def diverged(self) -> int | None:
        """First step whose loss is not finite, if any."""
        return next((int(row["step"]) for row in self.steps if not math.isfinite(row["loss"])), None)

    def write(self, folder: Path, scenario: str, more: Callable[[Path], object] | None = None) -> None:
        """Write or replace everything but the checkpoint, file by file; the summary last, so that it never claims
        missing steps.

        `more` writes further files into the folder.

        Raises OSError if it cannot be written.
        """
        import pyarrow.parquet

        with atomic_replace(folder / SCENARIO) as partial:
            partial.write_text(scenario, encoding="utf-8")
        for name, columns in TABLES.items():
            rows = self.tables.get(name, ())
            if name in OPTIONAL_TABLES and not rows:
                continue
            table = _table(rows, columns)
            with atomic_replace(folder / f"{name}.parquet") as partial:
                pyarrow.parquet.write_table(table, partial)
        if more is not None:
            more(folder)
        with atomic_replace(folder / SUMMARY) as partial:
            partial.write_text(json.dumps({"format": FORMAT, **self.summary}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> TrainingResult:
        """Read a folder written by `write`. Raises ResultError if it is not a training run, or damaged."""
        import pyarrow
        import pyarrow.parquet

        root = require_path(folder, "TrainingResult.read(folder)", "the folder of a training run", ResultError)
        try:
            summary = parse_json((root / SUMMARY).read_text(encoding="utf-8"))
        except OSError:
            raise ResultError("holds no training run", str(root), f"a folder with {SUMMARY}") from None
        except ValueError:
            raise ResultError("is damaged", str(root / SUMMARY), "a training run") from None
        if not isinstance(summary, dict) or summary.get("format") != FORMAT:
            raise ResultError("is of another format", str(root / SUMMARY), f"format {FORMAT}")
        tables: dict[str, Rows] = {}
        for name, columns in TABLES.items():
            if name in OPTIONAL_TABLES and not (root / f"{name}.parquet").exists():
                tables[name] = ()
                continue
            try:
                table = pyarrow.parquet.read_table(root / f"{name}.parquet")
                later = {
                    key: value for key, value in ADDED_COLUMNS.get(name, {}).items() if key not in table.column_names
                }
                table = table.select([each for each in columns if each not in later])
                if any(column.type != pyarrow.type_for_alias(columns[column.name]) for column in table.schema):
                    raise ValueError("a column of another type")
                if any(
                    table[each].null_count for each in table.column_names if each not in ADDED_COLUMNS.get(name, {})
                ):
                    raise ValueError("a value is missing")
                tables[name] = [{**row, **later} for row in table.to_pylist()]
            except (OSError, KeyError, ValueError, pyarrow.ArrowException):
                raise ResultError("is damaged", str(root / f"{name}.parquet"), "a table of a training run") from None
        return cls({key: value for key, value in summary.items() if key != "format"}, tables)


def write_order(folder: Path, names: Sequence[str]) -> None:
    """Write the order of training runs into the marker file of their folder."""
    before, _ = _parts(folder)
    if names:
        _rewritten(folder, before, names)


def write_table(folder: Path, table: str) -> None:
    """Write a table of training runs into the marker file of their folder. Raises ResultError if that fails."""
    before, names = _parts(folder)
    sentence = before.splitlines()[0] if before else ""
    try:
        _rewritten(folder, f"{sentence}\n\n{table}", names)
    except OSError as error:
        raise write_error(error, folder / MARKER_FILE) from None


def _parts(folder: Path) -> tuple[str, list[str]]:
    """Return (text before the order, names in order) of the marker file of a folder of training runs."""
    text = (folder / MARKER_FILE).read_text(encoding="utf-8", errors="replace")
    before, _, names = text.partition(f"{ORDER}\n")
    return before, names.splitlines()


def _rewritten(folder: Path, before: str, names: Sequence[str]) -> None:
    order = "\n".join([ORDER, *names, ""]) if names else ""
    with atomic_replace(folder / MARKER_FILE) as partial:
        partial.write_text(f"{before.rstrip()}\n\n{order}" if order else before, encoding="utf-8")


def seed_folders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder of training runs that hold one seed each, sorted by seed."""
    numbered = [
        (int(seed), file.parent)
        for file in folder.glob(f"{SEED_PREFIX}*/{MARKER_FILE}")
        if (seed := file.parent.name.removeprefix(SEED_PREFIX)).isdecimal()
    ]
    return [path for _, path in sorted(numbered)]


def training_run_folders(folder: Path) -> list[Path]:
    """Return the training runs in a folder, in its recorded order, then others by name; seed by seed if there are
    several."""
    if seeds := seed_folders(folder):
        return [run for seed in seeds for run in training_run_folders(seed)]
    _, names = _parts(folder)
    rank = {name: number for number, name in enumerate(names)}
    runs = sorted(summary.parent for summary in folder.glob(f"*/{SUMMARY}"))
    return sorted(runs, key=lambda run: rank.get(run.name, len(names)))


def _table(rows: Rows, columns: Mapping[str, str]) -> pyarrow.Table:
    import pyarrow

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
    return pyarrow.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema=schema)
