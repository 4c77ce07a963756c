"""What a run lost, lost in a training: the Result of a simulated or emulated run as the network of a training.

A scenario is run once, with the gradients of its trace, and a model with the same tensors is trained over what became
of them: step i loses what iteration i lost, and takes as long; after the last iteration they begin again. Where a
training is played over the simulator step by step, magnitudes are its own, and so is what is dropped; here they were
the trace's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.load import load_scenario
from gradwire.scenarios.result import KINDS, SCENARIO_FILE, Result
from gradwire.training.asked import exchanged
from gradwire.training.earlier import REPLAY, table_said
from gradwire.training.network import Answer, Memoryless, Pushed
from gradwire.training.played import hops_of, masks_of
from gradwire.training.reducers.none import Dense
from gradwire.training.strangers import innermost

if TYPE_CHECKING:
    from gradwire.experiment.jobs import Job
    from gradwire.experiment.stepwise import Played
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import TensorInfo, Trace
    from gradwire.training.reducers.base import Reducer

WANTED = "the Result of a run with one job, with servers or around a ring, and output.missing = true"
FITTING = "a run of the trained model's trace, with as many workers, the same payload and exchange, and no reducer"
NO_SYSTEM = table_said(None)


@dataclass(frozen=True)
class Rows:
    """What `Played` says of messages, as far as masks are made of it: int64[messages] each."""

    tensor: Ints
    part: Ints
    first: Ints
    kind: Ints


class OfRun(Memoryless):
    """Loses what the iterations of a run lost, one after the other, and takes as long as they did."""

    def __init__(self, folder: str | Path) -> None:
        """Of the folder of a Result.

        Raises
        ------
        ResultError
            It is none that was kept with what messages were delivered without, of one job that trains.
        """
        self.folder = Path(folder)
        result = Result.read(folder)
        scenario, job, names, trace = _told(self.folder, result)
        exchange = job.exchange
        self.workers = len(exchange.context.workers)
        self.payload = int(exchange.context.payload)
        self.infos: Sequence[TensorInfo] = trace.tensors
        self.pull_loss = bool(scenario.job[0].pull_bound)
        ring = scenario.job[0].exchange.kind == "ring"
        self.exchange: Literal["parameter_server", "ring"] = "ring" if ring else "parameter_server"
        self.steps = _played(result, job, names, self.folder)

    def compare(
        self, workers: int, payload: int, collective: Literal["parameter_server", "ring"], steps: int,
        infos: Sequence[TensorInfo], reducer: Reducer,
    ) -> None:  # fmt: skip
        """Whether what it lost can be lost by such a training.

        Raises
        ------
        ScenarioError
            It cannot; with all that differs.
        """
        self.fits({
            "workers": workers, "payload": payload, "exchange": collective, "reducer": table_said(innermost(reducer)),
            "tensors": [info.numel for info in infos],
        })  # fmt: skip

    def fits(self, here: Mapping[str, Any]) -> None:
        """Whether what it lost can be lost by a training of which that is known; ScenarioError as `compare` has it."""
        there = {
            "workers": self.workers, "payload": self.payload, "exchange": self.exchange, "reducer": table_said(Dense()),
            "tensors": [info.numel for info in self.infos],
        }  # fmt: skip
        if here.get("system", NO_SYSTEM) != NO_SYSTEM:
            what = f"{self.folder} is of a run, in which gradients were sent, and no {here['system']['kind']}"
            raise ScenarioError(what, REPLAY, "the folder of a training, or no training.system")
        found = [
            f"{name} of other sizes" if name == "tensors" else f"{name} {_word(there[name])} there, {_word(mine)} here"
            for name, mine in here.items()
            if name in there and there[name] != mine
        ]
        if found:
            raise ScenarioError(f"{self.folder} is of another training: {'; '.join(found)}", REPLAY, FITTING)

    def carry(self, pushed: Pushed) -> Answer:
        """What became of an iteration's gradients.

        Raises
        ------
        ScenarioError
            It has other tensors, or rounds.
        """
        if pushed.round or len(pushed.infos) != len(self.infos):
            what = "a second round of a step" if pushed.round else f"{len(pushed.infos)} tensors"
            raise ScenarioError(f"{self.folder} has nothing for {what}", REPLAY, FITTING)
        played = self.steps[pushed.step % len(self.steps)]
        sent = np.arange(len(self.infos))
        if pushed.layout is not None:
            nothing: list[list[Any]] = [[None] * len(pushed.infos)] * self.workers
            return Answer(nothing, played.time_ps, hops=hops_of(pushed.layout, sent, played))
        pushes, pulls = masks_of(pushed, sent, played)
        return Answer(pushes, played.time_ps, pulls if self.pull_loss else ())


def _word(said: Any) -> str:
    return str(said["kind"]) if isinstance(said, dict) else str(said)


def _told(folder: Path, result: Result) -> tuple[Scenario, Job, list[str], Trace]:
    """(scenario, its job, names of nodes, its trace) of a Result."""
    from gradwire.experiment.needs import find_needs  # not for trainings that replay no run
    from gradwire.experiment.resolve import jobs_of

    try:
        (scenario,) = load_scenario(folder / SCENARIO_FILE).variants()
        if len(scenario.job) != 1:
            raise ResultError(f"has {len(scenario.job)} jobs", str(folder), WANTED)
        needs = find_needs(scenario, None)
        (job,) = jobs_of(scenario, needs)
    except ResultError:
        raise
    except (GradwireError, OSError, ValueError) as error:
        raise ResultError(f"cannot be played again: {error}", str(folder), WANTED) from None
    table = scenario.job[0]
    if table.exchange.kind not in ("parameter_server", "ring") or job.exchange.context.payload % 4:
        raise ResultError(f"is of {table.exchange.kind}", str(folder), WANTED)
    try:
        exchanged(table)
    except ScenarioError as error:
        raise ResultError(f"is no training's: {error.where} {error.what}", str(folder), WANTED) from None
    payload, partition = job.exchange.context.payload, int(getattr(table.exchange, "partition", 0))
    if not scenario.output.missing:
        raise ResultError("has not kept what messages were delivered without", str(folder), WANTED)
    if partition % payload:
        what = f"has messages of {partition} bytes, which are no whole packets"
        raise ResultError(what, str(folder), f"a run whose job.exchange.partition is a multiple of {payload} bytes")
    if result.summary.get("approximate", {}).get("left_out"):
        raise ResultError("left iterations out", str(folder), "a run without simulation.approximate")
    return scenario, job, list(needs.network.names), needs.traces[0]


def _played(result: Result, job: Job, names: list[str], folder: Path) -> list[Played]:
    """What became of each iteration that all workers have finished."""
    from gradwire.experiment.stepwise import Played

    exchange = job.exchange
    rows = {name: numpy_of(result.iterations[name]) for name in ("iteration", "start_ps", "end_ps")}
    count = len(exchange.context.workers)
    table = result.messages
    under_way = set(numpy_of(table["iteration"])[numpy_of(table["end_ps"]) < 0].tolist())
    done = [number for number in range(int(rows["iteration"].max(initial=-1)) + 1)
            if (rows["iteration"] == number).sum() == count and number not in under_way]  # fmt: skip
    if not done:
        what = "has no iteration that all workers have finished, and whose messages have all been delivered"
        raise ResultError(what, str(folder), WANTED)
    at = {name: number for number, name in enumerate(names)}
    column = {name: numpy_of(table[name]).astype(np.int64) for name in ("message", "iteration", "tensor", "part")}
    kind = np.array([KINDS.index(each) for each in table["kind"].to_pylist()], dtype=np.int64)
    ends = np.array([[at[each] for each in table[name].to_pylist()] for name in ("src", "dst")], dtype=np.int64)
    packets = dict(zip(column["message"].tolist(), numpy_of(table["packets"]).tolist(), strict=True))
    lacking = _lacking(result, packets, folder)
    firsts = {(each.tensor, each.part): each.first for each in getattr(exchange, "partitions", ())}
    parts = zip(column["tensor"].tolist(), column["part"].tolist(), strict=True)
    first = np.array([firsts.get(each, 0) for each in parts], dtype=np.int64)
    found, before = [], int(rows["start_ps"].min())
    buckets, segments = exchange.buckets_and_segments
    for number in done:
        mine = np.flatnonzero(column["iteration"] == number)
        place = {int(message): index for index, message in enumerate(column["message"][mine].tolist())}
        ended = int(rows["end_ps"][rows["iteration"] == number].max())
        found.append(Played(
            ended - before, Rows(column["tensor"][mine], column["part"][mine], first[mine], kind[mine]),  # type: ignore[arg-type]
            {place[message]: mask for message, mask in lacking.items() if message in place},
            _workers(job, ends[:, mine], kind[mine]), buckets, segments,
        ))  # fmt: skip
        before = ended
    return found


def _lacking(result: Result, packets: Mapping[int, int], folder: Path) -> dict[int, Any]:
    """Which packets each message was delivered without, (packets,) bool, by number. ResultError if that cannot be."""
    found: dict[int, Any] = {}
    runs = [numpy_of(result.missing[name]).tolist() for name in ("message", "packet", "packets", "bytes")]
    lost: dict[int, int] = {}
    for message, packet, run, nbytes in zip(*runs, strict=True):
        mask = found.setdefault(message, np.zeros(packets[message], dtype=np.bool_))
        if packet < 0 or run < 1 or packet + run > len(mask) or mask[packet : packet + run].any():
            what = f"is damaged: packets {packet} to {packet + run - 1} of message {message}, which has {len(mask)}"
            raise ResultError(what, str(folder / "missing.parquet"), "what the run left there")
        mask[packet : packet + run] = True
        lost[message] = lost.get(message, 0) + nbytes
    said = zip(*(numpy_of(result.messages[name]).tolist() for name in ("message", "lost_bytes", "end_ps")), strict=True)
    for message, nbytes, end in said:
        if end >= 0 and lost.get(message, 0) != nbytes:
            what = f"is damaged: {lost.get(message, 0)} bytes of message {message}, of which {nbytes} were lost"
            raise ResultError(what, str(folder / "missing.parquet"), "what the run left there")
    return found


def _workers(job: Job, ends: Ints, kind: Ints) -> Ints:
    """Between which workers messages were, int64[messages, 2]; -1 for a server."""
    from types import SimpleNamespace

    from gradwire.experiment.stepwise import workers_of

    return workers_of(job, SimpleNamespace(src=ends[0], dst=ends[1], kind=kind))  # type: ignore[arg-type]
