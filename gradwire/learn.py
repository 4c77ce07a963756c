"""Training over a network: what `gradwire train` does; `train` is for programs.

It takes a trainer (`gradwire.training`), and hands it the network that the scenario asks for, which may be the
simulator's (`gradwire.sim.session`) or the testbed's (`gradwire.emu.session`). What has been trained is in a folder at
every look at held-out data and every checkpoint, and is gone on with from the last checkpoint. A network that remembers
what it carried rests where the scenario has checkpoints, with a folder or without: so neither looking nor keeping
changes what is trained.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.notebook import heard
from gradwire.scenarios.errors import GradwireError, MissingExtraError, ResultError, ScenarioError
from gradwire.scenarios.given import number_within, path_of, unfit, whole_number
from gradwire.scenarios.gone_on_with import folder_for
from gradwire.scenarios.interrupt import deferred
from gradwire.scenarios.learned import CHECKPOINT, SUMMARY, TABLES, Learned
from gradwire.scenarios.load import scenario_of
from gradwire.scenarios.output import replaced
from gradwire.scenarios.record import command_line, scenario_text

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.training.data import Images, Text
    from gradwire.training.network import Network
    from gradwire.training.simulated_turns import SimulatedTurns
    from gradwire.training.trainer import Trainer

SCORES = 10
"""Looks at data that is not learned from in a training, and rests of its network, unless the scenario says."""


def train(
    scenario: Scenario | str | Path, out: str | Path | None = None, *, until: float | None = None, threads: int = 1,
    progress: Callable[[float, str], object] | None = None, data: Images | Text | None = None,
) -> Learned:  # fmt: skip
    """Train the model of a scenario's table [training] over its network.

        learned = gradwire.train("train-tiny", "results/tiny")
        learned.to_pandas("scores")             # accuracy by step, bytes and simulated time

    Parameters
    ----------
    scenario : as loaded, or its name or file, then without a policy.
    out : folder of the training; what is there of the same scenario is gone on with.
    until : accuracy with which it is over, seen when data is looked at that is not learned from.
    threads : of torch.
    progress : called with the share that is done, and words.
    data : what the scenario says is learned from, where it has been read already.

    Raises
    ------
    ScenarioError, TraceError
        It cannot be trained; before anything is.
    ResultError
        `out` holds something else, or a training by modules that have been edited since, or cannot be written.
    MissingExtraError
        torch is not installed.
    KeyboardInterrupt
        Ctrl-C; what was trained until the last checkpoint is in `out`.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "capture") from error
    from gradwire.training.asked import asks_of_layers, table_of
    from gradwire.training.build import data_of, device_of, fits_layers, trainer_of
    from gradwire.training.devices import described, repeatable
    from gradwire.training.going_on import inputs_of, refuse_another
    from gradwire.training.kept import Kept

    scenario = scenario_of(scenario, "train(scenario)")
    threads = whole_number(threads, "train(threads)", 1, ScenarioError)
    if until is not None:
        until = number_within(until, "train(until)", 0.0, 1.0, ScenarioError)
    if progress is not None and not callable(progress):
        raise unfit(progress, "train(progress)", "a function that is called, or None", ScenarioError)
    table, text = table_of(scenario), scenario_text(scenario)
    device = device_of(table)
    if asks_of_layers(scenario):
        fits_layers(scenario)
    place = None if out is None else path_of(out, "train(out)", "a folder", ResultError)
    if place is not None:
        refuse_another(place, scenario, text)
        if (kept := _over(place, until)) is not None:
            return kept
    inputs = inputs_of(scenario, data is not None)  # now: somebody may edit a module while it is trained by
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        if place is not None:
            stack.enter_context(folder_for(place))
        data = data_of(table, scenario.folder) if data is None else data
        network, engine = network_of(scenario, stack)
        unlike = stack.enter_context(repeatable(device))
        trainer = trainer_of(scenario, data, network)
        if table.keep_missing:
            trainer.network = Kept(trainer.network)
        read = {"inputs": inputs, **_replayed(scenario)}

        def ran_on() -> dict[str, Any]:
            return {**engine(), **read, "device": described(device, unlike, trainer.slower)}

        return _trained(scenario, trainer, place, text, until, progress, ran_on)


