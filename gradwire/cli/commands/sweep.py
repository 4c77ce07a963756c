"""Defines the commands `gradwire sweep`, `recommend` and `tune`, which run many scenarios.

They run scenarios along axes, search the best settings of one, and optimise a scheduler's partition and credit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli import options
from gradwire.cli.live_page import current_page
from gradwire.cli.terminal import for_people, progress

if TYPE_CHECKING:
    from gradwire.studies.sweep.outcome import Sweep
    from gradwire.studies.tune.scheduler_tuning import TuningResult

MOST_FAILURES = 10
"""Maximum number of failures printed."""


sweep_names = options.complete_from("gradwire.scenarios.loading.load", "list_sweeps")
ParallelRuns = Annotated[
    int | None,
    typer.Option("--jobs", min=1, max=100_000, help="Parallel runs; as many as processors and memory allow if absent."),
]


@for_people
def cmd_sweep(
    source: Annotated[
        str, typer.Argument(metavar="SWEEP", help="A sweep file, or a name of the library.", autocompletion=sweep_names)
    ],
    engine: Annotated[
        str,
        typer.Option(
            help="local: processes of this machine; ray: tasks of a Ray cluster.",
            autocompletion=options.complete_words("local", "ray"),
        ),
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Ray cluster, such as ray://head:10001; one is started here if absent.")
    ] = None,
    jobs: ParallelRuns = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output directory of records, tables and plots; an earlier sweep in it is resumed."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat failed points.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="End with the first point that fails.")] = False,
    max_wall: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wall-clock limit of the sweep, such as 30m; it can be resumed.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs, and those that are done; run nothing.")
    ] = False,
    log: options.Log = None,
    live: options.Live = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Run many scenarios along axes, with seeds: tables of means and intervals, and plots. An interrupted or extended
    sweep is resumed by the same command. Exits with 1 if a point has failed, or the time limit was reached."""
    from gradwire.studies.run_logs.targets import check_logs
    from gradwire.studies.sweep.runner import plan_sweep, sweep

    limit, logs = options.seconds_of(max_wall), log or []
    check_logs(logs, "--log")
    if dry_run:
        outcome, lines = plan_sweep(source, out, jobs, retry_failed)
        typer.echo(json.dumps(outcome.as_dict()) if as_json else "\n".join(lines))
        return
    with progress(f"sweep {source}", as_json) as show:
        outcome = sweep(
            source,
            out=out,
            engine=engine,
            address=address,
            jobs=jobs,
            retry_failed=retry_failed,
            fail_fast=fail_fast,
            max_wall_s=limit,
            progress=show,
            log=[*logs, page.point] if (page := current_page()) else logs,
        )
    if as_json:
        typer.echo(json.dumps(outcome.as_dict()))
    else:
        outcome.print()
        typer.echo(f"{outcome.text}; tables and plots: {outcome.folder}")
    _report_problems(outcome)


def _report_problems(outcome: Sweep) -> None:
    """Print the problems of a sweep, and exit with 1 if there are any."""
    failures = outcome.failures
    for point, record in failures[:MOST_FAILURES]:
        typer.echo(f"failed: {point.name}: {record.why}", err=True)
    if len(failures) > MOST_FAILURES:
        typer.echo(f"and {len(failures) - MOST_FAILURES} more: points.csv lists them", err=True)
    for point in outcome.broken_bounds:
        typer.echo(f"loss bound broken: {point.name}", err=True)
    if not outcome.complete and not failures:
        typer.echo("time limit reached: the same command resumes", err=True)
    if failures or outcome.broken_bounds or not outcome.complete:
        raise typer.Exit(1)


@for_people
def cmd_recommend(
    scenario: options.ScenarioName,
    policy: options.PolicyName = None,
    trace: options.TraceName = None,
    set_: options.Set = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            "--knob",
            metavar="A.B=C,D",
            help="Try these values of a key; without values its default ones; repeatable. "
            "If absent, all keys that can have an effect and cost no hardware.",
        ),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="Minimise this: iteration_time, tail, or a measure (gradwire list measures).")
    ] = "iteration_time",
    budget: Annotated[
        float | None,
        typer.Option(metavar="RUNS", help="Budget in full runs; 60 if absent. Shorter runs count in part."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Budget in estimated minutes of one processor, instead of --budget.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Seeds of the final comparison.")] = 3,
    jobs: ParallelRuns = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output directory of scenario, tables and plot; an earlier search in it is resumed."),
    ] = None,
    live: options.Live = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Search the settings that make a scenario fast, within a budget of runs. It prints the best ones with intervals,
    and what each change is worth. An interrupted search is resumed by the same command."""
    from gradwire.studies.recommend.runner import recommend

    with progress(f"recommend {scenario}", as_json) as show:
        outcome = recommend(
            scenario,
            set=options.overrides_from_options(set_, trace),
            policy=policy,
            knobs=knob or None,
            metric=metric,
            budget=budget,
            minutes=minutes,
            seeds=seeds,
            jobs=jobs,
            out=out,
            progress=show,
        )
    if as_json:
        typer.echo(json.dumps(outcome.as_dict()))
    else:
        outcome.print()
        typer.echo(f"to run it: gradwire run {outcome.file}")


@for_people
def cmd_tune(
    scenario: options.ScenarioName,
    policy: options.PolicyName = None,
    trace: options.TraceName = None,
    set_: options.Set = None,
    job: Annotated[int, typer.Option(min=0, max=10_000, help="Index of the job whose scheduler is tuned.")] = 0,
    trials: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of runs, including that of the unchanged scenario.")
    ] = 20,
    threads: options.Threads = 1,
    out: Annotated[Path | None, typer.Option(help="Write the scenario with the best pair to this new file.")] = None,
    force: options.Force = False,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Find ByteScheduler's partition and credit by Bayesian optimisation over simulated runs, as its paper does over
    real ones."""
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.result_store.folders.replacement import replaced_file
    from gradwire.scenarios.loading.load import load_scenario
    from gradwire.studies.tune.scheduler_tuning import Trial, TuningEnded, tune

    with replaced_file(out, force, b"name = "):
        if out is not None:
            refuse_unwritable(out, file=True)
        chosen = load_scenario(scenario, set=options.overrides_from_options(set_, trace), policy=policy)

        def show(number: int, trial: Trial) -> None:
            partition, credit, time = trial.texts()
            typer.echo(f"{number}/{trials}: {partition}, credit {credit}: {time}", err=True)

        try:
            tuned = tune(chosen, job=job, trials=trials, threads=threads, progress=None if as_json else show)
        except TuningEnded as ended:
            _show_tuning(ended.tuned, out, as_json)
            raise
        _show_tuning(tuned, out, as_json)


def _show_tuning(tuned: TuningResult, out: Path | None, as_json: bool) -> None:
    """Print the trials, and write the scenario with the best of them."""
    from gradwire.result_store.folders.output_folder import new_file
    from gradwire.result_store.provenance import scenario_text

    typer.echo(json.dumps(tuned.as_dict()) if as_json else str(tuned))
    if out is not None:
        with new_file(out) as partial:
            partial.write_text(scenario_text(tuned.scenario), encoding="utf-8")
