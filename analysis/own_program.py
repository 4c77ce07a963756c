"""A program that ran under `gradwire exec` beside its replay: the same gradients as a job of the scenario's network.

The job is what DistributedDataParallel over gloo does: the trace that the program has recorded of itself, ring
all-reduce of DDP's buckets, over kept connections of the congestion control that the program's hosts had. What it says
by messages the testbed and the simulator carry out; what else a program does (its start, broadcasts of buffers, checks
that ranks agree) is in the program's iterations alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.analysis.tables import Grid
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.components import components
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.load import build_scenario
from gradwire.scenarios.overrides import put_in_traces
from gradwire.scenarios.readable import change_text, time_text
from gradwire.scenarios.result import Result
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.wire import IPV4, TCP

WANTED = "a Result that gradwire exec --out has written"
KERNELS = "cubic"
"""The congestion control of a kernel that nobody has told another one."""
ALLREDUCE = {"exchange": {"kind": "ring"}, "scheduler": "ddp"}
"""What gloo's all-reduce does by default, and DDP's buckets."""


@dataclass(frozen=True)
class OwnProgram:
    """What a program's Result says of it. `trace` : the folder of what rank 0 has recorded. `scenario` : its replay."""

    result: Result
    trace: Path
    scenario: Scenario


def own_program(folder: Path, overrides: Sequence[str] = ()) -> OwnProgram:
    """The program of a Result's folder and the scenario of its replay; `overrides` go over that.

    Raises
    ------
    ResultError
        It is no such Result, its program has recorded no trace or marked no iterations, or several ranks shared a host.
    ScenarioError
        The replay is no valid scenario: an override is wrong, or the simulator has no such congestion control.
    """
    result = Result.read(folder)
    programs = result.summary.get("programs")
    if programs is None:
        raise ResultError("is of no program of one's own", str(folder), WANTED)
    hosts = [rank["host"] for rank in programs["ranks"]]
    if len(set(hosts)) < len(hosts):
        raise ResultError("has several ranks at one host, which a job has not", str(folder), "--ranks-per-host 1")
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
        "name": "program", "trace": str(traces[0].resolve()), "iterations": len(set(marked)), "workers": len(hosts),
        "placement": {"workers": hosts}, **ALLREDUCE,
    }  # fmt: skip
    tables = {**tables, "job": [job], "transport": transport(table, programs["congestion"])}
    return OwnProgram(result, traces[0], build_scenario(put_in_traces(tables, list(overrides)), str(folder)))


def transport(table: JsonView, congestion: JsonView) -> dict[str, Any]:
    """The simulator's transport that is the kernel's TCP of a program's hosts, with its packets.

    table : the scenario's [exec]. congestion : what hosts were told, by name. ScenarioError if it has none.
    """
    name = next(iter(sorted(set(congestion.values()))), KERNELS)
    known = {each.congestion(): kind for kind, each in components("transport").items() if each.congestion()}
    if name not in known:
        what, expected = f"the simulator has no congestion control {name!r}", " or ".join(sorted(known))
        raise ScenarioError(what, "the program's hosts", f"{expected}: run it again with one, by exec.congestion")
    payload = int(table.get("mtu", Exec().mtu)) - IPV4 - TCP
    return {"kind": known[name], "payload": f"{payload}B", "connections": "persistent"}


@dataclass(frozen=True)
class Column:
    """What a run's column shows. Times in ps: the first iteration and the mean of the others, over all ranks."""

    name: str
    first: float
    mean: float
    longest: float
    sent: int
    dropped: int
    marks: int


def column(name: str, result: Result) -> Column:
    """A run's column. `sent` : bytes on all cables, headers included."""
    table = result.iterations
    taken = (numpy_of(table["end_ps"]) - numpy_of(table["start_ps"])).astype(float)
    number = numpy_of(table["iteration"])
    first, later = taken[number == number.min()], taken[number > number.min()]
    ports = result.ports
    drops = [key for key in ports.column_names if key.startswith("drops_")]
    return Column(
        name, float(first.mean()), float((later if len(later) else first).mean()), float(taken.max()),
        *(int(np.sum([numpy_of(ports[key]).sum() for key in keys])) for keys in (["bytes"], drops, ["marks"])),
    )  # fmt: skip


def side_by_side(program: Result, emulated: Result, simulated: Result) -> tuple[Grid, Json]:
    """A program, its replay on the testbed and its replay in the simulator: for people, and for programs."""
    columns = [column("program", program), column("replayed", emulated), column("simulated", simulated)]
    own = columns[0]

    def row(label: str, of: Callable[[Column], float], text: Callable[[int], str]) -> list[str]:
        whole = of(own)
        apart = ["" if not whole else change_text(of(each) / whole) for each in columns[1:]]
        return [label, *(text(round(of(each))) for each in columns), *apart]

    rows = [
        row("first iteration", lambda each: each.first, time_text),
        row("other iterations, mean", lambda each: each.mean, time_text),
        row("longest iteration", lambda each: each.longest, time_text),
        row("bytes on all cables", lambda each: each.sent, "{:,}".format),
        row("packets dropped", lambda each: each.dropped, "{:,}".format),
        row("marks", lambda each: each.marks, "{:,}".format),
    ]
    head = ["", "program", "replayed", "simulated", "replayed", "simulated"]
    name = f"{program.summary['name']}: the program itself, and its gradients replayed on the testbed and simulated"
    return Grid(name, head, rows), {each.name: vars(each) for each in columns}
