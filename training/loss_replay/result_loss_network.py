"""`ResultLossNetwork` replays the losses and durations of a simulated or emulated run as a training run's network.

A scenario runs once, with the gradients of its trace, and a model with the same tensors is trained with its losses:
step i has the losses and the duration of iteration i; after the last iteration it starts over. In a training run over
the simulator, step by step, drops depend on the run's own magnitudes; here they depend on the trace's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS, SCENARIO_FILE
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import TensorInfo, Trace
from gradwire.training.loss_replay.recorded_run import REPLAY, table_properties
from gradwire.training.networks.network_interface import Answer, Pushed, ReplayNetwork
from gradwire.training.networks.packet_steps import check_exchange, hops_of, masks_of
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.none import Dense
from gradwire.training.value_checks import innermost
from gradwire.workload.incremental.iteration_player import PlayedIteration
from gradwire.workload.jobs import Job

EXPECTED_RESULT = "the Result of a run with one job, with servers or around a ring, and output.missing = true"
EXPECTED_RUN = "a run of the trained model's trace, with as many workers, the same payload and exchange, and no reducer"
NO_SYSTEM = table_properties(None)


class ResultLossNetwork(ReplayNetwork):
    """Repeats the losses and durations of a run's iterations, one after the other."""

    def __init__(self, folder: str | Path) -> None:
        """Read the folder of a Result. Raises ResultError if it is not the Result of one training job with its missing
        packets recorded."""
        self.folder = Path(folder)
        result = Result.read(folder)
        scenario, job, names, trace = _resolve(self.folder, result)
        exchange = job.exchange
        self.workers = len(exchange.context.workers)
        self.payload = int(exchange.context.payload)
        self.infos: Sequence[TensorInfo] = trace.tensors
        self.pull_loss = bool(scenario.job[0].pull_bound)
        ring = scenario.job[0].exchange.kind == "ring"
        self.exchange: Literal["parameter_server", "ring"] = "ring" if ring else "parameter_server"
        self.steps = _iterations(result, job, names, self.folder)

    def compare(self, recipe: Recipe, infos: Sequence[TensorInfo], reducer: Reducer) -> None:
        """Raise ScenarioError, listing all differences, if such a training run cannot repeat the losses."""
        self.fits(
            {
                "workers": recipe.workers,
                "payload": recipe.payload,
                "exchange": recipe.collective,
                "reducer": table_properties(innermost(reducer)),
                "tensors": [info.numel for info in infos],
            }
        )

    def fits(self, here: Mapping[str, Any]) -> None:
        """Raise ScenarioError, as `compare` does, if a training run with these properties cannot repeat the losses."""
        recorded = {
            "workers": self.workers,
            "payload": self.payload,
            "exchange": self.exchange,
            "reducer": table_properties(Dense()),
            "tensors": [info.numel for info in self.infos],
        }
        if here.get("system", NO_SYSTEM) != NO_SYSTEM:
            what = f"{self.folder} is the Result of a run that sent gradients, not {here['system']['kind']}"
            raise ScenarioError(what, REPLAY, "the folder of a training run, or no training.system")
        differences = [
            f"{name} of other sizes"
            if name == "tensors"
            else f"{name} {_value_text(recorded[name])} there, {_value_text(value)} here"
            for name, value in here.items()
            if name in recorded and recorded[name] != value
        ]
        if differences:
            what = f"{self.folder} is of another training run: {'; '.join(differences)}"
            raise ScenarioError(what, REPLAY, EXPECTED_RUN)

    def carry(self, pushed: Pushed) -> Answer:
        """Return the outcome of an iteration's gradients. Raises ScenarioError if the run has other tensors, or
        rounds."""
        if pushed.round or len(pushed.infos) != len(self.infos):
            what = "a second round of a step" if pushed.round else f"{len(pushed.infos)} tensors"
            raise ScenarioError(f"{self.folder} has no record of {what}", REPLAY, EXPECTED_RUN)
        played = self.steps[pushed.step % len(self.steps)]
        sent = np.arange(len(self.infos))
        if pushed.layout is not None:
            return Answer(pushed.all_arrived(), played.time_ps, hops=hops_of(pushed.layout, sent, played))
        pushes, pulls = masks_of(pushed, sent, played)
        return Answer(pushes, played.time_ps, pulls if self.pull_loss else ())


def _value_text(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, dict) else str(value)


