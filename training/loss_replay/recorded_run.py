"""Reads and writes recorded losses in a training run's folder, and checks that another run can repeat them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.training_result import (
    FORMAT,
    MARKER_FILE,
    SCENARIO,
    SUMMARY,
    seed_folders,
    training_run_folders,
)
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.loading.toml import read_toml
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.schema.job.training import UserReducer
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.training.user_code import load_user_reducer
from gradwire.training.value_checks import innermost

ROUNDS, MISSING = "rounds.parquet", "missing.parquet"
WAYS = ("push", "pull", "hop")
COLUMNS = ("step", "round", "way", "hop", "worker", "tensor", "packet", "packets")
TIMES = ("step", "round", "time_ps", "with_encoding")
BUCKETS = b"buckets"
"""Key of the file's metadata with the tensors of a ring's buckets."""
REPLAY = "training.network.replay"
EXPECTED = "a training run of the same model, workers, payload, exchange and reducer, and of as many steps"
EXPECTED_TABLE = "a table recorded by a training run"
EXPECTED_RECORDING = "the folder of a training run with training.keep_missing = true"
SHOWN = 3
"""Names, or keys, listed in a message."""
PUSHED = b"pushed"
"""Key of the file's metadata with workers, payload, exchange and tensors. Older files lack it."""


def properties_of(scenario: Scenario) -> dict[str, Any]:
    """Return the properties that a replay must share, as far as a scenario tells. A user-defined reducer that cannot be
    loaded is left out."""
    job, table = scenario.job[0], scenario.training
    assert table is not None
    properties = {
        "workers": job.workers,
        "payload": int((job.transport or scenario.transport).payload),
        "exchange": "ring" if job.exchange.kind == "ring" else "parameter_server",
        "reducer": table_properties(table.reducer),
        "model": table.model,
        "system": table_properties(table.system),
    }
    if isinstance(table.reducer, UserReducer):
        try:
            user_reducer = innermost(load_user_reducer(table.reducer, scenario.folder))
            properties["reducer"] = table_properties(user_reducer)  # with its defaults
        except GradwireError:
            del properties["reducer"]
    return properties


def table_properties(table: ScenarioTable | None) -> dict[str, Any]:
    """Return the parameters of a reducer or system for comparison, whichever file its class is in; None is "none"."""
    return {"kind": "none"} if table is None else {"kind": type(table).__name__, **table.model_dump()}


def recorded_properties(folder: Path) -> dict[str, Any]:
    """Return the properties of the training run in a folder: those of `properties_of`, "parameters" and "tensors", as
    far as known. Raises ResultError if the folder is damaged."""
    summary, scenario = summary_of(folder), _scenario(folder)
    names = ("workers", "parameters", "tensors")
    properties = {} if scenario is None else properties_of(scenario)
    return {**properties, **{name: summary[name] for name in names if name in summary}}


def check_compatible(folder: Path, here: Mapping[str, Any], there: int, steps: int | None) -> None:
    """Raise ScenarioError, listing all differences, if a training run with the properties `here` cannot repeat the
    losses. The recorded run in `folder` has `there` steps. Raises ResultError if its files are damaged."""
    differences = list(differing(recorded_properties(folder), here))
    if steps is not None and steps > there:
        differences.append(f"{there} steps there, {steps} here")
    if differences:
        raise mismatch_error(folder, differences)


def mismatch_error(folder: Path, mismatches: Sequence[str]) -> ScenarioError:
    """Return the error for a training run that differs from the one in `folder`."""
    return ScenarioError(f"{folder} is of another training run: {'; '.join(mismatches)}", REPLAY, EXPECTED)


def check_replay(folder: Path, scenario: Scenario) -> None:
    """Raise ScenarioError or ResultError if a scenario's training run cannot repeat the losses of the one in `folder`,
    as far as known. It checks what `gradwire.training.loss_replay.loss_recording.RecordedLossNetwork` does, before
    there are a model and data, and reads no losses."""
    assert scenario.training is not None
    _check_folder(folder)
    if not (folder / MISSING).is_file():
        raise ResultError("is not there", str(folder / MISSING), EXPECTED_TABLE)
    _, times = _table(folder / ROUNDS, TIMES)
    check_compatible(folder, properties_of(scenario), steps_of(times), scenario.training.steps)


