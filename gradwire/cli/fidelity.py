"""The door's command that holds simulator and testbed against each other: fidelity."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.options import Force, Json, MaxWall, PolicyName, Set, TraceName, Trust, overrides_of
from gradwire.cli.terminal import for_people, progress
from gradwire.cli.testbed import Clock, Repeat, Switch, print_engines, request_of, run_all

if TYPE_CHECKING:
    from gradwire.analysis.own_program import OwnProgram
    from gradwire.emu.testbed import Request
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    example = "Example: gradwire fidelity agreement --policy star-dlcp --clock virtual --out results/both"
    app.command("fidelity", epilog=example)(cmd_fidelity)


@for_people
def cmd_fidelity(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="A scenario file (.toml) or a name from the library.")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option("--from", metavar="RESULT", help="Of gradwire exec, instead: its gradients are replayed."),
    ] = None,
    policy: PolicyName = None,
    trace: TraceName = None,
    set_: Set = None,
    clock: Clock = None,
    switch: Switch = None,
    max_wall: MaxWall = None,
    repeat: Repeat = 3,
    out: Annotated[
        Path | None, typer.Option(help="Write both Results, all figures and a plot to this new directory.")
    ] = None,
    force: Force = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The same scenario simulated and on real sockets, side by side. Exits with 1 if a tolerance is missed.

    With --from a program of your own is the third: what gradwire exec --out has kept, and the trace of the very run.
    """
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.load import load_scenario
    from gradwire.scenarios.replacing import claimed

    program = None
    if own is not None:
        program = _program(own, scenario, policy, trace, set_)
        chosen = program.scenario
        engine = program.result.summary["engine"]  # the clock and the switches that the program had
        clock, switch = clock or engine["clock"], switch or engine["switch"]
    elif scenario is None:
        raise GradwireError("there is nothing to compare", "gradwire fidelity", "SCENARIO, or --from RESULT")
    else:
        chosen = load_scenario(scenario, set=overrides_of(set_, trace), policy=policy)
    if program is not None and chosen.fidelity.seeds > 1:
        raise GradwireError("has no place beside --from: the program ran once", "fidelity.seeds", "1")
    chosen = chosen.with_kernels_tcp()
    request = replace(
        request_of(clock, switch, max_wall, repeat, None, None), answers_late=chosen.fidelity.answers
    )
    with claimed(out, force) as place:
        _both(chosen, request, place, as_json, None if program is None else program.result)


def _program(
    own: Path, scenario: str | None, policy: str | None, trace: str | None, set_: list[str] | None
) -> OwnProgram:
    from gradwire.analysis.own_program import own_program
    from gradwire.scenarios.errors import GradwireError

    for given, where in ((scenario, "SCENARIO"), (policy, "--policy"), (trace, "--trace")):
        if given is not None:
            raise GradwireError("has no place beside --from", where, "the Result's own, and --set")
    return own_program(own, overrides_of(set_, None))


def _both(
    chosen: Scenario, request: Request, out: Path | None, as_json: bool, program: Result | None = None
) -> None:
    """Simulate and emulate, print both side by side, write what came out; exits as `cmd_fidelity` says. `program`: of
    one's own, whose replay this is."""
    from gradwire.analysis.fidelity_show import compare_runs, results_of, write
    from gradwire.analysis.own_program import side_by_side
    from gradwire.analysis.tables import print_grid
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.output import Kept, keep
    from gradwire.sim.perturbation import reseeded

    seeded = list(reseeded(chosen, chosen.fidelity.seeds))
    simulated: list[Result] = []
    emulated: list[Result] = []
    others: list[list[Result]] = [[] for _ in range(chosen.fidelity.spread)]
    trouble: GradwireError | None = None
    try:
        _simulate(seeded, as_json, simulated, others)
        finished = run_all(seeded, request, as_json, emulated)
    except KeyboardInterrupt:
        finished = False
    except GradwireError as error:
        finished, trouble = False, error
    named = results_of(simulated, emulated, len(seeded) > 1)
    parts = [(f"results/{name}", result.write) for name, result in named.items()]
    if not finished:
        if out is not None and parts:
            for name, part in parts:
                part(out / name)
            typer.echo(f"not compared; results so far: {out}", err=True)
        raise trouble or KeyboardInterrupt
    if not as_json:
        print_engines(emulated)
    own: dict[str, Any] = {}
    if program is not None:
        parts.append(("results/program", program.write))
        grid, own["program"] = side_by_side(program, emulated[0], simulated[0])
        if not as_json:
            print_grid(grid)
    shown = compare_runs(simulated, emulated, chosen.fidelity, others=others, quiet=as_json)
    kept = Kept(None)
    if out is not None:

        def everything(folder: Path) -> None:
            write(shown, folder)
            if program is not None:
                program.write(folder / "results" / "program")

        kept = keep(out, everything, parts)
    if as_json:
        typer.echo(json.dumps({**shown.data, **own, "engine": shown.emulated.summary["engine"]}))
    else:
        for line in shown.lines:
            typer.echo(line)
        if kept.place is not None:
            typer.echo(f"figures, plot and results: {kept.place}")
    if kept.trouble is not None:
        raise kept.trouble
    if not shown.passed:
        raise typer.Exit(1)


def _simulate(seeded: Sequence[Scenario], quiet: bool, runs: list[Result], others: list[list[Result]]) -> None:
    """Put one Result per scenario into `runs`; and into each of `others` one of each with cables that are a little
    longer."""
    from gradwire.sim.perturbation import perturbed
    from gradwire.sim.simulate import simulate

    chosen, spread = seeded[0], len(others)
    with progress(f"{chosen.name} {chosen.policy_name}, simulated", quiet, "compiling the packet engine") as show:
        for done, each in enumerate(seeded):
            which = f"seed {each.seed}" if len(seeded) > 1 else ""
            runs.append(simulate(each))
            for number, shaken in enumerate(perturbed(each, spread)):
                words = ", ".join(filter(None, (which, f"again, shaken, {number + 1}/{spread}")))
                show((done + number / spread) / len(seeded), words)
                others[number].append(simulate(shaken))
            show((done + 1) / len(seeded), which)
