"""Records a Result's scenario and input digests, and loads them again for another run, reporting changed or missing
inputs.

A Result holds `scenario.toml`: the variant that ran, with its policy and command-line overrides applied and all paths
made absolute, as a file that loads by itself. Other inputs are identified by a digest in `result.json`: `trace_hash`
for the traces, `inputs` for topologies, traffic and user modules, by the key in the scenario that names them.
`load_result_scenario` finds all of them, or reports the missing or changed ones.

The files themselves are not stored: a trace may be large, and a module needs its imports. The scenario records their
paths.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.result_store.reader import read_summary
from gradwire.result_store.table_schema import SCENARIO_FILE, versions
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.loading.modules import import_root, imported_files, user_module
from gradwire.scenarios.loading.registry import USER_CLASS
from gradwire.scenarios.loading.toml import write_toml
from gradwire.scenarios.loading.trust import require_trust
from gradwire.scenarios.schema.scenario import Scenario


def scenario_text(scenario: Scenario) -> str:
    """Return the TOML of one variant of a scenario, with a single policy that has its name and label but changes
    nothing. Defaults are left out: they belong to the version, which `result.json` records."""
    tables = {key: value for key, value in scenario.as_written().items() if key != "policy"}
    if any(user_modules(scenario)):
        tables = {**tables, "modules": str(scenario.folder or Path.cwd())}
    if scenario.policy_name != "base":
        tables = {**tables, "policy": [{"name": scenario.policy_name, "label": scenario.policy_label}]}
    # in the schema's order, so that a scenario that was read is written as the same text
    return write_toml({key: tables[key] for key in Scenario.model_fields if key in tables})


def input_digests(scenario: Scenario) -> dict[str, str]:
    """Return the SHA-256 (hex) of every existing file, except traces, that a scenario names, by key. Keys:
    "topology.file", "traffic[1]", "transport" for the module of a user-defined class, "transport: shared.py" for a file
    that it imports from its folder."""
    files = {key: path for key, path in _inputs(scenario) if os.path.isfile(path)}
    return {key: file_digest(path) for key, path in files.items()}


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ChangedInput(NamedTuple):
    """A changed input file: the key that names it, the class name if it is a module, and whether it still exists."""

    place: str
    name: str
    file: Path
    there: bool


def changed_inputs(scenario: Scenario, digests: Mapping[str, str]) -> Iterator[ChangedInput]:
    """Yield the files with these `input_digests` whose digests differ now."""
    current, paths, classes = input_digests(scenario), dict(_inputs(scenario)), dict(_classes(scenario))
    for key, digest in digests.items():
        if current.get(key) != digest:
            owner, _, other = key.partition(": ")
            file = paths.get(key) or Path(other or key)
            yield ChangedInput(key, classes.get(owner, key), file, key in current)


def asked(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return timing.json's record of the running command: scenario, overrides and working directory."""
    return {"command": command_line(), "scenario": source, "overrides": list(overrides), "folder": str(Path.cwd())}


def command_line() -> str:
    """Return the running command line: gradwire's, however it was started, or that of a program that uses it."""
    first, *others = sys.argv or [""]
    is_gradwire = Path(first).name == "gradwire" or Path(first).parts[-2:] == ("gradwire", "__main__.py")
    return shlex.join(["gradwire", *others] if is_gradwire else ["python", first, *others] if first else ["python"])


def members(folder: str | Path) -> list[Path]:
    """Return the Results of a folder: itself, or those of a comparison, in its order. Those that comparison.json does
    not name follow, sorted by name."""
    root = Path(folder)
    if (root / "result.json").is_file():
        return [root]
    names = _compared(root / "comparison.json")
    rank = {name: number for number, name in enumerate(names)}
    results = sorted(path.parent for path in root.glob("results/*/result.json"))
    return sorted(results, key=lambda path: rank.get(path.name, len(names))) or [root]


