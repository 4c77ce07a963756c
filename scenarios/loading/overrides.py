"""Applies overrides such as `--set a.b[0].c=value` to a scenario's tables before validation.

Files are relative to the working directory: `--set job.trace=./mine` means the user's folder, not the library's.
"""

from __future__ import annotations

import os
import re
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.scenarios.errors import ScenarioError, ScenarioNote
from gradwire.scenarios.loading.explain import Location
from gradwire.scenarios.loading.toml import TABLE_LIST_KEYS, read_toml
from gradwire.scenarios.schema.policy import NAME_OR_TABLE_KEYS

PATH_KEYS = ("trace", "file", "sizes", "modules")
"""Fields that may name a file or a folder."""
STEP = re.compile(r"([^\[\].]+)((?:\[[0-9]{1,9}\])*)", re.ASCII)


def apply_overrides(tables: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return `tables` with overrides such as "job.workers=8" applied in order. Raises `ScenarioError`."""
    for override in overrides:
        tables = _override(tables, override)
    return tables


def apply_overrides_and_traces(tables: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return `tables` with `overrides` applied; a job whose trace they replace loses its compute_scale.

    The scale of a scenario belongs to the trace that the scenario names: 0.02 turns a recording on a slow processor
    into a fast worker, and is wrong for a trace of a GPU. An override of the scale itself is kept. Each removed scale
    is reported in a `ScenarioNote`.
    """
    changed = apply_overrides(tables, overrides)
    if not _jobs(tables):
        return changed
    unscaled = apply_overrides({**tables, "job": [_without_scale(job) for job in _jobs(tables)]}, overrides)
    jobs = list(_jobs(changed))
    for number, (before, after, overridden) in enumerate(zip(_jobs(tables), jobs, _jobs(unscaled), strict=False)):
        if not all(isinstance(job, dict) for job in (before, after, overridden)) or "compute_scale" in overridden:
            continue
        if after.get("trace") != before.get("trace") and after.get("compute_scale", 1.0) != 1.0:
            jobs[number] = _without_scale(after)
            text = (
                f"job[{number}].compute_scale = {after['compute_scale']} belongs to the trace {before.get('trace')}; "
                f"with {after['trace']} it is 1 (override with --set job.compute_scale=...)"
            )
            warnings.warn(text, ScenarioNote, stacklevel=3)
    return {**changed, "job": jobs} if jobs else changed


def _jobs(tables: dict[str, Any]) -> list[Any]:
    jobs = tables.get("job")
    return jobs if isinstance(jobs, list) else []


def _without_scale(job: Any) -> Any:
    return {key: value for key, value in job.items() if key != "compute_scale"} if isinstance(job, dict) else job


def is_policy_override(override: str) -> bool:
    """Return True if an override concerns the policies themselves."""
    return path_steps(override.partition("=")[0].strip())[:1] == ("policy",)


def path_steps(key: str) -> Location:
    """Return "job[0].workers" as ("job", 0, "workers"); empty if it is not a valid path."""
    steps: list[str | int] = []
    for part in key.split("."):
        match = STEP.fullmatch(part)
        if not match:
            return ()
        steps += [match[1], *map(int, re.findall(r"[0-9]+", match[2]))]
    return tuple(steps)


def last_key(key: str) -> str:
    """Return the last name of a key: "job[0].trace" -> "trace"."""
    return next((step for step in reversed(path_steps(key)) if isinstance(step, str)), "")


def _override(tables: dict[str, Any], override: str) -> dict[str, Any]:
    where = f"--set {override}"
    key, equals, text = override.partition("=")
    steps = path_steps(key.strip())
    if not equals or not steps:
        raise ScenarioError("is not an override", where, "a.b=value, such as link.rate=10Gbps")
    try:
        value = read_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if steps[0] in TABLE_LIST_KEYS and len(steps) > 1 and not tables.get(str(steps[0])):
        raise ScenarioError(f"the scenario has no [[{steps[0]}]]", where, "a key of an existing table")
    changed: dict[str, Any] = _with_value(tables, steps, with_absolute_paths(steps[-1], value), where)
    return changed


def with_absolute_paths(key: str | int, value: Any, folder: Path | None = None) -> Any:
    """Return `value` with file paths made absolute from a folder (default: the working directory). `key` is the key of
    the value; only those in `PATH_KEYS` name files."""
    if isinstance(value, dict):
        return {inner: with_absolute_paths(inner, each, folder) for inner, each in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(key, each, folder) for each in value]
    if not isinstance(value, str) or key not in PATH_KEYS or not value:
        return value
    path = (folder or Path.cwd()) / Path(value).expanduser()
    by_name = "/" not in value and (os.path.isdir(path) if key == "trace" else os.path.isfile(path))
    return str(path.absolute()) if "/" in value or by_name or key == "modules" else value


def _with_value(here: Any, steps: Location, value: Any, where: str) -> Any:
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(here, list) or step >= len(here):
            count = len(here) if isinstance(here, list) else 0
            raise ScenarioError(f"there is no [{step}]", where, f"one of {count} tables, counted from [0]")
        return [
            _with_value(item, rest, value, where) if i == step and rest else value if i == step else item
            for i, item in enumerate(here)
        ]
    if isinstance(here, list):
        return [_with_value(item, steps, value, where) for item in here]
    if not isinstance(here, dict):
        here = {}
    if not rest:
        return {**here, step: value}
    inner = here.get(step, {})
    if step in NAME_OR_TABLE_KEYS and isinstance(inner, str) and rest != ("kind",):
        inner = {"kind": inner}  # transport = "dlcp" and --set transport.floor=16
    return {**here, step: _with_value(inner, rest, value, where)}
