"""Builds the rows of a Result's tables of messages and iterations from completed steps and sent messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradwire.result_store.row_blocks import TYPES, BlockTable, ColumnStore, RowBlocks, Rows
from gradwire.result_store.table_schema import KINDS, TABLES
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.sim.engine.program.completed_step import NOTE_COLUMNS, CompletedStep
from gradwire.sim.engine.tables import FabricTables
from gradwire.sim.processes.message import Message
from gradwire.workload.program import BACKWARD_END, END, FORWARD_END, START, MessageColumns, ProgramPart

COUNTER_COLUMNS = ("sent_packets", "retransmitted", "marked", "trimmed", "timeouts")
MESSAGE_COLUMNS = ("iteration", "tensor", "part", "bytes", "priority", "start_ps", "released_ps", "bound", "src", "dst")
"""Columns that are attributes of `Message`."""


def table_blocks(name: str, store: ColumnStore, key: Sequence[str]) -> RowBlocks:
    """Return empty row blocks with the columns of a Result table; further key columns are int64."""
    types = {column: TYPES[kind] for column, kind in TABLES[name].items()}
    return RowBlocks(store, {**dict.fromkeys(key, np.int64), **types}, key)


class MessageRows:
    """The table of messages, built incrementally; messages that never became ready have no row.

    Attributes
    ----------
    count, under_way, nbytes, lost_bytes : rows, undelivered ones among them, and total bytes and lost bytes.
    """

    def __init__(self, names: Sequence[str], payloads: Sequence[int], store: ColumnStore) -> None:
        """Take the names of nodes and, by transport, the payload bytes of a full packet."""
        self._names, self._payloads = names, np.asarray(payloads, dtype=np.int64)
        self._jobs: dict[str, int] = {}
        self.blocks = table_blocks("messages", store, ("message",))
        self.count = self.under_way = self.nbytes = self.lost_bytes = 0

    def add_step(self, table: MessageColumns, step: CompletedStep, counts: MessageCounts, end_ps: Ps) -> None:
        """Add the messages of a step that became ready by `end_ps`; `table` is that of its part."""
        rows = step.step.messages
        ready, start = ready_messages(step, end_ps)
        columns: dict[str, Any] = {
            "message": step.numbers,
            "iteration": rows.iteration,
            "tensor": rows.tensor,
            "layer": rows.layer,
            "part": rows.part,
            "kind": rows.kind,
            "src": rows.src,
            "dst": rows.dst,
            "bytes": rows.nbytes,
            "priority": rows.priority,
            "start_ps": start,
            "bound": rows.bound,
            "share": rows.share,
            "released_ps": np.where((step.started >= 0) & (step.started <= end_ps), step.started, -1),
        }
        if not ready.all():
            columns = {name: column[ready] for name, column in columns.items()}
        self._add(columns, self._job(table.name), table.transport, counts)

    def add_messages(self, messages: Sequence[Message], counts: MessageCounts) -> None:
        """Add the messages that processes sent."""
        if not messages:
            return
        columns: dict[str, Any] = {
            name: np.array([getattr(message, name) for message in messages]) for name in MESSAGE_COLUMNS
        }
        columns["message"] = np.array([message.number for message in messages], dtype=np.int64)
        columns["share"] = np.array([message.bound if message.share is None else message.share for message in messages])
        columns["layer"] = np.full(len(messages), -1)
        columns["kind"] = np.array([KINDS.index(message.kind) for message in messages])
        jobs = np.array([self._job(message.job) for message in messages])
        self._add(columns, jobs, np.array([message.transport for message in messages]), counts)

    def _add(self, columns: dict[str, Any], job: int | Ints, transport: int | Ints, counts: MessageCounts) -> None:
        rows = columns["message"] - counts.first
        nbytes, end, received = columns["bytes"], counts.end_ps[rows], counts.received_bytes[rows]
        lost = np.where(end >= 0, nbytes - received, 0)
        columns |= {
            "job": np.broadcast_to(np.asarray(job), len(rows)),
            "end_ps": end,
            "received_bytes": received,
            "lost_bytes": lost,
            "packets": -(-nbytes // self._payloads[transport]),
            **{name: getattr(counts, name)[rows] for name in COUNTER_COLUMNS},
        }
        self.blocks.add(columns)
        self.count += len(rows)
        self.under_way += int((end < 0).sum())
        self.nbytes += int(nbytes.sum())
        self.lost_bytes += int(lost.sum())

    def _job(self, name: str) -> int:
        return self._jobs.setdefault(name, len(self._jobs))

    def table(self) -> BlockTable:
        """Return the table."""
        texts = {"job": list(self._jobs), "kind": KINDS, "src": self._names, "dst": self._names}
        return BlockTable("messages", self.blocks, texts)

    def flows_of(self, name: str) -> Iterator[Rows]:
        """Yield number, ends and bytes of the messages of a traffic table, in batches."""
        job, names = self._jobs.get(name, -1), ("message", "src", "dst", "bytes")
        for batch in self.blocks.batches(("job", *names)):
            is_selected = batch["job"] == job
            if is_selected.any():
                yield {column: batch[column][is_selected] for column in names}


def message_counts(tables: FabricTables) -> MessageCounts:
    """Return the counters of any network as arrays."""
    columns = (*COUNTER_COLUMNS, "end_ps", "received_bytes")
    arrays = {name: np.asarray(getattr(tables, name), dtype=np.int64) for name in columns}
    return MessageCounts(**arrays, first=tables.first)


def ready_messages(step: CompletedStep, end_ps: Ps) -> tuple[Flags, Ints]:
    """Return which messages of a step became ready by `end_ps`, and when each did. A flow of traffic is ready when it
    enters its host's NIC, a job's message when the job has it."""
    start = step.ready if step.step.begins is None else step.started
    ready = (step.numbers >= 0) & (start >= 0)
    return (ready if step.step.begins is None else ready & (start <= end_ps)), start


IterationRow = tuple[str, int, int, int, int, int, int, int, int]
"""A row of the table of iterations."""


def iteration_rows(part: ProgramPart, number: int, step: CompletedStep) -> list[IterationRow]:
    """Return an unordered row for each worker that has completed iteration `number`."""
    rows = []
    for process in np.flatnonzero(step.notes[:, END] >= 0).tolist():
        notes = step.notes[process].tolist()
        start, end, compute = notes[START], notes[END], notes[NOTE_COLUMNS - 1]
        times = (start, notes[FORWARD_END], notes[BACKWARD_END], end, compute, end - start - compute)
        rows.append((part.table.name, int(part.workers[process]), number, *times))
    return rows


def iteration_columns(rows: list[IterationRow]) -> dict[str, list[object]]:
    """Return the table of iterations, ordered by job, worker and iteration."""
    ordered = sorted(rows)
    return {name: [row[column] for row in ordered] for column, name in enumerate(TABLES["iterations"])}
