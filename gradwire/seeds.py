"""Trainings over seeds: the same arms several times, each time from other initial parameters and in another order.

Of a seed all arms have the same, so that they can be compared in pairs: what is left of a difference is what the arms
differ in, and by how much it changes from seed to seed says what it is worth.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gradwire.learn import train
from gradwire.processes import Work, play
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.given import whole_number
from gradwire.scenarios.learned import Learned
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.schema.training import RandomLoss


class Wanted(NamedTuple):
    """A training that is wanted: of which scenario, into which folder, if into any."""

    scenario: Scenario
    place: Path | None


def of_seed(scenario: Scenario, seed: int) -> Scenario:
    """A scenario whose training has the initial parameters, the order of data, the draws of the reducers and of the
    network, and the losses by a rule, of a seed.

    Raises
    ------
    ScenarioError
        It says nothing of training, or the seed is no whole number from 1 on.
    """
    seed = whole_number(seed, "of_seed(seed)", 1, ScenarioError)
    if scenario.training is None:
        raise ScenarioError("says nothing of training", scenario.called, "a table [training] (docs/training.md)")
    changed: dict[str, object] = {"model_seed": seed, "data_seed": seed}
    if isinstance(rule := scenario.training.network, RandomLoss):
        changed["network"] = rule.model_copy(update={"seed": seed})
    return scenario.model_copy(update={"seed": seed, "training": scenario.training.model_copy(update=changed)})


def train_apart(
    wanted: Sequence[Wanted], jobs: int, until: float | None = None, threads: int = 1,
    told: Callable[[float, str], object] = lambda share, words: None,
) -> Iterator[tuple[int, Learned]]:
    """Train, `jobs` at a time, each in a process of its own; yields (number in `wanted`, what came of it) of each that
    is over.

    Parameters
    ----------
    until, threads : as for `gradwire.train`.
    told : called with the share that is done, and words.

    Raises
    ------
    ScenarioError, TraceError, ResultError
        One of them cannot be trained.
    GradwireError
        A process was killed.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        places = [Path(folder) / str(n) if each.place is None else each.place for n, each in enumerate(wanted)]
        works = [
            Work(str(n), _into, (each.scenario, places[n], until, threads)) for n, each in enumerate(wanted)
        ]  # fmt: skip
        told(0.0, f"0/{len(works)} trainings")
        for done, ended in enumerate(play(works, jobs), 1):
            number = int(ended.work.key)
            scenario = wanted[number].scenario
            if ended.error is not None:
                raise ended.error
            if ended.lost:
                where = f"{scenario.name} {scenario.policy_name}, seed {scenario.seed}"
                raise GradwireError(f"its process was {ended.lost}", where, "a training that ends")
            told(done / len(works), f"{done}/{len(works)} trainings, {scenario.policy_name}, seed {scenario.seed}")
            yield number, Learned.read(places[number])


def _into(scenario: Scenario, place: Path, until: float | None, threads: int) -> None:
    train(scenario, place, until=until, threads=threads)
