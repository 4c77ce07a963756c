"""Checks the table, inputs and resumable folder of a scenario's training run before it starts. These checks need no
torch, or little of it.

A folder may be resumed by the same scenario, with the same modules and files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradwire.result_store.provenance import ChangedInput, changed_inputs, file_digest, input_digests
from gradwire.result_store.training_result import CHECKPOINT, EVENTS_FOLDER, PRICES, SCENARIO, SUMMARY, TABLES
from gradwire.scenarios.errors import ResultError, ScenarioError, TraceError, shorten
from gradwire.scenarios.lazily import torch
from gradwire.scenarios.loading.toml import read_toml
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.job.training import PACKET_NETWORKS, RandomLoss, ReplayedLosses, Training
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.models import ModelKind, find_model
from gradwire.training.exchange.lossy_ring import check_ring
from gradwire.training.loss_replay import recorded_run
from gradwire.training.loss_replay.recorded_run import MISSING, ROUNDS, SHOWN
from gradwire.training.networks.packet_steps import check_exchange, packet_payload
from gradwire.training.parameter_server.predictor_file import BUNDLED_FILES, UNPREDICTED, read_predictor
from gradwire.training.recipe import check_samples
from gradwire.training.reducers.base import Reducer
from gradwire.training.user_code import DATA, MODEL, UserModel, check_user_function, is_own, user_model_of
from gradwire.workload.incremental.iteration_player import single_iteration_scenario
from gradwire.workload.incremental.turn_player import check_async_workers

PREDICTOR = "training.system.predictor"
"""Path in a scenario that names a predictor's file."""


