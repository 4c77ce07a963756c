"""Estimates the processor time of a reproduction's training runs by running and timing a few steps of each kind.

The data are synthetic, of the same shape: the time of a step hardly depends on them. The first steps stand for all,
though some systems begin differently, and shared processors are slower.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    import torch

    from gradwire.scenarios.schema.job.training import Training
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.studies.reproduce.run_plan import PlannedRun
    from gradwire.training.data import Images, Text

ProgressCallback = Callable[[float, str], None]
TIMED_STEPS = 3
"""Steps that are timed, after a first untimed one, which compiles and fills caches."""
MAX_TEST_PICTURES = 10_000
"""Held-out pictures of CIFAR-10, the maximum that an evaluation uses."""
ASSUMED_CHARACTERS = 1_000_000
"""Assumed characters of a text that is not there to be measured; a tenth is held out."""


@dataclass(frozen=True)
class TrainingCost:
    """Processor seconds of a step, of evaluating one held-out sample, and of computing step times at other rates; on a
    GPU, wall-clock seconds."""

    step_s: float
    look_s: float
    rates_s: float

    def of(self, run: PlannedRun) -> float:
        """Return the processor seconds of a whole training run of this kind."""
        table = _table(run)
        steps = steps_of(run)
        looks = -(-steps // table.score_every) if table.score_every else 1
        return steps * self.step_s + looks * held_out_samples(table) * self.look_s + self.rates_s


def estimate_costs(runs: Sequence[PlannedRun], on_progress: ProgressCallback) -> dict[str, float]:
    """Return the processor seconds of each training run, by key. Takes seconds, a minute for the largest sets.

    on_progress : called with (fraction, message).

    Raises MissingExtraError if torch is not installed.
    """
    kinds: dict[str, list[PlannedRun]] = {}
    for run in runs:
        if run.trained:
            kinds.setdefault(_kind(run), []).append(run)
    data_by_shape: dict[tuple[object, ...], Images | Text] = {}
    seconds_by_key: dict[str, float] = {}
    for number, same_kind in enumerate(kinds.values()):
        on_progress(
            number / len(kinds), f"timing {number + 1} of {len(kinds)} kinds of training runs, {same_kind[0].setting}"
        )
        effort = _time_steps(same_kind[0], data_by_shape)
        seconds_by_key |= {run.key: effort.of(run) for run in same_kind}
    return seconds_by_key


def steps_of(run: PlannedRun) -> int:
    """Return the steps of a training run; 0 for a simulation. An epoch of pictures has the requested number of samples,
    or all of CIFAR-10 by default."""
    if not run.trained:
        return 0
    table, workers = _table(run), run.scenario.job[0].workers
    return table.steps or max(
        1, round(table.epochs * ((table.samples or 5 * MAX_TEST_PICTURES) // (workers * table.batch)))
    )


def held_out_samples(table: Training) -> int:
    """Return the number of held-out samples of an evaluation: pictures, or spans of a text."""
    from gradwire.training.scenario_checks import model_kind

    kind = model_kind(table)
    if kind.task == "images":
        return min(table.samples or MAX_TEST_PICTURES, MAX_TEST_PICTURES)
    text = Path(table.data)
    characters = text.stat().st_size if text.is_file() else ASSUMED_CHARACTERS
    return characters // 10 // (table.size or kind.size)


def _kind(run: PlannedRun) -> str:
    """Return a key that is equal for training runs whose steps take equally long."""
    tables = _tables(run.scenario)
    training = tables["training"]
    for name in ("steps", "epochs", "samples", "data", "score_every", "checkpoint_every", "model_seed", "data_seed"):
        training.pop(name, None)
    if isinstance(training.get("network"), dict):
        training["network"].pop("seed", None)
    tables.pop("seed", None)
    return json.dumps([tables, run.rates, run.computing], sort_keys=True)


def _tables(scenario: Scenario) -> dict[str, Any]:
    """Return a copy of a scenario's tables."""
    return json.loads(json.dumps(scenario.as_written()))  # type: ignore[no-any-return]


