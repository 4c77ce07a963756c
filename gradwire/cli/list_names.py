"""Defines the command `gradwire list`, which prints the names that other commands accept."""

from __future__ import annotations

import json

import typer

from gradwire.cli.options import Json
from gradwire.cli.terminal import for_people

list_app = typer.Typer(help="List names that other commands accept.", no_args_is_help=True)


@list_app.command("presets", epilog="Example: gradwire list presets")
@for_people
def cmd_list_presets(as_json: Json = False) -> None:
    """Clusters for `gradwire collective`, with their policies."""
    from gradwire.studies.busbw.presets import list_presets, load_preset

    presets = {name: load_preset(name) for name in list_presets()}
    if as_json:
        rows = [
            {
                "name": name,
                "description": preset.description,
                "policies": [policy.name for policy in preset.policy],
                "sources": list(preset.sources),
            }
            for name, preset in presets.items()
        ]
        typer.echo(json.dumps(rows))
        return
    width = max(len(name) for name in presets)
    for name, preset in presets.items():
        typer.echo(f"{name:<{width}}  {preset.description}")
        typer.echo(f"{'':<{width}}  policies: {', '.join(policy.name for policy in preset.policy)}")
