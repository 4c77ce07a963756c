"""Training runs over seeds: the same variants several times, with other initial parameters and data orders.

All variants share a seed's randomness, so that they can be compared in pairs: the remaining difference is due to the
variants, and its spread over seeds gives its uncertainty.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.schema.job.training import RandomLoss
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.validation.argument_checks import require_integer
from gradwire.studies.parallel.process_pool import Task, run_tasks
from gradwire.studies.training.run import train


class SeedOptions(NamedTuple):
    """A requested training run: its scenario, and its folder, if any."""

    scenario: Scenario
    place: Path | None


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """Return a scenario with a seed for initial parameters, data order, draws of reducers and network, and random
    losses. Raises ScenarioError if it has no training table, or the seed is not a whole number from 1."""
    seed = require_integer(seed, "of_seed(seed)", 1, ScenarioError)
    if scenario.training is None:
        raise ScenarioError("has no training table", scenario.called, "a table [training] (docs/training.md)")
    changed: dict[str, object] = {"model_seed": seed, "data_seed": seed}
    if isinstance(rule := scenario.training.network, RandomLoss):
        changed["network"] = rule.model_copy(update={"seed": seed})
    return scenario.model_copy(update={"seed": seed, "training": scenario.training.model_copy(update=changed)})


def train_in_processes(
    wanted: Sequence[SeedOptions],
    jobs: int,
    until: float | None = None,
    threads: int = 1,
    told: Callable[[float, str], object] = lambda share, words: None,
) -> Iterator[tuple[int, TrainingResult]]:
    """Train `jobs` scenarios at a time, each in a separate process. Yields (index in `wanted`, training result) of each
    run that has ended.

    until, threads : as for `gradwire.train`.
    told : called with (fraction, message).

    Raises ScenarioError or TraceError or ResultError if one of them cannot be trained. Raises GradwireError if a
    process was killed.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        folders = [Path(folder) / str(n) if run.place is None else run.place for n, run in enumerate(wanted)]
        works = [Task(str(n), _train_into, (run.scenario, folders[n], until, threads)) for n, run in enumerate(wanted)]
        told(0.0, f"0/{len(works)} training runs")
        for done, ended in enumerate(run_tasks(works, jobs), 1):
            number = int(ended.work.key)
            scenario = wanted[number].scenario
            if ended.error is not None:
                raise ended.error
            if ended.lost:
                where = f"{scenario.name} {scenario.policy_name}, seed {scenario.seed}"
                raise GradwireError(f"its process was {ended.lost}", where, "a training run that finishes")
            told(done / len(works), f"{done}/{len(works)} training runs, {scenario.policy_name}, seed {scenario.seed}")
            yield number, TrainingResult.read(folders[number])


def _train_into(scenario: Scenario, folder: Path, until: float | None, threads: int) -> None:
    train(scenario, folder, until=until, threads=threads)
