"""The door of gradwire: the command line, and the public Python API.

    import gradwire

    scenario = gradwire.load_scenario("leaf_spine_ps.toml")
    trace = gradwire.load_trace("resnet50")
    result = gradwire.simulate(scenario, trace)
    result.iterations, result.messages          # pyarrow tables
    gradwire.compare("demo", result).to_pandas()

No logic lives here: every command reads its input with `scenarios` and `traces`, calls one function of
another room and shows what it returns. Everything is imported at its first use, because `gradwire --help` and
`gradwire check` should answer at once while the simulator takes a second to import.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer

    import gradwire_cache
    import gradwire_testbed
    from analysis.terminal import Progress, for_people, patient_stdout, progress
    from analysis.trace_cli import app as trace_app
    from scenarios import __version__
except KeyboardInterrupt:  # while a command starts there is nobody yet who would answer it
    if Path(sys.argv[0]).name != "gradwire":
        raise
    print("gradwire: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from scenarios.result import Result
    from scenarios.schema import Scenario
    from sim.progress import Standing

PUBLIC = {
    "load_scenario": "scenarios.load",
    "load_trace": "traces.trace",
    "simulate": "sim.simulate",
    "emulate": "gradwire_testbed",
    "compare": "gradwire_api",
    "plot": "gradwire_api",
    "Comparison": "analysis.compare",
    "Metrics": "analysis.metrics",
    "Result": "scenarios.result",
    "Scenario": "scenarios.schema",
    "Trace": "traces.trace",
    "GradwireError": "scenarios.errors",
    "MissingExtraError": "scenarios.errors",
    "ResultError": "scenarios.errors",
    "ScenarioError": "scenarios.errors",
    "StallError": "scenarios.errors",
    "TestbedError": "emu.switches.base",
    "TraceError": "scenarios.errors",
}
"""The Python API and where it comes from, at its first use."""
OPTIONAL = {"capture": "traces.capture"}
"""The same for what needs an extra (torch), and is left out by `from gradwire import *`."""

__all__ = ["__version__", "main", *PUBLIC]


def __getattr__(name: str) -> Any:
    if room := PUBLIC.get(name) or OPTIONAL.get(name):
        return getattr(importlib.import_module(room), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, *OPTIONAL))


COMPILING = "compiling the packet engine (once per transport and load balancer, then kept)"

app = typer.Typer(
    help="What does this network policy do to this training job - per packet, in time and in final accuracy?",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # in "rich" words in brackets are taken for colours
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
)
bench_app = typer.Typer(help="Measure gradwire's own speed.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")
app.add_typer(bench_app, name="bench")



def _library(incomplete: str) -> list[str]:
    """For shells that complete words: scenarios of the library; files the shell knows itself."""
    from scenarios.load import list_library

    return [name for name in list_library() if name.startswith(incomplete)]


ScenarioName = Annotated[
    str,
    typer.Argument(help="A scenario file, or the name of one of the library.", autocompletion=_library),
]
TraceName = Annotated[
    str | None, typer.Option("--trace", help="Replay this trace (bundled name or directory) in every job.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value; repeatable.")
]
Threads = Annotated[int, typer.Option(min=1, max=128, help="Threads of the simulator; results do not depend on it.")]
MaxWall = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="End every run after so long on the wall clock, such as 30s or 5m."),
]
Out = Annotated[Path | None, typer.Option(help="Write results to this new directory.")]
Plots = Annotated[
    str, typer.Option("--plots", metavar="FORMAT", help="Format of the plots that --out writes: png, pdf or svg.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def main() -> None:
    """Entry point of the `gradwire` command."""
    with patient_stdout():
        app()


@app.callback(invoke_without_command=True)
def cmd_root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"gradwire {__version__}")
        raise typer.Exit


@app.command("demo", epilog="Example: gradwire demo --out my-demo")
@for_people
def cmd_demo(threads: Threads = 1, out: Out = None, plots: Plots = "png", as_json: Json = False) -> None:
    """Replay the bundled trace under three policies and compare. Exits with 1 if a loss bound is broken."""
    from scenarios.output import Claim, claim_numbered

    _known_format(plots)
    with Claim(out) if out is not None else claim_numbered("results/demo") as place:
        _compare(["demo"], [], threads, None, place, as_json, plots)


@app.command("run", epilog="Example: gradwire run demo --policy dlcp --set job.workers=8 --out results/eight")
@for_people
def cmd_run(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario file, the name of one of the library, or a Result to run again.", autocompletion=_library
        ),
    ],
    policy: Annotated[str | None, typer.Option(help="Run this policy of the scenario, not the base.")] = None,
    trace: TraceName = None,
    set_: Set = None,
    threads: Threads = 1,
    max_wall: MaxWall = None,
    out: Out = None,
    plots: Annotated[
        str | None,
        typer.Option("--plots", metavar="FORMAT", help="Draw plots beside the tables of --out: png, pdf or svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate one scenario and print what came out. Exits with 1 if a loss bound is broken or time was up."""
    from scenarios.load import list_library, load_scenario
    from scenarios.output import claimed
    from scenarios.record import asked, is_record

    if plots is not None:
        _known_format(plots, out)
    overrides, limit = _overrides(set_, trace), _seconds(max_wall)
    if scenario not in list_library() and is_record(scenario):
        chosen = _again(scenario, overrides, policy)
    else:
        chosen = load_scenario(scenario, set=overrides, policy=policy)
    with claimed(out) as place:
        results, finished = _simulate([chosen], threads, limit, as_json, asked(scenario, overrides))
        _show(results, finished, place, as_json, plots, alone=True)


