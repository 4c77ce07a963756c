"""Defines the commands `gradwire demo`, `run` and `compare`, which simulate scenarios and print, write and compare
their Results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli import options
from gradwire.cli.early_imports import import_during_run, without_collector
from gradwire.cli.effect_notes import print_notes
from gradwire.cli.live_page import current_page
from gradwire.cli.terminal import for_people, progress
from gradwire.cli.watchdog import wall_limit
from gradwire.scenarios.interrupt import defer_interrupt, mark_caught

if TYPE_CHECKING:
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

COMPILING = "compiling the packet engine (once per transport and load balancer, then cached)"


@for_people
def cmd_demo(
    threads: options.Threads = 1,
    out: options.Out = None,
    plots: options.Plots = "png",
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Replay the bundled trace under three policies and compare. Exits with 1 if a loss bound is broken."""
    from gradwire.result_store.folders.output_folder import NumberedClaim
    from gradwire.result_store.folders.replacement import claim_output

    options.check_plot_format(plots)
    with claim_output(out, force) if out is not None else NumberedClaim("results/demo") as place:
        run = partial(_simulate, threads=threads, max_wall_s=None, quiet=as_json, jobs=1)
        _compare(["demo"], [], run, place, as_json, plots, page=True)


@for_people
def cmd_run(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario file, the name of one of the library, or a Result to repeat.",
            autocompletion=options.library_names,
        ),
    ],
    policy: options.PolicyName = None,
    trace: options.TraceName = None,
    set_: options.Set = None,
    seeds: options.Seeds = 1,
    threads: options.Threads = 1,
    max_wall: options.MaxWall = None,
    out: options.Out = None,
    plots: Annotated[
        str | None, typer.Option("--plots", metavar="FORMAT", help="Add plots to the tables of --out: png, pdf or svg.")
    ] = None,
    breakdown: options.Breakdown = False,
    fast_forward: Annotated[
        bool, typer.Option("--fast-forward/--no-fast-forward", help="Skip iterations that would repeat others exactly.")
    ] = True,
    uncompiled: Annotated[
        bool, typer.Option("--uncompiled", help="Run the engine as plain Python: breakpoints work in components. Slow.")
    ] = False,
    force: options.Force = False,
    live: options.Live = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Simulate one scenario and print its results. Exits with 1 if a loss bound is broken or the time limit reached."""
    if plots is not None:
        options.check_plot_format(plots, out)
    if uncompiled and threads > 1:
        typer.echo("note: --threads has no effect with --uncompiled: plain Python runs in one thread", err=True)
    with without_collector():
        from gradwire.result_store.folders.replacement import claim_output
        from gradwire.result_store.provenance import asked, is_result_folder
        from gradwire.scenarios.loading.load import list_library, load_scenario
        from gradwire.studies.connect import with_seeds

        overrides, limit = options.overrides_from_options(set_, trace), options.seconds_of(max_wall)
        if scenario not in list_library() and is_result_folder(scenario):
            chosen = _scenario_of_result(scenario, overrides, policy)
        else:
            chosen = load_scenario(scenario, set=overrides, policy=policy)
        print_notes([chosen])
    with claim_output(out, force) as place:
        results, finished = _simulate(
            with_seeds([chosen], seeds),
            threads,
            limit,
            as_json,
            asked(scenario, overrides),
            fast_forward=fast_forward,
            compiled=not uncompiled,
        )
        first, others = results[:1], results[1:]
        _show(first, finished, place, as_json, plots, alone=seeds == 1, parts=breakdown, others=others)


@for_people
def cmd_compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Scenarios (all their policies) or Result directories.", autocompletion=options.library_names
        ),
    ],
    trace: options.TraceName = None,
    set_: options.Set = None,
    seeds: options.Seeds = 1,
    threads: options.Threads = 1,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Runs in parallel, each in its own process.")] = 1,
    max_wall: options.MaxWall = None,
    out: options.Out = None,
    plots: options.Plots = "png",
    all_metrics: Annotated[
        bool, typer.Option("--all-metrics", help="Print a second table: time-outs, classes, links, retransmissions.")
    ] = False,
    breakdown: options.Breakdown = False,
    force: options.Force = False,
    live: options.Live = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Compare policies on the same trace, as a table; --out adds plots. Exits with 1 if a loss bound is broken or a
    time limit is reached."""
    from gradwire.result_store.folders.replacement import claim_output

    options.check_plot_format(plots)
    with claim_output(out, force) as place:
        run = partial(_simulate, threads=threads, max_wall_s=options.seconds_of(max_wall), quiet=as_json, jobs=jobs)
        _compare(
            sources,
            options.overrides_from_options(set_, trace),
            run,
            place,
            as_json,
            plots,
            all_metrics,
            breakdown,
            seeds=seeds,
        )


