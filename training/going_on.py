"""Whether the folder of a training may be gone on with: by the same scenario, and by the modules that there were."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ResultError, shorten
from gradwire.scenarios.learned import CHECKPOINT, PRICES, SCENARIO, SUMMARY, TABLES
from gradwire.scenarios.record import Changed, changed_inputs, file_digest, input_digests
from gradwire.scenarios.toml import read_toml
from gradwire.traces.datasets.images import find_images
from gradwire.traces.datasets.text import find_text
from gradwire.training.asked import model_kind, table_of
from gradwire.training.earlier import MISSING, ROUNDS, SHOWN, summary_of
from gradwire.training.own_model import is_own
from gradwire.training.served.predictor_file import SHIPPED
from gradwire.training.systems.mp2 import UNPREDICTED

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario


DATA, PREDICTOR = "training.data", "training.system.predictor"
"""Where a scenario names what a training is made from besides what is simulated."""


def inputs_of(scenario: Scenario, own_data: bool = False) -> dict[str, str]:
    """SHA-256 (hex) of every file that a training is made from, by where its scenario names it: `input_digests`, and
    the files of data and predictors. Of pictures in folders by class, which are many, there is none.

    own_data : data are handed over, and not read from files.
    """
    return {**input_digests(scenario), **_digests(scenario, own_data)}


def _digests(scenario: Scenario, own_data: bool) -> dict[str, str]:
    files = {place: file for place, file in _learned_from(scenario, own_data).items() if file.is_file()}
    return {place: file_digest(file) for place, file in files.items()}


def _learned_from(scenario: Scenario, own_data: bool) -> dict[str, Path]:
    """Files of data and predictors, by where the scenario names them."""
    table, found = table_of(scenario), dict[str, Path]()
    if table.data != "synthetic" and not own_data and not is_own(table.data):
        find, place = find_text if model_kind(table).task == "next" else find_images, Path(table.data)
        files = find(place)
        found |= {f"{DATA}: {file.name if file == place else file.relative_to(place)}": file for file in files}
    system: Any = table.system
    predictor = getattr(system, "predictor", None)
    if predictor is not None and predictor not in UNPREDICTED and (system.kind, str(predictor)) not in SHIPPED:
        found[PREDICTOR] = Path(predictor)
    return found


def _changed(scenario: Scenario, digests: Mapping[str, str], own_data: bool) -> Iterator[Changed]:
    """Of the files that had these `inputs_of`, those that have others now."""
    places = (PREDICTOR,) if is_own(table_of(scenario).data) else (DATA, PREDICTOR)  # modules are files of any scenario
    ours = {place: each for place, each in digests.items() if place.partition(":")[0] in places}
    yield from changed_inputs(scenario, {place: each for place, each in digests.items() if place not in ours})
    files, now = _learned_from(scenario, own_data), _digests(scenario, own_data)
    for place, digest in ours.items():
        where, _, name = place.partition(": ")
        if now.get(place) != digest and not (own_data and where == DATA):
            yield Changed(place, where, files.get(place, Path(name or place)), place in now)


def refuse_another(folder: Path, scenario: Scenario, text: str, own_data: bool = False) -> None:
    """Look at what a folder holds before a training of a scenario, which is written as `text`, goes there.

    Raises
    ------
    ResultError
        It is no folder, or holds something else: the training of another scenario, or one that was made with other
        modules, or other files that the scenario names, than are there now. Of trainings from before these were noted
        nothing is known.
    """
    if folder.exists() and not folder.is_dir():
        raise ResultError("is a file", str(folder), "a folder")
    own = {SCENARIO, SUMMARY, PRICES, MISSING, ROUNDS, *(f"{name}.parquet" for name in TABLES)}
    there = {each.name for each in folder.iterdir() if not each.name.startswith(".")} if folder.is_dir() else set()
    if not there:
        return
    kept = folder / SCENARIO
    if not kept.is_file() or not (CHECKPOINT in there or there <= own):
        raise ResultError("holds something else", str(folder), "a new folder, or that of a training")
    before, now = _anywhere(kept.read_text(encoding="utf-8", errors="replace")), _anywhere(text)
    if before != now:
        what = f"holds the training of another scenario{_in_what(before, now)}"
        raise ResultError(what, str(folder), f"as {kept} says, or a new folder")
    for _, name, file, still in _changed(scenario, summary_of(folder).get("inputs", {}), own_data):
        what = f"another {file.name} ({name})" if still else f"{file.name}, which is not there any more ({name})"
        raise ResultError(f"was made with {what}", str(folder), "the file as it was, or a new folder")


def _anywhere(text: str) -> dict[str, Any]:
    """A scenario, whatever device it is trained on: it may be gone on with on another one."""
    try:
        tables = read_toml(text)
        tables.get("training", {}).pop("device", None)
    except (tomllib.TOMLDecodeError, AttributeError):  # somebody has been at it
        return {"": text}
    return tables


def _in_what(before: dict[str, Any], now: dict[str, Any]) -> str:
    """In which keys two scenarios differ, the first of them, old -> new."""
    if "" in before:
        return ""
    found = [f"{place} {_value(old)} -> {_value(new)}" for place, old, new in _differing("", before, now)]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f": {', '.join(found[:SHOWN])}{more}"


def _differing(place: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """(place, old, new) of what differs; None where there is none."""
    if before == now:
        return
    if isinstance(before, dict | None) and isinstance(now, dict | None):
        before, now = before or {}, now or {}
        for name in {**before, **now}:
            yield from _differing(f"{place}.{name}" if place else name, before.get(name), now.get(name))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differing(f"{place}[{number}]", old, new)
    else:
        yield place, before, now


def _value(value: Any) -> str:
    return "nothing" if value is None else shorten(value, 40)
