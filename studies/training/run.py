"""`train` trains the model of a scenario over its simulated or emulated network, and writes or resumes the run's
folder.

A trainer (`gradwire.training`) receives the network of the scenario, which may be the simulator's
(`gradwire.sim.sessions.session`) or the testbed's (`gradwire.emu.session`). The folder is written at every evaluation
and checkpoint, and a run is resumed from the last checkpoint. A network with state comes to rest where the scenario has
checkpoints, with a folder or without: so neither evaluations nor saving change the outcome.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.folders.resumable_folder import created_folder
from gradwire.result_store.provenance import command_line, scenario_text
from gradwire.result_store.training_result import CHECKPOINT, SUMMARY, TABLES, TrainingResult
from gradwire.scenarios.errors import GradwireError, MissingExtraError, ResultError, ScenarioError, import_extra
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.loading.load import as_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.validation.argument_checks import (
    require_in_range,
    require_integer,
    require_path,
    wrong_type_error,
)
from gradwire.studies.notebook import heard
from gradwire.studies.run_logs.targets import Logs, check_logs
from gradwire.studies.run_logs.training_log import TrainingLog, log_training

if TYPE_CHECKING:
    from gradwire.training.data import Images, Text
    from gradwire.training.networks.builtin_networks import Network
    from gradwire.training.networks.simulated_async import SimulatedTurns
    from gradwire.training.trainer import Trainer

DEFAULT_EVALUATIONS = 10
"""Default number of evaluations in a training run, and of rests of its network."""


def train(
    scenario: Scenario | str | Path,
    out: str | Path | None = None,
    *,
    until: float | None = None,
    threads: int = 1,
    progress: Callable[[float, str], object] | None = None,
    data: Images | Text | None = None,
    log: Logs = (),
) -> TrainingResult:
    """Train the model of a scenario's table [training] over its network.

        learned = gradwire.train("train-tiny", "results/tiny")
        learned.to_pandas("scores")             # accuracy by step, bytes and simulated time

    scenario : a Scenario, or its name or file, then without a policy.
    out : output directory; an existing run of the same scenario is resumed.
    until : stop at this validation accuracy, checked at each evaluation.
    threads : of torch.
    progress : called with (fraction, message).
    data : the scenario's training data, if it is already loaded.
    log : logs to write, such as "tensorboard", "tensorboard:DIR", "wandb" or "wandb:PROJECT"; or functions called
        with (name of the run, step, values by name).

    Raises ScenarioError, TraceError if the scenario cannot be trained; raised before training.
    Raises ResultError if `out` holds something else, or a training run by modules that have been edited since, or
    cannot be written.
    Raises MissingExtraError if torch, or the package of a log, is not installed.
    Raises KeyboardInterrupt on Ctrl-C; the last checkpoint is in `out`.
    """
    torch = import_extra("torch", "capture")
    from gradwire.training.build import check_layers_match, data_of, device_of, trainer_of
    from gradwire.training.devices import describe_device, deterministic
    from gradwire.training.loss_replay.loss_recording import LossRecording
    from gradwire.training.scenario_checks import check_resumable, inputs_of, needs_matching_layers, table_of

    scenario = as_scenario(scenario, "train(scenario)")
    threads = require_integer(threads, "train(threads)", 1, ScenarioError)
    if until is not None:
        until = require_in_range(until, "train(until)", 0.0, 1.0, ScenarioError)
    if progress is not None and not callable(progress):
        raise wrong_type_error(progress, "train(progress)", "a function that is called, or None", ScenarioError)
    targets = check_logs(log, "train(log)")
    table, text = table_of(scenario), scenario_text(scenario)
    device = device_of(table)
    if needs_matching_layers(scenario):
        check_layers_match(scenario)
    folder = None if out is None else require_path(out, "train(out)", "a folder", ResultError)
    if folder is not None:
        check_resumable(folder, scenario, text)
        if (finished := _finished_result(folder, until)) is not None:
            log_training(finished, text, folder, targets, until)
            return finished
    inputs = inputs_of(scenario, data is not None)  # now, before a module is edited during the run
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(created_folder(folder))
        data = data_of(table, scenario.folder) if data is None else data
        network, engine = network_of(scenario, stack)
        not_deterministic = stack.enter_context(deterministic(device))
        trainer = trainer_of(scenario, data, network)
        if table.keep_missing:
            trainer.network = LossRecording(trainer.network)
        inputs_read = {"inputs": inputs, **_replay_details(scenario)}

        def environment() -> dict[str, Any]:
            return {**engine(), **inputs_read, "device": describe_device(device, not_deterministic, trainer.slower)}

        identity = {"name": scenario.name, "policy": scenario.policy_name, "seed": scenario.seed}
        logs = TrainingLog(targets, identity, text, folder, until)
        return _train(scenario, trainer, folder, text, until, progress, environment, logs)


def check_trainings(variants: Iterable[Scenario]) -> None:
    """Raise ScenarioError, TraceError or ResultError if an input of training runs is missing or invalid.

    Inputs are models, data, predictors, replayed runs, devices and user-defined reducers. torch is used only if needed:
    for devices other than the CPU, user-defined code, a model's layers if bounds or trace times are by layer, and
    pictures smaller than a model is meant for. Of data, only the presence is checked. Raises MissingExtraError if torch
    is needed, but not installed.
    """
    for variant in variants:
        if (table := variant.training) is None:
            continue
        from gradwire.scenarios.schema.job.training import UserReducer
        from gradwire.training.scenario_checks import (
            check_prerequisites,
            model_kind,  # lazy: scenarios without training should not load it
            needs_matching_layers,
        )
        from gradwire.training.user_code import is_own

        model_kind(table, variant.folder)
        needs_device = table.device not in ("cpu", "auto")
        is_user_defined = isinstance(table.reducer, UserReducer) or is_own(table.model) or is_own(table.data)
        by_layer = needs_matching_layers(variant)
        if needs_device or is_user_defined or by_layer:
            import_extra("torch", "capture")
            from gradwire.training.build import check_layers_match, device_of, reducer_of

            if needs_device:
                device_of(table)
            reducer_of(table, variant.folder)
            if by_layer:
                check_layers_match(variant)
        try:
            check_prerequisites(variant)
        except ModuleNotFoundError as error:
            raise MissingExtraError("torch", "capture") from error


def auto_device() -> str:
    """Return the device that "auto" means here, "cuda" or "cpu". MissingExtraError if torch is not installed."""
    return "cuda" if import_extra("torch", "capture").cuda.is_available() else "cpu"


def _train(
    scenario: Scenario,
    trainer: Trainer,
    folder: Path | None,
    text: str,
    until: float | None,
    on_progress: Callable[[float, str], object] | None,
    environment: Callable[[], dict[str, Any]],
    logs: TrainingLog,
) -> TrainingResult:
    """Train, resuming from the folder if possible, and save at every score and every rest. `environment`: returns
    device, engine and inputs."""
    import torch

    from gradwire.training.loss_replay.loss_recording import LossRecording
    from gradwire.training.trainer import Score

    table = scenario.training
    assert table is not None
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    began, before = time.process_time(), dict[str, Any]()
    if folder is not None and (folder / CHECKPOINT).is_file():
        tables, before = _resume(folder, trainer)
        if isinstance(trainer.network, LossRecording):
            trainer.network.resume(folder, trainer.done)
    first = trainer.done
    tenth = max(1, -(-trainer.recipe.steps // DEFAULT_EVALUATIONS))
    score_every = table.score_every or tenth
    rest = (table.checkpoint_every or tenth) if trainer.has_persistent_state else score_every

    def current_result() -> TrainingResult:
        details = environment()
        devices = _devices(before.get("devices", []), first, details.pop("device"))
        cpu_s = float(before.get("cpu_s", 0.0)) + time.process_time() - began
        return TrainingResult({**_summary(scenario, trainer), "cpu_s": cpu_s, "devices": devices, **details}, tables)

    def save(rests: bool) -> TrainingResult:
        result = current_result()
        if folder is None:
            if rests:  # as for a checkpoint
                trainer.come_to_rest()
            return result
        try:
            result.write(folder, text, trainer.network.write if isinstance(trainer.network, LossRecording) else None)
            if rests:
                with atomic_replace(folder / CHECKPOINT) as partial:  # last, so that a checkpoint has all of its rows
                    torch.save(trainer.state_dict(), partial)
        except OSError as error:
            raise ResultError(f"cannot be written: {error.strerror}", str(folder), "a folder with free space") from None
        return result

    result = None
    with heard(f"train {scenario.name} {scenario.policy_name}", on_progress) as progress, logs.closed_at_end(tables):
        logs.update(tables)
        for row in trainer.run(score_every, until, progress):
            if isinstance(row, Score):
                tables["scores"].append(asdict(row))
                tables["predictions"] += [{"step": row.step, **each} for each in trainer.prediction_rows()]
            else:
                tables["steps"].append(asdict(row))
                turns = trainer.turn_rows()
                numbers = [turn["turn"] for turn in turns] if turns else [None] * len(trainer.senders)
                tables["lost"] += [
                    {"step": row.step, "turn": number, "worker": worker, "tensor": tensor, "lost": share}
                    for number, worker, shares in zip(numbers, trainer.senders, trainer.lost, strict=True)
                    for tensor, share in enumerate(shares)
                    if share
                ]
                tables["turns"] += [{"step": row.step, **turn} for turn in turns]
            logs.update(tables)
            if not isinstance(row, Score) and trainer.due(score_every):
                continue  # its score comes next, and is saved with it
            rests = trainer.due(rest)
            if rests or isinstance(row, Score):
                with defer_interrupt():
                    result = save(rests)
    return result or current_result()  # exactly what is in the folder


def _replay_details(scenario: Scenario) -> dict[str, Any]:
    """Return the source of a replay, and its network settings without effect."""
    from gradwire.scenarios.schema.job.training import ReplayedLosses
    from gradwire.training.loss_replay.recorded_run import settings_without_effect

    network = None if scenario.training is None else scenario.training.network
    if not isinstance(network, ReplayedLosses):
        return {}
    return {
        "replayed": {"folder": network.replay, "otherwise": settings_without_effect(Path(network.replay), scenario)}
    }


def network_of(
    scenario: Scenario, stack: ExitStack
) -> tuple[Network | SimulatedTurns | None, Callable[[], dict[str, Any]]]:
    """Return the simulator's or the testbed's network, if requested, open until `stack` closes, and a function that
    describes its engine."""
    from gradwire.scenarios.schema.job.training import PACKET_NETWORKS

    assert scenario.training is not None
    if scenario.training.network not in PACKET_NETWORKS:
        return None, dict
    from gradwire.traces.trace import load_trace
    from gradwire.training.networks.builtin_networks import EvenLoss
    from gradwire.training.networks.simulated import IterationNetwork, Simulated

    times = load_trace(scenario.job[0].trace) if scenario.training.compute == "trace" else None
    phase = scenario.job[0].phase
    if not getattr(scenario.training.system, "together", True):
        from gradwire.sim.sessions.async_session import AsyncSession
        from gradwire.training.networks.simulated_async import SimulatedTurns

        turns = AsyncSession(scenario)
        stack.callback(turns.close)
        return SimulatedTurns(turns, times, phase), dict
    plays: IterationNetwork
    if scenario.training.network == "emulated":
        from gradwire.emu.session import Session as Emulated

        plays = emulated = Emulated(scenario)
        stack.callback(emulated.close)
        engine = lambda: {"engine": emulated.engine}  # noqa: E731
    else:
        from gradwire.sim.sessions.session import Session

        plays = session = Session(scenario)
        stack.callback(session.close)
        engine = dict
    network = Simulated(plays, times, phase)
    return EvenLoss(network, scenario.seed) if scenario.training.spread else network, engine


def _devices(before: Sequence[dict[str, Any]], first: int, now: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the devices of a training run's steps, in order, with this one from step `first` on. Steps of another
    device that no checkpoint covers are dropped."""
    before = [device for device in before if device["from_step"] < first]
    *others, last = before or [{}]
    if (last.get("device"), last.get("name")) != (now["device"], now["name"]):
        return [*before, {"from_step": first, **now}]
    lists = {key: [*dict.fromkeys([*last.get(key, ()), *now[key]])] for key in ("not_deterministic", "slower")}
    return [*others, {"from_step": last["from_step"], **now, **lists}]


