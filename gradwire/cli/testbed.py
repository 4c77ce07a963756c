"""The door's commands for real sockets: probe and emulate; and what others need that run on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.options import (
    Force,
    Json,
    MaxWall,
    PolicyName,
    ScenarioName,
    Set,
    TraceName,
    Trust,
    one_of,
    overrides_of,
    seconds_of,
)
from gradwire.cli.terminal import Progress, for_people, progress
from gradwire.connect import emulate
from gradwire.scenarios.interrupt import caught

if TYPE_CHECKING:
    from gradwire.emu.testbed import Request
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

CLOCKS = ("wall", "virtual")
Clock = Annotated[
    str | None,
    typer.Option(
        help="wall, or virtual: inside a kernel whose time stands still while anything computes.",
        autocompletion=one_of(*CLOCKS),
    ),
]
Switch = Annotated[
    str | None,
    typer.Option(
        help="What switches are made of: auto, red, bpf or userspace.",
        autocompletion=one_of("auto", "red", "bpf", "userspace"),
    ),
]
Repeat = Annotated[
    int, typer.Option(min=1, help="A run that the machine has disturbed is made again, so often at most.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the door's."""
    app.command("probe", epilog="Example: gradwire probe incast --json")(cmd_probe)
    example = "Example: gradwire emulate testbed --clock virtual --out results/real"
    app.command("emulate", epilog=example)(cmd_emulate)


@for_people
def cmd_probe(
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario: which backend would run it, and what would differ.")
    ] = None,
    set_: Set = None,
    clock: Clock = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """What this kernel and this user can emulate, found by trying; with a scenario, how it would be run."""
    from gradwire.emu.planning.choose import choose
    from gradwire.emu.planning.prepare import check_scenario, make_plan
    from gradwire.emu.planning.probe import probe, virtual_kernel
    from gradwire.emu.planning.probe_show import tables
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.load import load_scenario

    loaded = None if scenario is None else load_scenario(scenario, set=set_ or [])
    kernel = probe()
    choice, why = None, ""
    if loaded is not None:
        from gradwire.emu.planning.programs import Asked, programs_of
        from gradwire.emu.testbed import unlike
        from gradwire.experiment.resolve import resolve

        chosen = _clock(clock) or loaded.emulation.clock
        try:
            own = not loaded.senders  # a network for gradwire exec
            check_scenario(loaded, programs=own)
            found = resolve(loaded)
            programs = programs_of(loaded, found.network, Asked(("true",))) if own else None
            plan = make_plan(loaded, found, clock=chosen, switch="auto", programs=programs)
            choice = choose(plan, virtual_kernel() if chosen == "virtual" else kernel)
            choice.substitutions.extend(unlike(loaded, plan, programs))
        except GradwireError as error:
            why = str(error)
    if as_json:
        shown = {"kernel": kernel.to_json()}
        if loaded is not None:
            shown["choice"] = vars(choice) if choice is not None else {"error": why}
        typer.echo(json.dumps(shown))
    else:
        from gradwire.scenarios.terminal_text import console

        console().print(tables(kernel, choice, why))
    if why:
        raise typer.Exit(1)


