"""`load_user_program` makes the scenario that replays a `gradwire exec` run's recorded trace; `side_by_side` tabulates
run, emulated replay and simulated replay.

The job does what DistributedDataParallel over gloo does: it replays the program's own recorded trace by ring all-reduce
of DDP's buckets, over persistent connections with the congestion control of the program's hosts. The testbed and the
simulator carry out this communication. Everything else in a program (start, broadcasts of buffers, consistency checks
between ranks) is in the program's own iterations alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.analysis.comparison.tables import Grid
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.loading.overrides import apply_overrides_and_traces
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.readable import change_text, time_text
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.wire import IPV4, TCP

EXPECTED_RESULT = "a Result that gradwire exec --out has written"
DEFAULT_CONGESTION = "cubic"
"""Default congestion control of the kernel."""
ALLREDUCE = {"exchange": {"kind": "ring"}, "scheduler": "ddp"}
"""gloo's default all-reduce, and DDP's buckets."""


@dataclass(frozen=True)
class UserProgram:
    """A program's Result, the folder of rank 0's `trace`, and the `scenario` of its replay."""

    result: Result
    trace: Path
    scenario: Scenario


def load_user_program(folder: Path, overrides: Sequence[str] = ()) -> UserProgram:
    """Return the program in a Result's folder and the scenario of its replay with `overrides`. Raises `ResultError` if
    it is not the Result of a program, recorded no trace, marked no iterations, or several ranks shared a host. Raises
    `ScenarioError` if the replay is not valid: an override is wrong, or the simulator lacks the congestion control."""
    result = Result.read(folder)
    programs = result.summary.get("programs")
    if programs is None:
        raise ResultError("is not the Result of a user-defined program", str(folder), EXPECTED_RESULT)
    hosts = [rank["host"] for rank in programs["ranks"]]
    if len(set(hosts)) < len(hosts):
        raise ResultError("has several ranks on one host", str(folder), "--ranks-per-host 1 (one worker per host)")
    if len(hosts) < 2:
        raise ResultError("has one rank, which sends nothing", str(folder), "a program of several ranks")
    marked = result.iterations["iteration"].to_pylist()
    if not marked:
        raise ResultError("has no iterations", str(folder), "a program that calls gradwire.mark at each step")
    traces = sorted(path for path in folder.glob("trace*") if (path / "manifest.json").is_file())
    if not traces:
        expected = "a program that records itself: gradwire.capture(..., out=os.environ['GRADWIRE_TRACE'])"
        raise ResultError("holds no trace of its program", str(folder), expected)
    tables = {key: value for key, value in result.tables.items() if key != "exec"}
    table = result.tables.get("exec", {})
    job = {
        "name": "program",
        "trace": str(traces[0].resolve()),
        "iterations": len(set(marked)),
        "workers": len(hosts),
        "placement": {"workers": hosts},
        **ALLREDUCE,
    }
    tables = {**tables, "job": [job], "transport": kernel_transport(table, programs["congestion"])}
    return UserProgram(
        result, traces[0], build_scenario(apply_overrides_and_traces(tables, list(overrides)), str(folder))
    )


def kernel_transport(table: JsonView, congestion: JsonView) -> dict[str, Any]:
    """Return the simulated transport that matches the kernel's TCP of a program's hosts, with its packet size.

    table : the scenario's [exec]. congestion : setting by host. ScenarioError without a matching transport.
    """
    name = next(iter(sorted(set(congestion.values()))), DEFAULT_CONGESTION)
    known = {cls.congestion(): kind for kind, cls in components("transport").items() if cls.congestion()}
    if name not in known:
        what, expected = f"the simulator has no congestion control {name!r}", " or ".join(sorted(known))
        raise ScenarioError(what, "the program's hosts", f"{expected}: run it again with one, by exec.congestion")
    payload = int(table.get("mtu", Exec().mtu)) - IPV4 - TCP
    return {"kind": known[name], "payload": f"{payload}B", "connections": "persistent"}


@dataclass(frozen=True)
class RunColumn:
    """Figures of one run. Times in ps: the first iteration and the mean of the others, over all ranks."""

    name: str
    first: float
    mean: float
    longest: float
    sent: int
    dropped: int
    marks: int


def run_column(name: str, result: Result) -> RunColumn:
    """Return the figures of a run. `sent` : bytes on all cables, headers included."""
    table = result.iterations
    duration = (to_numpy(table["end_ps"]) - to_numpy(table["start_ps"])).astype(float)
    number = to_numpy(table["iteration"])
    first, later = duration[number == number.min()], duration[number > number.min()]
    ports = result.ports
    drops = [key for key in ports.column_names if key.startswith("drops_")]
    return RunColumn(
        name,
        float(first.mean()),
        float((later if len(later) else first).mean()),
        float(duration.max()),
        *(int(np.sum([to_numpy(ports[key]).sum() for key in keys])) for keys in (["bytes"], drops, ["marks"])),
    )


def side_by_side(program: Result, emulated: Result, simulated: Result) -> tuple[Grid, Json]:
    """Compare a program, its replay on the testbed and its simulated replay: as a table, and as plain data."""
    columns = [run_column("program", program), run_column("replayed", emulated), run_column("simulated", simulated)]
    base = columns[0]

    def row(label: str, of: Callable[[RunColumn], float], text: Callable[[int], str]) -> list[str]:
        reference = of(base)
        changes = ["" if not reference else change_text(of(run_column) / reference) for run_column in columns[1:]]
        return [label, *(text(round(of(run_column))) for run_column in columns), *changes]

    rows = [
        row("first iteration", lambda run: run.first, time_text),
        row("other iterations, mean", lambda run: run.mean, time_text),
        row("longest iteration", lambda run: run.longest, time_text),
        row("bytes on all cables", lambda run: run.sent, "{:,}".format),
        row("packets dropped", lambda run: run.dropped, "{:,}".format),
        row("marks", lambda run: run.marks, "{:,}".format),
    ]
    head = ["", "program", "replayed", "simulated", "replayed", "simulated"]
    name = f"{program.summary['name']}: the program itself, and its gradients replayed on the testbed and simulated"
    return Grid(name, head, rows), {run.name: vars(run) for run in columns}