def _time_steps(run: PlannedRun, data_by_shape: dict[tuple[object, ...], Images | Text]) -> TrainingCost:
    import torch

    from gradwire.scenarios.loading.load import build_scenario
    from gradwire.studies.training.run import network_of
    from gradwire.training.build import data_of, device_of, trainer_of
    from gradwire.training.data import Text
    from gradwire.training.devices import deterministic
    from gradwire.training.scenario_checks import table_of

    tables: Json = _tables(run.scenario)
    count = run.scenario.job[0].workers * _table(run).batch
    tables["training"] |= {"data": "synthetic", "steps": steps_of(run), "samples": 4 * count}  # type: ignore[index]
    scenario = build_scenario(tables, run.name)
    table = table_of(scenario)
    torch.set_num_threads(1)
    shape = (table.model, table.size, table.augment, table.samples)
    if shape not in data_by_shape:
        data_by_shape[shape] = data_of(table)
    with ExitStack() as stack:
        stack.enter_context(deterministic(device := device_of(table)))
        network, _ = network_of(scenario, stack)
        trainer = trainer_of(scenario, data_by_shape[shape], network)
        row = trainer.step()
        step_s = _measure(lambda: [trainer.step() for _ in range(TIMED_STEPS)], device) / TIMED_STEPS
        # a first step may send nothing, such as one of local steps; its time is then that of all parameters
        all_bytes = 4 * sum(info.numel for info in trainer.infos)
        held_out = trainer.data.validation_batches()[0] if isinstance(trainer.data, Text) else trainer.data.test[1]
        look_s = _measure(trainer.score, device) / len(held_out)
    workers = trainer.recipe.workers
    return TrainingCost(
        step_s,
        look_s,
        _rates(run, scenario, *(each / workers or all_bytes for each in (row.sent_bytes, row.pulled_bytes))),
    )


def _rates(run: PlannedRun, scenario: Scenario, pushed: float, pulled: float) -> float:
    """Return the seconds of computing step times at other rates, if requested."""
    from gradwire.studies.training.step_time_model import step_times_at

    if not run.rates:
        return 0.0
    step_times_at(scenario, pushed, pulled, run.rates[:1], run.computing)  # compiles
    return _measure(lambda: step_times_at(scenario, pushed, pulled, run.rates, run.computing))


def _measure(work: Callable[[], object], device: torch.device | None = None) -> float:
    """Return the processor seconds of `work`; on a GPU, wall-clock seconds including its own work."""
    now: Callable[[], float] = time.process_time
    if device is not None and device.type != "cpu":
        from gradwire.training.devices import Stopwatch

        watch = Stopwatch(device, waits=True)
        now = lambda: watch() / 1e9  # noqa: E731
    began = now()
    work()
    return now() - began


def _table(run: PlannedRun) -> Training:
    assert run.scenario.training is not None
    return run.scenario.training


@dataclass(frozen=True)
class SettingCost:
    """The cost of a setting of a set of claims.

    runs, kept, begun : runs, of which finished already, and partly done.
    steps : of each, if they are training runs.
    least_s, most_s : processor seconds of one, by variant; None for simulations, which are not timed beforehand.
    left_s : of all that remains.
    """

    setting: str
    runs: int
    kept: int
    begun: int
    steps: int
    least_s: float | None
    most_s: float | None
    left_s: float | None


def costs_by_setting(
    runs: Sequence[PlannedRun], shares: dict[str, float], seconds: dict[str, float]
) -> list[SettingCost]:
    """Return runs by setting. `shares`: the completed share of each, `seconds`: the time of each as a whole, by key."""
    by_setting: dict[str, list[PlannedRun]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    settings = []
    for setting, runs_of_setting in by_setting.items():
        done = [shares[run.key] for run in runs_of_setting]
        run_seconds = [seconds[run.key] for run in runs_of_setting if run.key in seconds]
        left_s = sum((1 - shares[run.key]) * seconds.get(run.key, 0.0) for run in runs_of_setting)
        counts = len(done), sum(share == 1 for share in done), sum(0 < share < 1 for share in done)
        ends = min(run_seconds, default=None), max(run_seconds, default=None)
        cost = SettingCost(setting, *counts, steps_of(runs_of_setting[0]), *ends, left_s if run_seconds else None)
        settings.append(cost)
    return settings
