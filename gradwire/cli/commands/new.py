"""Defines the command `gradwire new`, which writes a skeleton of a user-defined component with a test and a
scenario.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.options import Json, complete_words
from gradwire.cli.terminal import for_people


@for_people
def cmd_new(
    kind: Annotated[
        str,
        typer.Argument(
            help="Kind of component: transport, load_balancer or queue_policy.",
            autocompletion=complete_words("transport", "load_balancer", "queue_policy"),
        ),
    ],
    file: Annotated[Path, typer.Argument(help="A new Python file, such as my_transport.py.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace FILE, its test and its scenario if they exist.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a working skeleton of a component, with a test and a scenario beside it (docs/extending.md)."""
    from gradwire.testing.skeleton import write_skeleton

    skeleton = write_skeleton(kind, file, force)
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in skeleton._asdict().items()}))
        return
    for name, path in skeleton._asdict().items():
        typer.echo(f"{name}: {path}")
    typer.echo("next:")
    for command in skeleton.commands():
        typer.echo(f"    {command}")
