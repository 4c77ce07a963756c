"""The Result's table of messages: those that jobs sent one by one, those of collectives that ran as programs, and the
flows of traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.sim.coupling import Block, Message

TAKEN = (
    "job", "iteration", "tensor", "part", "kind", "bytes", "priority", "start_ps", "end_ps",
    "received_bytes", "lost_bytes", "bound", "transport",
)  # fmt: skip
"""Columns that are attributes of `Message`."""


def message_columns(
    messages: Sequence[Message],
    blocks: Sequence[Block],
    names: Sequence[str],
    payloads: Sequence[int],
    tables: Any,
    latency: int,
    end_ps: int,
) -> dict[str, Any]:
    """The columns, by number of the message.

    Messages of a block that had not become ready when the run ended have no row, just as a message that no job has
    sent.

    Parameters
    ----------
    payloads : bytes of a full packet, by transport.
    tables : what the fabric has counted.
    latency : the hosts' software latency, ps.
    end_ps : when the run ended.
    """
    of_blocks = (_of_block(block, names, tables, latency, end_ps) for block in blocks)
    parts = [_of_messages(messages, names), *of_blocks]
    parts = [part for part in parts if len(part["message"])] or parts[:1]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["message"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    numbers = columns["message"]
    payload = np.asarray(payloads)[columns.pop("transport").astype(np.int64)]
    columns["packets"] = -(-columns["bytes"] // payload)
    for name in ("sent_packets", "retransmitted", "marked", "trimmed"):
        columns[name] = np.asarray(getattr(tables, name), dtype=np.int64)[numbers]
    return {name: values.tolist() if values.dtype == object else values for name, values in columns.items()}


def _of_messages(messages: Sequence[Message], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    columns = {name: _array([getattr(message, name) for message in messages]) for name in TAKEN}
    columns["message"] = np.array([message.number for message in messages], dtype=np.int64)
    columns["src"] = _array([names[message.src] for message in messages])
    columns["dst"] = _array([names[message.dst] for message in messages])
    return columns


def _array(values: list[Any]) -> NDArray[Any]:
    if values and isinstance(values[0], (int, float)):
        return np.array(values)
    return np.array(values, dtype=object)


def _of_block(
    block: Block, names: Sequence[str], tables: Any, latency: int, end_ps: int
) -> dict[str, NDArray[Any]]:
    sends, many = block.sends, len(block.sends)
    end = tables.end_ps[block.first : block.first + many]
    got = tables.received_bytes[block.first : block.first + many]
    assert block.released_ps is not None
    start = block.released_ps.copy()
    before, after = sends.edges.T
    # a flow of traffic starts when it enters the interface, a job's message when the job has it ready
    np.maximum.at(start, after, end[before] + (latency if block.timed else 0))
    ready = block.released_ps >= 0
    ready[after[end[before] < 0]] = False
    if block.timed:
        ready &= start <= end_ps
    # a message without a gate is released at once, but starts only after those it waits for
    columns: dict[str, Any] = {
        "job": block.job,
        "iteration": block.iteration,
        "tensor": -1,
        "part": block.part,
        "kind": np.array(block.kinds, dtype=object)[block.kind],
        "bytes": sends.nbytes,
        "priority": sends.priority,
        "start_ps": start,
        "end_ps": end,
        "received_bytes": np.where(end >= 0, got, 0),
        "lost_bytes": np.where(end >= 0, sends.nbytes - got, 0),
        "bound": sends.bound,
        "transport": block.transport,
        "message": block.first + np.arange(many),
        "src": np.array(names, dtype=object)[sends.src],
        "dst": np.array(names, dtype=object)[sends.dst],
    }
    return {name: np.broadcast_to(np.asarray(values, dtype=object if isinstance(values, str) else None), many)[ready]
            for name, values in columns.items()}  # fmt: skip
