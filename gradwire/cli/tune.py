"""The command that searches for the sizes of a scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import Json, PolicyName, ScenarioName, Set, Threads, TraceName, Trust, overrides_of
from gradwire.cli.terminal import for_people

if TYPE_CHECKING:
    from gradwire.tuning import Tuned


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    app.command("tune", epilog="Example: gradwire tune schedulers --policy bytescheduler --trials 12")(cmd_tune)


@for_people
def cmd_tune(
    scenario: ScenarioName,
    policy: PolicyName = None,
    trace: TraceName = None,
    set_: Set = None,
    job: Annotated[int, typer.Option(min=0, max=10_000, help="Number of the job whose scheduler is tuned.")] = 0,
    trials: Annotated[int, typer.Option(min=1, max=1000, help="Runs, that of the scenario as it is included.")] = 20,
    threads: Threads = 1,
    out: Annotated[Path | None, typer.Option(help="Write the scenario with the best pair to this new file.")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Find ByteScheduler's partition and credit by Bayesian optimisation over simulated runs, as its paper does over
    real ones."""
    from gradwire.scenarios.load import load_scenario
    from gradwire.scenarios.output import refuse_unwritable
    from gradwire.tuning import Trial, TuningEnded, tune

    if out is not None:
        refuse_unwritable(out, file=True)
    chosen = load_scenario(scenario, set=overrides_of(set_, trace), policy=policy)

    def show(number: int, trial: Trial) -> None:
        partition, credit, time = trial.texts()
        typer.echo(f"{number}/{trials}: {partition}, credit {credit}: {time}", err=True)

    try:
        found = tune(chosen, job=job, trials=trials, threads=threads, progress=None if as_json else show)
    except TuningEnded as ended:
        _show(ended.tuned, out, as_json)
        raise
    _show(found, out, as_json)


def _show(found: Tuned, out: Path | None, as_json: bool) -> None:
    """Print what was tried, and write the scenario with the best of it."""
    from gradwire.scenarios.output import new_file
    from gradwire.scenarios.record import scenario_text

    typer.echo(json.dumps(found.as_dict()) if as_json else str(found))
    if out is not None:
        with new_file(out) as partial:
            partial.write_text(scenario_text(found.scenario), encoding="utf-8")