def _resolve(folder: Path, result: Result) -> tuple[Scenario, Job, list[str], Trace]:
    """Return (scenario, its job, node names, its trace) of a Result."""
    from gradwire.workload.prerequisites import (
        find_prerequisites,  # lazy: only replays of a run need it
        make_jobs,
    )

    try:
        (scenario,) = load_scenario(folder / SCENARIO_FILE).variants()
        if len(scenario.job) != 1:
            raise ResultError(f"has {len(scenario.job)} jobs", str(folder), EXPECTED_RESULT)
        needs = find_prerequisites(scenario, None)
        (job,) = make_jobs(scenario, needs)
    except ResultError:
        raise
    except (GradwireError, OSError, ValueError) as error:
        raise ResultError(f"cannot be replayed: {error}", str(folder), EXPECTED_RESULT) from None
    table = scenario.job[0]
    if table.exchange.kind not in ("parameter_server", "ring") or job.exchange.context.payload % 4:
        raise ResultError(f"is of {table.exchange.kind}", str(folder), EXPECTED_RESULT)
    try:
        check_exchange(table)
    except ScenarioError as error:
        what = f"cannot be used for training: {error.where} {error.what}"
        raise ResultError(what, str(folder), EXPECTED_RESULT) from None
    payload, partition = job.exchange.context.payload, int(getattr(table.exchange, "partition", 0))
    if not scenario.output.missing:
        raise ResultError("did not record missing packets", str(folder), EXPECTED_RESULT)
    if partition % payload:
        what = f"has messages of {partition} bytes, which are not whole packets"
        raise ResultError(what, str(folder), f"a run whose job.exchange.partition is a multiple of {payload} bytes")
    return scenario, job, list(needs.network.names), needs.traces[0]


def _iterations(result: Result, job: Job, names: list[str], folder: Path) -> list[PlayedIteration]:
    """Return the outcome of each iteration that all workers have finished."""
    from gradwire.workload.incremental.iteration_player import PlayedIteration, message_workers

    exchange = job.exchange
    rows = {name: to_numpy(result.iterations[name]) for name in ("iteration", "start_ps", "end_ps")}
    count = len(exchange.context.workers)
    table = result.messages
    unfinished = set(to_numpy(table["iteration"])[to_numpy(table["end_ps"]) < 0].tolist())
    done = [
        number
        for number in range(int(rows["iteration"].max(initial=-1)) + 1)
        if (rows["iteration"] == number).sum() == count and number not in unfinished
    ]
    if not done:
        what = "has no iteration that all workers have finished, and whose messages have all been delivered"
        raise ResultError(what, str(folder), EXPECTED_RESULT)
    number_of = {name: number for number, name in enumerate(names)}
    column = {name: to_numpy(table[name]).astype(np.int64) for name in ("message", "iteration", "tensor", "part")}
    column["kind"] = np.array([KINDS.index(kind) for kind in table["kind"].to_pylist()], dtype=np.int64)
    for name in ("src", "dst"):
        column[name] = np.array([number_of[node] for node in table[name].to_pylist()], dtype=np.int64)
    packets = dict(zip(column["message"].tolist(), to_numpy(table["packets"]).tolist(), strict=True))
    lacking = _missing_masks(result, packets, folder)
    firsts = {(partition.tensor, partition.part): partition.first for partition in getattr(exchange, "partitions", ())}
    parts = zip(column["tensor"].tolist(), column["part"].tolist(), strict=True)
    column["first"] = np.array([firsts.get(tensor_and_part, 0) for tensor_and_part in parts], dtype=np.int64)
    iterations, before = [], int(rows["start_ps"].min())
    buckets, segments = exchange.buckets_and_segments
    for number in done:
        chosen = np.flatnonzero(column["iteration"] == number)
        sent: Any = SimpleNamespace(**{name: values[chosen] for name, values in column.items()})
        index_of = {message: index for index, message in enumerate(sent.message.tolist())}
        missing = {index_of[message]: mask for message, mask in lacking.items() if message in index_of}
        ended = int(rows["end_ps"][rows["iteration"] == number].max())
        workers = message_workers(job, sent)
        iterations.append(PlayedIteration(ended - before, sent, missing, workers, buckets, segments))
        before = ended
    return iterations


def _missing_masks(result: Result, packets: Mapping[int, int], folder: Path) -> dict[int, Any]:
    """Return a mask of the missing packets of each message, (packets,) bool, by number. ResultError if they are
    inconsistent."""
    masks: dict[int, Any] = {}
    runs = [to_numpy(result.missing[name]).tolist() for name in ("message", "packet", "packets", "bytes")]
    lost: dict[int, int] = {}
    for message, packet, run, nbytes in zip(*runs, strict=True):
        mask = masks.setdefault(message, np.zeros(packets[message], dtype=np.bool_))
        if packet < 0 or run < 1 or packet + run > len(mask) or mask[packet : packet + run].any():
            what = f"is damaged: packets {packet} to {packet + run - 1} of message {message}, which has {len(mask)}"
            raise ResultError(what, str(folder / "missing.parquet"), "the unchanged file of the run")
        mask[packet : packet + run] = True
        lost[message] = lost.get(message, 0) + nbytes
    expected = zip(
        *(to_numpy(result.messages[name]).tolist() for name in ("message", "lost_bytes", "end_ps")), strict=True
    )
    for message, nbytes, end in expected:
        if end >= 0 and lost.get(message, 0) != nbytes:
            what = f"is damaged: {lost.get(message, 0)} bytes of message {message}, of which {nbytes} were lost"
            raise ResultError(what, str(folder / "missing.parquet"), "the unchanged file of the run")
    return masks
