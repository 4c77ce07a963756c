"""The command line: every command, and what they share.

No logic lives here: every command reads its input with `scenarios` and `traces`, calls one function of another room and
shows what it returns. Everything is imported at its first use, because `gradwire --help` and `gradwire check` should
answer at once while the simulator takes a second to import.
"""

from __future__ import annotations

from gradwire.cli import signals

if signals.is_program():
    signals.take_over()  # before all other imports

import sys
from copy import copy
from typing import Annotated

import typer

from gradwire import __version__
from gradwire.cli import (
    bench,
    cache,
    capture,
    execute,
    fidelity,
    look,
    predictor,
    report,
    reproduce,
    run,
    sweep,
    testbed,
    timeline,
    train,
    tune,
)
from gradwire.cli.terminal import patient_streams
from gradwire.cli.trace import app as trace_app

app = typer.Typer(
    help="What does this network policy do to this training job - per packet, in time and in final accuracy?",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # in "rich" words in brackets are taken for colours
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
)


@app.callback(invoke_without_command=True)
def cmd_root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"gradwire {__version__}")
        raise typer.Exit


# in the order of --help
for commands in (
    run, look, timeline, report, train, predictor, sweep, tune, reproduce, testbed, fidelity, execute, cache, capture,
    bench,
):  # fmt: skip
    commands.register(app)
app.add_typer(trace_app, name="trace")


def only(name: str) -> typer.Typer:
    """The application with one command, if it has one of this name: to make each ready takes a while, and a run needs
    one."""
    commands = [each for each in app.registered_commands if each.name == name]
    groups = [each for each in app.registered_groups if each.name == name]
    if not (commands or groups):
        return app
    small = copy(app)
    small.registered_commands, small.registered_groups = commands, groups
    return small


def main() -> None:
    """Entry point of the `gradwire` command."""
    with patient_streams():
        only(sys.argv[1] if len(sys.argv) > 1 else "")()
