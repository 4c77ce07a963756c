"""Loads a scenario from a TOML file or the library, and reports all its errors at once.

    file or library name -> TOML tables -> `set` overrides applied -> Scenario
                                                                   \\-> ScenarioError with every mistake

Fields are checked one by one, and only a scenario whose fields are all valid can be checked as a whole. To report
everything at once, invalid fields are replaced by their defaults and the rest is checked as a whole too; mistakes that
depend on a replaced field are left out.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.explain import (
    MAX_EXPLAINED,
    Location,
    explain_validation_error,
    file_location,
    primary_entries,
)
from gradwire.scenarios.loading.files import require_regular_file
from gradwire.scenarios.loading.overrides import (
    apply_overrides,
    apply_overrides_and_traces,
    is_policy_override,
    path_steps,
)
from gradwire.scenarios.loading.toml import inline_toml, read_toml
from gradwire.scenarios.loading.trust import refuse_outside
from gradwire.scenarios.schema.base import Mistakes
from gradwire.scenarios.schema.policy import Policy, overlay, unknown_policy_error
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_size
from gradwire.scenarios.validation.argument_checks import require_instance, require_path, require_strings

Overrides = Mapping[str, Any] | Sequence[str] | str
"""Overridden values: "job.workers=8", a list of these, {"job.workers": 8} or {"job": {"workers": 8}}."""
SOURCE_EXPECTED = "a scenario file, or a name of the library"
MAX_FILE_BYTES = 8 * 2**20
"""Maximum size of a scenario file; a larger one would take minutes to read before it is rejected."""


def list_library() -> list[str]:
    """Return the names of the bundled scenarios."""
    return _names_in("library")


def list_sweeps() -> list[str]:
    """Return the names of the bundled sweeps."""
    return _names_in("library/sweeps")


def _names_in(name: str) -> list[str]:
    folder = resources.files("gradwire.scenarios") / name
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(source: str | Path, set: Overrides = (), policy: str | None = None) -> Scenario:
    """Load a scenario from a file or the library, with `set` overrides such as "job.workers=8".

    A path in an override is dotted, "[2]" picks one of several tables, and a table without an index means all of them
    ("job.workers=8", "job[0].workers=8"). Values are TOML; invalid TOML is taken as text, so "link.rate=10Gbps" needs
    no quotes. A mapping may be nested or have paths as keys. Files are relative to the working directory. A job whose
    trace is replaced loses the `compute_scale` of the other one, with a `ScenarioNote` (a warning).

    With the name of a `policy`, return the scenario under that policy, and only that has to be valid: overrides are
    then applied over the policy, except those of policies themselves. Raises `ScenarioError` with every mistake.
    """
    path, text = _read(source)
    set = as_override_list(set, "load_scenario(set)")
    tables = parse_toml(path, text)
    refuse_outside(path, tables.get("modules"))
    if "scenario" in tables and "measures" in tables:
        raise ScenarioError("is a sweep, not a scenario", str(path), f"gradwire sweep {source}")
    if policy is None:
        try:
            scenario = build_scenario(apply_overrides_and_traces(tables, set), str(path))
        except ScenarioError as error:
            raise _with_kind_advice(error, tables, set) from None
    else:
        tables = apply_overrides(tables, [each for each in set if is_policy_override(each)])
        name = require_instance(policy, str, "load_scenario(policy)", "the name of a policy", ScenarioError)
        chosen = _policy(tables, name, str(path))
        rest = {key: value for key, value in tables.items() if key != "policy"}
        tables = apply_overrides_and_traces(
            overlay(rest, chosen.set), [each for each in set if not is_policy_override(each)]
        )
        scenario = build_scenario(tables, str(path)).under(chosen)
    scenario = scenario.at(path.parent).read_from(str(path))
    if (file := scenario.topology.path) and not os.path.isfile(file):
        what = "is not a regular file" if os.path.exists(file) else "no such file"
        mistake = Mistake("topology.file", what, file, "a graph file")
        raise ScenarioError("invalid scenario, 1 error:", str(path), mistakes=[mistake])
    return scenario


def _with_kind_advice(error: ScenarioError, tables: dict[str, Any], overrides: Sequence[str]) -> ScenarioError:
    """Return the error, with advice if an override has changed a table's kind but left the old kind's keys."""
    for override in overrides:
        key, _, value = override.partition("=")
        table, _, last = key.strip().rpartition(".")
        old = tables.get(table)
        if last == "kind" and isinstance(old, dict) and old.get("kind") != value.strip() and len(old) > 1:
            missing = [each.path.rpartition(".")[2] for each in error.mistakes if each.what == "is missing"]
            keys = ", ".join([f'kind = "{value.strip()}"', *(f"{name} = ..." for name in missing)])
            hint = f"the keys of that kind besides --set {override}: --set '{table}={{ {keys} }}' sets the whole table"
            return ScenarioError(error.what.removesuffix(":"), error.where, hint, error.mistakes)
    return error


def load_tables(source: str | Path) -> dict[str, Any]:
    """Return the unvalidated tables of a scenario file or library scenario. Raises `ScenarioError`."""
    return parse_toml(*_read(source))


def as_scenario(given: Any, where: str) -> Scenario:
    """Return a Scenario as it is, or load a file or library name without a policy. Raises `ScenarioError`."""
    if isinstance(given, Scenario):
        return given
    require_path(given, where, f"a Scenario, {SOURCE_EXPECTED}", ScenarioError)
    return load_scenario(given)


def as_override_list(given: Any, where: str) -> list[str]:
    """Return overrides as a list; a single string becomes a list of one. A mapping's keys are paths, and its tables are
    merged: {"job.workers": 8} and {"job": {"workers": 8}} become ["job.workers=8"]. A table with a `kind` stays whole,
    since another kind has other keys. Raises `ScenarioError`."""
    if isinstance(given, Mapping):
        try:
            return [override for key, value in given.items() for override in _flat_overrides(key, value, where)]
        except RecursionError:
            raise ScenarioError("has too deeply nested tables", where, 'paths, such as "job.workers"') from None
    return require_strings(given, where, 'overrides, such as ["job.workers=8"]', ScenarioError)


def _flat_overrides(key: Any, value: Any, where: str) -> Iterator[str]:
    """Yield the overrides of one key of a mapping."""
    if not isinstance(key, str):
        raise ScenarioError(f"has the key {key!r}", where, 'paths, such as "job.workers"')
    if isinstance(value, Mapping) and "kind" not in value:
        for inner, each in value.items():
            yield from _flat_overrides(f"{key}.{inner}" if isinstance(inner, str) else inner, each, where)
        return
    try:
        yield f"{key}={inline_toml(value)}"
    except TypeError as error:
        what = f"{key}: {error}"
        raise ScenarioError(what, where, "texts, numbers, booleans, lists and tables of these") from None


def build_scenario(tables: dict[str, Any], where: str = "scenario") -> Scenario:
    """Build a Scenario from tables as `tomllib` returns them. Raises `ScenarioError` with every mistake."""
    try:
        return Scenario.model_validate(tables)
    except ValidationError as error:
        mistakes = [*explain_validation_error(error, tables, Scenario), *_behind(error, tables)]
    except RecursionError:
        raise ScenarioError("has too deeply nested tables", where, "a scenario") from None
    count = "1 error" if len(mistakes) == 1 else f"{len(mistakes)} errors"
    raise ScenarioError(f"invalid scenario, {count}:", where, mistakes=mistakes)


def _policy(tables: dict[str, Any], name: str, where: str) -> Policy:
    """Return the policy `name` from a scenario's tables. Raises `ScenarioError`."""
    primary_entries = tables.get("policy", [])
    named = [each for each in primary_entries if isinstance(each, dict)] if isinstance(primary_entries, list) else []
    for entry in named:
        if entry.get("name") == name:
            try:
                return Policy.model_validate(entry)
            except ValidationError:
                build_scenario(tables, where)  # raises with the details
                raise
    raise unknown_policy_error(name, [str(entry.get("name")) for entry in named], where)