def check_trainings(variants: Iterable[Scenario]) -> None:
    """Whether there is what trainings are made from: models, data, predictors, the trainings that they replay, devices,
    and reducers of the user's own. Torch is asked only where it knows more: of devices that are not the CPU, for such
    reducers, of a model's layers where bounds or the times of a trace are by layer, and of pictures smaller than a
    model is meant for; of data it is seen whether they are there.

    Raises
    ------
    ScenarioError, TraceError, ResultError
        There is not.
    MissingExtraError
        torch is not installed, which knows.
    """
    for variant in variants:
        if (table := variant.training) is None:
            continue
        from gradwire.scenarios.schema.training import UserReducer
        from gradwire.training.asked import (
            asks_of_layers,
            model_kind,  # nothing that a scenario without trainings should load
            refuse_ahead,
        )
        from gradwire.training.own_model import is_own

        model_kind(table, variant.folder)
        elsewhere = table.device not in ("cpu", "auto")
        own = isinstance(table.reducer, UserReducer) or is_own(table.model) or is_own(table.data)
        by_layer = asks_of_layers(variant)
        if elsewhere or own or by_layer:
            try:
                from gradwire.training.build import device_of, fits_layers, reducer_of
            except ModuleNotFoundError as error:
                raise MissingExtraError("torch", "capture") from error
            if elsewhere:
                device_of(table)
            reducer_of(table, variant.folder)
            if by_layer:
                fits_layers(variant)
        try:
            refuse_ahead(variant)
        except ModuleNotFoundError as error:
            raise MissingExtraError("torch", "capture") from error