@app.command("compare", epilog="Example: gradwire compare demo --set job.iterations=2 --out results/short")
@for_people
def cmd_compare(
    sources: Annotated[
        list[str],
        typer.Argument(help="Scenarios (all their policies) or Result directories.", autocompletion=_library),
    ],
    trace: TraceName = None,
    set_: Set = None,
    threads: Threads = 1,
    max_wall: MaxWall = None,
    out: Out = None,
    plots: Plots = "png",
    as_json: Json = False,
) -> None:
    """The same trace under several policies, as a table; --out adds plots. Exits with 1 on a broken bound, or if a
    run's time was up."""
    from scenarios.output import claimed

    _known_format(plots)
    with claimed(out) as place:
        _compare(sources, _overrides(set_, trace), threads, _seconds(max_wall), place, as_json, plots)


@app.command("check", epilog="Example: gradwire check my.toml --set switch.queues=4")
@for_people
def cmd_check(
    scenario: ScenarioName, trace: TraceName = None, set_: Set = None, as_json: Json = False
) -> None:
    """Validate a scenario, its network and the traces it names; every mistake is reported at once."""
    from scenarios.checks import remarks
    from scenarios.load import load_scenario
    from sim.precheck import check_variants

    loaded = load_scenario(scenario, set=_overrides(set_, trace))
    variants = loaded.variants()
    check_variants(variants)
    notes = list(dict.fromkeys(f"{v.policy_name}: {text}" for v in variants for text in remarks(v)))
    if as_json:
        typer.echo(
            json.dumps({"name": loaded.name, "policies": [v.policy_name for v in variants], "notes": notes})
        )
        return
    typer.echo(f"{loaded.name} is valid: " + ", ".join(variant.policy_name for variant in variants))
    for note in notes:
        typer.echo(f"note: {note}")


