"""What the folder of an earlier training says, for one that loses what that lost (`gradwire.training.kept`): what that
was, and whether it can be lost again. Nothing here needs torch, but reducers of the user's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.learned import FORMAT, SCENARIO, SUMMARY, TRAININGS, seeds_in, trainings_in
from gradwire.scenarios.load import load_scenario
from gradwire.scenarios.schema.training import UserReducer
from gradwire.scenarios.toml import read_toml

if TYPE_CHECKING:
    from gradwire.scenarios.schema.base import Table
    from gradwire.scenarios.schema.scenario import Scenario

ROUNDS, MISSING = "rounds.parquet", "missing.parquet"
WAYS = ("push", "pull", "hop")
COLUMNS = ("step", "round", "way", "hop", "worker", "tensor", "packet", "packets")
TIMES = ("step", "round", "time_ps", "with_encoding")
BUCKETS = b"buckets"
"""Key of the file's metadata with the tensors of a ring's buckets."""
REPLAY = "training.network.replay"
EXPECTED = "a training of the same model, workers, payload, exchange and reducer, and of as many steps"
TABLE = "a table of a training that was kept"
KEEPING = "the folder of a training with training.keep_missing = true"
SHOWN = 3
"""Names, or keys, in a message."""
PUSHED = b"pushed"
"""Key of the file's metadata with what was pushed: workers, payload, exchange and tensors. Older files lack it."""


def said_of(scenario: Scenario) -> dict[str, Any]:
    """What a replay has to have alike, as far as a scenario says it. A reducer of the user's own that cannot be loaded
    is left out."""
    job, table = scenario.job[0], scenario.training
    assert table is not None
    found = {
        "workers": job.workers, "payload": int((job.transport or scenario.transport).payload),
        "exchange": "ring" if job.exchange.kind == "ring" else "parameter_server",
        "reducer": table_said(table.reducer), "model": table.model, "system": table_said(table.system),
    }  # fmt: skip
    if isinstance(table.reducer, UserReducer):
        from gradwire.training.own import own_reducer
        from gradwire.training.strangers import innermost

        try:
            own = innermost(own_reducer(table.reducer, scenario.folder))
            found["reducer"] = table_said(own)  # with its defaults
        except GradwireError:
            del found["reducer"]
    return found


def table_said(table: Table | None) -> dict[str, Any]:
    """A reducer, or a system, as it is compared: its parameters, whichever file its class is of. No reducer is one that
    reduces nothing."""
    return {"kind": "none"} if table is None else {"kind": type(table).__name__, **table.model_dump()}


def said_by(folder: Path) -> dict[str, Any]:
    """What a training's folder says of it: what `said_of` has, "parameters" and "tensors", as far as it says it.

    Raises
    ------
    ResultError
        It is damaged.
    """
    summary, then = summary_of(folder), _scenario(folder)
    kept = ("workers", "parameters", "tensors")
    found = {} if then is None else said_of(then)
    return {**found, **{name: summary[name] for name in kept if name in summary}}


def compare(folder: Path, here: Mapping[str, Any], there: int, steps: int | None) -> None:
    """Whether a training of which is known what is `here` can lose again what the one in `folder` lost, of whose steps
    so many are `there`.

    Raises
    ------
    ScenarioError
        It cannot; with all that differs.
    ResultError
        What the folder says is damaged.
    """
    found = list(differing(said_by(folder), here))
    if steps is not None and steps > there:
        found.append(f"{there} steps there, {steps} here")
    if found:
        raise another(folder, found)


def another(folder: Path, found: Sequence[str]) -> ScenarioError:
    """The refusal of a training that is another one than that in `folder`."""
    return ScenarioError(f"{folder} is of another training: {'; '.join(found)}", REPLAY, EXPECTED)


def can_replay(folder: Path, scenario: Scenario) -> None:
    """Whether the training of a scenario can lose again what the one in `folder` lost, as far as is known before there
    are a model and data. Of what was lost nothing is read.

    Raises
    ------
    ScenarioError, ResultError
        It cannot, as `gradwire.training.kept.Again` has it.
    """
    assert scenario.training is not None
    if is_of_run(folder):
        from gradwire.training.of_run import OfRun

        OfRun(folder).fits(said_of(scenario))
        return
    _refuse_other(folder)
    if not (folder / MISSING).is_file():
        raise ResultError("is not there", str(folder / MISSING), TABLE)
    _, times = _table(folder / ROUNDS, TIMES)
    compare(folder, said_of(scenario), steps_of(times), scenario.training.steps)


def is_of_run(folder: Path) -> bool:
    """Whether a folder is the Result of a run (`gradwire.training.of_run`), and not a training's."""
    return (folder / "result.json").is_file() and not (folder / ROUNDS).exists()


NETWORK = (
    "duration", "topology", "link", "link_override", "switch", "host", "load_balancing", "transport", "job", "traffic",
    "fault", "simulation", "emulation",
)  # fmt: skip
"""What a scenario says of its network, and of what goes over it."""
TRAINED = frozenset({
    "transport.payload", "job.transport.payload", "job.name", "job.workers", "job.fill", "job.pull_fill",
    "job.exchange.kind",
})  # fmt: skip
"""Of that, what is no matter of a network that answers as it did: compared, or heeded by the trainer."""


def unheeded(folder: Path, scenario: Scenario) -> list[str]:
    """What the scenario of a replay says of the network otherwise than the training or run in `folder`, and what makes
    no difference therefore, by its place; nothing where that one's scenario is not known."""
    if (then := _scenario(folder)) is None:
        return []
    there, here = (each.model_dump(mode="json", include=set(NETWORK)) for each in (then, scenario))
    for each in (there, here):
        (each["job"],) = each["job"]
    return [each for name in NETWORK for each in _otherwise(name, there[name], here[name])]


