"""Reseeds training scenarios, so that variants can be compared in pairs, and trains several in parallel processes.

All variants share a seed's randomness, so that they can be compared in pairs: the remaining difference is due to the
variants, and its spread over seeds gives its uncertainty.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gradwire.result_store.training_result import EVENTS_FOLDER, TrainingResult
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.job.training import RandomLoss
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.validation.argument_checks import require_integer
from gradwire.studies.parallel.process_pool import Task, completed
from gradwire.studies.training.run import train


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """Return a scenario with a seed for initial parameters, data order, draws of reducers and network, and random
    losses. Raises ScenarioError if it has no training table, or the seed is not a whole number from 1."""
    seed = require_integer(seed, "with_seed(seed)", 1, ScenarioError)
    if scenario.training is None:
        raise ScenarioError("has no training table", scenario.display_name, "a table [training] (docs/training.md)")
    changed: dict[str, object] = {"model_seed": seed, "data_seed": seed}
    if isinstance(rule := scenario.training.network, RandomLoss):
        changed["network"] = rule.model_copy(update={"seed": seed})
    return scenario.model_copy(update={"seed": seed, "training": scenario.training.model_copy(update=changed)})


def train_in_processes(
    wanted: Sequence[tuple[Scenario, Path | None]],
    jobs: int,
    until: float | None = None,
    threads: int = 1,
    on_progress: Callable[[float, str], object] = lambda share, words: None,
    log: Sequence[str] = (),
) -> Iterator[tuple[int, TrainingResult]]:
    """Train `jobs` scenarios at a time, each in a separate process and into its folder, if it has one. Yields (index in
    `wanted`, training result) of each run that has ended.

    until, threads, log : as for `gradwire.train`.
    on_progress : called with (fraction, message).

    Raises ScenarioError or TraceError or ResultError if one of them cannot be trained. Raises GradwireError if a
    process was killed.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-") as temporary:
        folders = [folder or Path(temporary) / str(n) for n, (_, folder) in enumerate(wanted)]
        names = [f"{scenario.policy_name}, seed {scenario.seed}" for scenario, _ in wanted]
        logs = (log, [f"{each}:{each}" if each == EVENTS_FOLDER else each for each in log])  # not in the temporary one
        works = [
            Task(
                str(n),
                _train_into,
                (scenario, folders[n], until, threads, logs[folder is None]),
                name=f"{scenario.name} {names[n]}",
            )
            for n, (scenario, folder) in enumerate(wanted)
        ]
        on_progress(0.0, f"0/{len(works)} training runs")
        for done, (key, _) in enumerate(completed(works, jobs, "a training run that finishes"), 1):
            on_progress(done / len(works), f"{done}/{len(works)} training runs, {names[int(key)]}")
            yield int(key), TrainingResult.read(folders[int(key)])


def _train_into(scenario: Scenario, folder: Path, until: float | None, threads: int, log: Sequence[str]) -> None:
    train(scenario, folder, until=until, threads=threads, log=log)
