"""Defines the commands `gradwire probe` and `emulate`, and helpers of other testbed commands (options, requests,
progress).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli import options
from gradwire.cli.terminal import Progress, for_people, progress
from gradwire.scenarios.interrupt import mark_caught
from gradwire.studies.connect import emulate

if TYPE_CHECKING:
    from gradwire.emu.testbed import Request
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

CLOCKS = ("wall", "virtual")
Clock = Annotated[
    str | None,
    typer.Option(
        help="wall, or virtual: inside a kernel whose time stops while anything computes.",
        autocompletion=options.complete_words(*CLOCKS),
    ),
]
Switch = Annotated[
    str | None,
    typer.Option(
        help="Switch backend: auto, red, bpf or userspace.",
        autocompletion=options.complete_words("auto", "red", "bpf", "userspace"),
    ),
]
Pcap = Annotated[Path | None, typer.Option(help="Capture packets into this new folder, a pcapng file per node.")]
At = Annotated[list[str] | None, typer.Option("--at", help="A node to capture at; all switches if absent; repeatable.")]
Repeat = Annotated[int, typer.Option(min=1, help="Maximum attempts of a run that the machine disturbs.")]


@for_people
def cmd_probe(
    scenario: Annotated[
        str | None,
        typer.Argument(help="A scenario: show its backend and deviations.", autocompletion=options.library_names),
    ] = None,
    set_: options.Set = None,
    clock: Clock = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Test what this kernel and user can emulate; with a scenario, show how it would run."""
    from gradwire.emu.planning.backend_choice import select_backend
    from gradwire.emu.planning.planner import check_scenario, make_plan
    from gradwire.emu.planning.probe import probe, virtual_kernel
    from gradwire.emu.planning.probe_report import probe_tables
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.loading.load import load_scenario

    loaded = None if scenario is None else load_scenario(scenario, set=set_ or [])
    kernel = probe()
    choice, why = None, ""
    if loaded is not None:
        from gradwire.emu.planning.user_programs import ProgramRequest, programs_of
        from gradwire.emu.testbed import unlike
        from gradwire.workload.resolve import resolve

        chosen = _clock(clock) or loaded.emulation.clock
        try:
            is_for_programs = not loaded.senders  # a network for gradwire exec
            check_scenario(loaded, programs=is_for_programs)
            resolved = resolve(loaded)
            programs = programs_of(loaded, resolved.network, ProgramRequest(("true",))) if is_for_programs else None
            plan = make_plan(loaded, resolved, clock=chosen, switch="auto", programs=programs)
            choice = select_backend(plan, virtual_kernel() if chosen == "virtual" else kernel)
            choice.substitutions.extend(unlike(loaded, plan, programs))
        except GradwireError as error:
            why = str(error)
    if as_json:
        data = {"kernel": kernel.to_json()}
        if loaded is not None:
            data["choice"] = vars(choice) if choice is not None else {"error": why}
        typer.echo(json.dumps(data))
    else:
        from gradwire.scenarios.terminal_text import console

        console().print(probe_tables(kernel, choice, why))
    if why:
        raise typer.Exit(1)