def _compared(path: Path) -> list[str]:
    """Return the names of the folders of a comparison, in its order; none if it does not list them."""
    try:
        names = parse_json(path.read_text(encoding="utf-8"))["folders"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def is_result_folder(source: str | Path) -> bool:
    """Return True if a folder is a Result or a comparison."""
    folder = Path(source)
    return any((folder / name).is_file() for name in ("result.json", "comparison.json", "fidelity.json"))


def load_result_scenario(
    folder: Path, overrides: Sequence[str], digests: Callable[[Scenario], list[str]]
) -> tuple[Scenario, list[str]]:
    """Return the scenario of the Result in `folder`, and possible differences of another run, one sentence each.

    overrides : applied as in `load_scenario`.
    digests : returns the digest of every job's trace.

    Raises ResultError if it has no scenario, was not simulated, or a file or trace that it names has changed.
    Raises TrustError if a module that it names lies in it, and the user does not trust it.
    """
    summary = _summary(folder)
    path = folder / SCENARIO_FILE
    if not path.is_file():
        raise ResultError("does not hold its scenario", str(folder), "a Result of gradwire 0.1.0 or later, simulated")
    if "clock" in summary.get("engine", {}):
        clock, command = summary["engine"]["clock"], summary.get("programs", {}).get("command")
        rerun = f"gradwire {'exec' if command else 'emulate'} {path} --clock {clock}"
        rerun += f" -- {shlex.join(command)}" if command else ""
        raise ResultError("was emulated, not simulated", str(folder), rerun)
    name = summary.get("policy", "base")
    recorded = load_scenario(path, policy=None if name == "base" else name)
    scenario = load_scenario(path, set=overrides, policy=None if name == "base" else name) if overrides else recorded
    for _, module in user_modules(scenario):
        require_trust(module, user_module(module, scenario.folder))
    _check_inputs(recorded, scenario, summary.get("inputs", {}), str(folder))
    if [job.trace for job in scenario.job] == [job.trace for job in recorded.job]:
        _check_traces(scenario, digests(scenario), summary.get("trace_hash", ""), str(folder))
    return scenario, list(_differences(summary))


def _summary(folder: Path) -> dict[str, Any]:
    if not (folder / "result.json").is_file():
        members = sorted(str(path.parent) for path in folder.glob("results/*/result.json"))
        expected = f"one of them: {', '.join(members)}" if members else "a Result directory"
        raise ResultError("holds several Results", str(folder), expected)
    return read_summary(folder)


def _differences(summary: dict[str, Any]) -> Iterator[str]:
    now = versions()
    for name, before in summary.get("versions", {}).items():
        if now.get(name) != before:
            yield f"it was made with {name} {before}, now it is {now.get(name, 'absent')}"
    ended_by = summary.get("totals", {}).get("ended_by")
    if ended_by not in ("done", "duration"):
        yield f"it was ended by {ended_by}, and now runs to its end"


def _check_inputs(recorded: Scenario, scenario: Scenario, digests: dict[str, str], where: str) -> None:
    """Raise ResultError unless every file that `scenario` still names is unchanged."""
    before, now = dict(_inputs(recorded)), dict(_inputs(scenario))
    same = {key: digest for key, digest in digests.items() if before.get(key) == now.get(key)}
    for key, _, file, exists in changed_inputs(recorded, same):
        what = f"cannot be run again: {key} {'has changed since' if exists else 'is missing'}"
        raise ResultError(what, where, f"the file {file} with SHA-256 {digests[key][:12]}...")


def _check_traces(scenario: Scenario, digests: list[str], recorded: str, where: str) -> None:
    """Raise ResultError unless `digests`, those of every job's trace, are the Result's, which lists each once."""
    before = recorded.split(",") if recorded else []
    if list(dict.fromkeys(digests)) == before:
        return
    changed = [digest not in before for digest in digests]
    job = scenario.job[changed.index(True) if True in changed else 0]
    listed = ", ".join(digest[:12] + "..." for digest in before)
    what = f"cannot be run again: the trace {job.trace!r} of job {job.name} has changed"
    raise ResultError(what, where, f"SHA-256 {listed}")


def _inputs(scenario: Scenario) -> Iterator[tuple[str, Path]]:
    if scenario.topology.path:
        yield "topology.file", Path(scenario.topology.path)
    for number, traffic in enumerate(scenario.traffic):
        if traffic.path:
            yield f"traffic[{number}]", Path(traffic.path)
    for key, module in user_modules(scenario):
        file = user_module(module, scenario.folder)
        root = import_root(module, file)
        yield key, file
        yield from ((f"{key}: {other.relative_to(root)}", other) for other in imported_files(file, root))


def user_modules(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the modules with user-defined classes, as (key in the scenario, module)."""
    for key, name in _classes(scenario):
        if USER_CLASS.fullmatch(name):
            yield key, name.partition(":")[0]


def _classes(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield every value that may name a user-defined class, with its key."""
    yield "load_balancing", scenario.load_balancing
    yield "transport", scenario.transport.kind
    yield "switch.policy", scenario.switch.queue_policy
    if scenario.training is not None and scenario.training.reducer is not None:
        yield "training.reducer", scenario.training.reducer.kind  # type: ignore[attr-defined]
    if scenario.training is not None:
        yield "training.model", scenario.training.model
        yield "training.data", scenario.training.data
    tables: list[tuple[str, tuple[Any, ...]]] = [("job", scenario.job), ("traffic", scenario.traffic)]
    for kind, entries in tables:
        for number, each in enumerate(entries):
            if each.transport is not None:
                yield f"{kind}[{number}].transport", each.transport.kind
