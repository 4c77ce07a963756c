"""Tensors: when each gradient was ready, on its way, back, and needed, by worker and iteration.

    ready       the first message that carries any of it was ready at the worker
    released    the first of them began to be sent
    delivered   the last message with any of it, or of what came of it, has come to the worker; -1 if the run ended
                before
    needed      the worker came to where it cannot go on without it: the layer's forward step in the next iteration, or,
                with a barrier, the end of the iteration; -1 if it did not come there
    waited      delivered less needed, if that is later

All are picoseconds of simulated time. What is exchanged within a host has no messages: its times are -1. Where tensors
travel in buckets, those of a bucket have the times of its messages. Parameters that a pass asks for (`fsdp`) are none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradwire.analysis.measured import Span
from gradwire.analysis.ran import Ran, ran
from gradwire.analysis.tables import Grid
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.output import new_file
from gradwire.scenarios.readable import size_text, time_text
from gradwire.scenarios.result import KINDS, Result

if TYPE_CHECKING:
    import pyarrow

    from gradwire.analysis.played import Played
    from gradwire.traces.trace import Trace

NEVER = 1 << 62
TIMES = ("ready_ps", "released_ps", "delivered_ps", "needed_ps", "waited_ps")
COLUMNS = ("job", "iteration", "worker", "tensor", "name", "layer", "layer_name", "bytes", *TIMES)


def tensors(source: Result | str | Path, trace: Trace | str | Path | None = None) -> pyarrow.Table:
    """One row per job, iteration, worker and tensor, in this order, with COLUMNS.

    Arguments and errors as for `gradwire.analysis.breakdown.breakdown`.
    """
    return of(ran(source, trace))


def of(found: Ran) -> pyarrow.Table:
    """The same, of what has been made again already."""
    import pyarrow

    types = {name: pyarrow.string() for name in ("job", "name", "layer_name")}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in COLUMNS])
    tables = [_of_job(found, played, schema) for played in found.played]
    return pyarrow.concat_tables(tables) if tables else schema.empty_table()


def check_format(path: str | Path) -> None:
    """Raise `ResultError` unless a table can be written to a file of this name."""
    if Path(path).suffix not in (".csv", ".parquet"):
        what = f"is no kind of table: {Path(path).suffix or 'no ending'}"
        raise ResultError(what, str(path), "a name that ends in .csv or .parquet")


def write_tensors(table: pyarrow.Table, path: str | Path) -> None:
    """Write the table to a new file. Raises `ResultError` if that cannot be, or for another ending."""
    import pyarrow.csv
    import pyarrow.parquet

    check_format(path)
    write = pyarrow.csv.write_csv if Path(path).suffix == ".csv" else pyarrow.parquet.write_table
    with new_file(path) as partial:
        write(table, partial)


def longest_waits(table: pyarrow.Table, most: int) -> list[Grid]:
    """For people: per job the tensors that were waited for longest, means over workers and the iterations of the steady
    state, of at most `most` tensors."""
    grids = []
    rows = table.to_pylist()
    for job in dict.fromkeys(row["job"] for row in rows):
        mine = [row for row in rows if row["job"] == job]
        span = Span.steady(1 + max(row["iteration"] for row in mine))
        tensors: dict[int, list[Json]] = {}
        for row in mine:
            if span.first <= row["iteration"] <= span.last:
                tensors.setdefault(row["tensor"], []).append(row)
        waited = {each: sum(row["waited_ps"] for row in those) for each, those in tensors.items()}
        order = sorted((each for each in tensors if waited[each]), key=lambda each: (-waited[each], each))
        title = f"{job}: tensors that were waited for longest (means of iterations {span})"
        head = ["tensor", "layer", "size", "ready to released", "released to delivered", "waited"]
        grids.append(Grid(title, head, [_line(tensors[each]) for each in order[:most]]))
    return grids


def _line(rows: list[Json]) -> list[str]:
    first = rows[0]

    def between(begin: str, end: str) -> str:
        """On average where the one came first: sums may be there, or be passed on, before a worker's own."""
        known = [row[end] - row[begin] for row in rows if 0 <= row[begin] <= row[end]]
        return time_text(sum(known) / len(known)) if known else "-"

    waited = sum(row["waited_ps"] for row in rows) / len(rows)
    return [
        first["name"], str(first["layer"]), size_text(first["bytes"]), between("ready_ps", "released_ps"),
        between("released_ps", "delivered_ps"), time_text(waited) if waited else "-",
    ]  # fmt: skip


