"""Checks that a training folder may be resumed: by the same scenario, modules and files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.provenance import ChangedInput, changed_inputs, file_digest, input_digests
from gradwire.result_store.training_result import CHECKPOINT, PRICES, SCENARIO, SUMMARY, TABLES
from gradwire.scenarios.errors import ResultError, shorten
from gradwire.scenarios.loading.toml import read_toml
from gradwire.traces.datasets.images import image_files
from gradwire.traces.datasets.text import text_files
from gradwire.training.loss_replay.replay_compatibility import MISSING, ROUNDS, SHOWN, summary_of
from gradwire.training.parameter_server.predictor_file import BUNDLED_FILES
from gradwire.training.systems.mp2 import UNPREDICTED
from gradwire.training.training_checks import model_kind, table_of
from gradwire.training.user_code.user_model import is_own

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario


DATA, PREDICTOR = "training.data", "training.system.predictor"
"""Paths in a scenario that name further inputs of a training run."""


def inputs_of(scenario: Scenario, own_data: bool = False) -> dict[str, str]:
    """Return the SHA-256 (hex) of every input file of a training run, by its path in the scenario. These are
    `input_digests` and the files of data and predictors; pictures in folders by class, which are many, are left out.

    own_data : the data was passed in, not read from files.
    """
    return {**input_digests(scenario), **_digests(scenario, own_data)}


def _digests(scenario: Scenario, own_data: bool) -> dict[str, str]:
    files = {path: file for path, file in _input_files(scenario, own_data).items() if file.is_file()}
    return {path: file_digest(file) for path, file in files.items()}


def _input_files(scenario: Scenario, own_data: bool) -> dict[str, Path]:
    """Return the files of data and predictors, by their path in the scenario."""
    table, files_by_path = table_of(scenario), dict[str, Path]()
    if table.data != "synthetic" and not own_data and not is_own(table.data):
        find, data_path = text_files if model_kind(table).task == "next" else image_files, Path(table.data)
        files = find(data_path)
        files_by_path |= {
            f"{DATA}: {file.name if file == data_path else file.relative_to(data_path)}": file for file in files
        }
    system: Any = table.system
    predictor = getattr(system, "predictor", None)
    if predictor is not None and predictor not in UNPREDICTED and (system.kind, str(predictor)) not in BUNDLED_FILES:
        files_by_path[PREDICTOR] = Path(predictor)
    return files_by_path


def _changed(scenario: Scenario, digests: Mapping[str, str], own_data: bool) -> Iterator[ChangedInput]:
    """Yield the input files whose digests have changed."""
    # modules of user-defined data are among the inputs of any scenario
    prefixes = (PREDICTOR,) if is_own(table_of(scenario).data) else (DATA, PREDICTOR)
    own_digests = {path: digest for path, digest in digests.items() if path.partition(":")[0] in prefixes}
    yield from changed_inputs(scenario, {path: digest for path, digest in digests.items() if path not in own_digests})
    files, now = _input_files(scenario, own_data), _digests(scenario, own_data)
    for path, digest in own_digests.items():
        where, _, name = path.partition(": ")
        if now.get(path) != digest and not (own_data and where == DATA):
            yield ChangedInput(path, where, files.get(path, Path(name or path)), path in now)


def check_resumable(folder: Path, scenario: Scenario, text: str, own_data: bool = False) -> None:
    """Raise if a folder holds something else than a training run of a scenario, which is written as `text`. Raises
    ResultError if it is not a folder, or holds something else: a training run of another scenario, or one made with
    other modules or input files than there are now. Older training runs recorded no inputs, so these are not
    checked."""
    if folder.exists() and not folder.is_dir():
        raise ResultError("is a file", str(folder), "a folder")
    known_names = {SCENARIO, SUMMARY, PRICES, MISSING, ROUNDS, *(f"{name}.parquet" for name in TABLES)}
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    if not names:
        return
    scenario_file = folder / SCENARIO
    if not scenario_file.is_file() or not (CHECKPOINT in names or names <= known_names):
        raise ResultError("holds something else", str(folder), "a new folder, or that of a training run")
    before, now = _without_device(scenario_file.read_text(encoding="utf-8", errors="replace")), _without_device(text)
    if before != now:
        what = f"holds a training run of another scenario{_change_text(before, now)}"
        raise ResultError(what, str(folder), f"as {scenario_file} says, or a new folder")
    for _, name, file, still in _changed(scenario, summary_of(folder).get("inputs", {}), own_data):
        what = f"another {file.name} ({name})" if still else f"{file.name}, which is missing now ({name})"
        raise ResultError(f"was made with {what}", str(folder), "the file as it was, or a new folder")


def _without_device(text: str) -> dict[str, Any]:
    """Return a scenario without its training device: a training run may be resumed on another one."""
    try:
        tables = read_toml(text)
        tables.get("training", {}).pop("device", None)
    except (tomllib.TOMLDecodeError, AttributeError):  # edited by hand
        return {"": text}
    return tables


def _change_text(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the first keys in which two scenarios differ, as old -> new."""
    if "" in before:
        return ""
    changes = [f"{path} {_value(old)} -> {_value(new)}" for path, old, new in _changes("", before, now)]
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return f": {', '.join(changes[:SHOWN])}{more}"


def _changes(path: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, old, new) of all differences; None if a key is missing."""
    if before == now:
        return
    if isinstance(before, dict | None) and isinstance(now, dict | None):
        before, now = before or {}, now or {}
        for name in {**before, **now}:
            yield from _changes(f"{path}.{name}" if path else name, before.get(name), now.get(name))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes(f"{path}[{number}]", old, new)
    else:
        yield path, before, now


def _value(value: Any) -> str:
    return "nothing" if value is None else shorten(value, 40)
