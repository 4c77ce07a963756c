"""From a TOML file to a Scenario, or to the complete list of what is wrong with it.

    file or library name -> TOML tables -> `set` overrides laid over -> Scenario
                                                                    \\-> ScenarioError with every mistake

Fields are checked one by one, and only a scenario whose fields are all right can be checked as a whole. So
that nobody has to fix a file in rounds, the offending fields are then replaced by their defaults and what
remains is checked as a whole too; mistakes that depend on a replaced field are left out.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.explain import MOST, Location, entries, explain, file_location
from gradwire.scenarios.files import regular
from gradwire.scenarios.given import instance_of, path_of, texts_of
from gradwire.scenarios.overrides import lay_over, of_policies, put_in_traces, steps_of
from gradwire.scenarios.schema.base import Mistakes
from gradwire.scenarios.schema.policy import Policy, overlay
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.toml import inline, read_toml
from gradwire.scenarios.trust import refuse_outside
from gradwire.scenarios.units import format_size

Overrides = Mapping[str, Any] | Sequence[str] | str
"""Values that are written differently: "job.workers=8", a list of these, or {"job.workers": 8}."""
NAMED_BY = "a scenario file, or a name of the library"
MOST_BYTES = 8 * 2**20
"""No scenario is larger; a file that is would only be read for minutes before it turned out to be none."""


def list_library() -> list[str]:
    """Names of the scenarios that come with gradwire."""
    folder = resources.files("gradwire.scenarios") / "library"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def list_sweeps() -> list[str]:
    """Return the names of the sweeps that come with gradwire."""
    folder = resources.files("gradwire.scenarios") / "library" / "sweeps"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(source: str | Path, set: Overrides = (), policy: str | None = None) -> Scenario:
    """Read a scenario from a file, or by name from the library, with `set` overrides such as "job.workers=8".

    A path in an override is dotted, "[2]" picks one of several tables and a table that is left unpicked
    means all of them ("job.workers=8", "job[0].workers=8"). Values are TOML; what is no TOML is text, so
    "link.rate=10Gbps" needs no quotes. Files are looked for where the user stands. A job whose trace is replaced loses
    the `compute_scale` that was meant for the other one, with a `ScenarioNote` (a warning).

    With the name of a `policy` it is the scenario under that policy, and only that has to be valid: overrides are
    laid over the policy then, except for those of policies themselves. Raises `ScenarioError` with every mistake.
    """
    path, text = _read(source)
    set = overrides_of(set, "load_scenario(set)")
    tables = parse_toml(path, text)
    refuse_outside(path, tables.get("modules"))
    if "scenario" in tables and "measures" in tables:
        raise ScenarioError("is a sweep, not a scenario", str(path), f"gradwire sweep {source}")
    if policy is None:
        laid = put_in_traces(tables, set)
        try:
            scenario = build_scenario(laid, str(path))
        except ScenarioError as error:
            raise _of_another_kind(error, tables, set) from None
    else:
        tables = lay_over(tables, [each for each in set if of_policies(each)])
        name = instance_of(policy, str, "load_scenario(policy)", "the name of a policy", ScenarioError)
        chosen = _policy(tables, name, str(path))
        rest = {key: value for key, value in tables.items() if key != "policy"}
        tables = put_in_traces(overlay(rest, chosen.set), [each for each in set if not of_policies(each)])
        scenario = build_scenario(tables, str(path)).under(chosen)
    scenario = scenario.at(path.parent).read_from(str(path))
    if (file := scenario.topology.path) and not os.path.isfile(file):
        what = "is no regular file" if os.path.exists(file) else "no such file"
        mistake = Mistake("topology.file", what, file, "a graph file")
        raise ScenarioError("is no valid scenario, 1 mistake:", str(path), mistakes=[mistake])
    return scenario


def _of_another_kind(error: ScenarioError, tables: dict[str, Any], overrides: Sequence[str]) -> ScenarioError:
    """Return the error, with advice where an override has changed a table's kind and left the keys of the old one."""
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
    """The tables of a scenario file, or of one of the library, as they are written. Raises `ScenarioError`."""
    return parse_toml(*_read(source))


def scenario_of(given: Any, where: str) -> Scenario:
    """A Scenario as it is; a file or a name of the library loaded, without a policy. Raises `ScenarioError`."""
    if isinstance(given, Scenario):
        return given
    path_of(given, where, f"a Scenario, {NAMED_BY}", ScenarioError)
    return load_scenario(given)


def overrides_of(given: Any, where: str) -> list[str]:
    """Return overrides as a list; one alone needs no list around it. In a mapping each value is by its path: what is
    {"job.workers": 8} is ["job.workers=8"]. Raises `ScenarioError`."""
    if isinstance(given, Mapping):
        try:
            return [f"{key}={inline(value)}" for key, value in given.items()]
        except TypeError as error:
            raise ScenarioError(str(error), where, "texts, numbers, booleans, lists and tables of these") from None
    return texts_of(given, where, 'overrides, such as ["job.workers=8"]', ScenarioError)