def _scenario_of_result(folder: str, overrides: list[str], policy: str | None) -> Scenario:
    """Return the scenario of a Result, to be run again; print possible differences on stderr."""
    from gradwire.result_store.provenance import load_result_scenario
    from gradwire.scenarios.errors import ResultError
    from gradwire.traces.trace import load_trace

    if policy is not None:
        raise ResultError("has a single policy", folder, "no --policy, or the scenario it came from")
    scenario, differences = load_result_scenario(
        Path(folder), overrides, lambda scenario: [load_trace(job.trace).digest() for job in scenario.job]
    )
    for difference in differences:
        typer.echo(f"note: {folder}: {difference}", err=True)
    return scenario


def _simulate(
    scenarios: list[Scenario],
    threads: int,
    max_wall_s: float | None,
    quiet: bool,
    command: dict[str, Any],
    jobs: int = 1,
    fast_forward: bool = True,
    compiled: bool = True,
) -> tuple[list[Result], bool]:
    """Return one Result per scenario, and False after Ctrl-C; the interrupted one is included if it has rows. The
    reason for a stall is printed at once."""
    if jobs > 1 and len(scenarios) > 1:
        return _simulate_in_processes(scenarios, threads, max_wall_s, quiet, command, jobs)
    with without_collector():
        from gradwire.sim.engine.specialization import compile_ahead
        from gradwire.sim.simulate import Stalled, check_uncompiled, simulate
        from gradwire.studies.eta import progress_text

    results: list[Result] = []
    for scenario in scenarios:
        try:
            with progress(f"{scenario.name} {scenario.policy_name}", quiet, COMPILING) as show:
                if not results and compiled:
                    check_uncompiled(scenarios)
                    compile_ahead(scenarios)  # all engines, in parallel
                on_progress = import_during_run(progress_text(show, scenario, current_page()), threads)
                with wall_limit(max_wall_s):
                    result = simulate(
                        scenario,
                        threads=threads,
                        progress=on_progress,
                        max_wall_s=max_wall_s,
                        fast_forward=fast_forward,
                        compiled=compiled,
                    )
                results.append(result)
                results[-1].timing.update(command)
        except Stalled as stop:
            typer.echo(f"gradwire: {scenario.name} {scenario.policy_name}: {stop}", err=True)
            stop.result.timing.update(command)
            results.append(stop.result)
        except KeyboardInterrupt as stop:
            mark_caught()
            partial_result: Result | None = getattr(stop, "result", None)
            if partial_result is None:
                return results, False
            partial_result.timing.update(command)
            has_rows = (
                partial_result.stored_rows("iterations").num_rows or partial_result.stored_rows("messages").num_rows
            )
            return results + ([partial_result] if has_rows else []), False
    return results, True


def _simulate_in_processes(
    scenarios: list[Scenario], threads: int, max_wall_s: float | None, quiet: bool, command: dict[str, Any], jobs: int
) -> tuple[list[Result], bool]:
    """Simulate in parallel processes; see `_simulate`. After Ctrl-C only finished runs are returned."""
    from gradwire.studies.parallel.side_by_side import simulate_in_processes

    with progress(scenarios[0].name, quiet) as show:
        outcomes, finished = simulate_in_processes(scenarios, jobs, threads, max_wall_s, show)
    for result, stalled in outcomes:
        result.timing.update(command)
        if stalled:
            name, policy = result.summary["name"], result.summary["policy"]
            typer.echo(f"gradwire: {name} {policy}: {stalled}", err=True)
    return [result for result, _ in outcomes], finished