def table_of(scenario: Scenario) -> Training:
    """Return the table [training] of a scenario with one job. Raises ScenarioError if it is missing, or there
    is not exactly one job."""
    if scenario.training is None:
        raise ScenarioError("has no training table", scenario.display_name, "a table [training] (docs/training.md)")
    if len(scenario.job) != 1:
        raise ScenarioError(
            f"has {len(scenario.job)} jobs",
            f"{scenario.display_name}: job",
            expected="one, whose workers train the model",
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
    if kind.accepts_size(size):
        return size
    if kind.task == "images":
        what, expected = f"{size} pixels of a side are too few for {table.model}", f"at least {kind.sizes[0]}"
    else:
        what, expected = f"{size} tokens are too many for {table.model}", f"at most {kind.sizes[1]}"
    raise ScenarioError(what, "training.size", expected)


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
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random state as it is
            kind.build(2)
    if kind.task == "images" and table.samples is not None and not is_user_data:
        check_samples(table.samples, job.workers, table.batch)
    if job.exchange.kind == "ring" and isinstance(table.reducer, Reducer):
        payload = int((job.transport or scenario.transport).payload)
        try:
            check_ring(table.reducer, job.workers, payload, job.fill, job.pull_fill)
        except ValueError as error:
            raise ScenarioError(str(error), "training.reducer") from None
    if table.data != "synthetic" and not is_user_data:
        _data_files(table, kind)
    if table.network in PACKET_NETWORKS and job.exchange.kind != "overlapped":
        packet_payload(single_iteration_scenario(scenario, "train(scenario)", beside=table.network == "simulated"))
    system: Any = table.system
    if system is not None:
        check_system(system, table, job)
        if not system.together and table.network == "simulated":
            check_async_workers(scenario)
    predictor = getattr(system, "predictor", None)
    if predictor is not None and predictor not in UNPREDICTED:
        read_predictor(system.kind, predictor)
    if isinstance(table.network, ReplayedLosses):
        folder = Path(table.network.replay)
        if recorded_run.is_of_run(folder):
            from gradwire.training.loss_replay.result_loss_network import ResultLossNetwork

            ResultLossNetwork(folder).fits(recorded_run.properties_of(scenario))
        else:
            recorded_run.check_replay(folder, scenario)


def _data_files(table: Training, kind: ModelKind | UserModel) -> Iterable[Path]:
    """Return the files of a data set. Raises TraceError if there are none."""
    if kind.task == "images":
        from gradwire.traces.datasets.images import image_files

        return image_files(table.data)
    from gradwire.traces.datasets.text import text_files

    return text_files(table.data)


def check_system(system: Any, table: Training, job: Job) -> None:
    """Raise ScenarioError if a job does not suit a system, which needs servers whose answers all arrive."""
    if job.exchange.kind != "parameter_server":
        what = f"{job.exchange.kind} is not supported by {system.kind}"
        raise ScenarioError(what, "job.exchange", "parameter_server")
    if job.pull_bound:
        what = f"{job.pull_bound} would lose what servers send back"
        raise ScenarioError(what, "job.pull_bound", f"0: {system.kind} needs all of it")
    if isinstance(table.network, RandomLoss) and table.network.way != "push":
        what = f"{table.network.way} would lose what servers send back"
        raise ScenarioError(what, "training.network.way", f"push: {system.kind} needs all of that")
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


def inputs_of(scenario: Scenario, own_data: bool = False) -> dict[str, str]:
    """Return the SHA-256 (hex) of every input file of a training run, by its path in the scenario. These are
    `input_digests` and the files of data and predictors; pictures in folders by class, which are many, are left out.

    own_data : the data was passed in, not read from files.
    """
    return {**input_digests(scenario), **_digests(scenario, own_data)}


def _digests(scenario: Scenario, own_data: bool) -> dict[str, str]:
    files = {path: file for path, file in _input_files(scenario, own_data).items() if file.is_file()}
    return {path: file_digest(file) for path, file in files.items()}


def _input_files(scenario: Scenario, own_data: bool) -> dict[str, Path]:
    table, files_by_path = table_of(scenario), dict[str, Path]()
    if table.data != "synthetic" and not own_data and not is_own(table.data):
        root = Path(table.data)
        for file in _data_files(table, model_kind(table)):
            files_by_path[f"{DATA}: {file.name if file == root else file.relative_to(root)}"] = file
    system: Any = table.system
    predictor = getattr(system, "predictor", None)
    if predictor is not None and predictor not in UNPREDICTED and (system.kind, str(predictor)) not in BUNDLED_FILES:
        files_by_path[PREDICTOR] = Path(predictor)
    return files_by_path


def _changed(scenario: Scenario, digests: Mapping[str, str], own_data: bool) -> Iterator[ChangedInput]:
    """Yield the input files whose digests have changed."""
    # modules of user-defined data are among the inputs of any scenario
    prefixes = (PREDICTOR,) if is_own(table_of(scenario).data) else (DATA, PREDICTOR)
    own_digests = {path: digest for path, digest in digests.items() if path.partition(":")[0] in prefixes}
    yield from changed_inputs(scenario, {path: digest for path, digest in digests.items() if path not in own_digests})
    files, now = _input_files(scenario, own_data), _digests(scenario, own_data)
    for path, digest in own_digests.items():
        where, _, name = path.partition(": ")
        if now.get(path) != digest and not (own_data and where == DATA):
            yield ChangedInput(path, where, files.get(path, Path(name or path)), path in now)


def check_resumable(folder: Path, scenario: Scenario, text: str, own_data: bool = False) -> None:
    """Raise if a folder holds something else than a training run of a scenario, which is written as `text`. Raises
    ResultError if it is not a folder, or holds something else: a training run of another scenario, or one made with
    other modules or input files than there are now. Older training runs recorded no inputs, so these are not
    checked."""
    if folder.exists() and not folder.is_dir():
        raise ResultError("is a file", str(folder), "a folder")
    known_names = {SCENARIO, SUMMARY, PRICES, MISSING, ROUNDS, *(f"{name}.parquet" for name in TABLES)}
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    names -= {EVENTS_FOLDER}
    if not names:
        return
    scenario_file = folder / SCENARIO
    if not scenario_file.is_file() or not (CHECKPOINT in names or names <= known_names):
        raise ResultError("holds something else", str(folder), "a new folder, or that of a training run")
    before, now = _without_device(scenario_file.read_text(encoding="utf-8", errors="replace")), _without_device(text)
    if before != now:
        what = f"holds a training run of another scenario{_change_text(before, now)}"
        raise ResultError(what, str(folder), f"as {scenario_file} says, or a new folder")
    for _, name, file, still in _changed(scenario, recorded_run.summary_of(folder).get("inputs", {}), own_data):
        what = f"another {file.name} ({name})" if still else f"{file.name}, which is missing now ({name})"
        raise ResultError(f"was made with {what}", str(folder), "the file as it was, or a new folder")


def _without_device(text: str) -> dict[str, Any]:
    """Return a scenario without its training device: a training run may be resumed on another one."""
    try:
        tables = read_toml(text)
        tables.get("training", {}).pop("device", None)
    except (tomllib.TOMLDecodeError, AttributeError):  # edited by hand
        return {"": text}
    return tables


def _change_text(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the first keys in which two scenarios differ, as old -> new."""
    if "" in before:
        return ""
    changes = [f"{path} {_value(old)} -> {_value(new)}" for path, old, new in _changes("", before, now)]
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return f": {', '.join(changes[:SHOWN])}{more}"


def _changes(path: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, old, new) of all differences; None if a key is missing."""
    if before == now:
        return
    if isinstance(before, dict | None) and isinstance(now, dict | None):
        before, now = before or {}, now or {}
        for name in {**before, **now}:
            yield from _changes(f"{path}.{name}" if path else name, before.get(name), now.get(name))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes(f"{path}[{number}]", old, new)
    else:
        yield path, before, now


def _value(value: Any) -> str:
    return "nothing" if value is None else shorten(value, 40)
