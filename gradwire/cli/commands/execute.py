"""Defines the command `gradwire exec`, which runs a user program on the hosts of a scenario's emulated network."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.commands import testbed
from gradwire.cli.options import Force, Json, MaxWall, PolicyName, ScenarioName, Set, Trust, complete_words, trace_names
from gradwire.cli.terminal import for_people
from gradwire.scenarios.terminal_text import unescaped
from gradwire.studies.connect import emulate

if TYPE_CHECKING:
    from gradwire.emu.testbed import Request
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

COMPUTE = ("none", "measured", "trace")
EXEC_EXAMPLE = (
    "exec four-hosts --set link.loss=0.01 --out results/mine -- python train.py --lr 0.1    "
    "(torchrun's variables are set; {rank}, {host}, {address} in the command are replaced)"
)


@for_people
def cmd_exec(
    scenario: ScenarioName,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The command of every host, after two dashes.")
    ] = None,
    policy: PolicyName = None,
    set_: Set = None,
    clock: testbed.Clock = None,
    switch: testbed.Switch = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="H0,H1,...", help="Hosts that run it, in the order of ranks; all if absent.")
    ] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option("--ranks-per-host", metavar="N", help="Copies at every host; 1 if absent.")
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(
            help="Cost of computing under the virtual clock: none, measured (at gradwire.mark), or trace.",
            autocompletion=complete_words("none", "measured", "trace"),
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE", help="Trace with the compute times for --compute trace.", autocompletion=trace_names
        ),
    ] = None,
    pcap: testbed.Pcap = None,
    at: testbed.At = None,
    max_wall: MaxWall = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the Result, the ranks' output and their marks to this new directory.")
    ] = None,
    force: Force = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run a user program on the hosts of a scenario, over its emulated network.

    Exits with 0 if every rank did, with 1 if one has failed or the time limit was reached.
    """
    from gradwire.emu.system.temporary_folders import temporary_folder
    from gradwire.result_store.folders.replacement import claim_output
    from gradwire.result_store.provenance import asked
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.loading.load import load_scenario

    if not command:
        raise GradwireError("has no command", "gradwire exec", "-- and a command, such as -- python train.py")
    testbed.check_captures(pcap, at)
    loaded = load_scenario(scenario, set=set_ or [], policy=policy)
    with claim_output(out, force) as place, temporary_folder("gradwire-left-") as left_folder:
        common = testbed.request_of(clock, switch, max_wall, 1, pcap, at)
        request = _request(command, hosts, ranks_per_host, (compute, trace), common)
        result, finished = _run(loaded, request, left_folder, as_json)
        result.timing.update(asked(scenario, set_ or []))
        _report(result, finished, place, left_folder, pcap, as_json)


def _request(
    command: list[str],
    hosts: str | None,
    ranks_per_host: int | None,
    computing: tuple[str | None, str | None],
    request: Request,
) -> Request:
    """Return the request of the command line. `computing` : --compute and --trace."""
    from dataclasses import replace

    from gradwire.emu.planning.user_programs import ProgramRequest
    from gradwire.scenarios.errors import GradwireError

    if ranks_per_host is not None and ranks_per_host < 1:
        raise GradwireError(f"is {ranks_per_host}", "--ranks-per-host", "1 or more")
    compute, trace = computing
    if trace is not None and compute is None:
        compute = "trace"
    if compute is not None and compute not in COMPUTE:
        raise GradwireError(f"is {compute!r}", "--compute", " or ".join(COMPUTE))
    names = None if hosts is None else tuple(name.strip() for name in hosts.split(","))
    if names is not None and not all(names):
        raise GradwireError(f"{hosts!r} has an empty name", "--hosts", "such as h0,h1,h2")
    return replace(request, programs=ProgramRequest(tuple(command), names, ranks_per_host, compute, trace))


def _run(scenario: Scenario, request: Request, left_folder: Path, quiet: bool) -> tuple[Result, bool]:
    """Return the Result, and False after Ctrl-C. Raises KeyboardInterrupt if there is no Result yet."""
    from dataclasses import replace

    try:
        return emulate(scenario, None, replace(request, left_folder=left_folder), on_progress=_print_news(quiet)), True
    except KeyboardInterrupt as stop:
        partial: Result | None = getattr(stop, "result", None)
        if partial is None:
            raise
        return partial, False


