"""The command that runs many scenarios and measures them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import Json, Trust, one_of, seconds_of
from gradwire.cli.terminal import for_people, progress

if TYPE_CHECKING:
    from gradwire.analysis.sweeps.outcome import Sweep

MOST_FAILURES = 10
"""Said one by one."""


def sweep_names(incomplete: str) -> list[str]:
    """For shells that complete words: sweeps of the library."""
    from gradwire.scenarios.load import list_sweeps

    return [name for name in list_sweeps() if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    app.command("sweep", epilog="Example: gradwire sweep tail-load --jobs 8 --out results/tail")(cmd_sweep)


@for_people
def cmd_sweep(
    source: Annotated[
        str,
        typer.Argument(metavar="SWEEP", help="A sweep file, or a name of the library.", autocompletion=sweep_names),
    ],
    engine: Annotated[
        str,
        typer.Option(
            help="local: processes of this machine; ray: tasks of a Ray cluster.", autocompletion=one_of("local", "ray")
        ),
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster, such as ray://head:10001; one is started here if absent.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Runs at a time; as many as there are processors and memory for."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of records, tables and pictures; one of an earlier sweep is gone on with."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run points again that have failed.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="End with the first point that fails.")] = False,
    max_wall: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End the sweep after so long, such as 30m; it can be gone on with."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, and what is there already; run nothing.")
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Many scenarios along axes, with seeds: tables of means and intervals, and plots. Interrupted, killed or
    extended, it goes on where it was. Exits with 1 if a point has failed, or time was up."""
    from gradwire.sweeping import planned, sweep

    limit = seconds_of(max_wall)
    if dry_run:
        found, lines = planned(source, out, jobs, retry_failed)
        typer.echo(json.dumps(found.as_dict()) if as_json else "\n".join(lines))
        return
    with progress(f"sweep {source}", as_json) as show:
        found = sweep(
            source, out=out, engine=engine, address=address, jobs=jobs, retry_failed=retry_failed,
            fail_fast=fail_fast, max_wall_s=limit, progress=show,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        found.print()
        typer.echo(f"{found.words}; tables and pictures: {found.folder}")
    _complain(found)


def _complain(found: Sweep) -> None:
    """Say what is not as it should be, and end with 1 then."""
    failures = found.failures
    for point, record in failures[:MOST_FAILURES]:
        typer.echo(f"failed: {point.name}: {record.why}", err=True)
    if len(failures) > MOST_FAILURES:
        typer.echo(f"and {len(failures) - MOST_FAILURES} more: points.csv names them", err=True)
    for point in found.broken:
        typer.echo(f"loss bound broken: {point.name}", err=True)
    if not found.complete and not failures:
        typer.echo("time was up: the same command goes on", err=True)
    if failures or found.broken or not found.complete:
        raise typer.Exit(1)
