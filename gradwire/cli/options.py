"""Declares command-line options that several commands share, and completes and parses their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Return a completion function for fixed words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def complete_from(module: str, name: str) -> Callable[[str], list[str]]:
    """Return a completion function for words of a module, a tuple or what a function returns. The module is imported
    when the shell asks, which completes files itself."""

    def complete(incomplete: str) -> list[str]:
        words = getattr(import_module(module), name)
        return complete_words(*(words() if callable(words) else words))(incomplete)

    return complete


library_names = complete_from("gradwire.scenarios.loading.load", "list_library")
trace_names = complete_from("gradwire.traces.trace", "bundled_traces")


def policy_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the policies that complete a word, once the scenario precedes them."""
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.loading.load import load_tables

    try:  # during completion, arguments are not parsed yet
        tables = load_tables(str(context.params.get("scenario") or next(iter(context.args), "")))
    except GradwireError:
        return []
    names = [str(policy.get("name", "")) for policy in tables.get("policy", ()) if isinstance(policy, dict)]
    return complete_words(*names)(incomplete)


ScenarioName = Annotated[
    str, typer.Argument(help="A scenario file, or the name of one of the library.", autocompletion=library_names)
]
TraceName = Annotated[
    str | None,
    typer.Option(
        "--trace", help="Replay this trace (bundled name or directory) in every job.", autocompletion=trace_names
    ),
]
NAMED_KEYS = {
    "transport": "transports",
    "load_balancing": "balancers",
    "topology.kind": "topologies",
    "job.exchange": "exchanges",
    "job.scheduler": "schedulers",
    "job.trace": "traces",
    "training.reducer": "reducers",
}
"""Keys whose values are names, and their kind in `gradwire list`."""


def override_names(incomplete: str) -> list[str]:
    """Return the keys of a scenario that complete a word, or after "=" the names that its key takes."""
    key, equals, _ = incomplete.partition("=")
    if not equals:
        from gradwire.scenarios.schema.scenario import Scenario

        return complete_words(*(f"{name}=" for name in NAMED_KEYS), *(f"{name}." for name in Scenario.model_fields))(
            key
        )
    from gradwire.studies.catalog import catalog

    names = [name for name, _ in catalog(NAMED_KEYS[key])] if key in NAMED_KEYS else []
    return complete_words(*(f"{key}={name}" for name in names))(incomplete)


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override one value; repeatable.", autocompletion=override_names),
]
Threads = Annotated[int, typer.Option(min=1, max=128, help="Threads of the simulator; results do not depend on it.")]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds", min=1, max=1000, help="Runs with consecutive seeds, from the scenario's on; the verdict covers all."
    ),
]
MaxWall = Annotated[str | None, typer.Option(metavar="TIME", help="Wall-clock limit of every run, such as 30s or 5m.")]
Out = Annotated[Path | None, typer.Option(help="Write results to this new directory.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace an earlier output of the same kind, never anything else.")
]
Plots = Annotated[
    str,
    typer.Option(
        "--plots",
        metavar="FORMAT",
        help="Format of the plots that --out writes: png, pdf or svg.",
        autocompletion=complete_words("png", "pdf", "svg"),
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Import modules in a Result without asking (SECURITY.md).")]
"""Handled by `gradwire.cli.terminal.for_people`, not by the commands."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Breakdown = Annotated[
    bool,
    typer.Option(
        "--breakdown", help="Break iteration times down into computing and waiting by cause; a table and a plot."
    ),
]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help="Run this policy of the scenario, not the base.", autocompletion=policy_names),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="LOG",
        help="Also write a log: tensorboard[:DIR] or wandb[:PROJECT], offline unless WANDB_MODE is set; repeatable.",
        autocompletion=complete_words("tensorboard", "wandb"),
    ),
]
Live = Annotated[
    str | None,
    typer.Option(
        "--live",
        metavar="[FILE.html]",
        help="Write a page with progress and measured values that reloads itself; live.html with --out if no file is "
        "named.",
    ),
]
"""Handled by `gradwire.cli.terminal.for_people`; the file is optional (`LiveCommand`)."""
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Compute device: cpu, cuda (a GPU), cuda:1, or auto; the scenario's, or cpu, if absent.",
        autocompletion=complete_words("cpu", "cuda", "auto"),
    ),
]


class LiveCommand(TyperCommand):
    """A command whose option --live may stand without a file, which always ends in .html."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined: list[str] = []
        options = args[: args.index("--")] if "--" in args else args
        for number, word in enumerate(args):
            if word == "--live" and number < len(options):
                has_file = number + 1 < len(options) and options[number + 1].endswith(".html")
                joined.append("--live=" if not has_file else "--live")
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


def overrides_from_options(set_: list[str] | None, trace: str | None, device: str | None = None) -> list[str]:
    """Return the scenario overrides of --set, --trace and --device."""
    overrides = list(set_ or [])
    if trace is not None:
        overrides.append(f"job.trace={json.dumps(trace)}")
    if device is not None:
        overrides.append(f"training.device={json.dumps(device)}")
    return overrides


def seconds_of(max_wall: str | None) -> float | None:
    """Return the seconds of --max-wall. Raises GradwireError if it is invalid."""
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.units import UnitError, parse_wall

    try:
        return None if max_wall is None else parse_wall(max_wall)
    except UnitError as error:
        raise GradwireError(error.what, "--max-wall", error.expected) from None


def check_plot_format(plots: str, out: Path | str | None = "") -> None:
    """Raise GradwireError unless plots can be drawn in this format and written to `out`, before any simulation."""
    from gradwire.analysis.figure_files import check_plots
    from gradwire.scenarios.errors import GradwireError

    check_plots(plots, "--plots")
    if out is None:
        raise GradwireError("needs an output folder", f"--plots {plots}", "--out FOLDER as well")
