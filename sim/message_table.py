"""The rows of a Result's tables of messages and of iterations: what was played of programs, and what processes have
sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradwire.experiment.program import BACKWARD_END, END, FORWARD_END, START, Part, Table
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.blocks import TYPES, Blocks, KeptBlocks, Rows, Shelf
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.result import KINDS, TABLES
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.over import NOTES, Over
from gradwire.sim.fabric.tables import Tables
from gradwire.sim.message import Message

COUNTED = ("sent_packets", "retransmitted", "marked", "trimmed", "timeouts")
OWN = ("iteration", "tensor", "part", "bytes", "priority", "start_ps", "released_ps", "bound", "src", "dst")
"""Columns that are attributes of `Message`."""


def blocks_of(name: str, shelf: Shelf, key: Sequence[str]) -> Blocks:
    """Blocks with the columns of a table of a Result; what else rows are ordered by is int64."""
    types = {column: TYPES[kind] for column, kind in TABLES[name].items()}
    return Blocks(shelf, {**dict.fromkeys(key, np.int64), **types}, key)


class MessageRows:
    """The table of messages as its rows come; a message that had not become ready has none.

    Attributes
    ----------
    count, under_way, nbytes, lost_bytes : rows, those of them that were not delivered, and bytes of all of them.
    """

    def __init__(self, names: Sequence[str], payloads: Sequence[int], shelf: Shelf) -> None:
        """`names`: of nodes. `payloads`: bytes of a full packet, by transport."""
        self._names, self._payloads = names, np.asarray(payloads, dtype=np.int64)
        self._jobs: dict[str, int] = {}
        self.blocks = blocks_of("messages", shelf, ("message",))
        self.count = self.under_way = self.nbytes = self.lost_bytes = 0

    def add_step(self, table: Table, step: Over, counts: Counts, end_ps: Ps) -> None:
        """Those of a step, as far as they have become ready by a time. `table`: of its part."""
        rows = step.step.messages
        ready, start = seen(step, end_ps)
        columns: dict[str, Any] = {
            "message": step.numbers, "iteration": rows.iteration, "tensor": rows.tensor, "layer": rows.layer,
            "part": rows.part, "kind": rows.kind, "src": rows.src, "dst": rows.dst, "bytes": rows.nbytes,
            "priority": rows.priority, "start_ps": start, "bound": rows.bound, "share": rows.share,
            "released_ps": np.where((step.started >= 0) & (step.started <= end_ps), step.started, -1),
        }  # fmt: skip
        if not ready.all():
            columns = {name: column[ready] for name, column in columns.items()}
        self._add(columns, self._job(table.name), table.transport, counts)

    def add_messages(self, messages: Sequence[Message], counts: Counts) -> None:
        """Those of processes."""
        if not messages:
            return
        columns: dict[str, Any] = {name: np.array([getattr(each, name) for each in messages]) for name in OWN}
        columns["message"] = np.array([each.number for each in messages], dtype=np.int64)
        columns["share"] = np.array([each.bound if each.share is None else each.share for each in messages])
        columns["layer"] = np.full(len(messages), -1)
        columns["kind"] = np.array([KINDS.index(each.kind) for each in messages])
        jobs = np.array([self._job(each.job) for each in messages])
        self._add(columns, jobs, np.array([each.transport for each in messages]), counts)

    def _add(self, columns: dict[str, Any], job: int | Ints, transport: int | Ints, counts: Counts) -> None:
        rows = columns["message"] - counts.first
        nbytes, end, got = columns["bytes"], counts.end_ps[rows], counts.received_bytes[rows]
        lost = np.where(end >= 0, nbytes - got, 0)
        columns |= {
            "job": np.broadcast_to(np.asarray(job), len(rows)),
            "end_ps": end, "received_bytes": got, "lost_bytes": lost,
            "packets": -(-nbytes // self._payloads[transport]),
            **{name: getattr(counts, name)[rows] for name in COUNTED},
        }  # fmt: skip
        self.blocks.add(columns)
        self.count += len(rows)
        self.under_way += int((end < 0).sum())
        self.nbytes += int(nbytes.sum())
        self.lost_bytes += int(lost.sum())

    def _job(self, name: str) -> int:
        return self._jobs.setdefault(name, len(self._jobs))

    def kept(self) -> KeptBlocks:
        """The table."""
        texts = {"job": list(self._jobs), "kind": KINDS, "src": self._names, "dst": self._names}
        return KeptBlocks("messages", self.blocks, texts)

    def flows_of(self, name: str) -> Iterator[Rows]:
        """Number, ends and bytes of the messages of a traffic, some at a time."""
        job, wanted = self._jobs.get(name, -1), ("message", "src", "dst", "bytes")
        for batch in self.blocks.batches(("job", *wanted)):
            mine = batch["job"] == job
            if mine.any():
                yield {column: batch[column][mine] for column in wanted}


def counts_of(tables: Tables) -> Counts:
    """What any network has counted, as arrays."""
    columns = (*COUNTED, "end_ps", "received_bytes")
    arrays = {name: np.asarray(getattr(tables, name), dtype=np.int64) for name in columns}
    return Counts(**arrays, first=tables.first)


def seen(step: Over, end_ps: Ps) -> tuple[Flags, Ints]:
    """Which messages of a step have become ready by a time, and when each was. A flow of traffic is when it
    enters its host's NIC, a job's message when the job has it."""
    start = step.ready if step.step.begins is None else step.started
    ready = (step.numbers >= 0) & (start >= 0)
    return (ready if step.step.begins is None else ready & (start <= end_ps)), start


Iteration = tuple[str, int, int, int, int, int, int, int, int]
"""A row of the table of iterations."""


def iteration_rows(part: Part, number: int, step: Over) -> list[Iteration]:
    """Of every worker whose iteration `number` is over, in no order."""
    found = []
    for process in np.flatnonzero(step.notes[:, END] >= 0).tolist():
        notes = step.notes[process].tolist()
        start, end, compute = notes[START], notes[END], notes[NOTES - 1]
        times = (start, notes[FORWARD_END], notes[BACKWARD_END], end, compute, end - start - compute)
        found.append((part.table.name, int(part.workers[process]), number, *times))
    return found


def iteration_columns(rows: list[Iteration]) -> dict[str, list[object]]:
    """The table of iterations, by job, worker and iteration."""
    ordered = sorted(rows)
    return {name: [row[place] for row in ordered] for place, name in enumerate(TABLES["iterations"])}
