"""Prints notes on a scenario's keys without effect before a command runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

MOST_NOTES = 8
"""Maximum number of notes printed; `gradwire check` prints all."""


def print_notes(variants: Sequence[Scenario], *, trained: bool = False) -> None:
    """Print a line on standard error for each key that has no effect in any of the variants that set it."""
    from gradwire.scenarios.validation.effect import keys_without_effect, keys_without_effect_in_runs

    notes = (keys_without_effect if trained else keys_without_effect_in_runs)(*variants)
    for note in notes[:MOST_NOTES]:
        typer.echo(f"note: {note}", err=True)
    if len(notes) > MOST_NOTES:
        typer.echo(f"note: and {len(notes) - MOST_NOTES} more: gradwire check prints all", err=True)
