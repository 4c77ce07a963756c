"""What a Result keeps of the scenario it came from, and how that is run again.

A Result holds `scenario.toml`: the variant that ran, with its policy and everything from the command line laid over and
all paths made absolute, as a file that loads by itself. What is not in it is identified by a digest in `result.json`:
`trace_hash` for the traces, `inputs` for topologies, traffic and the user's own modules, by the place in the scenario
that names them. `load_record` finds all of it again, or says what is missing or has changed.

Not kept are the files themselves: a trace may be large, and a module needs what it imports. So that a file that has
moved is no riddle, the scenario says where it was.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.scenarios.components import USER_CLASS
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.load import load_scenario
from gradwire.scenarios.modules import imported, root_of, user_module
from gradwire.scenarios.result import SCENARIO_FILE, versions
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.stored import read_summary
from gradwire.scenarios.toml import write_toml
from gradwire.scenarios.trust import require_trust


def scenario_text(scenario: Scenario) -> str:
    """The TOML of one variant of a scenario. It has one policy, which changes nothing and keeps name and label.

    Defaults are left out: they belong to the version, which `result.json` names.
    """
    tables = {key: value for key, value in scenario.as_written().items() if key != "policy"}
    if any(own_modules(scenario)):
        tables = {**tables, "modules": str(scenario.folder or Path.cwd())}
    if scenario.policy_name != "base":
        tables = {**tables, "policy": [{"name": scenario.policy_name, "label": scenario.policy_label}]}
    # in one order, whatever was added here: what is written of what was read is the same text
    return write_toml({key: tables[key] for key in Scenario.model_fields if key in tables})


def input_digests(scenario: Scenario) -> dict[str, str]:
    """SHA-256 (hex) of every file besides traces that a scenario names, by where it does: "topology.file",
    "traffic[1]", "transport" for the module of a class of the user's own, "transport: shared.py" for what that imports
    from beside it. What is not there is left out."""
    files = {place: path for place, path in _inputs(scenario) if os.path.isfile(path)}
    return {place: file_digest(path) for place, path in files.items()}


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Changed(NamedTuple):
    """A file that a scenario names, and that is not what it was: where it is named, by what name of a class if that is
    what names it, and whether it is still there."""

    place: str
    name: str
    file: Path
    there: bool


def changed_inputs(scenario: Scenario, digests: Mapping[str, str]) -> Iterator[Changed]:
    """Of the files that had these `input_digests`, those that have others now."""
    found, paths, classes = input_digests(scenario), dict(_inputs(scenario)), dict(_classes(scenario))
    for place, digest in digests.items():
        if found.get(place) != digest:
            owner, _, other = place.partition(": ")
            file = paths.get(place) or Path(other or place)
            yield Changed(place, classes.get(owner, place), file, place in found)


def asked(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What timing.json remembers of the command that is running: of which scenario, changed how, and where."""
    return {"command": command_line(), "scenario": source, "overrides": list(overrides), "folder": str(Path.cwd())}


def command_line() -> str:
    """What is running: a command of gradwire's, however it was started, or a program that uses it."""
    first, *others = sys.argv or [""]
    own = Path(first).name == "gradwire" or Path(first).parts[-2:] == ("gradwire", "__main__.py")
    return shlex.join(["gradwire", *others] if own else ["python", first, *others] if first else ["python"])


def members(folder: str | Path) -> list[Path]:
    """Return the Results of a folder: itself, or those of a comparison, in the order in which it compared them.

    Those that comparison.json does not name follow, by name."""
    place = Path(folder)
    if (place / "result.json").is_file():
        return [place]
    names = _compared(place / "comparison.json")
    rank = {name: number for number, name in enumerate(names)}
    found = sorted(path.parent for path in place.glob("results/*/result.json"))
    return sorted(found, key=lambda path: rank.get(path.name, len(names))) or [place]