@for_people
def cmd_emulate(
    scenario: options.ScenarioName,
    policy: options.PolicyName = None,
    trace: options.TraceName = None,
    set_: options.Set = None,
    clock: Clock = None,
    switch: Switch = None,
    pcap: Pcap = None,
    at: At = None,
    max_wall: options.MaxWall = None,
    repeat: Repeat = 3,
    every: Annotated[bool, typer.Option("--all", help="Run and compare all policies of the scenario.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the Result to this new directory.")] = None,
    force: options.Force = False,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Run one scenario on real sockets: hosts and switches are network namespaces, or virtual ones (--clock virtual).

    Exits with 1 if a loss bound is broken, if the time limit was reached, or if the machine disturbed every run.
    """
    from gradwire.result_store.folders.replacement import claim_output
    from gradwire.result_store.provenance import asked
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.loading.load import load_scenario

    check_captures(pcap, at)
    if every and (policy is not None or pcap is not None):
        raise GradwireError("cannot be combined with --policy or --pcap", "--all", "one of them")
    loaded = load_scenario(scenario, set=options.overrides_from_options(set_, trace), policy=policy)
    if policy is None and not every and loaded.policy:
        names = ", ".join(each.name for each in loaded.policy)
        typer.echo(f"{loaded.name} without any of its policies ({names}): --policy NAME or --all for those", err=True)
    request = request_of(clock, switch, max_wall, repeat, pcap, at)
    with claim_output(out, force) as place:
        results: list[Result] = []
        try:
            finished = run_all(loaded.variants() if every else [loaded], request, as_json, results)
        except GradwireError:
            if place is not None and results:
                from gradwire.analysis.comparison.compare import result_folders

                for name, result in zip(result_folders(results), results, strict=True):
                    result.write(place / name)
                typer.echo(f"not compared; results so far: {place}", err=True)
            raise
        for result in results:
            result.timing.update(asked(scenario, options.overrides_from_options(set_, trace)))
        if not results:
            raise KeyboardInterrupt
        _report(results, finished, place, pcap, as_json, alone=not every)


def _report(
    results: Sequence[Result], finished: bool, out: Path | None, pcap: Path | None, as_json: bool, alone: bool
) -> None:
    """Print and write the Results, report their problems, and exit accordingly."""
    from gradwire.analysis.comparison.compare import compare, result_folders
    from gradwire.result_store.folders.output_folder import write_output

    comparison = compare(results)
    engines = {result.summary["policy"]: result.summary["engine"] for result in results}
    if as_json:
        typer.echo(json.dumps({**comparison.as_dict(), "engines": engines}))
    else:
        comparison.print()
        print_engines(results)
    parts = [(name, each.write) for name, each in zip(result_folders(results), results, strict=True)]
    written = write_output(out, results[0].write) if alone else write_output(out, comparison.write, parts)
    if not as_json:
        for path, what in ((written.place, "result" if alone else "report and results"), (pcap, "captures")):
            if path is not None:
                typer.echo(f"{what}: {path}")
    for violation in comparison.violations:
        typer.echo(f"loss bound broken: {violation}", err=True)
    for name, engine in engines.items():
        for line in engine["disturbed"]:
            typer.echo(f"not valid: {name}: {line}", err=True)
    if any(engine["disturbed"] and engine["clock"] == "wall" for engine in engines.values()):
        typer.echo(
            "disturbed runs say little about the network: retry on an idle machine, with a lower link.rate or fewer "
            "hosts (see testbed-wall), or with --clock virtual",
            err=True,
        )
    lost = [line for engine in engines.values() for line in engine.get("lost_captures", ())]
    for line in lost:
        typer.echo(f"gradwire: {line}; expected a folder with free space", err=True)
    if written.trouble is not None:
        raise written.trouble
    if lost:
        raise typer.Exit(2)
    if not finished:
        raise KeyboardInterrupt
    cut = any(result.summary["totals"]["ended_by"] not in ("done", "duration") for result in results)
    if comparison.violations or cut or not all(engine["valid"] for engine in engines.values()):
        raise typer.Exit(1)


def check_captures(pcap: Path | None, at: list[str] | None) -> None:
    """Raise GradwireError unless packets can be captured into `pcap`, before anything runs."""
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.scenarios.errors import GradwireError

    if pcap is not None:
        refuse_unwritable(pcap)
    elif at:
        raise GradwireError("needs an output folder", "--at", "--pcap FOLDER as well")


def request_of(
    clock: str | None, switch: str | None, max_wall: str | None, repeat: int, pcap: Path | None, at: list[str] | None
) -> Request:
    from gradwire.emu.planning.backend_choice import BACKENDS
    from gradwire.emu.testbed import Request
    from gradwire.scenarios.errors import GradwireError

    if switch is not None and switch not in ("auto", *BACKENDS):
        raise GradwireError(f"unknown backend {switch!r}", "--switch", f"auto, {', '.join(BACKENDS)}")
    captures = at or (None if pcap is None else ["switches"])
    return Request(_clock(clock), switch, captures or (), pcap, options.seconds_of(max_wall), repeat)


def _clock(clock: str | None) -> str | None:
    from gradwire.scenarios.errors import GradwireError

    if clock is not None and clock not in CLOCKS:
        raise GradwireError(f"unknown clock {clock!r}", "--clock", " or ".join(CLOCKS))
    return clock


def run_all(scenarios: Sequence[Scenario], request: Request, quiet: bool, results: list[Result]) -> bool:
    """Append one Result per scenario to `results`; return False after Ctrl-C. The interrupted run is included if it has
    a Result."""
    for scenario in scenarios:
        with progress(f"{scenario.name} {scenario.policy_name}, on real sockets", quiet) as show:
            try:
                results.append(emulate(scenario, None, request, on_progress=_show_news(show)))
            except KeyboardInterrupt as stop:
                mark_caught()
                partial: Result | None = getattr(stop, "result", None)
                if partial is not None:
                    results.append(partial)
                return False
    return True


def _show_news(show: Progress) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback that shows the news of a run as progress."""

    def on_news(news: Mapping[str, Any]) -> None:
        if news.get("state") == "running":
            done, total = news["delivered"], max(1, news["messages"])
            show(done / total, f"{done}/{total} messages")
        else:
            show(0.0, preparation_text(news))

    return on_news


def preparation_text(news: Mapping[str, Any]) -> str:
    """Describe what a run on the testbed does before it begins."""
    if news.get("state") == "again":
        return f"repeating: {news['why']}"
    if news.get("state") == "compiling":
        return "compiling the hosts' loop and transports (once, then cached)"
    return f"building the network ({news.get('backend', '')})"


def print_engines(results: Sequence[Result]) -> None:
    """Print what the runs ran on, and their deviations from the scenario; common lines once."""
    policies_by_line: dict[str, list[str]] = {}
    for result in results:
        engine, policy = result.summary["engine"], result.summary["policy"]
        where = f"{engine['clock']} clock, switches {engine['switch']}, Linux {engine['kernel']}"
        for line in (f"on real sockets: {where}", *(f"differs: {each}" for each in engine["substitutions"])):
            policies_by_line.setdefault(line, []).append(policy)
    for line, policies in policies_by_line.items():
        typer.echo(line if len(policies) == len(results) else f"{line} ({', '.join(policies)})")
