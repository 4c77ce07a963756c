"""Defines the command `gradwire list`, which lists what scenarios and commands can name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gradwire.cli.options import Json, complete_from
from gradwire.cli.terminal import for_people


@for_people
def cmd_list(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="scenarios, traces, models, transports, balancers, topologies, measures, ...; all kinds if absent.",
            autocompletion=complete_from("gradwire.studies.catalog", "KINDS"),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what scenarios and commands can name: scenarios, traces, models, transports, measures, ..."""
    from gradwire.studies.catalog import KINDS, catalog

    if kind is None:
        if as_json:
            typer.echo(json.dumps({each: dict(catalog(each)) for each in KINDS}))
            return
        for each in KINDS:
            typer.echo(f"{each}: {', '.join(name for name, _ in catalog(each)[:MOST])}" + more(each))
        return
    entries = catalog(kind)
    if as_json:
        typer.echo(json.dumps(dict(entries)))
        return
    width = max(len(name) for name, _ in entries)
    for name, line in entries:
        typer.echo(f"{name:<{width}}  {line}".rstrip())


MOST = 6
"""Names of a kind in the list of kinds."""


def more(kind: str) -> str:
    """Return the number of names that the list of kinds leaves out."""
    from gradwire.studies.catalog import catalog

    rest = len(catalog(kind)) - MOST
    return f", and {rest} more" if rest > 0 else ""
