"""The commands `gradwire trace ...`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.options import Json, trace_names
from gradwire.cli.terminal import for_people, progress
from gradwire.traces.formats.base import exporters, importers

app = typer.Typer(
    help="Look at traces, bring them in from other tools and out to them.", no_args_is_help=True
)

TraceName = Annotated[
    str,
    typer.Argument(help="A trace directory, or the name of a bundled trace.", autocompletion=trace_names),
]


@app.command("info", epilog="Example: gradwire trace info resnet50 --json")
@for_people
def cmd_info(
    trace: TraceName,
    layers: Annotated[bool, typer.Option(help="One line per layer as well.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a trace holds: model, machine, phases, sizes, compute times, gradient magnitudes."""
    from gradwire.traces.info import info, print_info
    from gradwire.traces.trace import load_trace

    loaded = load_trace(trace)
    if as_json:
        typer.echo(json.dumps(info(loaded)))
    else:
        print_info(loaded, layers=layers)


@app.command("import", epilog="Example: gradwire trace import profile.json.gz --out my-trace")
@for_people
def cmd_import(
    file: Annotated[Path, typer.Argument(help="A file of another tool, gzipped or not.")],
    out: Annotated[Path, typer.Option(help="The new directory of the trace.")],
    format: Annotated[str, typer.Option(help=f"auto, {', '.join(importers())}")] = "auto",
    name: Annotated[str | None, typer.Option(help="Name of the trace; the file's by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Of gradients of which the file gives only bytes.")] = "float32",
    fit_to: Annotated[
        str, typer.Option(help="The measured trace that the model of magnitudes is fitted to.")
    ] = "resnet50",
    seed: Annotated[int, typer.Option(min=0, help="Of the magnitudes.")] = 1,
    ranks: Annotated[
        bool,
        typer.Option(
            "--ranks",
            help="The graphs of all ranks as well: of NAME.RANK.et beside it (chakra), or worked out of one's (simai).",
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Leave out control dependencies that close circles (chakra), and count them."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a trace of a PyTorch profile, a PipeDream graph, a SimAI workload, a Chakra trace or a CSV.

    What was not understood, left out because it is no gradient, or cannot be believed is counted and named.
    """
    from gradwire.scenarios.output import refuse_unwritable
    from gradwire.traces.formats import import_trace

    refuse_unwritable(out)
    with progress(f"import {file.name}", as_json) as show:
        trace = import_trace(
            file,
            format=format,
            name=name,
            seed=seed,
            dtype=dtype,
            fit_to=fit_to,
            ranks=ranks,
            repair=repair,
            progress=show,
        )
    trace.save(out)
    source = trace.manifest["source"]
    if as_json:
        typer.echo(json.dumps({"trace": str(out), **source, "timing": trace.manifest["timing"]}))
        return
    typer.echo(
        f"{source['format']}: {len(trace.tensors)} gradients in {len(trace.layers)} layers, "
        f"{trace.total_bytes / 1e6:.1f} MB, {len(trace.iterations)} iterations"
    )
    typer.echo(f"times {trace.manifest['timing']}: {trace.manifest['timing_how']}")
    typer.echo(f"magnitudes: log-normal model fitted to {trace.manifest['magnitudes']['fitted_to']}")
    for title in ("understood", "skipped", "doubtful"):
        for what, count in source.get(title, {}).items():
            typer.echo(f"{title}: {count} x {what}")
    typer.echo(f"trace written to {out}")


@app.command("export", epilog="Example: gradwire trace export resnet50 --format chakra --ranks 8 --out job")
@for_people
def cmd_export(
    trace: TraceName,
    format: Annotated[str, typer.Option(help=", ".join(exporters()))],
    out: Annotated[Path, typer.Option(help="The new file; for chakra what stands before .RANK.et")],
    iteration: Annotated[
        list[int] | None, typer.Option(min=0, help="Index of an iteration; repeatable. The first if absent.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Workers of the job.")] = 1,
    as_json: Json = False,
) -> None:
    """Write a trace for ASTRA-sim (chakra), SimAI (simai), a timeline viewer (perfetto) or as a table (csv)."""
    from gradwire.traces.formats import export_trace
    from gradwire.traces.trace import load_trace

    files = export_trace(load_trace(trace), out, format=format, iterations=iteration, ranks=ranks)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files]}))
        return
    for file in files:
        typer.echo(f"written: {file}")


@app.command(
    "merge", epilog="Example: gradwire trace merge run1.trace.rank0 run1.trace.rank1 --out run1.trace"
)
@for_people
def cmd_merge(
    sources: Annotated[list[Path], typer.Argument(help="The traces that the ranks of one job recorded.")],
    out: Annotated[Path, typer.Option(help="The new directory of the merged trace.")],
) -> None:
    """Put the traces of the ranks of one job into one."""
    from gradwire.traces.merge import merge

    typer.echo(f"trace written to {merge(sources, out)}")


@app.command("retime", epilog="Example: gradwire trace retime resnet50 --times profile.json.gz --out resnet50-gpu")
@for_people
def cmd_retime(
    trace: TraceName,
    times: Annotated[
        str, typer.Option(help="Where the times are from: a trace, or a file that gradwire trace import reads.")
    ],
    out: Annotated[Path, typer.Option(help="The new directory of the trace.")],
    format: Annotated[str, typer.Option(help=f"Of the file: auto, {', '.join(importers())}")] = "auto",
    name: Annotated[str | None, typer.Option(help="Name of the new trace; the directory's by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Of gradients of which the file gives only bytes.")] = "float32",
    share: Annotated[
        bool, typer.Option(help="Do not write the magnitudes again: read them from the bundled TRACE, always.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put the gradients of one trace at the times of another recording of the same model, such as a GPU's.

    Gradients are matched by name, or by order and size; which are not is said, and what they get instead.
    docs/traces.md has the rules.
    """
    from gradwire.scenarios.output import refuse_unwritable
    from gradwire.traces.retime import retime, times_of, told
    from gradwire.traces.storage import write
    from gradwire.traces.trace import load_trace

    refuse_unwritable(out)
    sizes = load_trace(trace)
    with progress(f"read {Path(times).name}", as_json) as show:
        found, source = times_of(times, format=format, dtype=dtype, progress=show)
    repeats = ["gradwire", "trace", "retime", Path(trace).name, "--times", Path(times).name]
    repeats += [*(["--share"] if share else []), "--out", out.name]
    made = retime(sizes, found, name or out.name, source, shlex.join(repeats))
    write(made, out, chunks_of=trace if share else None)
    if as_json:
        typer.echo(json.dumps({"trace": str(out), **made.manifest["retimed"]}))
        return
    for line in told(made.manifest):
        typer.echo(line)
    typer.echo(f"trace written to {out}")


@app.command("plot", epilog="Example: gradwire trace plot resnet50 --out resnet50-plots")
@for_people
def cmd_plot(
    trace: TraceName,
    out: Annotated[Path, typer.Option(help="The directory of the pictures.")],
    iteration: Annotated[int, typer.Option(min=0, help="Index of the iteration that is drawn.")] = 0,
) -> None:
    """Draw the timeline of one iteration and the gradient magnitudes of each layer."""
    from gradwire.traces.plot import plot_trace
    from gradwire.traces.trace import load_trace

    for picture in plot_trace(load_trace(trace), out, iteration):
        typer.echo(f"picture: {picture}")


@app.command("diff", epilog="Example: gradwire trace diff resnet50 my-trace")
@for_people
def cmd_diff(
    first: TraceName,
    second: Annotated[str, typer.Argument(help="The trace that is compared with the first.")],
    as_json: Json = False,
) -> None:
    """Compare two traces: tensors, sizes, compute times per phase, magnitudes."""
    from gradwire.traces.diff import diff, print_diff
    from gradwire.traces.trace import load_trace

    difference = diff(load_trace(first), load_trace(second))
    if as_json:
        typer.echo(json.dumps(difference))
    else:
        print_diff(difference)
