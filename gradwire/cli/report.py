"""The command that puts what there is into one page to send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.options import Json
from gradwire.cli.terminal import for_people, progress
from gradwire.cli.timeline import ItsTrace, trace_of


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    example = "Example: gradwire report results/demo-001 results/sweep-tail-load --out report.html"
    app.command("report", epilog=example)(cmd_report)


@for_people
def cmd_report(
    sources: Annotated[
        list[str],
        typer.Argument(help="Folders of run, compare, sweep, reproduce, train or fidelity; several make sections."),
    ],
    out: Annotated[Path, typer.Option(help="The new file.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Of the page; the names of what is in it if absent.")] = "",
    iteration: Annotated[
        int | None, typer.Option(min=0, help="The iteration that timelines show; a usual one if absent.")
    ] = None,
    timelines: Annotated[bool, typer.Option("--timelines/--no-timelines", help="Draw what happened when.")] = True,
    perfetto: Annotated[
        bool, typer.Option("--perfetto/--no-perfetto", help="Write the same for ui.perfetto.dev beside the page.")
    ] = True,
    trace: ItsTrace = None,
    as_json: Json = False,
) -> None:
    """Write one HTML file that explains results to whoever opens it, without a network: sentences, tables, plots and
    timelines to look into, and how to run everything again."""
    from gradwire.analysis.html.given import report
    from gradwire.scenarios.record import command_line

    command = command_line()
    with progress("report", as_json, "reading") as show:
        show(0.0, "reading")
        found = report(
            *sources, out=out, title=title, timelines=timelines, iteration=iteration, perfetto=perfetto,
            trace=trace_of(trace), command=command,
        )  # fmt: skip
        show(1.0, "written")
    if as_json:
        plain = {"out": str(found.path), "sections": found.sections, "bytes": found.size}
        typer.echo(json.dumps(plain | {"timelines": [str(each) for each in found.timelines]}))
        return
    typer.echo(f"{', '.join(found.sections)}: {found.path}, {found.size / 1e6:.2f} MB, to open in a browser")
    if found.timelines:
        typer.echo(f"for ui.perfetto.dev: {found.timelines[0].parent}, {len(found.timelines)} files")
