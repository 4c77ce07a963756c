"""Builds the trainer that a scenario's table [training] declares, with model, data, recipe, reducer and network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.user_code_errors import class_file
from gradwire.scenarios.schema.base import Mistakes
from gradwire.scenarios.schema.job.training import PACKET_NETWORKS, RandomLoss, ReplayedLosses, Training, UserReducer
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.devices import pick_device
from gradwire.traces.trace import load_trace
from gradwire.training import user_code
from gradwire.training.data import Dealer, Images, Text, images, text
from gradwire.training.exchange.overlapped_averaging import OverlappedTrainer
from gradwire.training.loss_replay.loss_recording import RecordedLossNetwork
from gradwire.training.loss_replay.recorded_run import is_of_run, table_properties
from gradwire.training.loss_replay.result_loss_network import ResultLossNetwork
from gradwire.training.networks.builtin_networks import Ideal, Network, Random
from gradwire.training.networks.packet_steps import check_exchange, tensor_mismatch_error
from gradwire.training.networks.simulated_async import SimulatedTurns
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection
from gradwire.training.reducers.none import Dense
from gradwire.training.scenario_checks import check_system, model_kind, sample_size, table_of
from gradwire.training.systems.base import System
from gradwire.training.trainer import Trainer, tensors_of
from gradwire.training.user_code import DATA, MODEL, UserModel, is_own
from gradwire.workload.loss_bounds import check_layers
from gradwire.workload.replay import CapturedIterations


def data_of(table: Training, folder: Path | None = None) -> Images | Text:
    """Return the training data; `folder` holds user-defined modules. Raises ScenarioError or TraceError if there is no
    such model or data, or the model takes no samples of that size."""
    kind = model_kind(table, folder)
    if is_own(table.data):
        data = user_code.load_user_data(table, folder)
        if not isinstance(kind, UserModel) and isinstance(data, Images) != (kind.task == "images"):
            kind_of_data = "an Images" if isinstance(data, Images) else "a Text"
            task = "pictures" if kind.task == "images" else "texts"
            raise ScenarioError(f"{table.data} makes {kind_of_data}, and {table.model} learns {task}", DATA, task)
        return data
    size = sample_size(table, kind)
    if kind.task == "images":
        return images(table.data, size, table.augment, table.samples)
    return text(table.data, size)


def device_of(table: Training) -> torch.device:
    """Return the device that a training run computes on. Raises ScenarioError if this machine lacks it."""
    return pick_device(table.device, "training.device", ScenarioError)


def trainer_of(scenario: Scenario, data: Images | Text, network: Network | SimulatedTurns | None = None) -> Trainer:
    """Return the trainer of a scenario, on its device.

    data : on any device.
    network : used if the scenario says "simulated" or "emulated".

    Raises ScenarioError or TraceError if the scenario cannot be trained.
    """
    table, job = table_of(scenario), scenario.job[0]
    device = device_of(table)
    check_exchange(job)
    system: System | None = table.system  # type: ignore[assignment]
    if system is not None:
        check_system(system, table, job)
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
    is_user_model = isinstance(kind, UserModel)
    file = kind.file(model) if isinstance(kind, UserModel) else class_file(type(model))
    if is_user_model or is_own(table.data):
        user_code.check_model_and_data(model, data, table.model, file, MODEL if is_user_model else DATA)
    if network is None or table.network not in PACKET_NETWORKS:
        network = _network(table, job.workers, recipe.collective)
    carrier: Any = network  # a SimulatedTurns if the system's workers push one by one
    reducer = reducer_of(table, scenario.folder)
    try:
        if system is not None:
            trainer: Trainer = system.trainer(model, data, recipe, reducer, carrier)
        elif job.exchange.kind == "overlapped":
            trainer = _overlapped(scenario, model, data, recipe, carrier)
        else:
            trainer = Trainer(model, data, recipe, reducer, carrier, recorded=not is_user_model)
    except ValueError as error:
        where = {"ring": "training.reducer", "overlapped": "job.exchange"}.get(job.exchange.kind, "job.fill")
        raise ScenarioError(str(error), "training.system" if system else where) from None
    if is_user_model:
        user_code.report_model_errors(trainer, table.model, file)
    return trainer


def check_layers_match(scenario: Scenario) -> None:
    """Raise ScenarioError or TraceError if the model does not fit the trace whose times are used, or the bounds by
    layer. Of the last layer, whose size depends on the number of classes, only the presence is checked."""
    table, job = table_of(scenario), scenario.job[0]
    kind = model_kind(table, scenario.folder)
    with torch.random.fork_rng(devices=[]):
        two_classes, three_classes = (tensors_of(kind.build(classes)) for classes in (2, 3))
    layers, subject = 1 + max(info.layer for info in two_classes), f"the model, {table.model}"
    if table.compute == "trace":
        times = load_trace(job.trace)
        CapturedIterations(times, job.phase)
        model_sizes = [None if a.numel != b.numel else a.numel for a, b in zip(two_classes, three_classes, strict=True)]
        trace_sizes = [tensor.numel for tensor in times.tensors]
        if len(model_sizes) != len(trace_sizes) or any(
            a not in (None, b) for a, b in zip(model_sizes, trace_sizes, strict=True)
        ):
            raise tensor_mismatch_error(times)
        layers, subject = len(times.layers), f"trace {times.name}"
    check_layers(job, layers, subject, "job")


def _overlapped(scenario: Scenario, model: nn.Module, data: Images | Text, recipe: Recipe, network: Network) -> Trainer:
    """Return the trainer of overlapped averaging, in which everything arrives and takes no time."""
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
    """Return the reducer with error feedback and momentum correction around it; `folder` holds user-defined modules.
    Raises ScenarioError if it is a user-defined class that is not a reducer or does not go with these wrappers; all
    other reducers were validated with the table."""
    reducer: Reducer = table.reducer or Dense()  # type: ignore[assignment]
    if isinstance(table.reducer, UserReducer):
        reducer = user_code.load_user_reducer(table.reducer, folder)
        try:
            table.fits_reducer(reducer)
        except Mistakes as error:
            (mistake,) = error.mistakes
            raise ScenarioError(mistake.what, f"training.{mistake.path}", mistake.expected) from None
    if table.error_feedback:
        reducer = ErrorFeedback(reducer=reducer)
    if table.momentum_correction:
        reducer = MomentumCorrection(reducer=reducer, momentum=table.momentum_correction)
    return reducer


def replay_network(table: Training, collective: str) -> RecordedLossNetwork | ResultLossNetwork:
    """Return the network that replays the losses of an earlier training run or of a simulated or emulated run. Raises
    ResultError if the folder holds neither, or is damaged. Raises ScenarioError if it holds a run, and the training run
    has a system, or resynchronises the workers of a ring."""
    assert isinstance(table.network, ReplayedLosses)
    folder = Path(table.network.replay)
    if not is_of_run(folder):
        return RecordedLossNetwork(folder, table)
    if table.resync and collective == "ring":
        what = f"{folder} is the Result of a run, without a time for resynchronising workers"
        raise ScenarioError(what, "training.resync", "0")
    run = ResultLossNetwork(folder)
    run.fits({"system": table_properties(table.system)})  # type: ignore[arg-type]
    return run


def _network(table: Training, workers: int, collective: str) -> Network:
    if isinstance(table.network, ReplayedLosses):
        return replay_network(table, collective)
    if not isinstance(table.network, RandomLoss):
        return Ideal()
    rule = table.network
    if collective == "ring" and (rule.layers != "all" or rule.magnitudes != "all"):
        raise ScenarioError(
            "chooses packets by layer or magnitude, which the packets of a ring mix", "training.network", "neither"
        )
    if rule.worker is not None and rule.worker >= workers:
        raise ScenarioError(f"is worker {rule.worker} of {workers}", "training.network.worker", f"below {workers}")
    return Random(
        rule.loss, rule.seed, rule.layers, rule.magnitudes, rule.burst, rule.quota, rule.last, rule.way, rule.worker
    )