def is_of_run(folder: Path) -> bool:
    """Return True if a folder is the Result of a simulated or emulated run, and not a training run's. See
    `gradwire.training.loss_replay.result_loss_network`."""
    return (folder / "result.json").is_file() and not (folder / ROUNDS).exists()


NETWORK_KEYS = (
    "duration", "topology", "link", "link_override", "switch", "host", "load_balancing", "transport", "job", "traffic",
    "fault", "emulation",
)  # fmt: skip
"""Scenario keys of the network and its traffic."""
COMPARED_KEYS = (
    "transport.payload",
    "job.transport.payload",
    "job.name",
    "job.workers",
    "job.fill",
    "job.pull_fill",
    "job.exchange.kind",
)
"""Keys below these that matter in a replay: they are compared, or used by the trainer."""


def settings_without_effect(folder: Path, scenario: Scenario) -> list[str]:
    """Return the paths of a replay's network settings that differ from the recorded run and have no effect. Empty if
    the recorded scenario is not known."""
    if (recorded := _scenario(folder)) is None:
        return []
    there, here = (variant.model_dump(mode="json", include=set(NETWORK_KEYS)) for variant in (recorded, scenario))
    for tables in (there, here):
        (tables["job"],) = tables["job"]
    return [path for name in NETWORK_KEYS for path in _differing_paths(name, there[name], here[name])]


def _differing_paths(path: str, recorded: Any, own: Any) -> Iterator[str]:
    """Yield the paths at which two values differ, key by key in tables of one kind."""
    if recorded == own or path in COMPARED_KEYS:
        return
    if isinstance(recorded, dict) and isinstance(own, dict) and recorded.get("kind") == own.get("kind"):
        for name in {**recorded, **own}:
            yield from _differing_paths(f"{path}.{name}", recorded.get(name), own.get(name))
    else:
        yield path


def steps_of(times: Ints) -> int:
    """Return the number of recorded steps, from the table of rounds."""
    return 1 + max(times[:, 0].tolist(), default=-1)


def differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two training runs' properties, in words."""
    for name, value in here.items():
        recorded = there.get(name, value)
        if recorded == value:
            continue
        if name == "tensors":
            count = len(recorded) if isinstance(recorded, list) else 0
            pairs = zip(recorded if count else (), value, strict=False)
            example = next((f", such as {_tensor(one)} for {_tensor(two)}" for one, two in pairs if one != two), "")
            yield f"{count} tensors there, {len(value)} here{example}"
        elif name in ("workers", "parameters"):
            yield f"{recorded} {name} there, {value} here"
        else:
            yield f"{name} {_value_text(recorded, value)} there, {_value_text(value, recorded)} here"


def _tensor(tensor: Any) -> str:
    return "{} of {} elements".format(*tensor) if isinstance(tensor, list) and len(tensor) == 2 else str(tensor)


def _value_text(value: Any, other: Any) -> str:
    """Return a value; of a reducer its kind, or its differences from another one of that kind."""
    if not (isinstance(value, dict) and isinstance(other, dict)):
        return str(value or "none")
    kind = str(value["kind"])
    if kind != other["kind"]:
        return kind
    return ", ".join(f"{name} = {setting}" for name, setting in value.items() if other.get(name) != setting) or kind


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's training.json; empty if only tables were kept."""
    path = folder / SUMMARY
    try:
        summary = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise ResultError("is damaged", str(path), "the unchanged file of the training run") from None
    if not isinstance(summary, dict) or summary.get("format") != FORMAT:
        raise ResultError("is of another format", str(path), f"format {FORMAT}")
    if not isinstance(summary.get("cpu_s", 0.0), int | float):
        raise ResultError("is damaged: cpu_s is not a number", str(path), "the unchanged file of the training run")
    inputs = summary.get("inputs", {})
    if not (isinstance(inputs, dict) and all(isinstance(digest, str) for digest in inputs.values())):
        what = "is damaged: inputs is not a table of digests"
        raise ResultError(what, str(path), "the unchanged file of the training run")
    return summary


def _scenario(folder: Path) -> Any:
    """Return a folder's scenario; None if there is none, or it needs something that is missing here."""
    path = folder / SCENARIO
    try:
        tables = read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        tables = {}
    if not (("training" in tables or is_of_run(folder)) and tables.get("job")):
        raise ResultError("is damaged", str(path), "the unchanged file of the training run")
    try:
        (scenario,) = load_scenario(path).variants()
    except (GradwireError, ValueError):
        return None
    return scenario