def build_scenario(tables: dict[str, Any], where: str = "scenario") -> Scenario:
    """A Scenario from tables as `tomllib` returns them. Raises `ScenarioError` with every mistake."""
    try:
        return Scenario.model_validate(tables)
    except ValidationError as error:
        mistakes = [*explain(error, tables, Scenario), *_behind(error, tables)]
    except RecursionError:
        raise ScenarioError("has too many tables inside each other", where, "a scenario") from None
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    raise ScenarioError(f"is no valid scenario, {count}:", where, mistakes=mistakes)


def pick_variant(scenario: Scenario, name: str | None) -> Scenario:
    """The scenario under its policy called `name`, as written for None. Raises `ScenarioError`."""
    if name is None:
        return scenario
    for policy in scenario.policy:
        if policy.name == name:
            return scenario.variant(policy)
    raise no_policy(name, [policy.name for policy in scenario.policy], scenario.called)


def no_policy(name: str, known: Sequence[str], where: str) -> ScenarioError:
    """What to raise where there is no policy called `name`."""
    listed = ", ".join(known) or "none: the scenario has no policies"
    return ScenarioError(f'no policy "{name}"', where, listed)


def _policy(tables: dict[str, Any], name: str, where: str) -> Policy:
    """The policy called `name` in the tables of a scenario. Raises `ScenarioError`."""
    entries = tables.get("policy", [])
    named = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    for entry in named:
        if entry.get("name") == name:
            try:
                return Policy.model_validate(entry)
            except ValidationError:
                build_scenario(tables, where)  # says what is wrong with it
                raise
    raise no_policy(name, [str(entry.get("name")) for entry in named], where)


def _read(source: str | Path) -> tuple[Path, str]:
    """A scenario's path and text. A bare name is a file if there is one, else a name of the library; a folder of that
    name, such as results, is in nobody's way."""
    path = path_of(source, "load_scenario(source)", NAMED_BY, ScenarioError).expanduser()
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
    """The text of a scenario file. Raises `ScenarioError` for what is none, without waiting for a pipe or a device."""
    try:
        if regular(path).stat().st_size > MOST_BYTES:
            raise ScenarioError(f"is larger than {format_size(MOST_BYTES)}", str(path), wanted)
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except FileNotFoundError:
        raise ScenarioError("no such file", str(path), wanted) from None
    except (UnicodeDecodeError, ValueError):  # ValueError: a zero byte in the name
        raise ScenarioError("is no text in UTF-8", str(path), wanted) from None
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", str(path), wanted) from None


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """The tables of a TOML file. Raises `ScenarioError`, with the line."""
    try:
        return read_toml(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("at end of document", f"at the end, line {text.count(chr(10)) + 1}")
    raise ScenarioError(f"is no TOML: {reason}", str(path), "key = value lines and [tables]")


def _behind(error: ValidationError, tables: dict[str, Any]) -> list[Mistake]:
    """Return the mistakes that pydantic could not get to because others came before them.

    Validators of a table run only where its keys are right, one after the other until the first refuses, and those of
    the scenario only where its tables are right. So what is wrong is left out, again and again, until nothing new is.
    """
    repaired = copy.deepcopy(tables)
    dropped: list[Location] = []
    misspelt: list[Location] = []  # tables with unknown keys, which may have been meant for what they lack now
    hidden: list[Mistake] = []
    while True:
        found = entries(error)
        if len(found) > MOST or any(not entry["loc"] for entry in found):
            return hidden  # more than is shown, or checked as a whole already, or no table at all
        before = len(dropped)
        for entry in found:
            location = file_location(entry, repaired)
            cause = entry.get("ctx", {}).get("error")
            inner = cause.mistakes if isinstance(cause, Mistakes) else ()
            wrong = [location + steps_of(mistake.path.lstrip("[")) for mistake in inner] or [location]
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
            unreliable = misspelt if all(entry["loc"] for entry in entries(error)) else []
            hidden += [
                mistake for mistake in explain(error, repaired, Scenario)
                if not any(_echoes(mistake, gone) for gone in dropped)
                and not any(_is_inside(mistake, table) for table in unreliable)
            ]
        else:
            return hidden


def _is_inside(mistake: Mistake, table: Location) -> bool:
    """Return True if the mistake is about a table or something in it."""
    return steps_of(mistake.path)[: len(table)] == table


def _drop(tables: Any, location: Location) -> None:
    """Remove a key, so that its default applies. Entries of a list stay: the others would change places."""
    *outer, last = location or [0]
    for step in outer:
        try:
            tables = tables[step]
        except (LookupError, TypeError):
            return
    if isinstance(tables, dict):
        tables.pop(last, None)


def _echoes(mistake: Mistake, gone: Location) -> bool:
    """Return True if a path that the mistake is about lies inside what is gone, or the other way round.

    A validator of a table says what it needs beside a key in words only: so a mistake that names a key of its own table
    that is gone echoes that.
    """
    words = f"{mistake.what} {mistake.expected}"
    if gone and steps_of(mistake.path)[:-1] == gone[:-1] and re.search(rf"\b{re.escape(str(gone[-1]))}\b", words):
        return True
    for path in (mistake.path, *mistake.concerns):
        steps = steps_of(path)
        shared = min(len(steps), len(gone))
        if steps[:shared] == gone[:shared]:
            return True
    return False
