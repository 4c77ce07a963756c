"""The Result's table of messages: those that jobs sent one by one, and those of collectives that ran as programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.coupling import Block, Message

TAKEN = (
    "job", "iteration", "tensor", "part", "kind", "bytes", "priority", "start_ps", "end_ps",
    "received_bytes", "lost_bytes", "bound",
)  # fmt: skip
"""Columns that are attributes of `Message`."""


def message_columns(
    messages: Sequence[Message],
    blocks: Sequence[Block],
    names: Sequence[str],
    payload: int,
    tables: Any,
) -> dict[str, Any]:
    """The columns, by number of the message; `tables` is what the fabric has counted.

    Messages of a block that had not become ready when the run ended have no row, just as a message that no job has
    sent.
    """
    parts = [_of_messages(messages, names), *(_of_block(block, names, tables) for block in blocks)]
    parts = [part for part in parts if len(part["message"])] or parts[:1]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["message"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    numbers = columns["message"]
    columns["packets"] = -(-columns["bytes"] // payload)
    columns["sent_packets"] = np.asarray(tables.sent_packets, dtype=np.int64)[numbers]
    columns["retransmitted"] = np.asarray(tables.retransmitted, dtype=np.int64)[numbers]
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


def _of_block(block: Block, names: Sequence[str], tables: Any) -> dict[str, NDArray[Any]]:
    sends, many = block.sends, len(block.sends)
    end = tables.end_ps[block.first : block.first + many]
    got = tables.received_bytes[block.first : block.first + many]
    assert block.released_ps is not None
    start = block.released_ps.copy()
    before, after = sends.edges.T
    np.maximum.at(start, after, end[before])
    ready = block.released_ps >= 0
    ready[after[end[before] < 0]] = False
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
        "message": block.first + np.arange(many),
        "src": np.array(names, dtype=object)[sends.src],
        "dst": np.array(names, dtype=object)[sends.dst],
    }
    return {name: np.broadcast_to(np.asarray(values, dtype=object if isinstance(values, str) else None), many)[ready]
            for name, values in columns.items()}  # fmt: skip