def _of_job(found: Ran, played: Played, schema: pyarrow.Schema) -> pyarrow.Table:
    import pyarrow

    trace = played.job.trace
    workers, count = len(played.workers), len(trace.tensors)
    steps = [played.job.begin + number for number in range(len(played.steps))]
    place = {iteration: n for n, iteration in enumerate(steps)}
    shape = (len(steps), workers, count)
    ready, released = np.full(shape, NEVER), np.full(shape, NEVER)
    delivered, needed = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    under_way = np.zeros(shape, dtype=np.bool_)
    rows, when = played.messages, needed_at(played)
    worker_of = _workers(found, played)
    for message in np.flatnonzero(~_asked_for(played)).tolist():
        kind = KINDS[int(rows["kind"][message])]
        which, step = list(played.tensors_of(message)), place[int(rows["iteration"][message])]
        sender, receiver = (worker_of.get(int(rows[end][message])) for end in ("src", "dst"))
        start, release, end = (int(rows[name][message]) for name in ("start_ps", "released_ps", "end_ps"))
        if sender is not None and kind != "pull":  # what a server sends is no worker's
            at = (step, sender, which)
            ready[at] = np.minimum(ready[at], start if start >= 0 else NEVER)
            released[at] = np.minimum(released[at], release if release >= 0 else NEVER)
        if receiver is not None and kind != "push":
            at = (step, receiver, which)
            under_way[at] |= end < 0
            delivered[at] = np.maximum(delivered[at], end)
            needed[at] = np.maximum(needed[at], when[message])
    delivered[under_way] = -1
    waited = np.where((delivered >= 0) & (needed >= 0), np.maximum(delivered - needed, 0), 0)
    grid = [each.ravel() for each in np.meshgrid(steps, played.workers, np.arange(count), indexing="ij")]
    infos = trace.tensors
    columns = {
        "job": [played.name] * waited.size, "iteration": grid[0], "worker": grid[1], "tensor": grid[2],
        "name": [infos[n].name for n in grid[2].tolist()], "layer": [infos[n].layer for n in grid[2].tolist()],
        "layer_name": [trace.layers[infos[n].layer] for n in grid[2].tolist()],
        "bytes": [infos[n].bytes for n in grid[2].tolist()],
        "ready_ps": np.where(ready < NEVER, ready, -1).ravel(),
        "released_ps": np.where(released < NEVER, released, -1).ravel(),
        "delivered_ps": delivered.ravel(), "needed_ps": needed.ravel(), "waited_ps": waited.ravel(),
    }  # fmt: skip
    return pyarrow.table({name: pyarrow.array(columns[name], schema.field(name).type) for name in COLUMNS}, schema)


def _asked_for(played: Played) -> NDArray[np.bool_]:
    """Which messages bring a pass parameters that it has asked for, and nothing of gradients."""
    bucket = played.messages["part"] // played.table.segments
    return np.asarray((played.messages["tensor"] < 0) & (bucket < played.job.exchange.parameter_buckets))


def needed_at(played: Played) -> Ints:
    """When a worker came to need what a message brings it, per message; -1 where none did."""
    found = np.full(len(played.messages["src"]), -1, dtype=np.int64)
    for course in played.courses[: len(played.workers)]:
        for moment, event, _ in course.waits:
            those = played.delivered_for(event)
            found[those[found[those] < 0]] = moment  # the first time: nothing is waited for twice
    return found


def _workers(found: Ran, played: Played) -> dict[int, int]:
    """Place among a job's workers by the nodes of their hosts."""
    cards = found.network.cards
    places: dict[int, int] = {}
    for place, node in enumerate(played.hosts[: len(played.workers)]):
        host = int(np.searchsorted(cards.first, node, side="right")) - 1
        places |= dict.fromkeys(range(int(cards.first[host]), int(cards.first[host + 1])), place)
    return places
