"""The command `gradwire tune`, which searches for the sizes of a scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import Json, PolicyName, ScenarioName, Set, Threads, TraceName, Trust, overrides_from_options
from gradwire.cli.terminal import for_people

if TYPE_CHECKING:
    from gradwire.studies.tune.scheduler_tuning import TuningResult


@for_people
def cmd_tune(
    scenario: ScenarioName,
    policy: PolicyName = None,
    trace: TraceName = None,
    set_: Set = None,
    job: Annotated[int, typer.Option(min=0, max=10_000, help="Index of the job whose scheduler is tuned.")] = 0,
    trials: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of runs, including that of the unchanged scenario.")
    ] = 20,
    threads: Threads = 1,
    out: Annotated[Path | None, typer.Option(help="Write the scenario with the best pair to this new file.")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Find ByteScheduler's partition and credit by Bayesian optimisation over simulated runs, as its paper does over
    real ones."""
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.scenarios.loading.load import load_scenario
    from gradwire.studies.tune.scheduler_tuning import Trial, TuningEnded, tune

    if out is not None:
        refuse_unwritable(out, file=True)
    chosen = load_scenario(scenario, set=overrides_from_options(set_, trace), policy=policy)

    def show(number: int, trial: Trial) -> None:
        partition, credit, time = trial.texts()
        typer.echo(f"{number}/{trials}: {partition}, credit {credit}: {time}", err=True)

    try:
        tuned = tune(chosen, job=job, trials=trials, threads=threads, progress=None if as_json else show)
    except TuningEnded as ended:
        _show(ended.tuned, out, as_json)
        raise
    _show(tuned, out, as_json)


def _show(tuned: TuningResult, out: Path | None, as_json: bool) -> None:
    """Print the trials, and write the scenario with the best of them."""
    from gradwire.result_store.folders.output_folder import new_file
    from gradwire.result_store.provenance import scenario_text

    typer.echo(json.dumps(tuned.as_dict()) if as_json else str(tuned))
    if out is not None:
        with new_file(out) as partial:
            partial.write_text(scenario_text(tuned.scenario), encoding="utf-8")
