"""Defines the command `gradwire fidelity`, which runs a scenario in simulator and testbed and compares the Results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.commands.testbed import Clock, Repeat, Switch, print_engines, request_of, run_all
from gradwire.cli.options import (
    Force,
    Json,
    MaxWall,
    PolicyName,
    Set,
    TraceName,
    Trust,
    library_names,
    overrides_from_options,
)
from gradwire.cli.terminal import for_people, progress

if TYPE_CHECKING:
    from gradwire.analysis.user_program import UserProgram
    from gradwire.emu.testbed import Request
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario


@for_people
def cmd_fidelity(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO", help="A scenario file (.toml) or a name from the library.", autocompletion=library_names
        ),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option("--from", metavar="RESULT", help="Replay the gradients of this Result of gradwire exec instead."),
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
    """Compare one scenario simulated and on real sockets. Exits with 1 if a tolerance is missed.

    With --from, also compare a user program: the Result of gradwire exec --out, and the trace of that run.
    """
    from gradwire.result_store.folders.replacement import claim_output
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.loading.load import load_scenario

    program = None
    if own is not None:
        program = _program(own, scenario, policy, trace, set_)
        chosen = program.scenario
        engine = program.result.summary["engine"]  # the program's clock and switches are the defaults
        clock, switch = clock or engine["clock"], switch or engine["switch"]
    elif scenario is None:
        raise GradwireError("has nothing to compare", "gradwire fidelity", "SCENARIO, or --from RESULT")
    else:
        chosen = load_scenario(scenario, set=overrides_from_options(set_, trace), policy=policy)
    if program is not None and chosen.fidelity.seeds > 1:
        raise GradwireError("cannot be combined with --from: the program ran once", "fidelity.seeds", "1")
    chosen = chosen.with_kernels_tcp()
    request = replace(request_of(clock, switch, max_wall, repeat, None, None), answers_late=chosen.fidelity.answers)
    with claim_output(out, force) as place:
        _both(chosen, request, place, as_json, None if program is None else program.result)


def _program(
    own: Path, scenario: str | None, policy: str | None, trace: str | None, set_: list[str] | None
) -> UserProgram:
    from gradwire.analysis.user_program import load_user_program
    from gradwire.scenarios.errors import GradwireError

    for value, where in ((scenario, "SCENARIO"), (policy, "--policy"), (trace, "--trace")):
        if value is not None:
            raise GradwireError("cannot be combined with --from", where, "the Result's scenario, and --set")
    return load_user_program(own, overrides_from_options(set_, None))


def _both(chosen: Scenario, request: Request, out: Path | None, as_json: bool, program: Result | None = None) -> None:
    """Simulate and emulate, print the comparison and write it; exits as `cmd_fidelity` says. `program`: Result of the
    user program that is replayed, if any."""
    from gradwire.analysis.comparison.tables import print_grid
    from gradwire.analysis.fidelity.fidelity_report import compare_runs, results_of, write_report
    from gradwire.analysis.user_program import side_by_side
    from gradwire.result_store.folders.output_folder import write_output
    from gradwire.scenarios.errors import GradwireError
    from gradwire.sim.perturbation import reseeded_variants

    seeded = list(reseeded_variants(chosen, chosen.fidelity.seeds))
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
    result_by_name = results_of(simulated, emulated, len(seeded) > 1)
    parts = [(f"results/{name}", result.write) for name, result in result_by_name.items()]
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
    comparison = compare_runs(simulated, emulated, chosen.fidelity, others=others, quiet=as_json)

    def everything(folder: Path) -> None:
        write_report(comparison, folder)
        if program is not None:
            program.write(folder / "results" / "program")

    written = write_output(out, everything, parts)
    if as_json:
        typer.echo(json.dumps({**comparison.data, **own, "engine": comparison.emulated.summary["engine"]}))
    else:
        for line in comparison.lines:
            typer.echo(line)
        if written.place is not None:
            typer.echo(f"figures, plot and results: {written.place}")
    if written.trouble is not None:
        raise written.trouble
    if not comparison.passed:
        raise typer.Exit(1)


def _simulate(seeded: Sequence[Scenario], quiet: bool, runs: list[Result], others: list[list[Result]]) -> None:
    """Append one Result per scenario to `runs`, and one with slightly longer cables to each of `others`."""
    from gradwire.sim.perturbation import perturbed
    from gradwire.sim.simulate import simulate

    chosen, spread = seeded[0], len(others)
    with progress(f"{chosen.name} {chosen.policy_name}, simulated", quiet, "compiling the packet engine") as show:
        for done, each in enumerate(seeded):
            which = f"seed {each.seed}" if len(seeded) > 1 else ""
            runs.append(simulate(each))
            for number, variant in enumerate(perturbed(each, spread)):
                words = ", ".join(filter(None, (which, f"perturbed, {number + 1}/{spread}")))
                show((done + number / spread) / len(seeded), words)
                others[number].append(simulate(variant))
            show((done + 1) / len(seeded), which)
