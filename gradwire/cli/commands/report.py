"""Defines the command `gradwire report`, which writes one HTML page of given results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.commands.timeline import MovedTrace, trace_of
from gradwire.cli.options import Json
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
        )
        show(1.0, "written")
    if as_json:
        data = {"out": str(page.path), "sections": page.sections, "bytes": page.size}
        typer.echo(json.dumps(data | {"timelines": [str(path) for path in page.timelines]}))
        return
    typer.echo(f"{', '.join(page.sections)}: {page.path}, {page.size / 1e6:.2f} MB, to open in a browser")
    if page.timelines:
        typer.echo(f"for ui.perfetto.dev: {page.timelines[0].parent}, {len(page.timelines)} files")
