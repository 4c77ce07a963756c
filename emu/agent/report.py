"""Declares an agent's report at the end of a run, and merges the reports of all hosts into columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.arrays import Flags, Ints

if TYPE_CHECKING:
    from gradwire.emu.agent.payload.contents import CheckSums
    from gradwire.emu.agent.script import IterationRow


@dataclass
class SentCounts:
    """The messages sent by a host, in columns int64[n].

    start_ns : when the message was ready, -1 if it never was; sent_packets, retransmitted : as in the Result.
    marked : packets with a mark, if only the sender can tell; otherwise -1.
    """

    message: Ints
    start_ns: Ints
    sent_packets: Ints
    retransmitted: Ints
    marked: Ints


@dataclass
class Received:
    """The messages received by a host, in columns int64[n].

    end_ns : -1 if it was not delivered; received, lost : bytes; marked : -1 if unknown.
    have : message -> bool[packets] of those that arrived, unless all did.
    """

    message: Ints
    end_ns: Ints
    received: Ints
    lost: Ints
    marked: Ints
    have: dict[int, Flags] = field(default_factory=dict)


@dataclass
class HostReport:
    """The report of one host.

    iterations : recorded by its script. contents : check sums. punctuality : see `EpollLoop.punctuality`.
    overflows : datagrams lost because the agent was too slow. strays : invalid datagrams.
    notes : remarks of its carriers for the user.
    """

    node: int
    sent: SentCounts
    received: Received
    iterations: Sequence[IterationRow] = ()
    contents: CheckSums | None = None
    punctuality: Mapping[str, int] = field(default_factory=dict)
    overflows: int = 0
    strays: int = 0
    notes: Sequence[str] = ()


@dataclass
class Reports:
    """The reports of all hosts, in columns by message number; -1 where unknown.

    start_ns, end_ns : since the beginning. received, lost : bytes. marked : packets; -1: unknown.
    have : message -> bool[packets], unless all packets arrived.
    iterations : rows of all hosts. contents, punctuality : by node.
    problems : messages about non-fatal errors.
    ended_by : done, duration, interrupt or failure.
    over_ns : time at which the controller saw the end.
    round_trips, offsets : node -> nanoseconds of a query's round trip, and the lead of the agent's clock.
    """

    start_ns: Ints
    end_ns: Ints
    received: Ints
    lost: Ints
    sent_packets: Ints
    retransmitted: Ints
    marked: Ints
    have: dict[int, Flags] = field(default_factory=dict)
    iterations: list[IterationRow] = field(default_factory=list)
    contents: dict[int, CheckSums | None] = field(default_factory=dict)
    punctuality: dict[int, Mapping[str, int]] = field(default_factory=dict)
    overflows: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ended_by: str = "done"
    over_ns: int = 0
    round_trips: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, count: int) -> Reports:
        return cls(*np.full((7, count), -1, dtype=np.int64))

    def add(self, report: HostReport) -> None:
        sent, received = report.sent, report.received
        for name in ("start_ns", "sent_packets", "retransmitted"):
            getattr(self, name)[sent.message] = getattr(sent, name)
        for name in ("end_ns", "received", "lost"):
            getattr(self, name)[received.message] = getattr(received, name)
        # if both ends know the number of marks, either may come last
        for columns in (sent, received):
            is_known = columns.marked >= 0
            self.marked[columns.message[is_known]] = columns.marked[is_known]
        self.have.update(received.have)
        self.iterations += report.iterations
        self.contents[report.node] = report.contents
        self.punctuality[report.node] = report.punctuality
        self.overflows[report.node] = report.overflows
        self.notes += [note for note in report.notes if note not in self.notes]
        if report.overflows:
            self.problems.append(f"host {report.node}: {report.overflows} datagrams lost: its agent was too slow")
        if report.strays:
            self.problems.append(f"host {report.node}: {report.strays} invalid packets or connections")
