"""From a scenario to a trainer: model, data, recipe and reducer of its table [training]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.experiment.bounds import check_layers
from gradwire.experiment.replay import Captured
from gradwire.scenarios.asked import file_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.base import Mistakes
from gradwire.scenarios.schema.training import PLAYED, RandomLoss, Replayed, Training, UserReducer
from gradwire.traces.devices import pick_device
from gradwire.traces.trace import load_trace
from gradwire.training.as_trace import other_tensors
from gradwire.training.asked import exchanged, model_kind, sample_size, served_by, table_of
from gradwire.training.data import Dealer, Images, Text, images, text
from gradwire.training.earlier import is_of_run, table_said
from gradwire.training.kept import Again
from gradwire.training.network import Ideal, Network, Random
from gradwire.training.of_run import OfRun
from gradwire.training.own import own_reducer
from gradwire.training.own_data import own_data, try_out, watch
from gradwire.training.own_model import DATA, MODEL, OwnModel, is_own
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection
from gradwire.training.reducers.none import Dense
from gradwire.training.systems.base import System
from gradwire.training.trainer import Trainer, tensors_of

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.training.simulated_turns import SimulatedTurns

def data_of(table: Training, folder: Path | None = None) -> Images | Text:
    """The data that is learned from; `folder` is where modules of the user's own are.

    Raises
    ------
    ScenarioError, TraceError
        There is no such model or data, or the model takes no samples of that size.
    """
    kind = model_kind(table, folder)
    if is_own(table.data):
        found = own_data(table, folder)
        if not isinstance(kind, OwnModel) and isinstance(found, Images) != (kind.task == "images"):
            made = "an Images" if isinstance(found, Images) else "a Text"
            learned = "pictures" if kind.task == "images" else "texts"
            raise ScenarioError(f"{table.data} makes {made}, and {table.model} learns {learned}", DATA, learned)
        return found
    size = sample_size(table, kind)
    if kind.task == "images":
        return images(table.data, size, table.augment, table.samples)
    return text(table.data, size)


def device_of(table: Training) -> torch.device:
    """Where a training computes.

    Raises
    ------
    ScenarioError
        There is no such device here.
    """
    return pick_device(table.device, "training.device", ScenarioError)


def trainer_of(
    scenario: Scenario, data: Images | Text, network: Network | SimulatedTurns | None = None
) -> Trainer:
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
    exchanged(job)
    system: System | None = table.system  # type: ignore[assignment]
    if system is not None:
        served_by(system, table, job)
    steps_per_epoch = Dealer(data, job.workers, table.batch, 0).steps_per_epoch
    optimizer = table.optimizer
    recipe = Recipe(
        workers=job.workers, batch=table.batch, steps=table.steps or max(1, round(table.epochs * steps_per_epoch)),
        rate=optimizer.rate, schedule=optimizer.schedule, rise=optimizer.rise, momentum=optimizer.momentum,
        optimizer=optimizer.kind, betas=(optimizer.betas[0], optimizer.betas[1]), epsilon=optimizer.epsilon,
        nesterov=optimizer.nesterov, weight_decay=optimizer.weight_decay, clip=optimizer.clip, fill=job.fill,
        feed_back=table.feed_back, payload=int((job.transport or scenario.transport).payload),
        collective="ring" if job.exchange.kind == "ring" else "parameter_server",
        bucket=int(getattr(job.exchange, "bucket", 0)), pull_fill=job.pull_fill, resync=table.resync,
        encode_time=table.encode_time, precision=table.precision,
        data_seed=table.data_seed, seed=scenario.seed,
    )  # fmt: skip
    torch.manual_seed(table.model_seed)
    kind = model_kind(table, scenario.folder)
    model, data = kind.build(data.classes).to(device), data.to(device)
    own = isinstance(kind, OwnModel)
    file = kind.file(model) if isinstance(kind, OwnModel) else file_of(type(model))
    if own or is_own(table.data):
        try_out(model, data, table.model, file, MODEL if own else DATA)
    if network is None or table.network not in PLAYED:
        network = _network(table, job.workers, recipe.collective)
    carried: Any = network  # by turns where the system says so
    reducer = reducer_of(table, scenario.folder)
    try:
        if system is not None:
            trainer: Trainer = system.trainer(model, data, recipe, reducer, carried)
        elif job.exchange.kind == "overlapped":
            trainer = _overlapped(scenario, model, data, recipe, carried)
        else:
            trainer = Trainer(model, data, recipe, reducer, carried, recorded=not own)
    except ValueError as error:
        where = {"ring": "training.reducer", "overlapped": "job.exchange"}.get(job.exchange.kind, "job.fill")
        raise ScenarioError(str(error), "training.system" if system else where) from None
    if own:
        watch(trainer, table.model, file)
    return trainer


def fits_layers(scenario: Scenario) -> None:
    """Whether the model's tensors are those of the trace whose times are taken, and its layers as many as there are
    bounds; of a model's last layer, which is as large as data have classes, only whether it is there.

    Raises
    ------
    ScenarioError, TraceError
        They are not.
    """
    table, job = table_of(scenario), scenario.job[0]
    kind = model_kind(table, scenario.folder)
    with torch.random.fork_rng(devices=[]):
        one, other = (tensors_of(kind.build(classes)) for classes in (2, 3))
    layers, of = 1 + max(info.layer for info in one), f"the model, {table.model}"
    if table.compute == "trace":
        times = load_trace(job.trace)
        Captured(times, job.phase)
        mine = [None if a.numel != b.numel else a.numel for a, b in zip(one, other, strict=True)]
        theirs = [tensor.numel for tensor in times.tensors]
        if len(mine) != len(theirs) or any(a not in (None, b) for a, b in zip(mine, theirs, strict=True)):
            raise other_tensors(times)
        layers, of = len(times.layers), f"trace {times.name}"
    check_layers(job, layers, of, "job")


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


def reducer_of(table: Training, folder: Path | None = None) -> Reducer:
    """What is sent instead of gradients, with error feedback and momentum correction around it; `folder` is where
    modules of the user's own are.

    Raises
    ------
    ScenarioError
        It is a class of the user's own that is no reducer, or they do not go around it; of all others the table has
        been checked.
    """
    reducer: Reducer = table.reducer or Dense()  # type: ignore[assignment]
    if isinstance(table.reducer, UserReducer):
        reducer = own_reducer(table.reducer, folder)
        try:
            table.fits_reducer(reducer)
        except Mistakes as error:
            (wrong,) = error.mistakes
            raise ScenarioError(wrong.what, f"training.{wrong.path}", wrong.expected) from None
    if table.error_feedback:
        reducer = ErrorFeedback(reducer=reducer)
    if table.momentum_correction:
        reducer = MomentumCorrection(reducer=reducer, momentum=table.momentum_correction)
    return reducer


def replayed(table: Training, collective: str) -> Again | OfRun:
    """What an earlier training lost, or a run.

    Raises
    ------
    ResultError
        The folder is neither's, or damaged.
    ScenarioError
        It is a run's, and the training has a system, or brings the workers of a ring together.
    """
    assert isinstance(table.network, Replayed)
    folder = Path(table.network.replay)
    if not is_of_run(folder):
        return Again(folder, table)
    if table.resync and collective == "ring":
        what = f"{folder} is of a run, which says nothing of how long bringing workers together takes"
        raise ScenarioError(what, "training.resync", "0")
    run = OfRun(folder)
    run.fits({"system": table_said(table.system)})  # type: ignore[arg-type]
    return run


def _network(table: Training, workers: int, collective: str) -> Network:
    if isinstance(table.network, Replayed):
        return replayed(table, collective)
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
