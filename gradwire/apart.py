"""Simulations apart: those of a comparison side by side, each in a process of its own, for `compare --jobs`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradwire.processes import Work, play
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.interrupt import caught

if TYPE_CHECKING:
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario


class Outcome(NamedTuple):
    """What has come of one scenario: its Result, and why it has stalled, if it has."""

    result: Result
    stalled: str


def simulate_apart(
    scenarios: Sequence[Scenario],
    jobs: int,
    threads: int = 1,
    max_wall_s: float | None = None,
    told: Callable[[float, str], object] = lambda share, words: None,
) -> tuple[list[Outcome], bool]:
    """Simulate scenarios, `jobs` at a time. Returns what has come of them, in their order, and whether there was no
    Ctrl-C; after one, those that were through by then.

    Parameters
    ----------
    threads, max_wall_s : of each, as for `simulate`.
    told : called with the share that is done, and words.

    Raises
    ------
    ScenarioError, TraceError
        One of them cannot be run.
    GradwireError
        A process was killed.
    """
    from gradwire.components.engines import is_kept
    from gradwire.scenarios.result import Result
    from gradwire.sim.fabric.specialise import identity_of

    found: dict[int, Outcome] = {}
    finished = True
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        works = [
            Work(str(n), _into, (each, Path(folder) / str(n), threads, max_wall_s), identity_of(each))
            for n, each in enumerate(scenarios)
        ]
        told(0.0, f"0/{len(works)} runs")
        try:
            for ended in play(works, jobs, is_kept):
                number = int(ended.work.key)
                if ended.error is not None:
                    raise ended.error
                if ended.lost:
                    where = f"{scenarios[number].name} {scenarios[number].policy_name}"
                    raise GradwireError(f"its process was {ended.lost}", where, "a run that ends")
                found[number] = Outcome(Result.read(Path(folder) / ended.work.key), ended.value)
                told(len(found) / len(works), f"{len(found)}/{len(works)} runs, {scenarios[number].policy_name}")
        except KeyboardInterrupt:
            caught()
            finished = False
    return [found[number] for number in sorted(found)], finished


def _into(scenario: Scenario, place: Path, threads: int, max_wall_s: float | None) -> str:
    """Simulate and write; returns why it has stalled, if it has."""
    from gradwire.scenarios.errors import ScenarioNote
    from gradwire.sim.simulate import Stalled, simulate

    warnings.simplefilter("ignore", ScenarioNote)
    try:
        simulate(scenario, threads=threads, max_wall_s=max_wall_s).write(place)
    except Stalled as stop:
        stop.result.write(place)
        return str(stop)
    return ""
