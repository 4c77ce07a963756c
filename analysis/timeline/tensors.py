"""Computes when each gradient tensor was ready, released, delivered and needed, by worker and iteration of a Result.

    ready       the first message that carries any of it was ready at the worker
    released    the first of these messages began to be sent
    delivered   the last message with any of it, or of the result from it, reached the worker; -1 if the run ended
    before
    needed      the worker could not continue without it: at the layer's forward step in the next iteration or, with a
                barrier, at the end of the iteration; -1 if it did not get there
    waited      delivered less needed, if delivered is later

All are picoseconds of simulated time. Exchanges within a host have no messages: their times are -1. Tensors that travel
in buckets have the times of their bucket's messages. Parameters that a pass requests (`fsdp`) are not included.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.analysis.breakdown.program_replay import ReplayedProgram
from gradwire.analysis.breakdown.result_context import ResultContext, result_context
from gradwire.analysis.comparison.tables import Grid
from gradwire.analysis.measurement_window import IterationSpan
from gradwire.result_store.folders.output_folder import new_file
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import size_text, time_text
from gradwire.traces.trace import Trace

if TYPE_CHECKING:
    import pyarrow


NEVER = 1 << 62
TIMES = ("ready_ps", "released_ps", "delivered_ps", "needed_ps", "waited_ps")
COLUMNS = ("job", "iteration", "worker", "tensor", "name", "layer", "layer_name", "bytes", *TIMES)


def tensors(source: Result | str | Path, trace: Trace | str | Path | None = None) -> pyarrow.Table:
    """Return one row per job, iteration, worker and tensor, in this order, with COLUMNS. Arguments and errors as for
    `gradwire.analysis.breakdown.breakdown.breakdown`."""
    import pyarrow

    context = result_context(source, trace)
    types = {name: pyarrow.string() for name in ("job", "name", "layer_name")}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in COLUMNS])
    tables = [_of_job(context, played, schema) for played in context.replays]
    return pyarrow.concat_tables(tables) if tables else schema.empty_table()


def check_format(path: str | Path) -> None:
    """Raise `ResultError` unless the file's ending is a supported table format."""
    if Path(path).suffix not in (".csv", ".parquet"):
        what = f"is not a table format: got {Path(path).suffix or 'no ending'}"
        raise ResultError(what, str(path), "a name that ends in .csv or .parquet")


def write_tensors(table: pyarrow.Table, path: str | Path) -> None:
    """Write the table to a new file. Raises `ResultError` for another ending or if writing fails."""
    import pyarrow.csv
    import pyarrow.parquet

    check_format(path)
    write = pyarrow.csv.write_csv if Path(path).suffix == ".csv" else pyarrow.parquet.write_table
    with new_file(path) as partial:
        write(table, partial)


def longest_waits(table: pyarrow.Table, most: int) -> list[Grid]:
    """Return a table per job of its at most `most` longest-awaited tensors: means over workers and the steady state."""
    grids = []
    rows = table.to_pylist()
    for job in dict.fromkeys(row["job"] for row in rows):
        job_rows = [row for row in rows if row["job"] == job]
        span = IterationSpan.steady(1 + max(row["iteration"] for row in job_rows))
        tensors: dict[int, list[Json]] = {}
        for row in job_rows:
            if span.first <= row["iteration"] <= span.last:
                tensors.setdefault(row["tensor"], []).append(row)
        waited = {tensor: sum(row["waited_ps"] for row in of_tensor) for tensor, of_tensor in tensors.items()}
        order = sorted((tensor for tensor in tensors if waited[tensor]), key=lambda tensor: (-waited[tensor], tensor))
        title = f"{job}: tensors with the longest waits (means of iterations {span})"
        head = ["tensor", "layer", "size", "ready to released", "released to delivered", "waited"]
        grids.append(Grid(title, head, [_line(tensors[tensor]) for tensor in order[:most]]))
    return grids


