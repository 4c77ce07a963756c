"""What a scenario asks of a training, and whether there is such a thing, as far as that is known without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.scenarios.schema.training import PLAYED, Replayed, Training
from gradwire.traces.models import ModelKind, find_model
from gradwire.training.own_model import DATA, MODEL, OwnModel, check_own, is_own, own_model

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job
    from gradwire.scenarios.schema.scenario import Scenario

EXCHANGES = ("parameter_server", "ring", "overlapped")
"""Exchanges by which models are trained; simulated jobs have more."""


def table_of(scenario: Scenario) -> Training:
    """The table [training] of a scenario with one job.

    Raises
    ------
    ScenarioError
        There is no such table, or other than one job.
    """
    if scenario.training is None:
        raise ScenarioError("says nothing of training", scenario.called, "a table [training] (docs/training.md)")
    if len(scenario.job) != 1:
        raise ScenarioError(
            f"has {len(scenario.job)} jobs", f"{scenario.called}: job", expected="one, whose workers train the model"
        )
    return scenario.training


def model_kind(table: Training, folder: Path | None = None) -> ModelKind | OwnModel:
    """The model that is trained; `folder` is where modules of the user's own are.

    Raises
    ------
    ScenarioError
        There is none of that name, it learns something else than pictures or texts, or the table says what it learns
        though that is known.
    """
    if table.learns and (is_own(table.data) or not is_own(table.model)):
        which = "data" if is_own(table.data) else "model"
        expected = f"none: what is learned is known by training.{which}, {getattr(table, which)}"
        raise ScenarioError(f"is {table.learns}", "training.learns", expected)
    if is_own(table.model):
        return own_model(table, folder)
    try:
        kind = find_model(table.model)
    except TraceError as error:
        raise ScenarioError(error.what, MODEL, f"{error.expected}; or module:function, one of your own") from None
    if kind.task not in ("images", "next"):
        raise ScenarioError(f"{table.model} learns {kind.task}", "training.model", "a model of pictures or texts")
    return kind


def sample_size(table: Training, kind: ModelKind | OwnModel) -> int:
    """Pixels of a side, or tokens of a sample. Raises ScenarioError if the model cannot take them."""
    size = table.size or kind.size
    if kind.takes(size):
        return size
    if kind.task == "images":
        what, expected = f"{size} pixels of a side are too few for {table.model}", f"at least {kind.sizes[0]}"
    else:
        what, expected = f"{size} tokens are too many for {table.model}", f"at most {kind.sizes[1]}"
    raise ScenarioError(what, "training.size", expected)


def check_samples(count: int, workers: int, batch: int) -> None:
    """Raise TraceError if there are not as many samples as all workers take in a step."""
    if workers * batch > count:
        raise TraceError(
            f"{count} samples for {workers} workers with {batch} each in a step", "training.samples or the data",
            f"at least {workers * batch}, or a smaller training.batch",
        )  # fmt: skip


def asks_of_layers(scenario: Scenario) -> bool:
    """Whether a training's network has to fit the layers of its model: times of a trace, or bounds by layer."""
    table, job = table_of(scenario), scenario.job[0]
    bounds = (job.push_bound, job.pull_bound)
    by_layer = table.compute == "trace" or any(getattr(each, "layers", None) is not None for each in bounds)
    return table.network in PLAYED and by_layer