@app.command("telemetry", epilog="Example: gradwire telemetry results/one --plot queues.png --port leaf0")
@for_people
def cmd_telemetry(
    result: Annotated[Path, typer.Argument(help="A Result directory.")],
    port: Annotated[
        list[str] | None,
        typer.Option("--port", "--ports", help="A port (leaf0->h3) or a node (all its ports); repeatable."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw queues, utilisation and waiting times into this new .png, .pdf, .svg or .jpg."),
    ] = None,
    pcap: Annotated[
        Path | None, typer.Option(help="Write the log of packets to this new pcapng file, for Wireshark.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at the ports of one run: queues, waiting times, drops and marks; what was recorded says [output]."""
    from analysis.telemetry import chosen_ports, describe, print_telemetry
    from scenarios.output import refuse_unwritable
    from scenarios.result import Result

    if plot is not None:
        from analysis.figures import format_of

        format_of(plot)
    for file in (plot, pcap):
        if file is not None:
            refuse_unwritable(file)
    loaded = Result.read(result)
    wanted = chosen_ports(loaded, port or [])
    only = wanted if port else None
    found = describe(loaded, only)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        print_telemetry(found, bool(port))
    if plot is not None:
        from analysis.telemetry_plot import draw_telemetry

        shown = draw_telemetry(loaded, plot, only)
        if not as_json:
            typer.echo(f"picture: {plot}" + (f" ({', '.join(shown)})" if shown else ""))
    if pcap is not None:
        from analysis.capture import write_capture

        count = write_capture(loaded, pcap, wanted)
        if not as_json:
            typer.echo(f"capture: {pcap}, {count:,} packets")


gradwire_testbed.register(app)
gradwire_cache.register(app)


@app.command("schema", epilog="Example: gradwire schema > scenario.schema.json")
@for_people
def cmd_schema() -> None:
    """Print the JSON Schema of scenario files, for editors and other programs."""
    from scenarios.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command("capture", epilog="Example: gradwire capture --model resnet50 --data ./cifar10 --out my-trace")
@for_people
def cmd_capture(
    out: Annotated[Path, typer.Option(help="The new directory of the trace.")],
    data: Annotated[
        str,
        typer.Option(
            help="CIFAR-10/100 (Parquet or pickles), a folder of pictures per class, or plain text; "
            '"synthetic" makes data up.'
        ),
    ],
    model: Annotated[
        str, typer.Option(help="resnet50, vgg16, gpt2-small, lstm, ... (docs/capture.md)")
    ] = "resnet50",
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Pictures are scaled to this many pixels square.")
    ] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of one sample of text.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Text as byte (default), char or word.")] = None,
    iterations: Annotated[
        int, typer.Option(min=1, help="Consecutive iterations recorded at each moment.")
    ] = 6,
    every: Annotated[
        int, typer.Option(min=1, help="Gradient statistics of every n-th of them; times of all.")
    ] = 1,
    early: Annotated[int, typer.Option(help="Step of the first early iteration.")] = 20,
    late: Annotated[int, typer.Option(help="Step of the first late iteration.")] = 600,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the model's own.")] = None,
    overhead_pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of steps that measure what recording costs.")
    ] = 12,
    note: Annotated[str | None, typer.Option(help="A remark for the manifest.")] = None,
) -> None:
    """Train a built-in model on real data and record its gradients. Needs the extra "capture"."""
    from traces.builtin import BuiltinRun, capture_builtin

    run = BuiltinRun(
        model=model, data=data, batch=batch, image_size=image_size, sequence=sequence, tokens=tokens,
        iterations=iterations, every=every, early=early, late=late, device=device, threads=threads, seed=seed,
        learning_rate=learning_rate, overhead_pairs=overhead_pairs, note=note,
    )  # fmt: skip
    with progress(f"capture {model}") as show:
        path = capture_builtin(
            run, out, progress=lambda step, steps, loss: show(step / steps, f"step {step} loss {loss:.3f}")
        )
    typer.echo(f"trace written to {path}")


@bench_app.command(
    "fabric", epilog="Example: gradwire bench fabric --case incast --hosts 128 --transport dctcp"
)
@for_people
def cmd_bench_fabric(
    case: Annotated[str | None, typer.Option(help="permutation or incast; all if absent.")] = None,
    hosts: Annotated[int | None, typer.Option(help="128, 432 or 1024; all if absent.")] = None,
    transport: Annotated[
        str | None, typer.Option(help="One transport, or all; the usual three if absent.")
    ] = None,
    feature: Annotated[
        str | None, typer.Option(help="Something switches or the engine do besides, a load balancer, or all.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="One thread count; 1 and 2 if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Speed of the packet engine: packet-hops per second on fat-trees, for each transport."""
    from benchmarks.fabric import bench_fabric

    bench_fabric(
        case=case, hosts=hosts, transport=transport, feature=feature, threads=threads, as_json=as_json
    )


@bench_app.command("traces", epilog="Example: gradwire bench traces --case resnet50")
@for_people
def cmd_bench_traces(
    case: Annotated[str | None, typer.Option(help="One trace by name; all if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Speed of reading traces: the bundled ones, and a made-up one of 138 million parameters."""
    from benchmarks.traces import bench_traces

    bench_traces(case=case, as_json=as_json)


@bench_app.command("emu", epilog="Example: gradwire bench emu --case virtual")
@for_people
def cmd_bench_emu(
    case: Annotated[str | None, typer.Option(help="core, tun, agents or virtual; all if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Speed of the testbed: its userspace switch, its agents on the wall clock, and virtual time."""
    from benchmarks.emu import bench_emu

    bench_emu(case=case, as_json=as_json)


def _overrides(set_: list[str] | None, trace: str | None) -> list[str]:
    return [*(set_ or []), *([] if trace is None else [f"job.trace={json.dumps(trace)}"])]


def _again(folder: str, overrides: list[str], policy: str | None) -> Scenario:
    """The scenario of a Result, to be run again; what may differ is said on stderr."""
    from scenarios.errors import ResultError
    from scenarios.record import load_record
    from traces.trace import load_trace

    if policy is not None:
        raise ResultError("holds one policy already", folder, "no --policy, or the scenario it came from")
    chosen, differences = load_record(
        Path(folder), overrides, lambda found: [load_trace(job.trace).digest() for job in found.job]
    )
    for each in differences:
        typer.echo(f"note: {folder}: {each}", err=True)
    return chosen


def _seconds(max_wall: str | None) -> float | None:
    from scenarios.errors import GradwireError
    from scenarios.units import UnitError, parse_wall

    try:
        return None if max_wall is None else parse_wall(max_wall)
    except UnitError as error:
        raise GradwireError(error.what, "--max-wall", error.expected) from None


def _simulate(
    scenarios: list[Scenario], threads: int, max_wall_s: float | None, quiet: bool, asked: dict[str, Any]
) -> tuple[list[Result], bool]:
    """One Result per scenario, and whether there was no Ctrl-C; after one, those that hold something. Why one has
    stalled is said at once."""
    from sim.fabric.specialise import compile_ahead
    from sim.simulate import Stalled, simulate

    results: list[Result] = []
    for scenario in scenarios:
        try:
            with progress(f"{scenario.name} {scenario.policy_name}", quiet, COMPILING) as show:
                if not results:
                    compile_ahead(scenarios)  # all that they need, side by side
                told = _simulated(show, scenario)
                results.append(simulate(scenario, threads=threads, progress=told, max_wall_s=max_wall_s))
                results[-1].timing.update(asked)
        except Stalled as stop:
            typer.echo(f"gradwire: {scenario.name} {scenario.policy_name}: {stop}", err=True)
            stop.result.timing.update(asked)
            results.append(stop.result)
        except KeyboardInterrupt as stop:
            cut: Result | None = getattr(stop, "result", None)
            seen = cut and (cut.iterations.num_rows or cut.messages.num_rows)
            if cut:
                cut.timing.update(asked)
            return results + ([cut] if cut and seen else []), False
    return results, True


def _simulated(show: Progress, scenario: Scenario) -> Callable[[Standing], None]:
    """Progress of a simulation in words."""
    from analysis.pace import Pace

    what, pace = ("iterations" if scenario.job else "flows"), Pace()

    def progressed(at: Standing) -> None:
        pace.note(at.share, at.packet_hops)
        left, speed = pace.parts
        parts = (f"{at.done}/{at.total} {what}", left, f"{at.now_ps / 1e9:.1f} ms simulated", speed)
        show(at.share, ", ".join(filter(None, parts)))

    return progressed


def _compare(
    sources: list[str],
    overrides: list[str],
    threads: int,
    max_wall_s: float | None,
    out: Path | None,
    as_json: bool,
    plots: str,
) -> None:
    """Read or simulate everything that is to be compared; all of it is read before anything is simulated."""
    from scenarios.load import list_library, load_scenario
    from scenarios.record import asked, members
    from scenarios.result import Result

    parts: list[tuple[str, list[Result], list[Scenario]]] = []
    for source in sources:
        if Path(source).is_dir() and source not in list_library():
            parts.append((source, [Result.read(member) for member in members(source)], []))
        else:
            parts.append((source, [], load_scenario(source, set=overrides).variants()))
    if overrides and not any(variants for _, _, variants in parts):
        from scenarios.errors import ResultError

        expected = f"gradwire run {sources[0]} --set ..., which runs it again"
        raise ResultError("has been run already: overrides change nothing in it", sources[0], expected)
    for source, read, _ in parts if overrides else ():
        if read:
            typer.echo(f"note: {source}: has been run already: {', '.join(overrides)} changes nothing in it", err=True)
    results, finished = [], True
    for source, read, variants in parts:
        results += read
        if variants and finished:
            simulated, finished = _simulate(variants, threads, max_wall_s, as_json, asked(source, overrides))
            results += simulated
    _show(results, finished, out, as_json, plots)


def _known_format(plots: str, out: Path | str | None = "") -> None:
    """Raise GradwireError unless plots can be drawn in a format, and into `out`; before anything is simulated."""
    from analysis.figures import PLOTS
    from scenarios.errors import GradwireError

    if plots not in PLOTS:
        raise GradwireError("is no format of plots", f"--plots {plots}", f"one of {', '.join(PLOTS)}")
    if out is None:
        raise GradwireError("has nowhere to draw", f"--plots {plots}", "--out FOLDER besides")


def _show(
    results: list[Result], finished: bool, out: Path | None, as_json: bool, plots: str | None, alone: bool = False
) -> None:
    """Write a comparison to `out`, or a Result `alone`, and print the comparison. `plots`: their format, or none.

    Exits with 1 if a loss bound is broken, a run has stalled or its time was up, as after Ctrl-C if the runs were not
    `finished`, and with an error if it had to be written elsewhere.
    """
    from analysis.compare import compare, result_folders
    from scenarios.output import keep

    if not results:
        raise KeyboardInterrupt
    comparison = compare(results)
    kept = None
    if out is not None and alone:
        write = partial(comparison.write_alone, plots=plots) if plots else results[0].write
        kept = keep(out, write, [("result", results[0].write)] if plots else [])
    elif out is not None:
        parts = [(name, each.write) for name, each in zip(result_folders(results), results, strict=True)]
        kept = keep(out, partial(comparison.write, plots=plots or "png"), parts)
    if as_json:
        typer.echo(json.dumps(comparison.as_dict()))
    else:
        comparison.print()
        if kept is not None and kept.place is not None:
            typer.echo(f"{'result' if alone else 'report and results'}: {kept.place}")
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


if __name__ == "__main__":
    main()
