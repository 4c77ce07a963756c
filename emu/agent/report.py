"""What an agent tells at the end, and what that makes of all hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.arrays import Flags, Ints

if TYPE_CHECKING:
    from gradwire.emu.agent.contents import CheckSums
    from gradwire.emu.agent.script import IterationRow


@dataclass
class Sent:
    """The messages sent from a host, in columns int64[n].

    start_ns : when the message was ready, -1 if it never was; sent_packets, retransmitted : as in the Result.
    settled : 1 where the sender knows that it is done with. marked : packets that came with a mark, where only the
    sender can tell; -1 elsewhere.
    """

    message: Ints
    start_ns: Ints
    sent_packets: Ints
    retransmitted: Ints
    settled: Ints
    marked: Ints


@dataclass
class Received:
    """The messages received by a host, in columns int64[n].

    end_ns : -1 if it was not delivered; received, lost : bytes; marked : -1 where it is not known.
    have : message -> which packets arrived, bool[packets], where not all did.
    """

    message: Ints
    end_ns: Ints
    received: Ints
    lost: Ints
    marked: Ints
    have: dict[int, Flags] = field(default_factory=dict)


@dataclass
class HostReport:
    """Everything that a host knows. `iterations` : what its script noted; `contents` : the check sums of its
    contents; `punctuality` : see `EpollLoop.punctuality`; `overflows` : datagrams lost for want of speed; `strays` :
    datagrams that were not understood; `notes` : whatever its carriers have to say (for people)."""

    node: int
    sent: Sent
    received: Received
    iterations: Sequence[IterationRow] = ()
    contents: CheckSums | None = None
    punctuality: Mapping[str, int] = field(default_factory=dict)
    overflows: int = 0
    strays: int = 0
    notes: Sequence[str] = ()


@dataclass
class Reports:
    """Of all hosts, in columns by number of the message; -1 where nothing is known.

    start_ns, end_ns : since the beginning. received, lost : bytes. marked : packets; -1: not known.
    have : message -> bool[packets], where not all packets arrived.
    iterations : rows of all hosts. contents, punctuality : by node.
    problems : what went wrong without ending the run, in words.
    ended_by : done, duration, interrupt or failure.
    over_ns : when the controller saw the end.
    round_trips : node -> nanoseconds that a question to its agent took, and `offsets` by how much its clock was ahead.
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
        """Of so many messages, of which nothing is known."""
        a, b, c, d, e, f, g = np.full((7, count), -1, dtype=np.int64)
        return cls(a, b, c, d, e, f, g)

    def add(self, report: HostReport) -> None:
        """Take in what one host knows."""
        sent, received = report.sent, report.received
        self.start_ns[sent.message] = sent.start_ns
        self.sent_packets[sent.message] = sent.sent_packets
        self.retransmitted[sent.message] = sent.retransmitted
        self.end_ns[received.message] = received.end_ns
        self.received[received.message] = received.received
        self.lost[received.message] = received.lost
        # of two that know the number of marks it does not matter which is heard last
        for of in (sent, received):
            known = of.marked >= 0
            self.marked[of.message[known]] = of.marked[known]
        self.have.update(received.have)
        self.iterations += report.iterations
        self.contents[report.node] = report.contents
        self.punctuality[report.node] = report.punctuality
        self.overflows[report.node] = report.overflows
        self.notes += [note for note in report.notes if note not in self.notes]
        if report.overflows:
            self.problems.append(f"host {report.node}: {report.overflows} datagrams lost, its agent was too slow")
        if report.strays:
            self.problems.append(f"host {report.node}: {report.strays} packets or connections that were not understood")
