"""Efforts: what the trainings of a reproduction take of a processor, told before they are run.

Some steps of each kind of training are made and timed here, on made-up data of the same shape, since how long a step
takes depends on model, batch, network and what is sent, and hardly on what is learned. The alternative, figures of
another machine, would be wrong on this one. It stays an estimate: the first steps stand for all, though some systems
begin otherwise than they go on, and processors that others use as well are slower.
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

    from gradwire.analysis.claims.plan import Run
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.scenarios.schema.training import Training
    from gradwire.training.data import Images, Text
    from gradwire.training.trainer import Trainer

Told = Callable[[float, str], None]
TIMED = 3
"""Steps that are timed, after a first one that is not: it compiles, and fills caches."""
PICTURES = 10_000
"""Held-out pictures of CIFAR-10, at most so many of which a training looks at."""
TEXT = 1_000_000
"""Characters of a text that is not there to be measured, of which a tenth is held out."""


@dataclass(frozen=True)
class Effort:
    """Processor seconds of a step, of a look at one held-out sample, and of what a training's steps would take at
    other rates; on a GPU, of the wall."""

    step_s: float
    look_s: float
    rates_s: float

    def of(self, run: Run) -> float:
        """Processor seconds of a whole training of this kind."""
        table = _table(run)
        steps = steps_of(run)
        looks = -(-steps // table.score_every) if table.score_every else 1
        return steps * self.step_s + looks * held_out(table) * self.look_s + self.rates_s


def efforts(runs: Sequence[Run], told: Told) -> dict[str, float]:
    """Processor seconds of each run that is a training, by key. Takes seconds, a minute for the largest sets.

    told : hears the share that is done and words.

    Raises
    ------
    MissingExtraError
        torch is not installed.
    """
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if run.trained:
            kinds.setdefault(_kind(run), []).append(run)
    read: dict[tuple[object, ...], Images | Text] = {}
    found: dict[str, float] = {}
    for number, alike in enumerate(kinds.values()):
        told(number / len(kinds), f"timing {number + 1} of {len(kinds)} kinds of trainings, {alike[0].setting}")
        effort = _timed(alike[0], read)
        found |= {run.key: effort.of(run) for run in alike}
    return found


def steps_of(run: Run) -> int:
    """Steps of a training; 0 of a simulation. Of an epoch of pictures as many as are asked for, of all that there are
    in CIFAR-10 if it is not said."""
    if not run.trained:
        return 0
    table, workers = _table(run), run.scenario.job[0].workers
    return table.steps or max(1, round(table.epochs * ((table.samples or 5 * PICTURES) // (workers * table.batch))))


def held_out(table: Training) -> int:
    """Samples that a training looks at without learning from them: pictures, or spans of a text."""
    from gradwire.training.asked import model_kind

    kind = model_kind(table)
    if kind.task == "images":
        return min(table.samples or PICTURES, PICTURES)
    text = Path(table.data)
    characters = text.stat().st_size if text.is_file() else TEXT
    return characters // 10 // (table.size or kind.size)


def _kind(run: Run) -> str:
    """What trainings have in common of which one takes as long for a step as another."""
    tables = _tables(run.scenario)
    training = tables["training"]
    for name in ("steps", "epochs", "samples", "data", "score_every", "checkpoint_every", "model_seed", "data_seed"):
        training.pop(name, None)
    if isinstance(training.get("network"), dict):
        training["network"].pop("seed", None)
    tables.pop("seed", None)
    return json.dumps([tables, run.rates, run.computing], sort_keys=True)


def _tables(scenario: Scenario) -> dict[str, Any]:
    """A copy of what a scenario says."""
    return json.loads(json.dumps(scenario.as_written()))  # type: ignore[no-any-return]


def _timed(run: Run, read: dict[tuple[object, ...], Images | Text]) -> Effort:
    import torch

    from gradwire.learn import network_of
    from gradwire.scenarios.load import build_scenario
    from gradwire.training.asked import table_of
    from gradwire.training.build import data_of, device_of, trainer_of
    from gradwire.training.devices import repeatable

    tables: Json = _tables(run.scenario)
    count = run.scenario.job[0].workers * _table(run).batch
    tables["training"] |= {"data": "synthetic", "steps": steps_of(run), "samples": 4 * count}  # type: ignore[index]
    scenario = build_scenario(tables, run.name)
    table = table_of(scenario)
    torch.set_num_threads(1)
    shape = (table.model, table.size, table.augment, table.samples)
    if shape not in read:
        read[shape] = data_of(table)
    with ExitStack() as stack:
        stack.enter_context(repeatable(device := device_of(table)))
        network, _ = network_of(scenario, stack)
        trainer = trainer_of(scenario, read[shape], network)
        row = trainer.step()
        step_s = _taken(lambda: [trainer.step() for _ in range(TIMED)], device) / TIMED
        look_s = _taken(trainer.score, device) / _looked_at(trainer)
    workers = trainer.recipe.workers
    return Effort(step_s, look_s, _rates(run, scenario, row.sent_bytes / workers, row.pulled_bytes / workers))


def _rates(run: Run, scenario: Scenario, pushed: float, pulled: float) -> float:
    """Seconds in which it is worked out what steps would take at other rates, if that is asked for."""
    from gradwire.pricing import times_at

    if not run.rates:
        return 0.0
    times_at(scenario, pushed, pulled, run.rates[:1], run.computing)  # compiles
    return _taken(lambda: times_at(scenario, pushed, pulled, run.rates, run.computing))


def _looked_at(trainer: Trainer) -> int:
    """Held-out samples of its data."""
    from gradwire.training.data import Text

    data = trainer.data
    return len(data.held_out()[0]) if isinstance(data, Text) else len(data.test[1])


def _taken(work: Callable[[], object], device: torch.device | None = None) -> float:
    """Processor seconds; on a GPU, which is waited for, seconds on the wall."""
    now: Callable[[], float] = time.process_time
    if device is not None and device.type != "cpu":
        from gradwire.training.devices import Stopwatch

        watch = Stopwatch(device, waits=True)
        now = lambda: watch() / 1e9  # noqa: E731
    began = now()
    work()
    return now() - began


def _table(run: Run) -> Training:
    assert run.scenario.training is not None
    return run.scenario.training


@dataclass(frozen=True)
class Listed:
    """What a setting of a set of claims would run.

    Attributes
    ----------
    runs, kept, begun : of them how many are there already, and how many are begun.
    steps : of each, if they are trainings.
    least_s, most_s : processor seconds of one, by arm; None of simulations, which are not timed beforehand.
    left_s : of all that is not there.
    """

    setting: str
    runs: int
    kept: int
    begun: int
    steps: int
    least_s: float | None
    most_s: float | None
    left_s: float | None


def listed(runs: Sequence[Run], shares: dict[str, float], seconds: dict[str, float]) -> list[Listed]:
    """Runs by setting. `shares`: how much of each is done, `seconds`: what each takes as a whole, by key."""
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    found = []
    for setting, some in by_setting.items():
        done = [shares[run.key] for run in some]
        each = [seconds[run.key] for run in some if run.key in seconds]
        left = sum((1 - shares[run.key]) * seconds.get(run.key, 0.0) for run in some)
        found.append(
            Listed(
                setting, len(some), sum(share == 1 for share in done), sum(0 < share < 1 for share in done),
                steps_of(some[0]), min(each, default=None), max(each, default=None), left if each else None,
            )
        )  # fmt: skip
    return found
