"""The commands that simulate: demo, run, compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.notes import print_notes
from gradwire.cli.options import (
    Approximate,
    Breakdown,
    Force,
    Json,
    MaxWall,
    Out,
    Plots,
    PolicyName,
    Set,
    Threads,
    TraceName,
    Trust,
    known_format,
    library_names,
    overrides_of,
    seconds_of,
)
from gradwire.cli.start import importing, light_start
from gradwire.cli.terminal import for_people, progress
from gradwire.scenarios.interrupt import caught, deferred
from gradwire.scenarios.readable import share_text

if TYPE_CHECKING:
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

COMPILING = "compiling the packet engine (once per transport and load balancer, then kept)"


def register(app: typer.Typer) -> None:
    """Add the commands to the door's."""
    app.command("demo", epilog="Example: gradwire demo --out my-demo")(cmd_demo)
    example = "Example: gradwire run demo --policy dlcp --set job.workers=8 --out results/eight"
    app.command("run", epilog=example)(cmd_run)
    example = "Example: gradwire compare demo --set job.iterations=2 --out results/short"
    app.command("compare", epilog=example)(cmd_compare)


@for_people
def cmd_demo(threads: Threads = 1, out: Out = None, plots: Plots = "png", as_json: Json = False) -> None:
    """Replay the bundled trace under three policies and compare. Exits with 1 if a loss bound is broken."""
    from gradwire.scenarios.output import Claim, NumberedClaim

    known_format(plots)
    with Claim(out) if out is not None else NumberedClaim("results/demo") as place:
        run = partial(_simulate, threads=threads, max_wall_s=None, quiet=as_json, jobs=1)
        _compare(["demo"], [], run, place, as_json, plots, page=True)


@for_people
def cmd_run(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario file, the name of one of the library, or a Result to run again.",
            autocompletion=library_names
        ),
    ],
    policy: PolicyName = None,
    trace: TraceName = None,
    set_: Set = None,
    threads: Threads = 1,
    max_wall: MaxWall = None,
    out: Out = None,
    plots: Annotated[
        str | None,
        typer.Option("--plots", metavar="FORMAT", help="Draw plots beside the tables of --out: png, pdf or svg."),
    ] = None,
    breakdown: Breakdown = False,
    fast_forward: Annotated[
        bool,
        typer.Option("--fast-forward/--no-fast-forward", help="Leave out iterations that would repeat others exactly."),
    ] = True,
    approximate: Approximate = None,
    force: Force = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Simulate one scenario and print what came out. Exits with 1 if a loss bound is broken or time was up."""
    if plots is not None:
        known_format(plots, out)
    with light_start():
        from gradwire.scenarios.load import list_library, load_scenario
        from gradwire.scenarios.record import asked, is_record
        from gradwire.scenarios.replacing import claimed

        overrides, limit = overrides_of(set_, trace, approximate), seconds_of(max_wall)
        if scenario not in list_library() and is_record(scenario):
            chosen = _again(scenario, overrides, policy)
        else:
            chosen = load_scenario(scenario, set=overrides, policy=policy)
        _refuse_untold([chosen], breakdown)
        print_notes([chosen])
    with claimed(out, force) as place:
        results, finished = _simulate(
            [chosen], threads, limit, as_json, asked(scenario, overrides), fast_forward=fast_forward
        )
        _show(results, finished, place, as_json, plots, alone=True, parts=breakdown)


@for_people
def cmd_compare(
    sources: Annotated[
        list[str],
        typer.Argument(help="Scenarios (all their policies) or Result directories.", autocompletion=library_names),
    ],
    trace: TraceName = None,
    set_: Set = None,
    threads: Threads = 1,
    jobs: Annotated[
        int, typer.Option(min=1, max=1024, help="Policies at a time, each in a process of its own.")
    ] = 1,
    max_wall: MaxWall = None,
    out: Out = None,
    plots: Plots = "png",
    all_metrics: Annotated[
        bool, typer.Option("--all-metrics", help="Print a second table: time-outs, classes, links, packets sent again.")
    ] = False,
    breakdown: Breakdown = False,
    force: Force = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The same trace under several policies, as a table; --out adds plots. Exits with 1 on a broken bound, or if a
    run's time was up."""
    from gradwire.scenarios.replacing import claimed

    known_format(plots)
    with claimed(out, force) as place:
        run = partial(_simulate, threads=threads, max_wall_s=seconds_of(max_wall), quiet=as_json, jobs=jobs)
        _compare(sources, overrides_of(set_, trace), run, place, as_json, plots, all_metrics, breakdown)


