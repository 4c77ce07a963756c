"""Runs benchmark rows in separate processes and prints them as tables or JSON, for the other modules of
`benchmarks`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradwire
from gradwire.scenarios.errors import GradwireError

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Heads of a table, and functions from a row to their cells."""


class BenchmarkError(GradwireError):
    """A row that did not finish, or failed."""

    exit_code = 1


def run_module(
    arguments: Sequence[str],
    title: str,
    timeout_s: int,
    wrap: Callable[[list[str]], list[str]] = list,
    preexec: Callable[[], object] | None = None,
) -> Row:
    """Run a module with arguments in a separate process; return the JSON object in its last line of output.

    `wrap`: returns the command to run, such as one in private namespaces. Raises BenchmarkError if it fails.
    """
    root = str(Path(gradwire.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = wrap([sys.executable, "-m", *arguments])
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, preexec_fn=preexec
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"timeout after {timeout_s} s", title, "a faster machine") from error
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-2000:], title, "a run that ends")
    answer: Row = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_command(run_row: Callable[..., Row], main: Callable[[list[str]], int]) -> None:
    """Run a module as a program: one row, given as a JSON object (`run_module`), or its command."""
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        print(json.dumps(run_row(**json.loads(sys.argv[1]))))
    else:
        sys.exit(main(sys.argv[1:]))


def machine_info() -> Row:
    import platform

    from gradwire.traces.devices import processor_name

    return {"processor": processor_name(), "cores": os.cpu_count(), "python": platform.python_version()}


def machine_title() -> str:
    return "{processor}, {cores} cores, Python {python}".format(**machine_info())


def print_json(rows: Sequence[Row], **more: object) -> None:
    print(json.dumps({"machine": machine_info(), **more, "rows": rows}))


def print_table(
    rows: Sequence[Row], columns: Columns, text: Sequence[str], title: str | None = None, width: int = 110
) -> None:
    """Print rows as a table; `text`: heads of the columns that are not numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or machine_title())
    for head in columns:
        table.add_column(head, justify="left" if head in text else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    Console(width=None if sys.stdout.isatty() else width).print(table)


def markdown_header(columns: Columns, text: int = 1) -> str:
    """Return the first two lines of a table in Markdown, whose first `text` columns are not numbers."""
    return f"| {' | '.join(columns)} |\n|{'---|' * text}{'---:|' * (len(columns) - text)}"


def markdown_line(row: Row, columns: Columns) -> str:
    return f"| {' | '.join(cell(row) for cell in columns.values())} |"
