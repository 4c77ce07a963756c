"""What a training left behind: its steps, its scores, and what was lost, as tables in a folder.

A training is gone on with, so its folder fills while it runs: every file is replaced as a whole at each look at
held-out data and each checkpoint, and the checkpoint last, so that tables never lack steps that it has behind it,
whenever the training is killed. They may have more: what goes on from the checkpoint makes these again.

    scenario.toml       what was trained, with everything laid over
    training.json       how far it is, on which devices, versions, and the command
    steps.parquet       a row per step
    scores.parquet      a row per look at data that is not learned from
    lost.parquet        per step, worker and tensor what did not arrive, where anything was lost; of a worker that
                        pushed several times in a step, push by push
    turns.parquet       of an asynchronous server every push, in the order in which they were merged
    checkpoint.pt       what torch needs to go on
    prices.json         what a step would take at other rates, where that has been asked (`gradwire.pricing`)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.output import cannot_write, replaced
from gradwire.scenarios.readable import accuracy_text

if TYPE_CHECKING:
    import pandas
    import pyarrow

FORMAT = 2
SUMMARY, CHECKPOINT, SCENARIO, PRICES = "training.json", "checkpoint.pt", "scenario.toml", "prices.json"
TRAININGS = "trainings.txt"
"""By which a folder of several is known; says in which order they are."""
ORDER = "In the order of their scenario:"
SEED = "seed-"
"""How folders begin that hold the trainings of a seed."""

TABLES: Mapping[str, Mapping[str, str]] = {
    "steps": {
        "step": "int64", "loss": "float64", "rate": "float64", "sent_bytes": "int64", "lost": "float64",
        "time_ps": "int64", "clock_ps": "int64", "apart_max": "float64", "apart_rms": "float64", "lost_back": "float64",
        "encode_ps": "int64", "decode_ps": "int64", "pulled_bytes": "int64",
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
}  # fmt: skip
"""Columns and their types, by table."""

RARE = ("turns",)
"""Tables that are there only where they have rows."""

LATER = {"lost": {"turn": None}}
"""Columns that earlier versions did not write, and what stands for them."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, repr=False)
class Learned:
    """One training.

    Attributes
    ----------
    summary : name, policy, label, steps done and wanted, parameters, versions, command; the processor time of all
        workers' encoding, of the server's own work, and of the whole training, measured; `devices`, on which steps were
        made, in order: `from_step`, `device`, `name`, `deterministic_algorithms`, `not_deterministic`, `slower`.
    tables : rows by table, as `TABLES` names their columns.
    """

    summary: Mapping[str, Any]
    tables: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called beside others."""
        return str(self.summary.get("label") or self.summary.get("policy") or "?")

    def __repr__(self) -> str:
        return f"<Learned: {self._what()}>"

    def _repr_html_(self) -> str:
        """What notebooks show: how far it is, and the scores."""
        timed = ["simulated ms"] if self.timed else []
        head = "".join(f"<th>{each}</th>" for each in ("step", "accuracy", "loss", *timed, "sent MiB"))
        lines = "".join(
            f"<tr><td>{row['step']:,}</td><td>{accuracy_text(row['accuracy'])}</td><td>{row['loss']:.4f}</td>"
            + (f"<td>{row['clock_ps'] / 1e9:,.1f}</td>" if timed else "")
            + f"<td>{row['sent_bytes'] / 2**20:,.1f}</td></tr>"
            for row in self.scores
        )
        return f"<p><b>Learned</b>: {escape(self._what())}</p><table><tr>{head}</tr>{lines}</table>"

    def _what(self) -> str:
        """What was trained, how far, how well."""
        done, wanted = self.summary.get("steps_done", 0), self.summary.get("steps", 0)
        last = f", accuracy {accuracy_text(self.scores[-1]['accuracy'])}" if self.scores else ""
        return f"{self.summary.get('name', '?')} {self.summary.get('policy', '?')}, {done:,} of {wanted:,} steps{last}"

    def table(self, name: str = "steps") -> pyarrow.Table:
        """One of the tables, as a pyarrow table. Raises ResultError if there is no such table."""
        if name not in TABLES:
            raise ResultError(f"there is no table {name!r}", "table(name)", f"one of {', '.join(TABLES)}")
        return _table(self.tables.get(name, ()), TABLES[name])

    def to_pandas(self, table: str = "steps") -> pandas.DataFrame:
        """The same as a pandas DataFrame. Raises MissingExtraError if that is not installed."""
        from gradwire.scenarios.result import as_pandas

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
        """Whether its network took any time."""
        return bool(self.steps and self.steps[-1]["clock_ps"])

    @property
    def seed(self) -> int | None:
        """Of its scenario; None in trainings from before it was noted."""
        return self.summary.get("seed")

    @property
    def diverged(self) -> int | None:
        """The first step whose loss is no number, if any."""
        return next((int(row["step"]) for row in self.steps if not math.isfinite(row["loss"])), None)

    def write(self, folder: Path, scenario: str, more: Callable[[Path], object] | None = None) -> None:
        """Write or replace everything but the checkpoint, file by file: first what was trained, last how far it is, so
        that all there is is as far. `more` writes what else there is into the folder.

        Raises
        ------
        OSError
            It cannot be written.
        """
        import pyarrow.parquet

        with replaced(folder / SCENARIO) as partial:
            partial.write_text(scenario, encoding="utf-8")
        for name, columns in TABLES.items():
            rows = self.tables.get(name, ())
            if name in RARE and not rows:
                continue
            table = _table(rows, columns)
            place = folder / f"{name}.parquet"
            with replaced(place) as partial:
                pyarrow.parquet.write_table(table, partial)
        if more is not None:
            more(folder)
        with replaced(folder / SUMMARY) as partial:
            partial.write_text(json.dumps({"format": FORMAT, **self.summary}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Learned:
        """What `write` wrote.

        Raises
        ------
        ResultError
            It is no training, or damaged.
        """
        import pyarrow
        import pyarrow.parquet

        place = path_of(folder, "Learned.read(folder)", "the folder of a training", ResultError)
        try:
            summary = parse_json((place / SUMMARY).read_text(encoding="utf-8"))
        except OSError:
            raise ResultError("holds no training", str(place), f"a folder with {SUMMARY}") from None
        except ValueError:
            raise ResultError("is damaged", str(place / SUMMARY), "a training") from None
        if not isinstance(summary, dict) or summary.get("format") != FORMAT:
            raise ResultError("is of another format", str(place / SUMMARY), f"format {FORMAT}")
        tables: dict[str, Rows] = {}
        for name, columns in TABLES.items():
            if name in RARE and not (place / f"{name}.parquet").exists():
                tables[name] = ()
                continue
            try:
                table = pyarrow.parquet.read_table(place / f"{name}.parquet")
                later = {key: value for key, value in LATER.get(name, {}).items() if key not in table.column_names}
                table = table.select([each for each in columns if each not in later])
                if any(column.type != pyarrow.type_for_alias(columns[column.name]) for column in table.schema):
                    raise ValueError("a column of another type")
                if any(table[each].null_count for each in table.column_names if each not in LATER.get(name, {})):
                    raise ValueError("a value is missing")
                tables[name] = [{**row, **later} for row in table.to_pylist()]
            except (OSError, KeyError, ValueError, pyarrow.ArrowException):
                raise ResultError("is damaged", str(place / f"{name}.parquet"), "a table of a training") from None
        return cls({key: value for key, value in summary.items() if key != "format"}, tables)


def say_order(folder: Path, names: Sequence[str]) -> None:
    """Write into the file by which a folder of trainings is known in which order these are."""
    before, _ = _parts(folder)
    if names:
        _rewritten(folder, before, names)


def say_table(folder: Path, table: str) -> None:
    """Write a table of the trainings into the file by which their folder is known. ResultError if it cannot be."""
    before, names = _parts(folder)
    sentence = before.splitlines()[0] if before else ""
    try:
        _rewritten(folder, f"{sentence}\n\n{table}", names)
    except OSError as error:
        raise cannot_write(error, folder / TRAININGS) from None


def _parts(folder: Path) -> tuple[str, list[str]]:
    """(what is before the order, the names in it) of the file by which a folder of trainings is known."""
    said = (folder / TRAININGS).read_text(encoding="utf-8", errors="replace")
    before, _, names = said.partition(f"{ORDER}\n")
    return before, names.splitlines()


def _rewritten(folder: Path, before: str, names: Sequence[str]) -> None:
    order = "\n".join([ORDER, *names, ""]) if names else ""
    with replaced(folder / TRAININGS) as partial:
        partial.write_text(f"{before.rstrip()}\n\n{order}" if order else before, encoding="utf-8")


def seeds_in(folder: Path) -> list[Path]:
    """The folders in a folder of trainings that hold those of one seed each, in the order of the seeds."""
    found = [(int(each.parent.name.removeprefix(SEED)), each.parent) for each in folder.glob(f"{SEED}*/{TRAININGS}")
             if each.parent.name.removeprefix(SEED).isdecimal()]  # fmt: skip
    return [place for _, place in sorted(found)]


def trainings_in(folder: Path) -> list[Path]:
    """The trainings in a folder of several, in the order that it says; others behind them, by name. Those of several
    seeds seed by seed."""
    if seeds := seeds_in(folder):
        return [each for place in seeds for each in trainings_in(place)]
    _, names = _parts(folder)
    place = {name: number for number, name in enumerate(names)}
    found = sorted(each.parent for each in folder.glob(f"*/{SUMMARY}"))
    return sorted(found, key=lambda each: place.get(each.name, len(names)))


def _table(rows: Rows, columns: Mapping[str, str]) -> pyarrow.Table:
    import pyarrow

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
    return pyarrow.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema=schema)
