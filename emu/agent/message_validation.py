"""Validates frames and reports received from agents by type and range before the controller uses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from gradwire.emu.agent.frame_stream import Frame
from gradwire.emu.agent.payload.contents import CheckSums
from gradwire.emu.agent.report import HostReport, Received, SentCounts
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.wire.header import ForeignDataError
from gradwire.workload.program import Program

REPLIES: Final[dict[str, tuple[type, ...]]] = {
    "opened": (),
    "connected": (),
    "clock": (int, int),
    "status": (int, int, bool, bool),
    "state": (list, list, list),
    "report": (HostReport,),
    "error": (str, str, str, bool),
}
"""Name and types of every frame that an agent sends (`gradwire.emu.agent.agent`)."""
LONGEST_NS: Final = 1 << 62


def check_frame(frame: Frame) -> None:
    """Raise ForeignDataError if a frame is not one that agents send."""
    types = REPLIES.get(frame[0])
    if types is None or tuple(type(each) for each in frame[1:]) != types:
        raise ForeignDataError(f"invalid frame of an agent: {frame[0][:20]!r}")
    if frame[0] == "state":
        lines, under_way, delivered = frame[1:]
        if not _all(lines, str) or not _all([*under_way, *delivered], int):
            raise ForeignDataError("invalid state")


def _all(values: Iterable[object], kind: type) -> bool:
    return all(type(value) is kind for value in values)


def check_report(report: HostReport, node: int, program: Program) -> None:
    """Raise ForeignDataError if a report cannot be that of a host of this program."""
    rows, sent, received = program.messages, report.sent, report.received
    if report.node != node or not isinstance(sent, SentCounts) or not isinstance(received, Received):
        raise ForeignDataError("a report of another host, or an empty one")
    columns = [
        [getattr(sent, name) for name in ("message", "start_ns", "sent_packets", "retransmitted", "marked")],
        [getattr(received, name) for name in ("message", "end_ns", "received", "lost", "marked")],
    ]
    for block, ends in zip(columns, (rows.src, rows.dst), strict=True):
        if any(not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1 for column in block):
            raise ForeignDataError("invalid column in a report")
        if len({len(column) for column in block}) > 1 or any(
            ((column < -1) | (column > LONGEST_NS)).any() for column in block
        ):
            raise ForeignDataError("the columns of a report do not match")
        numbers = block[0]
        if ((numbers < 0) | (numbers >= len(rows))).any() or len(np.unique(numbers)) != len(numbers):
            raise ForeignDataError("a report with unknown messages")
        if (ends[numbers] != node).any():
            raise ForeignDataError("a report with messages of other hosts")
    size = rows.nbytes[received.message]
    if (received.received + received.lost > size).any():
        raise ForeignDataError("a report with more bytes than messages have")
    _check_rest(report, set(received.message.tolist()), len(program.tables))


def _check_rest(report: HostReport, into: set[int], tables: int) -> None:
    have = report.received.have
    if not isinstance(have, dict) or not set(have) <= into:
        raise ForeignDataError("a report with packets of messages not received")
    if any(not isinstance(each, np.ndarray) or each.dtype != np.bool_ or each.ndim != 1 for each in have.values()):
        raise ForeignDataError("invalid packets in a report")
    rows = report.iterations
    if not isinstance(rows, list) or not _all(rows, IterationRow) or not all(_all(row, int) for row in rows):
        raise ForeignDataError("invalid iterations in a report")
    if any(not 0 <= row.job < tables or max(map(abs, row)) > LONGEST_NS for row in rows):
        raise ForeignDataError("iterations of an unknown job in a report")
    punctuality, sums = report.punctuality, report.contents
    if not isinstance(punctuality, dict) or not _all(punctuality, str) or not _all(punctuality.values(), int):
        raise ForeignDataError("invalid lateness in a report")
    if type(report.overflows) is not int or type(report.strays) is not int or not _all(report.notes, str):
        raise ForeignDataError("invalid notes in a report")
    if isinstance(sums, CheckSums):
        for each in (sums.sent, sums.received):
            if not isinstance(each, dict) or not _all(each, int):
                raise ForeignDataError("check sums of unknown messages in a report")
            if any(not isinstance(v, np.ndarray) or v.dtype != np.uint32 or v.ndim != 1 for v in each.values()):
                raise ForeignDataError("invalid check sums in a report")
