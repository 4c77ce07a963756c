"""Simulates the scenarios of a comparison in parallel processes, for `gradwire compare --jobs`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ScenarioNote
from gradwire.scenarios.interrupt import mark_caught
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.parallel.process_pool import Task, completed


class SimulationOutcome(NamedTuple):
    """The outcome of one scenario: its Result, and the reason if it stalled."""

    result: Result
    stalled: str


def simulate_in_processes(
    scenarios: Sequence[Scenario],
    jobs: int,
    threads: int = 1,
    max_wall_s: float | None = None,
    on_progress: Callable[[float, str], object] = lambda share, words: None,
) -> tuple[list[SimulationOutcome], bool]:
    """Simulate scenarios, `jobs` at a time. Returns their outcomes, in order, and True unless Ctrl-C was pressed; after
    Ctrl-C, those that were finished.

    threads, max_wall_s : of each, as for `simulate`.
    on_progress : called with (fraction, message).

    Raises ScenarioError or TraceError if one of them is invalid. Raises GradwireError if a process was killed.
    """
    from gradwire.sim.engine.specialization import engine_fingerprint

    outcomes: dict[int, SimulationOutcome] = {}
    finished = True
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        works = [
            Task(
                str(n),
                simulate_into,
                (scenario, Path(folder) / str(n), threads, max_wall_s),
                engine_fingerprint(scenario),
                f"{scenario.name} {scenario.policy_name}",
            )
            for n, scenario in enumerate(scenarios)
        ]
        on_progress(0.0, f"0/{len(works)} runs")
        try:
            for key, stalled in completed(works, jobs, "a run that finishes"):
                outcomes[int(key)] = SimulationOutcome(Result.read(Path(folder) / key), stalled)
                done, policy = len(outcomes), scenarios[int(key)].policy_name
                on_progress(done / len(works), f"{done}/{len(works)} runs, {policy}")
        except KeyboardInterrupt:
            mark_caught()
            finished = False
    return [outcomes[number] for number in sorted(outcomes)], finished


def simulate_into(scenario: Scenario, folder: Path, threads: int = 1, max_wall_s: float | None = None) -> str:
    """Simulate and write the Result; return the reason if it stalled."""
    from gradwire.sim.simulate import Stalled, simulate

    warnings.simplefilter("ignore", ScenarioNote)
    try:
        simulate(scenario, threads=threads, max_wall_s=max_wall_s).write(folder)
    except Stalled as stop:
        stop.result.write(folder)
        return str(stop)
    return ""
