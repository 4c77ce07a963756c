"""Defines the commands `gradwire timeline`, which writes a run's trace events, and `tensors`, which shows gradients'
times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import Force, Json, trace_names
from gradwire.cli.terminal import for_people

if TYPE_CHECKING:
    import pyarrow

    from gradwire.traces.trace import Trace

ResultName = Annotated[Path, typer.Argument(help="A Result directory.")]
MovedTrace = Annotated[
    str | None,
    typer.Option("--trace", help="Current location of the jobs' trace, if it has moved.", autocompletion=trace_names),
]
Iterations = Annotated[
    str | None, typer.Option(metavar="A:B", help="Only iterations from A to before B, or a single one.")
]
SHOWN = 20  # tensors listed on a terminal


@for_people
def cmd_timeline(
    result: ResultName,
    out: Annotated[
        Path | None, typer.Option(help="The new file; by default timeline.json in the Result's directory.")
    ] = None,
    iterations: Iterations = None,
    most: Annotated[
        int, typer.Option(min=1, help="Maximum number of messages to write; each takes about 1 kB.")
    ] = 200_000,
    ports: Annotated[int, typer.Option(min=0, help="Number of ports whose queues are drawn, the longest ones.")] = 16,
    trace: MovedTrace = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a timeline for ui.perfetto.dev: layers, waits, messages, queues, drops."""
    from gradwire.analysis.timeline.timeline import timeline
    from gradwire.result_store.folders.replacement import replaced_file

    target, chosen = out if out is not None else result / "timeline.json", _range_of(iterations)
    with replaced_file(target, force, b'{"displayTimeUnit": "ns", "otherData"'):
        written = timeline(result, target, iterations=chosen, most=most, ports=ports, trace=trace_of(trace))
    if as_json:
        typer.echo(json.dumps({**vars(written), "path": str(written.path)}))
        return
    counts = f"{written.messages:,} messages, {written.spans:,} intervals of computing and waiting"
    more = f"{written.drops:,} drops, {written.samples:,} queue samples"
    typer.echo(f"timeline: {written.path}, {counts}, {more}")
    if written.note:
        typer.echo(f"note: {written.note}")


@for_people
def cmd_tensors(
    result: ResultName,
    out: Annotated[
        Path | None, typer.Option(help="Write a row per iteration, worker and tensor to this new .csv or .parquet.")
    ] = None,
    trace: MovedTrace = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show when each gradient was ready, released, delivered and needed; print those with the longest waits."""
    from gradwire.analysis.timeline.tensors import check_format, longest_waits, tensors, write_tensors
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.result_store.folders.replacement import replaced_file

    with replaced_file(out, force, b'"job","iteration"', b"PAR1"):
        if out is not None:
            check_format(out)
            refuse_unwritable(out, file=True)
        table: pyarrow.Table = tensors(result, trace_of(trace))
        if out is not None:
            write_tensors(table, out)
    if as_json:
        data = {"tensors": table.to_pylist()} if out is None else {"out": str(out), "rows": table.num_rows}
        typer.echo(json.dumps(data))
        return
    from gradwire.analysis.comparison.tables import print_grid

    for grid in longest_waits(table, SHOWN):
        print_grid(grid)
    if out is not None:
        typer.echo(f"tensors: {out}, {table.num_rows:,} rows")


def trace_of(name: str | None) -> Trace | None:
    """Return the trace of --trace, if any."""
    from gradwire.traces.trace import load_trace

    return None if name is None else load_trace(name)


def _range_of(text: str | None) -> tuple[int, int] | None:
    """Return the range of --iterations. Raises GradwireError if it is invalid."""
    from gradwire.scenarios.errors import GradwireError

    if text is None:
        return None
    first, colon, beyond = text.partition(":")
    try:
        begin = int(first) if first else 0
        end = (int(beyond) if beyond else 1 << 31) if colon else begin + 1
    except ValueError:
        begin, end = 0, 0
    if not 0 <= begin < end:
        raise GradwireError(f"is {text!r}", "--iterations", "A:B, such as 1:3, or one number")
    return begin, end
