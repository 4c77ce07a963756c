"""What an agent may say, and whether it can be true: a controller believes nothing that it can look up itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from gradwire.emu.agent.contents import CheckSums
from gradwire.emu.agent.report import HostReport, Received, Sent
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.agent.stream import Frame
from gradwire.emu.wire.header import NotOurs
from gradwire.experiment.program import Program

SAID: Final[dict[str, tuple[type, ...]]] = {
    "opened": (),
    "connected": (),
    "clock": (int, int),
    "status": (int, int, bool, bool),
    "state": (list, list, list),
    "report": (HostReport,),
    "error": (str, str, str, bool),
}
"""Name and types of every frame of `gradwire.emu.agent.agent` that comes from an agent."""
LONGEST_NS: Final = 1 << 62


def check_said(frame: Frame) -> None:
    """Raise NotOurs for a frame that no agent sends."""
    types = SAID.get(frame[0])
    if types is None or tuple(type(each) for each in frame[1:]) != types:
        raise NotOurs(f"{frame[0][:20]!r} is nothing that an agent says so")
    if frame[0] == "state":
        lines, under_way, there = frame[1:]
        if not _all(lines, str) or not _all([*under_way, *there], int):
            raise NotOurs("a state is none")


def _all(values: Iterable[object], kind: type) -> bool:
    return all(type(each) is kind for each in values)


def check_report(report: HostReport, node: int, program: Program) -> None:
    """Raise NotOurs for a report that cannot be that of a host of this program."""
    rows, sent, received = program.messages, report.sent, report.received
    if report.node != node or not isinstance(sent, Sent) or not isinstance(received, Received):
        raise NotOurs("a report is of somebody else, or of nothing")
    columns = [
        [getattr(sent, name) for name in ("message", "start_ns", "sent_packets", "retransmitted", "settled", "marked")],
        [getattr(received, name) for name in ("message", "end_ns", "received", "lost", "marked")],
    ]
    for block, ends in zip(columns, (rows.src, rows.dst), strict=True):
        if any(not isinstance(each, np.ndarray) or each.dtype != np.int64 or each.ndim != 1 for each in block):
            raise NotOurs("a column of a report is none")
        if len({len(each) for each in block}) > 1 or any(((each < -1) | (each > LONGEST_NS)).any() for each in block):
            raise NotOurs("the columns of a report do not fit together")
        numbers = block[0]
        if ((numbers < 0) | (numbers >= len(rows))).any() or len(np.unique(numbers)) != len(numbers):
            raise NotOurs("a report tells of messages that there are not")
        if (ends[numbers] != node).any():
            raise NotOurs("a report tells of messages of other hosts")
    size = rows.nbytes[received.message]
    if (received.received + received.lost > size).any():
        raise NotOurs("a report tells of more bytes than messages have")
    _check_rest(report, set(received.message.tolist()), len(program.tables))


def _check_rest(report: HostReport, into: set[int], tables: int) -> None:
    have = report.received.have
    if not isinstance(have, dict) or not set(have) <= into:
        raise NotOurs("a report tells of packets of messages that did not come")
    if any(not isinstance(each, np.ndarray) or each.dtype != np.bool_ or each.ndim != 1 for each in have.values()):
        raise NotOurs("a report's packets are none")
    rows = report.iterations
    if not isinstance(rows, list) or not _all(rows, IterationRow) or not all(_all(row, int) for row in rows):
        raise NotOurs("a report's iterations are none")
    if any(not 0 <= row.job < tables or max(map(abs, row)) > LONGEST_NS for row in rows):
        raise NotOurs("a report's iterations are of no job")
    late, sums = report.punctuality, report.contents
    if not isinstance(late, dict) or not _all(late, str) or not _all(late.values(), int):
        raise NotOurs("a report does not say how late its host was")
    if type(report.overflows) is not int or type(report.strays) is not int or not _all(report.notes, str):
        raise NotOurs("a report's notes are none")
    if isinstance(sums, CheckSums):
        for each in (sums.sent, sums.received):
            if not isinstance(each, dict) or not _all(each, int):
                raise NotOurs("a report's check sums are of no messages")
            if any(not isinstance(v, np.ndarray) or v.dtype != np.uint32 or v.ndim != 1 for v in each.values()):
                raise NotOurs("a report's check sums are none")