def _print_news(quiet: bool) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback that prints the ranks' output line by line, with rank and host."""

    def on_news(news: Mapping[str, Any]) -> None:
        state = news.get("state")
        if quiet:
            return
        if state == "output":
            stream = sys.stdout if news["stream"] == "out" else sys.stderr
            line = f"[{news['rank']} {news['host']}] {news['text']}"
            print(line, file=unescaped(stream), flush=True)  # the program's colours stay
        elif state == "ending":
            what = "ending: ranks end when none computes; a second Ctrl-C ends them at once, without a Result"
            print(what, file=sys.stderr, flush=True)
        elif state in ("compiling", "again", "building"):
            print(testbed.preparation_text(news), file=sys.stderr, flush=True)

    return on_news


def _report(
    result: Result, finished: bool, out: Path | None, left_folder: Path, pcap: Path | None, as_json: bool
) -> None:
    """Print and write the Result, report its problems, and exit accordingly."""
    from gradwire.emu.user_programs.outcome import failures
    from gradwire.emu.virtual_time.memory_mappings import advice
    from gradwire.result_store.folders.output_folder import write_output

    programs, engine = result.summary["programs"], result.summary["engine"]
    if as_json:
        typer.echo(json.dumps(_figures(result)))
    else:
        for line in _lines(result):
            typer.echo(line)
        testbed.print_engines([result])

    def write(folder: Path) -> None:
        result.write(folder)
        shutil.copytree(left_folder, folder, dirs_exist_ok=True)

    written = write_output(out, write)
    if not as_json:
        for path, what in ((written.place, "result, output and marks"), (pcap, "captures")):
            if path is not None:
                typer.echo(f"{what}: {path}")
    for line in engine["disturbed"]:
        typer.echo(f"disturbed: {line}", err=True)
    for line in engine["lost_captures"]:
        typer.echo(f"gradwire: {line}; expected a folder with free space", err=True)
    if written.trouble is not None:
        raise written.trouble
    if engine["lost_captures"]:
        raise typer.Exit(2)
    if not finished:
        raise KeyboardInterrupt
    failed = failures(programs["ranks"])
    for line in failed:
        typer.echo(f"gradwire: {line}", err=True)
    killed = any(each["status"] == -signal.SIGKILL and not each["made_to_end"] for each in programs["ranks"])
    if killed and engine["clock"] == "virtual" and (why := advice()):
        typer.echo(f"gradwire: {why}", err=True)
    ended_by = result.summary["totals"]["ended_by"]
    if ended_by == "max_wall":
        typer.echo("gradwire: time limit reached (--max-wall): all ranks were ended", err=True)
    if failed or ended_by not in ("done", "duration"):
        raise typer.Exit(1)


def _figures(result: Result) -> dict[str, Any]:
    """Return the output of --json."""
    return {
        **{key: result.summary[key] for key in ("name", "policy", "seed", "engine", "totals", "programs")},
        "iteration_ps": _iteration_times(result),
        "drops": _drops(result),
    }


def _iteration_times(result: Result) -> list[int]:
    """Return the picoseconds of every rank's iterations."""
    table = result.select("iterations", "start_ps", "end_ps")
    starts, ends = table["start_ps"].to_pylist(), table["end_ps"].to_pylist()
    return [end - start for start, end in zip(starts, ends, strict=True)]


def _drops(result: Result) -> dict[str, int]:
    """Return the packets lost or marked at all ports together."""
    names = ("drops_tail", "drops_selective", "drops_loss", "marks")
    return {name: sum(result.ports[name].to_pylist()) for name in names}


def _lines(result: Result) -> list[str]:
    """Return the printed summary."""
    from statistics import mean

    ranks = result.summary["programs"]["ranks"]
    seconds = result.summary["totals"]["simulated_ps"] / 1e12
    lines = [f"{len(ranks)} ranks, ended by {result.summary['totals']['ended_by']} after {seconds:.3f} s"]
    times = _iteration_times(result)
    if times:
        lines.append(f"iterations: {len(times)}, mean {mean(times) / 1e9:.3f} ms, max {max(times) / 1e9:.3f} ms")
    counts = ", ".join(f"{count} {name.removeprefix('drops_')}" for name, count in _drops(result).items())
    lines.append(f"packets lost or marked: {counts}")
    lines += [f"rule {each['rule']}: {each['packets']} packets" for each in result.summary["programs"]["marks"]]
    return lines