def auto_device() -> str:
    """What "auto" is here: "cuda" or "cpu". Raises MissingExtraError if torch is not installed, which knows."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "capture") from error
    return "cuda" if torch.cuda.is_available() else "cpu"


def _trained(
    scenario: Scenario, trainer: Trainer, place: Path | None, text: str, until: float | None,
    told: Callable[[float, str], object] | None, ran_on: Callable[[], dict[str, Any]],
) -> Learned:  # fmt: skip
    """Train, from where its folder is, and keep at every score and every rest. `ran_on`: device and engine, and what
    was read."""
    import torch

    from gradwire.training.kept import Kept
    from gradwire.training.trainer import Score

    table = scenario.training
    assert table is not None
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    began, before = time.process_time(), dict[str, Any]()
    if place is not None and (place / CHECKPOINT).is_file():
        tables, before = _resumed(place, trainer)
        if isinstance(trainer.network, Kept):
            trainer.network.resume(place, trainer.done)
    first = trainer.done
    tenth = max(1, -(-trainer.recipe.steps // SCORES))
    every = table.score_every or tenth
    rest = (table.checkpoint_every or tenth) if trainer.rests else every

    def learned() -> Learned:
        ran = ran_on()
        devices = _devices(before.get("devices", []), first, ran.pop("device"))
        cpu_s = float(before.get("cpu_s", 0.0)) + time.process_time() - began
        return Learned({**_summary(scenario, trainer), "cpu_s": cpu_s, "devices": devices, **ran}, tables)

    def keep(rests: bool) -> Learned:
        made = learned()
        if place is None:
            if rests:  # as for a checkpoint
                trainer.rest()
            return made
        try:
            made.write(place, text, trainer.network.write if isinstance(trainer.network, Kept) else None)
            if rests:
                with replaced(place / CHECKPOINT) as partial:  # last: what is gone on with has all of its rows
                    torch.save(trainer.state_dict(), partial)
        except OSError as error:
            raise ResultError(f"cannot be written: {error.strerror}", str(place), "a folder with room") from None
        return made

    made = None
    with heard(f"train {scenario.name} {scenario.policy_name}", told) as hears:
        for row in trainer.run(every, until, hears):
            if isinstance(row, Score):
                tables["scores"].append(asdict(row))
            else:
                tables["steps"].append(asdict(row))
                turns = trainer.last_turns()
                numbers = [turn["turn"] for turn in turns] if turns else [None] * len(trainer.senders)
                tables["lost"] += [
                    {"step": row.step, "turn": number, "worker": worker, "tensor": tensor, "lost": share}
                    for number, worker, shares in zip(numbers, trainer.senders, trainer.lost, strict=True)
                    for tensor, share in enumerate(shares)
                    if share
                ]
                tables["turns"] += [{"step": row.step, **turn} for turn in turns]
                if trainer.due(every):
                    continue  # its score comes next, and is kept with it
            rests = trainer.due(rest)
            if rests or isinstance(row, Score):
                with deferred():
                    made = keep(rests)
    return made or learned()  # what is in the folder, to the last digit


def _replayed(scenario: Scenario) -> dict[str, Any]:
    """Of a replay: what it is of, and what its scenario says in vain."""
    from gradwire.scenarios.schema.training import Replayed
    from gradwire.training.earlier import unheeded

    network = None if scenario.training is None else scenario.training.network
    if not isinstance(network, Replayed):
        return {}
    return {"replayed": {"folder": network.replay, "otherwise": unheeded(Path(network.replay), scenario)}}


def network_of(
    scenario: Scenario, stack: ExitStack
) -> tuple[Network | SimulatedTurns | None, Callable[[], dict[str, Any]]]:
    """The simulator's or the testbed's, if that is what is asked for, until `stack` closes; and what there is to say of
    what it runs on."""
    from gradwire.scenarios.schema.training import PLAYED

    assert scenario.training is not None
    if scenario.training.network not in PLAYED:
        return None, dict
    from gradwire.traces.trace import load_trace
    from gradwire.training.network import Spread
    from gradwire.training.simulated import Plays, Simulated

    times = load_trace(scenario.job[0].trace) if scenario.training.compute == "trace" else None
    phase = scenario.job[0].phase
    if not getattr(scenario.training.system, "together", True):
        from gradwire.sim.turns import Turns
        from gradwire.training.simulated_turns import SimulatedTurns

        turns = Turns(scenario)
        stack.callback(turns.close)
        return SimulatedTurns(turns, times, phase), dict
    plays: Plays
    if scenario.training.network == "emulated":
        from gradwire.emu.session import Session as Emulated

        plays = emulated = Emulated(scenario)
        stack.callback(emulated.close)
        engine = lambda: {"engine": emulated.engine}  # noqa: E731
    else:
        from gradwire.sim.session import Session

        plays = session = Session(scenario)
        stack.callback(session.close)
        engine = dict
    network = Simulated(plays, times, phase)
    return Spread(network, scenario.seed) if scenario.training.spread else network, engine


def _devices(before: Sequence[dict[str, Any]], first: int, now: dict[str, Any]) -> list[dict[str, Any]]:
    """On what a training's steps were made, in order: those that it has been on, and from step `first` on this one,
    also where another one had made some that no checkpoint has behind it."""
    before = [each for each in before if each["from_step"] < first]
    *others, last = before or [{}]
    if (last.get("device"), last.get("name")) != (now["device"], now["name"]):
        return [*before, {"from_step": first, **now}]
    words = {key: [*dict.fromkeys([*last.get(key, ()), *now[key]])] for key in ("not_deterministic", "slower")}
    return [*others, {"from_step": last["from_step"], **now, **words}]


def _over(place: Path, until: float | None) -> Learned | None:
    """A training that is over: one whose checkpoint is gone after its last step, or one that is as good as is asked."""
    checkpoint = (place / CHECKPOINT).is_file()
    if not (place / SUMMARY).is_file() or (checkpoint and until is None):
        return None
    kept = Learned.read(place)
    done = kept.summary["steps_done"]
    if not checkpoint and done == kept.summary["steps"]:
        return kept
    tables = _until(kept, done)  # of a later step there may be some, if it was killed
    good = until is not None and any(row["accuracy"] >= until for row in tables["scores"])
    return Learned(kept.summary, tables) if good else None


def _resumed(place: Path, trainer: Trainer) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Bring a trainer to where its folder's checkpoint is; the rows until there, and the summary."""
    import torch

    try:
        trainer.load_state_dict(torch.load(place / CHECKPOINT, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file makes torch raise almost anything, with advice that is none here
        said = f" ({error.what})" if isinstance(error, GradwireError) else ", which is damaged, or no checkpoint of it"
        raise ResultError(
            f"cannot be gone on with{said}", str(place / CHECKPOINT), "a new folder, or what the training left there"
        ) from None
    kept = Learned.read(place)
    if len(kept.steps) < trainer.done:
        what = f"has {len(kept.steps)} of the {trainer.done} steps that its checkpoint has behind it"
        raise ResultError(what, str(place), "a new folder, or what the training left there")
    return _until(kept, trainer.done), dict(kept.summary)


def _until(kept: Learned, done: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of so many steps."""
    last = {"scores": done}  # a score is taken after its step
    return {
        name: [dict(row) for row in table if row["step"] <= last.get(name, done - 1)]
        for name, table in kept.tables.items()
    }


def _summary(scenario: Scenario, trainer: Trainer) -> dict[str, Any]:
    import torch

    from gradwire import __version__
    from gradwire.scenarios.checks.effect import keys_without_effect
    from gradwire.training.served.mp2 import Mp2Trainer

    return {
        "name": scenario.name, "policy": scenario.policy_name, "label": scenario.policy_label, "seed": scenario.seed,
        "steps_done": trainer.done, "steps": trainer.recipe.steps, "workers": trainer.recipe.workers,
        "parameters": sum(info.numel for info in trainer.infos),
        "encode_time": trainer.recipe.encode_time,
        **({"pushed_in_full": trainer.full} if isinstance(trainer, Mp2Trainer) else {}),
        "tensors": [info.name for info in trainer.infos],
        "versions": {"gradwire": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": command_line(),
        "encode_cpu_s": trainer.encode_ns / 1e9, "server_cpu_s": trainer.server_ns / 1e9,
        **({"notes": notes} if (notes := keys_without_effect(scenario)) else {}),
    }  # fmt: skip


def target_of(words: str | None) -> float | None:
    """The accuracy of "accuracy=0.9".

    Raises
    ------
    ScenarioError
        It is no such words.
    """
    if words is None:
        return None
    name, _, value = words.partition("=")
    try:
        accuracy = float(value)
    except ValueError:
        accuracy = -1.0
    if name.strip() != "accuracy" or not 0 < accuracy <= 1:
        raise ScenarioError(f"is no target: {words}", "--until", "such as accuracy=0.9")
    return accuracy
