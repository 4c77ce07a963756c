"""Checks of a scenario's training table that need no torch, or little of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.scenarios.schema.job.training import PACKET_NETWORKS, ReplayedLosses, Training
from gradwire.traces.models import ModelKind, find_model
from gradwire.training.user_code.user_model import DATA, MODEL, UserModel, check_user_function, is_own, user_model_of

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job
    from gradwire.scenarios.schema.scenario import Scenario

EXCHANGES = ("parameter_server", "ring", "overlapped")
"""Exchanges that can be trained over; simulated jobs have more."""


def table_of(scenario: Scenario) -> Training:
    """Return the table [training] of a scenario with one job. Raises ScenarioError if it is missing, or there
    is not exactly one job."""
    if scenario.training is None:
        raise ScenarioError("has no training table", scenario.called, "a table [training] (docs/training.md)")
    if len(scenario.job) != 1:
        raise ScenarioError(
            f"has {len(scenario.job)} jobs", f"{scenario.called}: job", expected="one, whose workers train the model"
        )
    return scenario.training


def model_kind(table: Training, folder: Path | None = None) -> ModelKind | UserModel:
    """Return the model to train; `folder` holds user-defined modules. Raises ScenarioError if there is no model of that
    name, its task is neither pictures nor texts, or the table sets `learns` though the task is known."""
    if table.learns and (is_own(table.data) or not is_own(table.model)):
        which = "data" if is_own(table.data) else "model"
        expected = f"none: the task is known from training.{which}, {getattr(table, which)}"
        raise ScenarioError(f"is {table.learns}", "training.learns", expected)
    if is_own(table.model):
        return user_model_of(table, folder)
    try:
        kind = find_model(table.model)
    except TraceError as error:
        raise ScenarioError(error.what, MODEL, f"{error.expected}; or module:function, a user-defined one") from None
    if kind.task not in ("images", "next"):
        raise ScenarioError(f"{table.model} learns {kind.task}", "training.model", "a model of pictures or texts")
    return kind


def sample_size(table: Training, kind: ModelKind | UserModel) -> int:
    """Return the width in pixels, or the tokens, of a sample. Raise ScenarioError if the model cannot take it."""
    size = table.size or kind.size
    if kind.takes(size):
        return size
    if kind.task == "images":
        what, expected = f"{size} pixels of a side are too few for {table.model}", f"at least {kind.sizes[0]}"
    else:
        what, expected = f"{size} tokens are too many for {table.model}", f"at most {kind.sizes[1]}"
    raise ScenarioError(what, "training.size", expected)


def check_samples(count: int, workers: int, batch: int) -> None:
    """Raise TraceError if there are fewer samples than all workers take in a step."""
    if workers * batch > count:
        raise TraceError(
            f"{count} samples for {workers} workers with {batch} each in a step",
            "training.samples or the data",
            f"at least {workers * batch}, or a smaller training.batch",
        )


def needs_matching_layers(scenario: Scenario) -> bool:
    """Return True if the network must match the model's layers: it uses times of a trace, or bounds by layer."""
    table, job = table_of(scenario), scenario.job[0]
    bounds = (job.push_bound, job.pull_bound)
    by_layer = table.compute == "trace" or any(getattr(bound, "layers", None) is not None for bound in bounds)
    return table.network in PACKET_NETWORKS and by_layer