def _otherwise(place: str, there: Any, here: Any) -> Iterator[str]:
    """The places at which two values differ, key by key where both are tables of one kind."""
    if there == here or place in TRAINED:
        return
    if isinstance(there, dict) and isinstance(here, dict) and there.get("kind") == here.get("kind"):
        for name in {**there, **here}:
            yield from _otherwise(f"{place}.{name}", there.get(name), here.get(name))
    else:
        yield place


def steps_of(times: Ints) -> int:
    """Steps that were kept, by the table of rounds."""
    return 1 + max(times[:, 0].tolist(), default=-1)


def differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """What two trainings say of themselves and differ in, in words."""
    for name, mine in here.items():
        theirs = there.get(name, mine)
        if theirs == mine:
            continue
        if name == "tensors":
            count = len(theirs) if isinstance(theirs, list) else 0
            pairs = zip(theirs if count else (), mine, strict=False)
            other = next((f", such as {_tensor(one)} for {_tensor(two)}" for one, two in pairs if one != two), "")
            yield f"{count} tensors there, {len(mine)} here{other}"
        elif name in ("workers", "parameters"):
            yield f"{theirs} {name} there, {mine} here"
        else:
            yield f"{name} {_told(theirs, mine)} there, {_told(mine, theirs)} here"


def _tensor(said: Any) -> str:
    """A tensor's name, with its size where that is known."""
    return "{} of {} elements".format(*said) if isinstance(said, list) and len(said) == 2 else str(said)


def _told(value: Any, other: Any) -> str:
    """A value; of a reducer its kind, or in what it differs from another one of that kind."""
    if not (isinstance(value, dict) and isinstance(other, dict)):
        return str(value or "none")
    kind = str(value["kind"])
    if kind != other["kind"]:
        return kind
    return ", ".join(f"{name} = {each}" for name, each in value.items() if other.get(name) != each) or kind


def summary_of(folder: Path) -> dict[str, Any]:
    """What the folder's training.json says; nothing where only tables were kept."""
    place = folder / SUMMARY
    try:
        found = parse_json(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise ResultError("is damaged", str(place), "what the training left there") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ResultError("is of another format", str(place), f"format {FORMAT}")
    if not isinstance(found.get("cpu_s", 0.0), int | float):
        raise ResultError("is damaged: cpu_s is no number", str(place), "what the training left there")
    return found


def _scenario(folder: Path) -> Any:
    """The folder's scenario; None where there is none, or it needs what is not here any more."""
    place = folder / SCENARIO
    try:
        tables = read_toml(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        tables = {}
    if not (("training" in tables or is_of_run(folder)) and tables.get("job")):
        raise ResultError("is damaged", str(place), "what the training left there")
    try:
        (found,) = load_scenario(place).variants()
    except (GradwireError, ValueError):
        return None
    return found


def read_kept(folder: Path) -> tuple[Ints, Ints, tuple[tuple[int, ...], ...], dict[str, Any]]:
    """(runs, times, buckets, what was pushed) of a training's folder.

    Raises
    ------
    ResultError
        It has not kept them, is not there, or damaged.
    """
    _refuse_other(folder)
    missing, runs = _table(folder / MISSING, COLUMNS)
    _, times = _table(folder / ROUNDS, TIMES)
    try:
        buckets = tuple(tuple(map(int, each)) for each in parse_json(missing[BUCKETS]))
        pushed = dict(parse_json(missing.get(PUSHED, b"{}")))
    except (KeyError, ValueError, TypeError):
        raise ResultError("is damaged", str(folder / MISSING), TABLE) from None
    return runs, times, buckets, pushed


def _refuse_other(folder: Path) -> None:
    """Raise ResultError where there is no folder of a training that has kept what was lost."""
    if not os.path.isdir(folder):  # where a name is too long, Path's own raises
        what = "is a file" if os.path.lexists(folder) else "is not there"
        raise ResultError(what, str(folder), "the folder of a training")
    if is_of_run(folder):  # its missing.parquet is another
        raise ResultError("is the Result of a simulated or emulated run, not of a training", str(folder), KEEPING)
    if not (folder / MISSING).exists() and not (folder / ROUNDS).exists():
        there = trainings_in(folder) if (folder / TRAININGS).is_file() or seeds_in(folder) else []
        what = f"holds {len(there)} trainings" if there else "has not kept which packets were lost"
        inner = [str(each) for each in there if (each / ROUNDS).exists()]
        such = f", such as {' or '.join(inner[:SHOWN])}" if inner else ""
        raise ResultError(what, str(folder), KEEPING + such)


def _table(place: Path, columns: Sequence[str]) -> tuple[Mapping[bytes, bytes], Ints]:
    """(metadata, columns as numbers) of a table in which only a hop may be negative."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(place)
        found = [
            [WAYS.index(each) for each in table[name].to_pylist()] if name == "way" else numpy_of(table[name])
            for name in columns
        ]
        rows = np.column_stack(found).astype(np.int64)
    except FileNotFoundError:
        raise ResultError("is not there", str(place), TABLE) from None
    except (OSError, KeyError, ValueError, TypeError, pyarrow.ArrowException):
        raise ResultError("is damaged", str(place), TABLE) from None
    for name, column in zip(columns, rows.T, strict=True):
        least = {"hop": -1, "packets": 1}.get(name, 0)
        if len(column) and (lowest := int(column.min())) < least:
            raise ResultError(f"is damaged: {name} is {lowest}", str(place), f"{name} from {least}")
    return table.schema.metadata or {}, rows
