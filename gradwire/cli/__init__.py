"""The command line: the application and its commands.

It contains no logic: every command reads its input with `scenarios` and `traces`, calls one function of another package
and prints the outcome. Everything is imported at its first use, because `gradwire --help` and `gradwire check` should
answer at once while the simulator takes a second to import.
"""

from __future__ import annotations

from gradwire.cli import memory_limit, signals

if signals.is_program():
    signals.install_handlers()  # before all other imports
    memory_limit.check_memory_limit()

import sys
from copy import copy
from typing import Annotated

import typer

from gradwire.cli.commands import (
    bench,
    cache,
    capture,
    execute,
    fidelity,
    inspect,
    report,
    reproduce,
    run,
    sweep,
    testbed,
    timeline,
    train,
    tune,
)
from gradwire.cli.commands.trace import app as trace_app
from gradwire.cli.terminal import robust_streams
from gradwire.scenarios.version import VERSION

app = typer.Typer(
    help="What does this network policy do to this training job - per packet, in time and in final accuracy?",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # "rich" would read words in brackets as colours
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
)


@app.callback(invoke_without_command=True)
def cmd_root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"gradwire {VERSION}")
        raise typer.Exit


# in the order of --help
for commands in (
    run, inspect, timeline, report, train, sweep, tune, reproduce, testbed, fidelity, execute, cache, capture, bench,
):  # fmt: skip
    commands.register(app)
app.add_typer(trace_app, name="trace")


def app_with_command(name: str) -> typer.Typer:
    """Return the application with just the named command, if it exists: preparing all of them takes a while."""
    commands = [command for command in app.registered_commands if command.name == name]
    groups = [group for group in app.registered_groups if group.name == name]
    if not (commands or groups):
        return app
    small = copy(app)
    small.registered_commands, small.registered_groups = commands, groups
    return small


def main() -> None:
    """Entry point of the `gradwire` command."""
    with robust_streams():
        app_with_command(sys.argv[1] if len(sys.argv) > 1 else "")()