def check_prerequisites(scenario: Scenario) -> None:
    """Raise ScenarioError, TraceError or ResultError if something that a training run needs besides its scenario is
    missing. That is data, of which only the presence is checked, a predictor, or a training run to replay. Also check
    that its exchange can be trained."""
    table, job = table_of(scenario), scenario.job[0]
    check_exchange(job)
    kind, is_user_data = model_kind(table, scenario.folder), is_own(table.data)
    sample_size(table, kind)
    for name, where in ((table.model, MODEL), (table.data, DATA)):
        if is_own(name):
            check_user_function(name, scenario.folder, where)
    if isinstance(kind, UserModel):
        import torch

        with torch.random.fork_rng(devices=[]):  # leaves the caller's random state as it is
            kind.build(2)
    if kind.task == "images" and table.samples is not None and not is_user_data:
        check_samples(table.samples, job.workers, table.batch)
    from gradwire.training.reducers.base import Reducer

    if job.exchange.kind == "ring" and isinstance(table.reducer, Reducer):
        from gradwire.training.exchange.lossy_ring import check_ring

        payload = int((job.transport or scenario.transport).payload)
        try:
            check_ring(table.reducer, job.workers, payload, job.fill, job.pull_fill)
        except ValueError as error:
            raise ScenarioError(str(error), "training.reducer") from None
    if table.data != "synthetic" and not is_user_data:
        if kind.task == "images":
            from gradwire.traces.datasets.images import image_files

            image_files(table.data)
        else:
            from gradwire.traces.datasets.text import text_files

            text_files(table.data)
    if table.network in PACKET_NETWORKS and job.exchange.kind != "overlapped":
        from gradwire.workload.incremental.iteration_player import single_iteration_scenario

        packet_payload(single_iteration_scenario(scenario, "train(scenario)", beside=table.network == "simulated"))
    system: Any = table.system
    if system is not None:
        check_system(system, table, job)
        if not system.together and table.network == "simulated":
            from gradwire.workload.incremental.turn_player import check_async_workers

            check_async_workers(scenario)
    predictor = getattr(system, "predictor", None)
    if predictor is not None:
        from gradwire.training.parameter_server.predictor_file import read_predictor
        from gradwire.training.systems.mp2 import UNPREDICTED

        if predictor not in UNPREDICTED:
            read_predictor(system.kind, predictor)
    if isinstance(table.network, ReplayedLosses):
        from gradwire.training.loss_replay.replay_compatibility import check_replay

        check_replay(Path(table.network.replay), scenario)


def check_exchange(job: Job) -> None:
    """Raise ScenarioError for exchanges of simulated jobs that training does not support."""
    exchange = job.exchange
    if exchange.kind not in EXCHANGES:
        raise ScenarioError(f"{exchange.kind} cannot be trained", "job.exchange", f"{', '.join(EXCHANGES)}")
    for name in ("asynchronous", "staleness"):
        if getattr(exchange, name, 0):
            what = "applies to simulated jobs; a training run sets it in its system"
            expected = 'training.system = { kind = "asynchronous" }, with its staleness'
            raise ScenarioError(what, f"job.exchange.{name}", expected)
    if job.accumulate > 1:
        what = f"{job.accumulate} micro-batches are not accumulated in training"
        raise ScenarioError(what, "job.accumulate", "1, and a larger training.batch")


def packet_payload(scenario: Scenario) -> int:
    """Return the payload in bytes of the packets of a scenario's job. Raises ScenarioError if the job's exchange is
    neither parameter_server nor ring, or packets do not hold whole values of one message."""
    job = scenario.job[0]
    payload = int((job.transport or scenario.transport).payload)
    check_exchange(job)
    if job.exchange.kind not in ("parameter_server", "ring"):
        what = f"{job.exchange.kind} cannot be trained over yet"
        raise ScenarioError(what, "job.exchange", "parameter_server or ring")
    if job.scheduler is not None and job.scheduler.unit_key:
        what = f"{job.scheduler.kind} partitions gradients itself, which training does not support yet"
        raise ScenarioError(what, "job.scheduler", "a scheduler that leaves sizes to the exchange, such as fifo")
    if payload % 4:
        raise ScenarioError(f"{payload} bytes cut a float32 value", "transport.payload", "a multiple of 4 bytes")
    partition = int(getattr(job.exchange, "partition", 0))
    if partition % payload:
        expected = f"a multiple of the payload, {payload} bytes"
        raise ScenarioError(f"{partition} bytes cut packets", "job.exchange.partition", expected)
    return payload


def check_system(system: Any, table: Training, job: Job) -> None:
    """Raise ScenarioError if a job does not suit a system, which needs servers whose answers all arrive."""
    if job.exchange.kind != "parameter_server":
        raise ScenarioError(
            f"{job.exchange.kind} is not supported by {system.kind}", "job.exchange", "parameter_server"
        )
    if job.pull_bound:
        raise ScenarioError(
            f"{job.pull_bound} would lose what servers send back", "job.pull_bound", f"0: {system.kind} needs all of it"
        )
    if not system.together and job.fill != "zero":
        what = f"{job.fill} applies to a mean of workers, and those of {system.kind} push one by one"
        raise ScenarioError(what, "job.fill", "zero")
    if not system.together and any(system.computing):
        for name, neutral in (("jitter", 0), ("compute_scale", 1)):
            if (value := getattr(job, name)) != neutral:
                what = f"{value:g} applies to a trace's times, and {system.kind} has its own compute times"
                raise ScenarioError(what, f"job.{name}", f'{neutral}, or training.compute = "trace"')
    for name, unset in (("resync", 0), ("encode_time", "none")):
        if getattr(table, name) != unset:
            raise ScenarioError(f"is not supported by {system.kind}", f"training.{name}", "none with training.system")