def refuse_ahead(scenario: Scenario) -> None:
    """Look for what a training needs besides its scenario: data, a predictor, the training that is replayed; and at
    whether its exchange can be trained. Of data it is seen whether they are there, and no more.

    Raises
    ------
    ScenarioError, TraceError, ResultError
        It is not there, or another one than is needed; as when it is trained.
    """
    table, job = table_of(scenario), scenario.job[0]
    exchanged(job)
    kind, given = model_kind(table, scenario.folder), is_own(table.data)
    sample_size(table, kind)
    for name, where in ((table.model, MODEL), (table.data, DATA)):
        if is_own(name):
            check_own(name, scenario.folder, where)
    if isinstance(kind, OwnModel):
        import torch

        with torch.random.fork_rng(devices=[]):  # whoever asks has drawn nothing
            kind.build(2)
    if kind.task == "images" and table.samples is not None and not given:
        check_samples(table.samples, job.workers, table.batch)
    from gradwire.training.reducers.base import Reducer

    if job.exchange.kind == "ring" and isinstance(table.reducer, Reducer):
        from gradwire.training.collective import check_ring

        payload = int((job.transport or scenario.transport).payload)
        try:
            check_ring(table.reducer, job.workers, payload, job.fill, job.pull_fill)
        except ValueError as error:
            raise ScenarioError(str(error), "training.reducer") from None
    if table.data != "synthetic" and not given:
        if kind.task == "images":
            from gradwire.traces.datasets.images import find_images

            find_images(table.data)
        else:
            from gradwire.traces.datasets.text import find_text

            find_text(table.data)
    if table.network in PLAYED and job.exchange.kind != "overlapped":
        from gradwire.experiment.stepwise import played_scenario

        packets_of(played_scenario(scenario, "train(scenario)", beside=table.network == "simulated"))
    system: Any = table.system
    if system is not None:
        served_by(system, table, job)
        if not system.together and table.network == "simulated":
            from gradwire.experiment.turnwise import check_turnwise

            check_turnwise(scenario)
    predictor = getattr(system, "predictor", None)
    if predictor is not None:
        from gradwire.training.served.predictor_file import read_predictor
        from gradwire.training.systems.mp2 import UNPREDICTED

        if predictor not in UNPREDICTED:
            read_predictor(system.kind, predictor)
    if isinstance(table.network, Replayed):
        from gradwire.training.earlier import can_replay

        can_replay(Path(table.network.replay), scenario)


def exchanged(job: Job) -> None:
    """Raise ScenarioError for exchanges of simulated jobs that trainings have not got."""
    exchange = job.exchange
    if exchange.kind not in EXCHANGES:
        raise ScenarioError(f"{exchange.kind} cannot be trained", "job.exchange", f"{', '.join(EXCHANGES)}")
    for name in ("asynchronous", "staleness"):
        if getattr(exchange, name, 0):
            what = "is how a simulated job waits; of a training its system says it"
            expected = 'training.system = { kind = "asynchronous" }, with its staleness'
            raise ScenarioError(what, f"job.exchange.{name}", expected)
    if job.accumulate > 1:
        what = f"{job.accumulate} micro-batches are not accumulated in a training"
        raise ScenarioError(what, "job.accumulate", "1, and a larger training.batch")


def packets_of(scenario: Scenario) -> int:
    """Bytes of payload of the packets that carry trainings of a scenario's job.

    Raises
    ------
    ScenarioError
        The job's exchange is neither with servers nor a ring, or packets do not hold whole values of one message.
    """
    job = scenario.job[0]
    payload = int((job.transport or scenario.transport).payload)
    exchanged(job)
    if job.exchange.kind not in ("parameter_server", "ring"):
        what = f"{job.exchange.kind} cannot be trained over yet"
        raise ScenarioError(what, "job.exchange", "parameter_server or ring")
    if job.scheduler is not None and job.scheduler.unit_key:
        what = f"{job.scheduler.kind} cuts gradients its own way, which trainings do not know yet"
        raise ScenarioError(what, "job.scheduler", "a scheduler that leaves sizes to the exchange, such as fifo")
    if payload % 4:
        raise ScenarioError(f"{payload} bytes cut a float32 value", "transport.payload", "a multiple of 4 bytes")
    partition = int(getattr(job.exchange, "partition", 0))
    if partition % payload:
        expected = f"a multiple of the payload, {payload} bytes"
        raise ScenarioError(f"{partition} bytes cut packets", "job.exchange.partition", expected)
    return payload


def served_by(system: Any, table: Training, job: Job) -> None:
    """Systems have servers, and what these send back arrives."""
    if job.exchange.kind != "parameter_server":
        raise ScenarioError(f"{job.exchange.kind} has no place in {system.kind}", "job.exchange", "parameter_server")
    if job.pull_bound:
        raise ScenarioError(
            f"{job.pull_bound} would lose what servers send back", "job.pull_bound", f"0: {system.kind} needs all of it"
        )
    if not system.together and job.fill != "zero":
        what = f"{job.fill} stands for what is missing in a mean of workers, and those of {system.kind} come one by one"
        raise ScenarioError(what, "job.fill", "zero")
    if not system.together and any(system.computing):
        for name, neutral in (("jitter", 0), ("compute_scale", 1)):
            if (value := getattr(job, name)) != neutral:
                what = f"{value:g} is of a trace's times, and {system.kind} computes as its system says"
                raise ScenarioError(what, f"job.{name}", f"{neutral}, or training.compute = \"trace\"")
    for name, unset in (("resync", 0), ("encode_time", "none")):
        if getattr(table, name) != unset:
            raise ScenarioError(f"is not known to {system.kind}", f"training.{name}", "none with training.system")