@for_people
def cmd_emulate(
    scenario: ScenarioName,
    policy: PolicyName = None,
    trace: TraceName = None,
    set_: Set = None,
    clock: Clock = None,
    switch: Switch = None,
    pcap: Annotated[
        Path | None, typer.Option(help="Capture packets into this new folder, a pcapng file per node.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", help="A node to capture at; all switches if absent; repeatable."),
    ] = None,
    max_wall: MaxWall = None,
    repeat: Repeat = 3,
    every: Annotated[
        bool, typer.Option("--all", help="Run all policies of the scenario, and compare.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the Result to this new directory.")] = None,
    force: Force = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run one scenario on real sockets: hosts and switches are network namespaces, or virtual ones (--clock virtual).

    Exits with 1 if a loss bound is broken, if time was up, or if the machine disturbed every run.
    """
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.load import load_scenario
    from gradwire.scenarios.output import refuse_unwritable
    from gradwire.scenarios.record import asked
    from gradwire.scenarios.replacing import claimed

    if pcap is not None:
        refuse_unwritable(pcap)
    if at and pcap is None:
        raise GradwireError("says where to capture, but not into which folder", "--at", "--pcap FOLDER too")
    if every and (policy is not None or pcap is not None):
        raise GradwireError("goes with neither --policy nor --pcap", "--all", "one or the other")
    loaded = load_scenario(scenario, set=overrides_of(set_, trace), policy=policy)
    if policy is None and not every and loaded.policy:
        names = ", ".join(each.name for each in loaded.policy)
        typer.echo(f"{loaded.name} without any of its policies ({names}): --policy NAME or --all for those", err=True)
    request = request_of(clock, switch, max_wall, repeat, pcap, at)
    with claimed(out, force) as place:
        results: list[Result] = []
        try:
            finished = run_all(loaded.variants() if every else [loaded], request, as_json, results)
        except GradwireError:
            if place is not None and results:
                from gradwire.analysis.compare import result_folders

                for name, result in zip(result_folders(results), results, strict=True):
                    result.write(place / name)
                typer.echo(f"not compared; results so far: {place}", err=True)
            raise
        for result in results:
            result.timing.update(asked(scenario, overrides_of(set_, trace)))
        if not results:
            raise KeyboardInterrupt
        _report(results, finished, place, pcap, as_json, alone=not every)


def _report(
    results: Sequence[Result], finished: bool, out: Path | None, pcap: Path | None, as_json: bool, alone: bool
) -> None:
    """Print what came out, write it, and say what is wrong with it; exits accordingly."""
    from gradwire.analysis.compare import compare, result_folders
    from gradwire.scenarios.output import Kept, keep

    comparison = compare(results)
    engines = {result.summary["policy"]: result.summary["engine"] for result in results}
    if as_json:
        typer.echo(json.dumps({**comparison.as_dict(), "engines": engines}))
    else:
        comparison.print()
        print_engines(results)
    kept = Kept(None)
    if out is not None and alone:
        kept = keep(out, results[0].write)
    elif out is not None:
        parts = [(name, each.write) for name, each in zip(result_folders(results), results, strict=True)]
        kept = keep(out, comparison.write, parts)
    if not as_json:
        for path, what in ((kept.place, "result" if alone else "report and results"), (pcap, "captures")):
            if path is not None:
                typer.echo(f"{what}: {path}")
    for violation in comparison.violations:
        typer.echo(f"loss bound broken: {violation}", err=True)
    for name, engine in engines.items():
        for line in engine["disturbed"]:
            typer.echo(f"not valid: {name}: {line}", err=True)
    if any(engine["disturbed"] and engine["clock"] == "wall" for engine in engines.values()):
        typer.echo(
            "what the machine has disturbed says little about the network: try again when it has nothing else to do, "
            "with a lower link.rate or fewer hosts (see testbed-wall), or --clock virtual",
            err=True,
        )
    lost = [line for engine in engines.values() for line in engine.get("lost_captures", ())]
    for line in lost:
        typer.echo(f"gradwire: {line}; expected a place with room", err=True)
    if kept.trouble is not None:
        raise kept.trouble
    if lost:
        raise typer.Exit(2)
    if not finished:
        raise KeyboardInterrupt
    cut = any(result.summary["totals"]["ended_by"] not in ("done", "duration") for result in results)
    if comparison.violations or cut or not all(engine["valid"] for engine in engines.values()):
        raise typer.Exit(1)


def request_of(
    clock: str | None,
    switch: str | None,
    max_wall: str | None,
    repeat: int,
    pcap: Path | None,
    at: list[str] | None,
) -> Request:
    from gradwire.emu.planning.choose import BACKENDS
    from gradwire.emu.testbed import Request
    from gradwire.scenarios.errors import GradwireError

    if switch is not None and switch not in ("auto", *BACKENDS):
        raise GradwireError(f"there is no backend {switch!r}", "--switch", f"auto, {', '.join(BACKENDS)}")
    captures = at or (None if pcap is None else ["switches"])
    return Request(_clock(clock), switch, captures or (), pcap, seconds_of(max_wall), repeat)


def _clock(clock: str | None) -> str | None:
    from gradwire.scenarios.errors import GradwireError

    if clock is not None and clock not in CLOCKS:
        raise GradwireError(f"there is no clock {clock!r}", "--clock", " or ".join(CLOCKS))
    return clock


def run_all(scenarios: Sequence[Scenario], request: Request, quiet: bool, results: list[Result]) -> bool:
    """Put one Result per scenario into `results`; whether there was no Ctrl-C. After one, what was under way is among
    them if it holds something."""
    for scenario in scenarios:
        with progress(f"{scenario.name} {scenario.policy_name}, on real sockets", quiet) as show:
            try:
                results.append(emulate(scenario, None, request, heard=_heard(show)))
            except KeyboardInterrupt as stop:
                caught()
                partial: Result | None = getattr(stop, "result", None)
                if partial is not None:
                    results.append(partial)
                return False
    return True


def _heard(show: Progress) -> Callable[[Mapping[str, Any]], None]:
    """News of a run in words."""

    def heard(news: Mapping[str, Any]) -> None:
        state = news.get("state")
        if state == "running":
            done, total = news["delivered"], max(1, news["messages"])
            show(done / total, f"{done}/{total} messages")
        elif state == "again":
            show(0.0, f"once more: {news['why']}")
        elif state == "compiling":
            show(0.0, "compiling the hosts' loop and transports (once, then kept)")
        else:
            show(0.0, f"building the network ({news.get('backend', '')})")

    return heard


def print_engines(results: Sequence[Result]) -> None:
    """What they ran on, and everything that was not as the scenario says; what is alike once."""
    said: dict[str, list[str]] = {}
    for result in results:
        engine, policy = result.summary["engine"], result.summary["policy"]
        where = f"{engine['clock']} clock, switches {engine['switch']}, Linux {engine['kernel']}"
        for line in (f"on real sockets: {where}", *(f"differs: {each}" for each in engine["substitutions"])):
            said.setdefault(line, []).append(policy)
    for line, policies in said.items():
        typer.echo(line if len(policies) == len(results) else f"{line} ({', '.join(policies)})")