def _refuse_untold(scenarios: list[Scenario], breakdown: bool) -> None:
    """Raise ScenarioError if a breakdown is asked for of what may leave out iterations, of which there is none."""
    from gradwire.scenarios.errors import ScenarioError

    if breakdown and any(each.simulation.approximate is not None for each in scenarios):
        what = "leaves out iterations, of which nobody can say what they were spent on (--breakdown)"
        raise ScenarioError(what, "simulation.approximate", "one of the two")


def _again(folder: str, overrides: list[str], policy: str | None) -> Scenario:
    """The scenario of a Result, to be run again; what may differ is said on stderr."""
    from gradwire.scenarios.errors import ResultError
    from gradwire.scenarios.record import load_record
    from gradwire.traces.trace import load_trace

    if policy is not None:
        raise ResultError("holds one policy already", folder, "no --policy, or the scenario it came from")
    chosen, differences = load_record(
        Path(folder), overrides, lambda found: [load_trace(job.trace).digest() for job in found.job]
    )
    for each in differences:
        typer.echo(f"note: {folder}: {each}", err=True)
    return chosen


def _simulate(
    scenarios: list[Scenario],
    threads: int,
    max_wall_s: float | None,
    quiet: bool,
    asked: dict[str, Any],
    jobs: int = 1,
    fast_forward: bool = True,
) -> tuple[list[Result], bool]:
    """One Result per scenario, and whether there was no Ctrl-C; after one, those that hold something. Why one has
    stalled is said at once."""
    if jobs > 1 and len(scenarios) > 1:
        return _simulate_apart(scenarios, threads, max_wall_s, quiet, asked, jobs)
    with light_start():
        from gradwire.pace import in_words
        from gradwire.sim.fabric.specialise import compile_ahead
        from gradwire.sim.simulate import Stalled, check_uncompiled, simulate

    results: list[Result] = []
    for scenario in scenarios:
        try:
            with progress(f"{scenario.name} {scenario.policy_name}", quiet, COMPILING) as show:
                if not results:
                    check_uncompiled(scenarios)
                    compile_ahead(scenarios)  # all that they need, side by side
                told = importing(in_words(show, scenario), threads)
                results.append(
                    simulate(
                        scenario, threads=threads, progress=told, max_wall_s=max_wall_s, fast_forward=fast_forward
                    )
                )
                results[-1].timing.update(asked)
            _tell_of_approximation(results[-1])
        except Stalled as stop:
            typer.echo(f"gradwire: {scenario.name} {scenario.policy_name}: {stop}", err=True)
            stop.result.timing.update(asked)
            results.append(stop.result)
        except KeyboardInterrupt as stop:
            caught()
            cut: Result | None = getattr(stop, "result", None)
            seen = cut and (cut.kept("iterations").num_rows or cut.kept("messages").num_rows)
            if cut:
                cut.timing.update(asked)
            return results + ([cut] if cut and seen else []), False
    return results, True


def _tell_of_approximation(result: Result) -> None:
    """Say what of a Result was not simulated, but left to iterations that are alike on average."""
    said = result.summary.get("approximate")
    if said is None:
        return
    where = f"note: {result.summary['name']} {result.summary['policy']}"
    if said["declined"]:
        typer.echo(f"{where}: all of it is simulated: {said['declined']}", err=True)
    for name, job in said["jobs"].items():
        what = f"{job['approximated']:,} of {job['iterations']:,} iterations of {name} are others once more"
        off = f"its mean iteration time may be off by {share_text(job['uncertainty'])}"
        typer.echo(f"{where}: {what}; {off} ({job['samples']} samples)", err=True)


