"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def library_names(incomplete: str) -> list[str]:
    """For shells that complete words: scenarios of the library; files the shell knows itself."""
    from gradwire.scenarios.load import list_library

    return [name for name in list_library() if name.startswith(incomplete)]


def trace_names(incomplete: str) -> list[str]:
    """The same of bundled traces."""
    from gradwire.traces.trace import bundled_traces

    return [name for name in bundled_traces() if name.startswith(incomplete)]


def policy_names(context: typer.Context, incomplete: str) -> list[str]:
    """The same of policies, once the scenario stands before them."""
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.load import load_tables

    try:  # words are not told apart yet while one of them is still typed
        tables = load_tables(str(context.params.get("scenario") or next(iter(context.args), "")))
    except GradwireError:
        return []
    named = [str(each.get("name", "")) for each in tables.get("policy", ()) if isinstance(each, dict)]
    return [name for name in named if name.startswith(incomplete)]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """The same of words that are known beforehand."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


ScenarioName = Annotated[
    str,
    typer.Argument(help="A scenario file, or the name of one of the library.", autocompletion=library_names),
]
TraceName = Annotated[
    str | None,
    typer.Option(
        "--trace", help="Replay this trace (bundled name or directory) in every job.", autocompletion=trace_names
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value; repeatable.")
]
Threads = Annotated[int, typer.Option(min=1, max=128, help="Threads of the simulator; results do not depend on it.")]
MaxWall = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="End every run after so long on the wall clock, such as 30s or 5m."),
]
Out = Annotated[Path | None, typer.Option(help="Write results to this new directory.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace --out if it holds results of gradwire, and nothing else ever.")
]
Plots = Annotated[
    str,
    typer.Option(
        "--plots", metavar="FORMAT", help="Format of the plots that --out writes: png, pdf or svg.",
        autocompletion=one_of("png", "pdf", "svg"),
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import modules that lie in a Result without a question (SECURITY.md).")
]
"""Commands need not heed it: `gradwire.cli.terminal.for_people` does."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Breakdown = Annotated[
    bool,
    typer.Option(
        "--breakdown", help="Say what iterations were spent on: computing, and waiting by cause; a table and a plot."
    ),
]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help="Run this policy of the scenario, not the base.", autocompletion=policy_names),
]


Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="What computes: cpu, cuda (a GPU), cuda:1, or auto; as the scenario says, or cpu, if absent.",
        autocompletion=one_of("cpu", "cuda", "auto"),
    ),
]
Approximate = Annotated[
    float | None,
    typer.Option(
        "--approximate", metavar="ERROR",
        help="Leave out iterations that are alike on average: so far off may mean iteration times be, such as 0.01.",
    ),
]


def overrides_of(
    set_: list[str] | None, trace: str | None, approximate: float | None = None, device: str | None = None
) -> list[str]:
    """The overrides of a scenario that --set, --trace, --approximate and --device ask for."""
    found = list(set_ or [])
    if trace is not None:
        found.append(f"job.trace={json.dumps(trace)}")
    if approximate is not None:
        found.append(f"simulation.approximate={approximate!r}")
    if device is not None:
        found.append(f"training.device={json.dumps(device)}")
    return found


def seconds_of(max_wall: str | None) -> float | None:
    """The time of --max-wall in seconds. Raises GradwireError if it is none."""
    from gradwire.scenarios.errors import GradwireError
    from gradwire.scenarios.units import UnitError, parse_wall

    try:
        return None if max_wall is None else parse_wall(max_wall)
    except UnitError as error:
        raise GradwireError(error.what, "--max-wall", error.expected) from None


def known_format(plots: str, out: Path | str | None = "") -> None:
    """Raise GradwireError unless plots can be drawn in a format, and into `out`; before anything is simulated."""
    from gradwire.analysis.figures import check_plots
    from gradwire.scenarios.errors import GradwireError

    check_plots(plots, "--plots")
    if out is None:
        raise GradwireError("has nowhere to draw", f"--plots {plots}", "--out FOLDER besides")