def _compare(
    sources: list[str],
    overrides: list[str],
    simulate: Callable[..., tuple[list[Result], bool]],
    out: Path | None,
    as_json: bool,
    plots: str,
    details: bool = False,
    parts: bool = False,
    page: bool = False,
    seeds: int = 1,
) -> None:
    """Read, or `simulate`, everything to compare; all input is read before anything is simulated."""
    with without_collector():
        from gradwire.result_store.provenance import asked, members
        from gradwire.result_store.result import Result
        from gradwire.scenarios.loading.load import list_library, load_scenario
        from gradwire.studies.connect import with_seeds
    inputs: list[tuple[str, list[Result], list[Scenario]]] = []
    for source in sources:
        if Path(source).is_dir() and source not in list_library():
            inputs.append((source, [Result.read(member) for member in members(source)], []))
        else:
            inputs.append((source, [], load_scenario(source, set=overrides).variants()))
            print_notes(inputs[-1][2])
    if overrides and not any(variants for _, _, variants in inputs):
        from gradwire.scenarios.errors import ResultError

        expected = f"gradwire run {sources[0]} --set ..., which runs it again"
        raise ResultError("is a finished run: overrides have no effect on it", sources[0], expected)
    for source, stored, _ in inputs if overrides else ():
        if stored:
            typer.echo(f"note: {source}: is a finished run: {', '.join(overrides)} has no effect on it", err=True)
    results, finished = [], True
    others: list[Result] = []
    for source, stored, variants in inputs:
        results += stored
        if variants and finished:
            simulated, finished = simulate(with_seeds(variants, seeds), command=asked(source, overrides))
            results += simulated[: len(variants)]
            others += simulated[len(variants) :]
    _show(results, finished, out, as_json, plots, details=details, parts=parts, page=page, others=others)


def _show(
    results: list[Result],
    finished: bool,
    out: Path | None,
    as_json: bool,
    plots: str | None,
    alone: bool = False,
    details: bool = False,
    parts: bool = False,
    page: bool = False,
    others: Sequence[Result] = (),
) -> None:
    """Print a comparison and write it to `out`, with or without an HTML `page`, or a single Result if `alone`.

    `plots`: their format, or none. `others`: runs with further seeds. A request to end is deferred until that is done.

    Exits with 1 if a loss bound is broken, a run has stalled or reached its time limit, as after Ctrl-C if the runs
    were not `finished`, and with an error if it had to be written elsewhere.
    """
    from gradwire.analysis.comparison.compare import compare, result_folders
    from gradwire.analysis.comparison.markdown_report import HTML_PAGE
    from gradwire.result_store.folders.output_folder import write_output

    if not results:
        raise KeyboardInterrupt
    with defer_interrupt():
        comparison = compare(results, parts, others)
        if alone:
            write = partial(comparison.write_alone, plots=plots) if plots else results[0].write
            written = write_output(out, write, [("result", results[0].write)] if plots else [])
        else:
            everything = [*results, *others]
            folders = result_folders(everything)
            single_results = [(name, each.write) for name, each in zip(folders, everything, strict=True)]
            written = write_output(out, partial(comparison.write, plots=plots or "png", page=page), single_results)
        if as_json:
            typer.echo(json.dumps(comparison.as_dict()))
        else:
            comparison.print(details)
            if written.place is not None:
                typer.echo(f"{'result' if alone else 'report and results'}: {written.place}")
                if page and (written.place / HTML_PAGE).is_file():
                    typer.echo(f"to open in a browser: {written.place / HTML_PAGE}")
    for violation in comparison.violations:
        typer.echo(f"loss bound broken: {violation}", err=True)
    for text in comparison.cut_short:
        typer.echo(f"time limit reached: {text}", err=True)
    if written.trouble is not None:
        raise written.trouble
    if comparison.violations:
        raise typer.Exit(1)
    if not finished:
        raise KeyboardInterrupt
    stalled = any(each.summary.get("totals", {}).get("ended_by") == "stall" for each in [*results, *others])
    if comparison.cut_short or stalled:
        raise typer.Exit(1)