def _finished_result(folder: Path, until: float | None) -> TrainingResult | None:
    """Return a training run that is finished: without a checkpoint after its last step, or good enough for `until`."""
    checkpoint = (folder / CHECKPOINT).is_file()
    if not (folder / SUMMARY).is_file() or (checkpoint and until is None):
        return None
    result = TrainingResult.read(folder)
    done = result.summary["steps_done"]
    if not checkpoint and done == result.summary["steps"]:
        return result
    tables = _rows_until(result, done)  # a killed run may have rows of later steps
    good = until is not None and any(row["accuracy"] >= until for row in tables["scores"])
    return TrainingResult(result.summary, tables) if good else None


def _resume(folder: Path, trainer: Trainer) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Restore a trainer from its folder's checkpoint; return the rows until there, and the summary."""
    import torch

    try:
        trainer.load_state_dict(torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file makes torch raise almost anything, with misleading advice
        reason = (
            f" ({error.what})"
            if isinstance(error, GradwireError)
            else ": it is damaged, or not a checkpoint of this run"
        )
        raise ResultError(
            f"cannot be resumed{reason}",
            str(folder / CHECKPOINT),
            "a new folder, or the unchanged files of the training run",
        ) from None
    result = TrainingResult.read(folder)
    if len(result.steps) < trainer.done:
        what = f"has {len(result.steps)} of the {trainer.done} steps of its checkpoint"
        raise ResultError(what, str(folder), "a new folder, or the unchanged files of the training run")
    return _rows_until(result, trainer.done), dict(result.summary)


def _rows_until(result: TrainingResult, done: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the first `done` steps."""
    last = {"scores": done}  # a score is taken after its step
    return {
        name: [dict(row) for row in table if row["step"] <= last.get(name, done - 1)]
        for name, table in result.tables.items()
    }


def _summary(scenario: Scenario, trainer: Trainer) -> dict[str, Any]:
    import torch

    from gradwire.scenarios.validation.effect import keys_without_effect
    from gradwire.scenarios.version import VERSION

    return {
        "name": scenario.name,
        "policy": scenario.policy_name,
        "label": scenario.policy_label,
        "seed": scenario.seed,
        "steps_done": trainer.done,
        "steps": trainer.recipe.steps,
        "workers": trainer.recipe.workers,
        "parameters": sum(info.numel for info in trainer.infos),
        "encode_time": trainer.recipe.encode_time,
        "tensors": [info.name for info in trainer.infos],
        "versions": {"gradwire": VERSION, "torch": torch.__version__, "python": platform.python_version()},
        "command": command_line(),
        "encode_cpu_s": trainer.encode_ns / 1e9,
        "server_cpu_s": trainer.server_ns / 1e9,
        **({"notes": notes} if (notes := keys_without_effect(scenario)) else {}),
    }


def parse_target(words: str | None) -> float | None:
    """Return the accuracy of "accuracy=0.9". Raises ScenarioError if the text has another form."""
    if words is None:
        return None
    name, _, value = words.partition("=")
    try:
        accuracy = float(value)
    except ValueError:
        accuracy = -1.0
    if name.strip() != "accuracy" or not 0 < accuracy <= 1:
        raise ScenarioError(f"is not a target: {words}", "--until", "such as accuracy=0.9")
    return accuracy
