"""The Result's tables of messages and of iterations: what was played of programs, and what processes have sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.program import BACKWARD_END, END, FORWARD_END, START
from gradwire.scenarios.arrays import AnyArray, Columns, Flags, Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.result import KINDS
from gradwire.sim.coupling import Message, Track
from gradwire.sim.fabric.over import NOTES, Over

if TYPE_CHECKING:
    from gradwire.sim.fabric.tables import Tables

OWN = (
    "job", "iteration", "tensor", "part", "kind", "bytes", "priority", "start_ps", "released_ps", "bound", "share",
    "transport",
)  # fmt: skip
"""Columns that are attributes of `Message`."""


def message_columns(
    messages: Sequence[Message],
    tracks: Sequence[Track],
    names: Sequence[str],
    payloads: Sequence[int],
    tables: Tables,
    end_ps: Ps,
) -> Columns:
    """The columns, by number of the message. Messages that had not become ready by then have no row.

    Parameters
    ----------
    messages : of processes. `tracks` : of programs.
    payloads : bytes of a full packet, by transport.
    tables : what the network has counted.
    end_ps : how far the network has come.
    """
    parts = [_of_messages(messages, names)]
    parts += [_of_step(track, step, names, end_ps) for track in tracks for step in track.steps]
    parts = [part for part in parts if len(part["message"])] or parts[:1]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["message"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    numbers = columns["message"]
    end = np.asarray(tables.end_ps, dtype=np.int64)[numbers]
    got = np.asarray(tables.received_bytes, dtype=np.int64)[numbers]
    columns["end_ps"] = end
    columns["received_bytes"] = got
    columns["lost_bytes"] = np.where(end >= 0, columns["bytes"] - got, 0)
    payload = np.asarray(payloads)[columns.pop("transport").astype(np.int64)]
    columns["packets"] = -(-columns["bytes"] // payload)
    for name in ("sent_packets", "retransmitted", "marked", "trimmed", "timeouts"):
        columns[name] = np.asarray(getattr(tables, name), dtype=np.int64)[numbers]
    return {name: values.tolist() if values.dtype == object else values for name, values in columns.items()}


def _of_messages(messages: Sequence[Message], names: Sequence[str]) -> dict[str, AnyArray]:
    own = [name for name in OWN if name != "share"]
    columns: dict[str, AnyArray] = {name: _array([getattr(message, name) for message in messages]) for name in own}
    columns["share"] = _array([each.bound if each.share is None else each.share for each in messages])
    columns["layer"] = np.full(len(messages), -1, dtype=np.int64)
    columns["message"] = np.array([message.number for message in messages], dtype=np.int64)
    columns["src"] = _array([names[message.src] for message in messages])
    columns["dst"] = _array([names[message.dst] for message in messages])
    return columns


def _array(values: Sequence[object]) -> AnyArray:
    if values and isinstance(values[0], (int, float)):
        return np.array(values)
    return np.array(values, dtype=object)


def seen(step: Over, end_ps: Ps) -> tuple[Flags, Ints]:
    """Which messages of a step have become ready by a time, and when each was. A flow of traffic is when it
    enters its host's NIC, a job's message when the job has it."""
    start = step.ready if step.step.begins is None else step.started
    ready = (step.numbers >= 0) & (start >= 0)
    return (ready if step.step.begins is None else ready & (start <= end_ps)), start


def _of_step(track: Track, step: Over, names: Sequence[str], end_ps: Ps) -> dict[str, AnyArray]:
    rows, table = step.step.messages, track.part.table
    ready, start = seen(step, end_ps)
    nodes = np.array(names, dtype=object)
    columns: dict[str, object] = {
        "job": table.name,
        "iteration": rows.iteration,
        "tensor": rows.tensor,
        "layer": rows.layer,
        "part": rows.part,
        "kind": np.array(KINDS, dtype=object)[rows.kind],
        "bytes": rows.nbytes,
        "priority": rows.priority,
        "start_ps": start,
        "released_ps": np.where((step.started >= 0) & (step.started <= end_ps), step.started, -1),
        "bound": rows.bound,
        "share": rows.share,
        "transport": table.transport,
        "message": step.numbers,
        "src": nodes[rows.src],
        "dst": nodes[rows.dst],
    }
    found = {}
    for name, values in columns.items():
        column = np.asarray(values, dtype=object if isinstance(values, str) else None)
        found[name] = np.broadcast_to(column, len(ready))[ready]
    return found


def iteration_columns(tracks: Sequence[Track]) -> dict[str, list[object]]:
    """The table of iterations: of every worker those that are over, by job, worker and iteration."""
    found = []
    for track in tracks:
        for number, step in enumerate(track.steps):
            for process in np.flatnonzero(step.notes[:, END] >= 0).tolist():
                notes = step.notes[process].tolist()
                start, end, compute = notes[START], notes[END], notes[NOTES - 1]
                times = (start, notes[FORWARD_END], notes[BACKWARD_END], end, compute, end - start - compute)
                found.append((track.part.table.name, int(track.part.workers[process]), number, *times))
    found.sort()
    names = (
        "job", "worker", "iteration", "start_ps", "forward_end_ps", "backward_end_ps", "end_ps", "compute_ps",
        "exposed_ps",
    )  # fmt: skip
    return {name: [row[place] for row in found] for place, name in enumerate(names)}