def read_recording(folder: Path) -> tuple[Ints, Ints, tuple[tuple[int, ...], ...], dict[str, Any]]:
    """Return (runs, times, buckets, pushed metadata) of a training run's folder. Raises ResultError if losses were not
    recorded; or the folder is missing, or damaged."""
    _check_folder(folder)
    missing, runs = _table(folder / MISSING, COLUMNS)
    _, times = _table(folder / ROUNDS, TIMES)
    try:
        buckets = tuple(tuple(map(int, bucket)) for bucket in parse_json(missing[BUCKETS]))
        pushed = dict(parse_json(missing.get(PUSHED, b"{}")))
    except (KeyError, ValueError, TypeError):
        raise ResultError("is damaged", str(folder / MISSING), EXPECTED_TABLE) from None
    return runs, times, buckets, pushed


def write_recording(
    folder: Path, runs: Sequence[Ints], times: Sequence[Sequence[int]], buckets: Sequence[Any], pushed: dict[str, Any]
) -> None:
    """Replace the tables in a training run's folder by what `read_recording` returns. OSError if they cannot be
    written."""
    import pyarrow
    import pyarrow.parquet

    columns = dict(zip(COLUMNS, np.concatenate([np.zeros((0, len(COLUMNS)), np.int64), *runs]).T, strict=True))
    ways = pyarrow.array([WAYS[way] for way in columns["way"].tolist()], pyarrow.string())
    metadata = {BUCKETS: json.dumps(buckets).encode(), PUSHED: json.dumps(pushed).encode()}
    missing = pyarrow.table({**columns, "way": ways}, metadata=metadata)
    rounds = np.array(times, dtype=np.int64).reshape(-1, len(TIMES))
    for name, table in ((MISSING, missing), (ROUNDS, pyarrow.table(dict(zip(TIMES, rounds.T, strict=True))))):
        with atomic_replace(folder / name) as partial:
            pyarrow.parquet.write_table(table, partial)


def _check_folder(folder: Path) -> None:
    """Raise ResultError unless a folder holds a training run that recorded its losses."""
    if not os.path.isdir(folder):  # Path.is_dir raises if a name is too long
        what = "is a file" if os.path.lexists(folder) else "is not there"
        raise ResultError(what, str(folder), "the folder of a training run")
    if is_of_run(folder):  # its missing.parquet has other columns
        what = "is the Result of a simulated or emulated run, not of a training run"
        raise ResultError(what, str(folder), EXPECTED_RECORDING)
    if not (folder / MISSING).exists() and not (folder / ROUNDS).exists():
        is_several = (folder / MARKER_FILE).is_file() or seed_folders(folder)
        training_folders = training_run_folders(folder) if is_several else []
        what = f"holds {len(training_folders)} training runs" if training_folders else "did not record its lost packets"
        inner = [str(path) for path in training_folders if (path / ROUNDS).exists()]
        such = f", such as {' or '.join(inner[:SHOWN])}" if inner else ""
        raise ResultError(what, str(folder), EXPECTED_RECORDING + such)


def _table(path: Path, columns: Sequence[str]) -> tuple[Mapping[bytes, bytes], Ints]:
    """Return (metadata, columns as numbers) of a table in which only a hop may be negative."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
        arrays = [
            [WAYS.index(way) for way in table[name].to_pylist()] if name == "way" else to_numpy(table[name])
            for name in columns
        ]
        rows = np.column_stack(arrays).astype(np.int64)
    except FileNotFoundError:
        raise ResultError("is not there", str(path), EXPECTED_TABLE) from None
    except (OSError, KeyError, ValueError, TypeError, pyarrow.ArrowException):
        raise ResultError("is damaged", str(path), EXPECTED_TABLE) from None
    for name, column in zip(columns, rows.T, strict=True):
        minimum = {"hop": -1, "packets": 1}.get(name, 0)
        if len(column) and (lowest := int(column.min())) < minimum:
            raise ResultError(f"is damaged: {name} is {lowest}", str(path), f"{name} from {minimum}")
    return table.schema.metadata or {}, rows
