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
from collections.abc import Callable
from copy import copy
from typing import Annotated

import typer

from gradwire.cli.clusters.collective import cmd_collective
from gradwire.cli.commands.bench import bench_app
from gradwire.cli.commands.cache import cache_app
from gradwire.cli.commands.capture import cmd_capture
from gradwire.cli.commands.execute import EXEC_EXAMPLE, cmd_exec
from gradwire.cli.commands.fidelity import cmd_fidelity
from gradwire.cli.commands.inspect import cmd_check, cmd_list, cmd_schema, cmd_telemetry
from gradwire.cli.commands.new import cmd_new
from gradwire.cli.commands.report import cmd_diagnose, cmd_log, cmd_report
from gradwire.cli.commands.reproduce import cmd_reproduce
from gradwire.cli.commands.run import cmd_compare, cmd_demo, cmd_run
from gradwire.cli.commands.sweep import cmd_recommend, cmd_sweep, cmd_tune
from gradwire.cli.commands.testbed import cmd_emulate, cmd_probe
from gradwire.cli.commands.timeline import cmd_tensors, cmd_timeline
from gradwire.cli.commands.trace import app as trace_app
from gradwire.cli.commands.train import cmd_predictor, cmd_train
from gradwire.cli.options import LiveCommand
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


COMMANDS: tuple[tuple[Callable[..., None], str], ...] = (
    (cmd_demo, "demo --out my-demo"),
    (cmd_run, "run demo --policy dlcp --set job.workers=8 --out results/eight"),
    (cmd_compare, "compare demo --set job.iterations=2 --out results/short"),
    (cmd_check, "check my.toml --set switch.queues=4"),
    (cmd_telemetry, "telemetry results/one --plot queues.png --port leaf0"),
    (cmd_schema, "schema > scenario.schema.json"),
    (cmd_list, "list transports"),
    (cmd_new, "new scenario job.toml --model llama-7b --gpus 64 --fsdp"),
    (cmd_timeline, "timeline results/one --out one.json --iterations 1:3"),
    (cmd_tensors, "tensors results/one --out tensors.csv"),
    (cmd_report, "report results/demo-001 results/sweep-tail-load --out report.html"),
    (cmd_log, "log results/tiny --log tensorboard"),
    (cmd_diagnose, "diagnose dumps --nic 400Gbps --out diagnosis.html"),
    (cmd_train, "train train-tiny --all --out results/tiny"),
    (cmd_predictor, "predictor mp2 --model resnet8 --seed 1 --seed 2 --out predictor.npz"),
    (cmd_sweep, "sweep tail-load --jobs 8 --out results/tail"),
    (cmd_recommend, "recommend collectives --budget 40 --out results/advice"),
    (cmd_tune, "tune schedulers --policy bytescheduler --trials 12"),
    (cmd_reproduce, "reproduce dlcp --claim S4 --out results/claims"),
    (cmd_collective, "collective all_reduce -b 8 -e 8G -f 2 --on h100-rail --ranks 64"),
    (cmd_probe, "probe incast --json"),
    (cmd_emulate, "emulate testbed --clock virtual --out results/real"),
    (cmd_fidelity, "fidelity agreement --policy star-dlcp --clock virtual --out results/both"),
    (cmd_exec, EXEC_EXAMPLE),
    (cmd_capture, "capture --model resnet50 --data ./cifar10 --out my-trace"),
)
"""Commands and their examples, in the order of --help."""

for command, example in COMMANDS:
    app.command(example.partition(" ")[0], cls=LiveCommand, epilog=f"Example: gradwire {example}")(command)
app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")
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
