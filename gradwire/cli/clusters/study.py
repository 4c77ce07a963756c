"""Prints the study of measured clusters for `gradwire reproduce clusters`."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from gradwire.cli.terminal import progress


def reproduce_clusters(measurements: Path | None, out: Path, as_json: bool) -> None:
    """Fit and judge the model, print the outcome, and write its page."""
    from gradwire.studies.clusters.page import write_study
    from gradwire.studies.clusters.study import as_dict, study, verdict_lines

    with progress("reproduce clusters", as_json) as show:
        outcome = study(measurements, show)
    write_study(outcome, out)
    if as_json:
        typer.echo(json.dumps(as_dict(outcome)))
        return
    for line in verdict_lines(outcome):
        typer.echo(line)
    typer.echo(f"\npage, rows and constants: {out}/page.html, clusters.json, constants.toml")
