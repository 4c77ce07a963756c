"""From a scenario to a trainer: model, data, recipe and reducer of its table [training]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.scenarios.schema.training import PLAYED, RandomLoss, Replayed, Training
from gradwire.traces.devices import pick_device
from gradwire.traces.models import ModelKind, find_model
from gradwire.training.data import Dealer, Images, Text, images, text
from gradwire.training.kept import Again
from gradwire.training.network import Ideal, Network, Random
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection
from gradwire.training.reducers.none import Dense
from gradwire.training.systems.base import System
from gradwire.training.trainer import Recipe, Trainer

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


def model_kind(table: Training) -> ModelKind:
    """The model that is trained.

    Raises
    ------
    ScenarioError
        There is none of that name, or it learns something else than pictures or texts.
    """
    try:
        kind = find_model(table.model)
    except TraceError as error:
        raise ScenarioError(error.what, "training.model", error.expected) from None
    if kind.task not in ("images", "next"):
        raise ScenarioError(f"{table.model} learns {kind.task}", "training.model", "a model of pictures or texts")
    return kind


def data_of(table: Training) -> Images | Text:
    """The data that is learned from.

    Raises
    ------
    ScenarioError, TraceError
        There is no such model or data.
    """
    kind = model_kind(table)
    if kind.task == "images":
        return images(table.data, table.size or kind.size, table.augment, table.samples)
    return text(table.data, table.size or kind.size)


def device_of(table: Training) -> torch.device:
    """Where a training computes.

    Raises
    ------
    ScenarioError
        There is no such device here.
    """
    return pick_device(table.device, "training.device", ScenarioError)


def trainer_of(scenario: Scenario, data: Images | Text, network: Network | None = None) -> Trainer:
    """The trainer of a scenario, on its device.

    Parameters
    ----------
    data : wherever it is.
    network : where the scenario says "simulated" or "emulated".

    Raises
    ------
    ScenarioError, TraceError
        What is asked cannot be trained.
    """
    table, job = table_of(scenario), scenario.job[0]
    device = device_of(table)
    _exchanged(job)
    system: System | None = table.system  # type: ignore[assignment]
    if system is not None:
        _served_by(system, table, job)
    steps_per_epoch = Dealer(data, job.workers, table.batch, 0).steps_per_epoch
    optimizer = table.optimizer
    recipe = Recipe(
        workers=job.workers, batch=table.batch, steps=table.steps or max(1, round(table.epochs * steps_per_epoch)),
        rate=optimizer.rate, schedule=optimizer.schedule, rise=optimizer.rise, momentum=optimizer.momentum,
        nesterov=optimizer.nesterov, weight_decay=optimizer.weight_decay, clip=optimizer.clip, fill=job.fill,
        feed_back=table.feed_back, payload=int((job.transport or scenario.transport).payload),
        collective="ring" if job.exchange.kind == "ring" else "parameter_server",
        bucket=int(getattr(job.exchange, "bucket", 0)), pull_fill=job.pull_fill, resync=table.resync,
        encode_time=table.encode_time, precision=table.precision,
        data_seed=table.data_seed, seed=scenario.seed,
    )  # fmt: skip
    if optimizer.nesterov and not optimizer.momentum:
        raise ScenarioError("has no momentum to look ahead with", "training.optimizer.nesterov", "momentum above 0")
    torch.manual_seed(table.model_seed)
    model, data = model_kind(table).build(data.classes).to(device), data.to(device)
    if network is None or table.network not in PLAYED:
        network = _network(table, job.workers, recipe.collective)
    reducer = reducer_of(table)
    try:
        if system is not None:
            return system.trainer(model, data, recipe, reducer, network)
        if job.exchange.kind == "overlapped":
            return _overlapped(scenario, model, data, recipe, network)
        return Trainer(model, data, recipe, reducer, network, recorded=True)  # models of gradwire's own
    except ValueError as error:
        where = {"ring": "training.reducer", "overlapped": "job.exchange"}.get(job.exchange.kind, "job.fill")
        raise ScenarioError(str(error), "training.system" if system else where) from None


def _overlapped(
    scenario: Scenario, model: nn.Module, data: Images | Text, recipe: Recipe, network: Network
) -> Trainer:
    """Everything arrives there, and takes no time here."""
    from gradwire.training.overlapped import OverlappedTrainer

    table, exchange = table_of(scenario), scenario.job[0].exchange
    if table.network != "ideal":
        raise ScenarioError("cannot be trained over with overlapped", "training.network", expected="ideal")
    if table.reducer is not None or table.error_feedback or table.momentum_correction:
        raise ScenarioError("overlapped sends no reduced gradients", "training.reducer", "none")
    if (batch := getattr(exchange, "batch", 0)) != table.batch:
        what = f"{batch} is not training.batch, {table.batch}"
        raise ScenarioError(what, "job.exchange.batch", str(table.batch))
    return OverlappedTrainer(model, data, recipe, network, dense=str(getattr(exchange, "dense", "")))


def _exchanged(job: Job) -> None:
    """Raise ScenarioError for exchanges of simulated jobs that trainings have not got."""
    exchange = job.exchange
    if exchange.kind not in EXCHANGES:
        raise ScenarioError(f"{exchange.kind} cannot be trained", "job.exchange", f"{', '.join(EXCHANGES)}")
    for name in ("asynchronous", "staleness"):
        if getattr(exchange, name, 0):
            what = "is how a simulated job waits; of a training its system says it"
            raise ScenarioError(what, f"job.exchange.{name}", 'training.system = "asynchronous", with its staleness')
    if job.accumulate > 1:
        what = f"{job.accumulate} micro-batches are not accumulated in a training"
        raise ScenarioError(what, "job.accumulate", "1, and a larger training.batch")


def _served_by(system: System, table: Training, job: Job) -> None:
    """Systems have servers, and what these send back arrives."""
    if job.exchange.kind != "parameter_server":
        raise ScenarioError(f"{job.exchange.kind} has no place in {system.kind}", "job.exchange", "parameter_server")
    if job.pull_bound:
        raise ScenarioError(
            f"{job.pull_bound} would lose what servers send back", "job.pull_bound", f"0: {system.kind} needs all of it"
        )
    for name, unset in (("resync", 0), ("encode_time", "none")):
        if getattr(table, name) != unset:
            raise ScenarioError(f"is not known to {system.kind}", f"training.{name}", "none with training.system")


def reducer_of(table: Training) -> Reducer:
    """What is sent instead of gradients, with error feedback and momentum correction around it.

    The table has been checked: they go around it.
    """
    reducer: Reducer = table.reducer or Dense()  # type: ignore[assignment]
    if table.error_feedback:
        reducer = ErrorFeedback(reducer=reducer)
    if table.momentum_correction:
        reducer = MomentumCorrection(reducer=reducer, momentum=table.momentum_correction)
    return reducer


def _network(table: Training, workers: int, collective: str) -> Network:
    if isinstance(table.network, Replayed):
        return Again(table.network.replay)
    if not isinstance(table.network, RandomLoss):
        return Ideal()
    rule = table.network
    if collective == "ring" and (rule.layers != "all" or rule.magnitudes != "all"):
        raise ScenarioError(
            "chooses packets by layer or magnitude, of which a ring's have several", "training.network", 'neither'
        )
    if rule.worker is not None and rule.worker >= workers:
        raise ScenarioError(f"is worker {rule.worker} of {workers}", "training.network.worker", f"below {workers}")
    return Random(
        rule.loss, rule.seed, rule.layers, rule.magnitudes, rule.burst, rule.quota, rule.last, rule.way, rule.worker
    )
