"""`--set a.b[0].c=value`: one value of a scenario's tables written differently, before anything is validated.

A path is dotted, "[2]" picks one of several tables, and a table that is left unpicked means all of them. Values are
TOML; what is no TOML is text. Files are looked for where the user stands, not beside the scenario's file: whoever types
`--set job.trace=./mine` sees that folder, not the library's.
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
from gradwire.scenarios.explain import Location
from gradwire.scenarios.schema.policy import NAMED
from gradwire.scenarios.toml import SEVERAL, read_toml

FILES = ("trace", "file", "sizes", "modules")
"""Fields that name a file or a folder; some of them something else as well."""
STEP = re.compile(r"([^\[\].]+)((?:\[[0-9]{1,9}\])*)", re.ASCII)


def lay_over(tables: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`tables` with overrides such as "job.workers=8" laid over, in their order. Raises `ScenarioError`."""
    for override in overrides:
        tables = _override(tables, override)
    return tables


def put_in_traces(tables: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`tables` with `overrides` laid over, as `lay_over`, but a job whose trace they replace loses its compute_scale.

    The scale of a scenario belongs to the trace that the scenario names: 0.02 makes a fast worker of what was recorded
    on a slow processor, and nonsense of a trace of a GPU. An override of the scale itself counts. Every scale that
    is lost is said in a `ScenarioNote`.
    """
    laid = lay_over(tables, overrides)
    if not _jobs(tables):
        return laid
    bare = lay_over({**tables, "job": [_without_scale(job) for job in _jobs(tables)]}, overrides)
    jobs = list(_jobs(laid))
    for number, (before, after, asked) in enumerate(zip(_jobs(tables), jobs, _jobs(bare), strict=False)):
        if not all(isinstance(job, dict) for job in (before, after, asked)) or "compute_scale" in asked:
            continue
        if after.get("trace") != before.get("trace") and after.get("compute_scale", 1.0) != 1.0:
            jobs[number] = _without_scale(after)
            text = (
                f"job[{number}].compute_scale = {after['compute_scale']} belongs to the trace {before.get('trace')}; "
                f"with {after['trace']} it is 1 (--set job.compute_scale=... says otherwise)"
            )
            warnings.warn(text, ScenarioNote, stacklevel=3)
    return {**laid, "job": jobs} if jobs else laid


def _jobs(tables: dict[str, Any]) -> list[Any]:
    jobs = tables.get("job")
    return jobs if isinstance(jobs, list) else []


def _without_scale(job: Any) -> Any:
    return {key: value for key, value in job.items() if key != "compute_scale"} if isinstance(job, dict) else job


def of_policies(override: str) -> bool:
    """Whether an override is about the policies themselves."""
    return steps_of(override.partition("=")[0].strip())[:1] == ("policy",)


def steps_of(key: str) -> Location:
    """ "job[0].workers" -> ("job", 0, "workers"); empty if it is no such path."""
    steps: list[str | int] = []
    for part in key.split("."):
        found = STEP.fullmatch(part)
        if not found:
            return ()
        steps += [found[1], *map(int, re.findall(r"[0-9]+", found[2]))]
    return tuple(steps)


def last_of(key: str) -> str:
    """The name that a key ends with: "job[0].trace" -> "trace"."""
    return next((step for step in reversed(steps_of(key)) if isinstance(step, str)), "")


def _override(tables: dict[str, Any], override: str) -> dict[str, Any]:
    where = f"--set {override}"
    key, equals, text = override.partition("=")
    steps = steps_of(key.strip())
    if not equals or not steps:
        raise ScenarioError("is no override", where, "a.b=value, such as link.rate=10Gbps")
    try:
        value = read_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if steps[0] in SEVERAL and len(steps) > 1 and not tables.get(str(steps[0])):
        raise ScenarioError(f"the scenario has no [[{steps[0]}]]", where, "a key of a table that is there")
    laid: dict[str, Any] = _laid_over(tables, steps, from_folder(steps[-1], value), where)
    return laid


def from_folder(key: str | int, value: Any, folder: Path | None = None) -> Any:
    """`value` with paths of files made absolute, as seen from a folder, by default the working directory. `key`:
    where it stands, as only `FILES` name any."""
    if isinstance(value, dict):
        return {inner: from_folder(inner, each, folder) for inner, each in value.items()}
    if isinstance(value, list):
        return [from_folder(key, each, folder) for each in value]
    if not isinstance(value, str) or key not in FILES or not value:
        return value
    path = (folder or Path.cwd()) / Path(value).expanduser()
    by_name = "/" not in value and (os.path.isdir(path) if key == "trace" else os.path.isfile(path))
    return str(path.absolute()) if "/" in value or by_name or key == "modules" else value


def _laid_over(here: Any, steps: Location, value: Any, where: str) -> Any:
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(here, list) or step >= len(here):
            count = len(here) if isinstance(here, list) else 0
            raise ScenarioError(f"there is no [{step}]", where, f"one of {count} tables, counted from [0]")
        return [_laid_over(item, rest, value, where) if i == step and rest else value if i == step else item
                for i, item in enumerate(here)]  # fmt: skip
    if isinstance(here, list):
        return [_laid_over(item, steps, value, where) for item in here]
    if not isinstance(here, dict):
        here = {}
    if not rest:
        return {**here, step: value}
    inner = here.get(step, {})
    if step in NAMED and isinstance(inner, str) and rest != ("kind",):
        inner = {"kind": inner}  # transport = "dlcp" and --set transport.floor=16
    return {**here, step: _laid_over(inner, rest, value, where)}