def _compared(path: Path) -> list[str]:
    """Return the names of the folders of a comparison, in its order; none if it does not say."""
    try:
        names = parse_json(path.read_text(encoding="utf-8"))["folders"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def is_record(source: str | Path) -> bool:
    """Whether a folder is a Result, or a comparison, which holds some."""
    folder = Path(source)
    return any((folder / name).is_file() for name in ("result.json", "comparison.json", "fidelity.json"))


def load_record(
    folder: Path, overrides: Sequence[str], digests: Callable[[Scenario], list[str]]
) -> tuple[Scenario, list[str]]:
    """The scenario of the Result in `folder`, and what may differ if it is run again: one sentence each.

    Parameters
    ----------
    overrides : laid over it, as in `load_scenario`.
    digests : the digest of the trace of every job of a scenario.

    Raises
    ------
    ResultError
        There is no scenario in it, it was not simulated, or a file or trace that it names is another one now.
    TrustError
        A module that it names lies in it, and the user does not trust it.
    """
    summary = _summary(folder)
    path = folder / SCENARIO_FILE
    if not path.is_file():
        raise ResultError("does not hold its scenario", str(folder), "a Result of gradwire 0.1.0 or later, simulated")
    if "clock" in summary.get("engine", {}):
        clock, command = summary["engine"]["clock"], summary.get("programs", {}).get("command")
        again = f"gradwire {'exec' if command else 'emulate'} {path} --clock {clock}"
        again += f" -- {shlex.join(command)}" if command else ""
        raise ResultError("was made on real sockets, not simulated", str(folder), again)
    name = summary.get("policy", "base")
    recorded = load_scenario(path, policy=None if name == "base" else name)
    scenario = load_scenario(path, set=overrides, policy=None if name == "base" else name) if overrides else recorded
    for _, module in own_modules(scenario):
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
            yield f"it was made with {name} {before}, this is {now.get(name, 'without it')}"
    ended_by = summary.get("totals", {}).get("ended_by")
    if ended_by not in ("done", "duration"):
        yield f"it was ended by {ended_by}, and goes on to its end now"


def _check_inputs(recorded: Scenario, scenario: Scenario, digests: dict[str, str], where: str) -> None:
    """Raise ResultError unless every file that `scenario` still names is what it was."""
    before, now = dict(_inputs(recorded)), dict(_inputs(scenario))
    same = {place: digest for place, digest in digests.items() if before.get(place) == now.get(place)}
    for place, _, file, there in changed_inputs(recorded, same):
        raise ResultError(
            f"cannot be run again: {place} {'has changed since' if there else 'is not there any more'}", where,
            f"the file {file} with SHA-256 {digests[place][:12]}...",
        )  # fmt: skip


def _check_traces(scenario: Scenario, digests: list[str], recorded: str, where: str) -> None:
    """Raise ResultError unless `digests`, those of every job's trace, are the Result's, which has each once."""
    before = recorded.split(",") if recorded else []
    if list(dict.fromkeys(digests)) == before:
        return
    changed = [digest not in before for digest in digests]
    job = scenario.job[changed.index(True) if True in changed else 0]
    listed = ", ".join(digest[:12] + "..." for digest in before)
    raise ResultError(
        f"cannot be run again: the trace {job.trace!r} of job {job.name} is another one now", where,
        f"SHA-256 {listed}",
    )  # fmt: skip


def _inputs(scenario: Scenario) -> Iterator[tuple[str, Path]]:
    if scenario.topology.path:
        yield "topology.file", Path(scenario.topology.path)
    for number, traffic in enumerate(scenario.traffic):
        if traffic.path:
            yield f"traffic[{number}]", Path(traffic.path)
    for place, module in own_modules(scenario):
        file = user_module(module, scenario.folder)
        root = root_of(module, file)
        yield place, file
        yield from ((f"{place}: {other.relative_to(root)}", other) for other in imported(file, root))


def own_modules(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """The modules that hold classes of the user's own, and where the scenario names them."""
    for place, name in _classes(scenario):
        if USER_CLASS.fullmatch(name):
            yield place, name.partition(":")[0]


def _classes(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Everything that may be a class of the user's own, and where it stands."""
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