def _read(source: str | Path) -> tuple[Path, str]:
    """Return a scenario's path and text. A bare name is a file if one exists, else a library name; a folder of that
    name does not hide the library's scenario."""
    path = require_path(source, "load_scenario(source)", SOURCE_EXPECTED, ScenarioError).expanduser()
    bare = isinstance(source, str) and path.name == source and path.suffix != ".toml"
    if bare and (not os.path.exists(path) or (os.path.isdir(path) and source in list_library())):
        entry = resources.files("gradwire.scenarios") / "library" / f"{source}.toml"
        if not entry.is_file():
            if source in list_sweeps():
                raise ScenarioError("is a sweep, not a scenario", str(source), f"gradwire sweep {source}")
            known = list_library()
            expected = f"a file, or one of the library: {', '.join(known)}{nearest(str(source), known)}"
            raise ScenarioError("no such scenario", str(source), expected)
        path = Path(str(entry))
    return path, read_text(path)


def read_text(path: Path, wanted: str = "a scenario file (.toml)") -> str:
    """Return the text of a scenario file. Raises `ScenarioError` for anything else, without blocking on a pipe or
    device."""
    try:
        if require_regular_file(path).stat().st_size > MAX_FILE_BYTES:
            raise ScenarioError(f"is larger than {format_size(MAX_FILE_BYTES)}", str(path), wanted)
        return path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError:
        raise ScenarioError("no such file", str(path), wanted) from None
    except (UnicodeDecodeError, ValueError):  # ValueError: a zero byte in the name
        raise ScenarioError("is not UTF-8 text", str(path), wanted) from None
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", str(path), wanted) from None


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises `ScenarioError`, with the line."""
    try:
        return read_toml(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("at end of document", f"at the end, line {text.count(chr(10)) + 1}")
    raise ScenarioError(f"is not TOML: {reason}", str(path), "key = value lines and [tables]")


def _behind(error: ValidationError, tables: dict[str, Any]) -> list[Mistake]:
    """Return the mistakes that pydantic did not reach because others came first. Validators of a table run only if its
    keys are valid, one by one until the first fails, and those of the scenario only if its tables are valid. So invalid
    values are removed repeatedly until no new ones appear."""
    repaired = copy.deepcopy(tables)
    dropped: list[Location] = []
    misspelt: list[Location] = []  # tables with unknown keys, perhaps misspelt keys that now seem missing
    hidden: list[Mistake] = []
    while True:
        found = primary_entries(error)
        if len(found) > MAX_EXPLAINED or any(not entry["loc"] for entry in found):
            return hidden  # more than are shown, or already checked as a whole, or not a table
        before = len(dropped)
        for entry in found:
            location = file_location(entry, repaired)
            cause = entry.get("ctx", {}).get("error")
            inner = cause.mistakes if isinstance(cause, Mistakes) else ()
            wrong = [location + path_steps(mistake.path.lstrip("[")) for mistake in inner] or [location]
            dropped += [each for each in wrong if each not in dropped]
            misspelt += [each[:-1] for each in wrong if entry["type"] == "extra_forbidden"]
        if len(dropped) == before:
            return hidden
        for location in dropped[before:]:
            _drop(repaired, location)
        try:
            Scenario.model_validate(repaired)
        except ValidationError as next_error:
            error = next_error
            unreliable = misspelt if all(entry["loc"] for entry in primary_entries(error)) else []
            hidden += [
                mistake
                for mistake in explain_validation_error(error, repaired, Scenario)
                if not any(_echoes(mistake, gone) for gone in dropped)
                and not any(path_steps(mistake.path)[: len(table)] == table for table in unreliable)
            ]
        else:
            return hidden


def _drop(tables: Any, location: Location) -> None:
    """Remove a key, so that its default applies. List entries stay, since the others would be renumbered."""
    *outer, last = location or [0]
    for step in outer:
        try:
            tables = tables[step]
        except (LookupError, TypeError):
            return
    if isinstance(tables, dict):
        tables.pop(last, None)


def _echoes(mistake: Mistake, location: Location) -> bool:
    """Return True if a path that the mistake concerns lies inside `location`, or the other way round. A table's
    validator names what it needs beside a key only in its text, so a mistake whose text names a removed key of its own
    table counts too."""
    words = f"{mistake.what} {mistake.expected}"
    if (
        location
        and path_steps(mistake.path)[:-1] == location[:-1]
        and re.search(rf"\b{re.escape(str(location[-1]))}\b", words)
    ):
        return True
    for path in (mistake.path, *mistake.concerns):
        steps = path_steps(path)
        shared = min(len(steps), len(location))
        if steps[:shared] == location[:shared]:
            return True
    return False