def _line(rows: list[Json]) -> list[str]:
    first = rows[0]

    def between(begin: str, end: str) -> str:
        """Return the mean where `begin` came first: sums may be present or forwarded before a worker's own values."""
        known = [row[end] - row[begin] for row in rows if 0 <= row[begin] <= row[end]]
        return time_text(sum(known) / len(known)) if known else "-"

    waited = sum(row["waited_ps"] for row in rows) / len(rows)
    return [
        first["name"],
        str(first["layer"]),
        size_text(first["bytes"]),
        between("ready_ps", "released_ps"),
        between("released_ps", "delivered_ps"),
        time_text(waited) if waited else "-",
    ]


def _of_job(context: ResultContext, played: ReplayedProgram, schema: pyarrow.Schema) -> pyarrow.Table:
    import pyarrow

    trace = played.job.trace
    workers, count = len(played.workers), len(trace.tensors)
    steps = [played.job.begin + number for number in range(len(played.steps))]
    step_of = {iteration: n for n, iteration in enumerate(steps)}
    shape = (len(steps), workers, count)
    ready, released = np.full(shape, NEVER), np.full(shape, NEVER)
    delivered, needed = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    under_way = np.zeros(shape, dtype=np.bool_)
    rows, when = played.messages, needed_at(played)
    worker_of = _workers(context, played)
    bucket = rows["part"] // played.table.segments
    requested = (rows["tensor"] < 0) & (bucket < played.job.exchange.parameter_buckets)  # parameters, no gradients
    for message in np.flatnonzero(~requested).tolist():
        kind = KINDS[int(rows["kind"][message])]
        tensors, step = list(played.tensors_of(message)), step_of[int(rows["iteration"][message])]
        sender, receiver = (worker_of.get(int(rows[end][message])) for end in ("src", "dst"))
        start, release, end = (int(rows[name][message]) for name in ("start_ps", "released_ps", "end_ps"))
        if sender is not None and kind != "pull":  # a server's messages belong to no worker
            at = (step, sender, tensors)
            ready[at] = np.minimum(ready[at], start if start >= 0 else NEVER)
            released[at] = np.minimum(released[at], release if release >= 0 else NEVER)
        if receiver is not None and kind != "push":
            at = (step, receiver, tensors)
            under_way[at] |= end < 0
            delivered[at] = np.maximum(delivered[at], end)
            needed[at] = np.maximum(needed[at], when[message])
    delivered[under_way] = -1
    waited = np.where((delivered >= 0) & (needed >= 0), np.maximum(delivered - needed, 0), 0)
    grid = [axis.ravel() for axis in np.meshgrid(steps, played.workers, np.arange(count), indexing="ij")]
    infos = [trace.tensors[n] for n in grid[2].tolist()]
    ready, released = (np.where(times < NEVER, times, -1) for times in (ready, released))
    columns = (
        [played.name] * waited.size,
        *grid,
        [info.name for info in infos],
        [info.layer for info in infos],
        [trace.layers[info.layer] for info in infos],
        [info.bytes for info in infos],
        *(times.ravel() for times in (ready, released, delivered, needed, waited)),
    )
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pyarrow.table(arrays, schema)


def needed_at(played: ReplayedProgram) -> Ints:
    """Return, per message, the time at which a worker needed it; -1 if none did."""
    needed = np.full(len(played.messages["src"]), -1, dtype=np.int64)
    for course in played.courses[: len(played.workers)]:
        for moment, event, _ in course.waits:
            messages = played.deliveries_awaited(event)
            needed[messages[needed[messages] < 0]] = moment  # first time only: no later wait for the same message
    return needed


def _workers(context: ResultContext, played: ReplayedProgram) -> dict[int, int]:
    """Return the index among a job's workers by the nodes of their hosts."""
    cards = context.network.cards
    worker_of_node: dict[int, int] = {}
    for worker, node in enumerate(played.hosts[: len(played.workers)]):
        host = int(np.searchsorted(cards.first, node, side="right")) - 1
        worker_of_node |= dict.fromkeys(range(int(cards.first[host]), int(cards.first[host + 1])), worker)
    return worker_of_node