def _simulate_apart(
    scenarios: list[Scenario],
    threads: int,
    max_wall_s: float | None,
    quiet: bool,
    asked: dict[str, Any],
    jobs: int,
) -> tuple[list[Result], bool]:
    """The same side by side, in processes. After Ctrl-C those are there that were through."""
    from gradwire.apart import simulate_apart

    with progress(scenarios[0].name, quiet) as show:
        outcomes, finished = simulate_apart(scenarios, jobs, threads, max_wall_s, show)
    for result, stalled in outcomes:
        result.timing.update(asked)
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
) -> None:
    """Read, or `simulate`, everything that is to be compared; all of it is read before anything is simulated."""
    with light_start():
        from gradwire.scenarios.load import list_library, load_scenario
        from gradwire.scenarios.record import asked, members
        from gradwire.scenarios.result import Result
    given: list[tuple[str, list[Result], list[Scenario]]] = []
    for source in sources:
        if Path(source).is_dir() and source not in list_library():
            given.append((source, [Result.read(member) for member in members(source)], []))
        else:
            given.append((source, [], load_scenario(source, set=overrides).variants()))
            _refuse_untold(given[-1][2], parts)
            print_notes(given[-1][2])
    if overrides and not any(variants for _, _, variants in given):
        from gradwire.scenarios.errors import ResultError

        expected = f"gradwire run {sources[0]} --set ..., which runs it again"
        raise ResultError("has been run already: overrides change nothing in it", sources[0], expected)
    for source, read, _ in given if overrides else ():
        if read:
            typer.echo(f"note: {source}: has been run already: {', '.join(overrides)} changes nothing in it", err=True)
    results, finished = [], True
    for source, read, variants in given:
        results += read
        if variants and finished:
            simulated, finished = simulate(variants, asked=asked(source, overrides))
            results += simulated
    _show(results, finished, out, as_json, plots, details=details, parts=parts, page=page)


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
) -> None:
    """Write a comparison to `out`, with a `page` to open or without, or a Result `alone`, and print the comparison.
    `plots`: their format, or none. A request to end is deferred until that is done.

    Exits with 1 if a loss bound is broken, a run has stalled or its time was up, as after Ctrl-C if the runs were not
    `finished`, and with an error if it had to be written elsewhere.
    """
    from gradwire.analysis.compare import compare, result_folders
    from gradwire.analysis.report import PAGE
    from gradwire.scenarios.output import keep

    if not results:
        raise KeyboardInterrupt
    kept = None
    with deferred():
        comparison = compare(results, parts)
        if out is not None and alone:
            write = partial(comparison.write_alone, plots=plots) if plots else results[0].write
            kept = keep(out, write, [("result", results[0].write)] if plots else [])
        elif out is not None:
            each_alone = [(name, each.write) for name, each in zip(result_folders(results), results, strict=True)]
            kept = keep(out, partial(comparison.write, plots=plots or "png", page=page), each_alone)
        if as_json:
            typer.echo(json.dumps(comparison.as_dict()))
        else:
            comparison.print(details)
            if kept is not None and kept.place is not None:
                typer.echo(f"{'result' if alone else 'report and results'}: {kept.place}")
                if page and (kept.place / PAGE).is_file():
                    typer.echo(f"to open in a browser: {kept.place / PAGE}")
    for violation in comparison.violations:
        typer.echo(f"loss bound broken: {violation}", err=True)
    for text in comparison.cut_short:
        typer.echo(f"time was up: {text}", err=True)
    if kept is not None and kept.trouble is not None:
        raise kept.trouble
    if comparison.violations:
        raise typer.Exit(1)
    if not finished:
        raise KeyboardInterrupt
    stalled = any(each.summary.get("totals", {}).get("ended_by") == "stall" for each in results)
    if comparison.cut_short or stalled:
        raise typer.Exit(1)
