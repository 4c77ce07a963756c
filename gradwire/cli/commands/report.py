"""Defines `gradwire report`, which writes a page, `log`, which writes logs, and `diagnose`, for running jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.commands.timeline import MovedTrace, trace_of
from gradwire.cli.options import Force, Json, Log, library_names
from gradwire.cli.terminal import for_people, progress


@for_people
def cmd_report(
    sources: Annotated[
        list[str],
        typer.Argument(help="Folders of run, compare, sweep, reproduce, train or fidelity; several make sections."),
    ],
    out: Annotated[Path, typer.Option(help="The new file.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page; the names of its sections if absent.")] = "",
    iteration: Annotated[
        int | None, typer.Option(min=0, help="Iteration of the timelines; a typical one if absent.")
    ] = None,
    timelines: Annotated[bool, typer.Option("--timelines/--no-timelines", help="Draw timelines.")] = True,
    perfetto: Annotated[
        bool, typer.Option("--perfetto/--no-perfetto", help="Write timelines for ui.perfetto.dev beside the page.")
    ] = True,
    trace: MovedTrace = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file that explains results: text, tables, plots, interactive timelines, and how to
    run everything again."""
    from gradwire.result_store.provenance import command_line
    from gradwire.studies.report.report_inputs import report

    command = command_line()
    with progress("report", as_json, "reading") as show:
        show(0.0, "reading")
        page = report(
            *sources,
            out=out,
            title=title,
            timelines=timelines,
            iteration=iteration,
            perfetto=perfetto,
            trace=trace_of(trace),
            command=command,
            force=force,
        )
        show(1.0, "written")
    if as_json:
        data = {"out": str(page.path), "sections": page.sections, "bytes": page.size}
        typer.echo(json.dumps(data | {"timelines": [str(path) for path in page.timelines]}))
        return
    typer.echo(f"{', '.join(page.sections)}: {page.path}, {page.size / 1e6:.2f} MB, to open in a browser")
    if page.timelines:
        typer.echo(f"for ui.perfetto.dev: {page.timelines[0].parent}, {len(page.timelines)} files")


@for_people
def cmd_log(
    sources: Annotated[list[Path], typer.Argument(help="Folders of train or sweep.")],
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Write finished training runs or sweeps to TensorBoard or W&B, as --log does while they run."""
    from gradwire.scenarios.errors import GradwireError
    from gradwire.studies.run_logs.finished import log_results

    if not log:
        raise GradwireError("is missing", "--log", "tensorboard[:DIR] or wandb[:PROJECT]")
    with progress("log", as_json, "writing"):
        names = [name for source in sources for name in log_results(source, log, "--log")]
    runs = "1 run" if len(names) == 1 else f"{len(names)} runs"
    typer.echo(json.dumps({"runs": names}) if as_json else f"{runs}: {', '.join(log)}")


@for_people
def cmd_diagnose(
    dumps: Annotated[
        list[Path],
        typer.Argument(help="Flight recorder dumps, Inspector lines or profiles of a job; files or folders."),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write one HTML page, a new file.")] = None,
    nic: Annotated[
        str | None, typer.Option(metavar="RATE", help="Rate of the job's NICs, to simulate its collectives; 400Gbps.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SCENARIO", help="Simulate on this scenario's network instead.", autocompletion=library_names
        ),
    ] = None,
    no_simulate: Annotated[bool, typer.Option("--no-simulate", help="Leave simulated times out.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Name the late rank, slow link or hang of a running job, and show measured beside simulated collective times.

    Reads dumps of PyTorch's flight recorder (with TORCH_NCCL_ENABLE_TIMING=1), JSON lines of the NCCL Inspector, or
    profiles of several ranks; docs/diagnose.md has the rules. With --nic or --on, collectives that take far longer than
    simulated count as slow.
    """
    from gradwire.result_store.folders.output_folder import refuse_existing
    from gradwire.result_store.folders.replacement import replaced_file
    from gradwire.result_store.provenance import command_line
    from gradwire.scenarios.errors import GradwireError
    from gradwire.studies.diagnose.page import write_page
    from gradwire.studies.diagnose.report import diagnose, text_of
    from gradwire.studies.diagnose.simulated_calls import DEFAULT_RATE, built_in_network, scenario_network

    if nic is not None and on is not None:
        raise GradwireError("both are given", "--nic and --on", "one of them")
    with replaced_file(out, force, b"<!doctype html>"):
        if out is not None:
            refuse_existing(out)
        network = scenario_network(on) if on is not None else built_in_network(nic or DEFAULT_RATE)
        with progress("diagnose", as_json, "reading") as show:
            report = diagnose(
                *dumps,
                network=network,
                simulated=not no_simulate,
                trusted=nic is not None or on is not None,
                on_progress=show,
            )
        size = write_page(report, out, command_line()) if out is not None else 0
    if as_json:
        typer.echo(json.dumps(report.as_dict() | ({"out": str(out), "bytes": size} if out else {})))
        return
    for line in text_of(report):
        typer.echo(line)
    if out is not None:
        typer.echo(f"\npage: {out}, {size / 1e6:.2f} MB, to open in a browser")
