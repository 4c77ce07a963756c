"""From a TOML file to a Scenario, or to the complete list of what is wrong with it.

    file or library name -> TOML tables -> `set` overrides laid over -> Scenario
                                                                    \\-> ScenarioError with every mistake

Fields are checked one by one, and only a scenario whose fields are all right can be checked as a whole. So
that nobody has to fix a file in rounds, the offending fields are then replaced by their defaults and what
remains is checked as a whole too; mistakes that depend on a replaced field are left out.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scenarios.base import Mistakes
from scenarios.errors import Mistake, ScenarioError
from scenarios.explain import Location, entries, explain, file_location
from scenarios.schema import GraphFile, Scenario


def list_library() -> list[str]:
    """Names of the scenarios that come with gradwire."""
    folder = resources.files("scenarios") / "library"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(source: str | Path, set: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a file, or by name from the library, with `set` overrides such as "job.workers=8".

    A path in an override is dotted, "[2]" picks one of several tables and a table that is left unpicked
    means all of them ("job.workers=8", "job[0].workers=8"). Values are TOML; what is no TOML is text, so
    "link.rate=10Gbps" needs no quotes. Raises `ScenarioError` with every mistake.
    """
    path, text = _read(source)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("at end of document", f"at the end, line {text.count(chr(10)) + 1}")
        raise ScenarioError(f"is no TOML: {reason}", str(path), "key = value lines and [tables]") from None
    for override in set:
        tables = _override(tables, override)
    scenario = build_scenario(tables, str(path)).at(path.parent)
    if isinstance(scenario.topology, GraphFile) and not Path(scenario.topology.file).is_file():
        mistake = Mistake("topology.file", "no such file", scenario.topology.file, "a graph file")
        raise ScenarioError("is no valid scenario, 1 mistake:", str(path), mistakes=[mistake])
    return scenario


def build_scenario(tables: dict[str, Any], where: str = "scenario") -> Scenario:
    """A Scenario from tables as `tomllib` returns them. Raises `ScenarioError` with every mistake."""
    try:
        return Scenario.model_validate(tables)
    except ValidationError as error:
        mistakes = [*explain(error, tables, Scenario), *_behind(error, tables)]
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    raise ScenarioError(f"is no valid scenario, {count}:", where, mistakes=mistakes)


def pick_variant(scenario: Scenario, name: str | None) -> Scenario:
    """The scenario under its policy called `name`, as written for None. Raises `ScenarioError`."""
    if name is None:
        return scenario
    for policy in scenario.policy:
        if policy.name == name:
            return scenario.variant(policy)
    known = ", ".join(policy.name for policy in scenario.policy) or "none: the scenario has no policies"
    raise ScenarioError(f'no policy "{name}"', scenario.name, known)


def _read(source: str | Path) -> tuple[Path, str]:
    """A scenario's path and text. A bare name is a file if there is one, else a name of the library."""
    path = Path(source).expanduser()
    bare = isinstance(source, str) and path.name == source and path.suffix != ".toml"
    try:
        if bare and not path.is_file():
            entry = resources.files("scenarios") / "library" / f"{source}.toml"
            if not entry.is_file():
                expected = "a file, or one of the library: " + ", ".join(list_library())
                raise ScenarioError("no such scenario", str(source), expected)
            path = Path(str(entry))
        return path, path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError("no such file", str(path), "a scenario file (.toml)") from None
    except UnicodeDecodeError:
        raise ScenarioError("is no text in UTF-8", str(path), "a scenario file (.toml)") from None
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", str(path)) from None


def _override(tables: dict[str, Any], override: str) -> dict[str, Any]:
    """`tables` with one "a.b[0].c=value" laid over."""
    where = f"--set {override}"
    key, equals, text = override.partition("=")
    steps = _steps(key.strip())
    if not equals or not steps:
        raise ScenarioError("is no override", where, "a.b=value, such as link.rate=10Gbps")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return _laid_over(tables, steps, value, where)


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
    if isinstance(here, str) and step != "kind":
        here = {"kind": here}  # transport = "dlcp" and --set transport.floor=16
    if not isinstance(here, dict):
        here = {}
    if not rest:
        return {**here, step: value}
    return {**here, step: _laid_over(here.get(step, {}), rest, value, where)}


def _steps(key: str) -> Location:
    """ "job[0].workers" -> ("job", 0, "workers"); empty if it is no such path."""
    steps: list[str | int] = []
    for part in key.split("."):
        name, *indices = part.replace("]", "").split("[")
        if not name or not all(index.isdigit() for index in indices):
            return ()
        steps += [name, *map(int, indices)]
    return tuple(steps)


def _behind(error: ValidationError, tables: dict[str, Any]) -> list[Mistake]:
    """Mistakes of the scenario as a whole that pydantic could not get to because single fields are wrong."""
    found = entries(error)
    if any(not entry["loc"] for entry in found):
        return []  # it has been checked as a whole already, or it is no table at all
    repaired = copy.deepcopy(tables)
    dropped: list[Location] = []
    for entry in found:
        location = file_location(entry, tables)
        cause = entry.get("ctx", {}).get("error")
        inner = cause.mistakes if isinstance(cause, Mistakes) else ()
        dropped += [location + _steps(mistake.path.lstrip("[")) for mistake in inner] or [location]
    for location in dropped:
        _drop(repaired, location)
    try:
        Scenario.model_validate(repaired)
    except ValidationError as second:
        if all(not entry["loc"] for entry in entries(second)):
            hidden = explain(second, repaired, Scenario)
            return [mistake for mistake in hidden if not any(_echoes(mistake, gone) for gone in dropped)]
    return []


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
    """Whether a path that the mistake is about lies inside what is gone, or the other way round."""
    for path in (mistake.path, *mistake.concerns):
        steps = _steps(path)
        shared = min(len(steps), len(gone))
        if steps[:shared] == gone[:shared]:
            return True
    return False
