"""Parallel simulations of a comparison, each in a separate process, for `compare --jobs`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.interrupt import mark_caught
from gradwire.studies.parallel.process_pool import Task, run_tasks

if TYPE_CHECKING:
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario


class SimulationOutcome(NamedTuple):
    """The outcome of one scenario: its Result, and the reason if it stalled."""

    result: Result
    stalled: str


def simulate_in_processes(
    scenarios: Sequence[Scenario],
    jobs: int,
    threads: int = 1,
    max_wall_s: float | None = None,
    told: Callable[[float, str], object] = lambda share, words: None,
) -> tuple[list[SimulationOutcome], bool]:
    """Simulate scenarios, `jobs` at a time. Returns their outcomes, in order, and True unless Ctrl-C was pressed; after
    Ctrl-C, those that were finished.

    threads, max_wall_s : of each, as for `simulate`.
    told : called with (fraction, message).

    Raises ScenarioError or TraceError if one of them is invalid. Raises GradwireError if a process was killed.
    """
    from gradwire.jit.engine_cache import is_cached
    from gradwire.result_store.result import Result
    from gradwire.sim.engine.specialization import engine_fingerprint

    outcomes: dict[int, SimulationOutcome] = {}
    finished = True
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        works = [
            Task(
                str(n),
                _simulate_into,
                (scenario, Path(folder) / str(n), threads, max_wall_s),
                engine_fingerprint(scenario),
            )
            for n, scenario in enumerate(scenarios)
        ]
        told(0.0, f"0/{len(works)} runs")
        try:
            for ended in run_tasks(works, jobs, is_cached):
                number = int(ended.work.key)
                if ended.error is not None:
                    raise ended.error
                if ended.lost:
                    where = f"{scenarios[number].name} {scenarios[number].policy_name}"
                    raise GradwireError(f"its process was {ended.lost}", where, "a run that finishes")
                outcomes[number] = SimulationOutcome(Result.read(Path(folder) / ended.work.key), ended.value)
                told(len(outcomes) / len(works), f"{len(outcomes)}/{len(works)} runs, {scenarios[number].policy_name}")
        except KeyboardInterrupt:
            mark_caught()
            finished = False
    return [outcomes[number] for number in sorted(outcomes)], finished


def _simulate_into(scenario: Scenario, folder: Path, threads: int, max_wall_s: float | None) -> str:
    """Simulate and write; return the reason if it stalled."""
    from gradwire.scenarios.errors import ScenarioNote
    from gradwire.sim.simulate import Stalled, simulate

    warnings.simplefilter("ignore", ScenarioNote)
    try:
        simulate(scenario, threads=threads, max_wall_s=max_wall_s).write(folder)
    except Stalled as stop:
        stop.result.write(folder)
        return str(stop)
    return ""
