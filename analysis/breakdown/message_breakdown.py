"""Breakdown of one message's time, from release to delivery.

A message m of a host, released at r (its first packet may leave then) and delivered at d, has the unloaded transfer
time I (`gradwire.workload.unloaded_time`, for the bytes that were delivered). The rest, X = d - r - I, is split:

1. **recovery**, if packets of m were dropped that its delivery needed. The packet that was dropped last counts, from
   its first drop to d; at most X. It is `timeouts` if the message had a retransmission time-out, else
   `retransmission`. If only control packets were dropped, the first of these drops counts, if there was a time-out.
2. **sharing**: other messages of the host that left by the same NIC meanwhile. Each one delivered before d counts with
   its time on the cable, at most the time both were in flight. Of those delivered later, a more urgent one counts
   the same; one of the same class counts at most as much as m itself (NICs serve messages of a class in turn; those
   of one pair of a transport with connections in sequence: a later one counts nothing); a less urgent one counts
   nothing. At most what is left of X.
3. **queueing**: the rest of X. Waiting in network queues behind other traffic, and delay by the transport (window,
   pacing, credit, pause), which reacts to queues.

All are non-negative integers and add up to d - r. In time they are ordered: sharing, queueing, recovery, and last the
message's own I. (This is a convention; in truth they alternate. It matters if only the end of a message was waited
for.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.jit.layout import FOREVER, SPEED_SHIFT
from gradwire.result_store.arrow import to_numpy
from gradwire.scenarios.wire import ps_per_byte
from gradwire.workload.unloaded_time import unloaded_times

if TYPE_CHECKING:
    from gradwire.analysis.breakdown.program_replay import ReplayedProgram
    from gradwire.analysis.breakdown.result_context import ResultContext


class MessageParts(NamedTuple):
    """Parts of a message's time from release to delivery, picoseconds, in this order."""

    sharing: int
    queueing: int
    retransmission: int
    timeouts: int
    serialisation: int


class TrafficBreakdown:
    """All messages of a Result by the NIC they left."""

    def __init__(self, ran: ResultContext) -> None:
        self.ran = ran
        columns, scenario = ran.columns, ran.scenario
        kinds = {table.name: scenario.transports[scenario.transport_of(table)] for table in scenario.senders}
        transports = [kinds.get(name) for name in columns["jobs"]]
        overhead = np.array([transport.overhead if transport else 0 for transport in transports] + [0], dtype=np.int64)
        in_turn = np.array([hasattr(transport, "pair_words") for transport in transports] + [False])
        self.in_turn = in_turn[columns["job"]]
        rate = ps_per_byte(ran.network.link_rate[ran.routing.up_link].astype(object)).astype(np.int64)
        speed = np.append(rate, 0)[columns["src"]]
        self.wire = (columns["bytes"] + columns["packets"] * overhead[columns["job"]]) * speed >> SPEED_SHIFT
        self.end = np.where(columns["end_ps"] >= 0, columns["end_ps"], FOREVER)
        self.released = columns["released_ps"]
        in_flight = np.flatnonzero(self.released >= 0)
        order = in_flight[np.lexsort((self.released[in_flight], columns["src"][in_flight]))]
        self._order = order
        self._first = np.searchsorted(columns["src"][order], np.arange(ran.network.host_count + 1))
        self._releases = self.released[order]
        # latest end among the messages of a NIC that were released up to each one: makes overlaps searchable
        self._last_end = np.zeros(len(order), dtype=np.int64)
        for low, high in zip(self._first[:-1].tolist(), self._first[1:].tolist(), strict=True):
            self._last_end[low:high] = np.maximum.accumulate(self.end[order[low:high]])
        self._row_of = {int(number): row for row, number in enumerate(columns["number"].tolist())}

    def sharing(self, number: int) -> int:
        """Return an upper bound of the picoseconds in which a message shared its NIC with others."""
        row, columns = self._row_of[number], self.ran.columns
        card, begin, end = int(columns["src"][row]), int(self.released[row]), int(self.end[row])
        low, high = self._first[card : card + 2].tolist()
        low += int(np.searchsorted(self._last_end[low:high], begin, side="right"))
        high = low + int(np.searchsorted(self._releases[low:high], end))
        others = self._order[low:high]
        others = others[(self.end[others] > begin) & (others != row)]
        together = np.minimum(self.end[others], end) - np.maximum(self.released[others], begin)
        most = np.minimum(self.wire[others], together)
        urgency = columns["priority"][others] - columns["priority"][row]
        behind = (
            (columns["dst"][others] == columns["dst"][row])
            & (columns["number"][others] > number)
            & self.in_turn[others]
        )
        alike = np.where(behind, 0, np.minimum(most, self.wire[row]))
        later = np.where(urgency < 0, most, np.where(urgency == 0, alike, 0))
        return int(np.where(self.end[others] <= end, most, later).sum())


class DroppedPackets:
    """Dropped packets by message."""

    def __init__(self, ran: ResultContext) -> None:
        drops = ran.result.select("drops", "message", "packet", "time_ps")
        self.message, self.packet, self.time = (
            to_numpy(drops[name]).astype(np.int64) for name in ("message", "packet", "time_ps")
        )
        order = np.lexsort((self.time, self.message))
        self.message, self.packet, self.time = self.message[order], self.packet[order], self.time[order]
        missing = ran.result.select("missing", "message", "packet", "packets")
        self._gone, self._gone_at, self._gone_many = (
            to_numpy(missing[name]).astype(np.int64) for name in ("message", "packet", "packets")
        )
        self._gone_order = np.argsort(self._gone, kind="stable")

    def since(self, number: int, timed_out: bool) -> int:
        """Return the time of the first drop of the packet that was dropped last; -1 if no drop counts."""
        packets, times = (
            column[slice(*np.searchsorted(self.message, (number, number + 1)))] for column in (self.packet, self.time)
        )
        data = packets >= 0
        if data.any():
            order = self._gone_order
            low, high = np.searchsorted(self._gone[order], (number, number + 1))
            for row in order[low:high].tolist():
                first = self._gone_at[row]
                data &= (packets < first) | (packets >= first + self._gone_many[row])
            if not data.any():
                return -1
            last = packets[data][int(times[data].argmax())]
            return int(times[packets == last].min())
        return int(times.min()) if timed_out and len(times) else -1


class MessageTimes:
    """Breakdowns of the messages of one job."""

    def __init__(self, played: ReplayedProgram, traffic: TrafficBreakdown, lost: DroppedPackets) -> None:
        self.rows, self.traffic, self.lost = played.messages, traffic, lost
        self._known: dict[int, MessageParts] = {}
        ran, rows = traffic.ran, played.messages
        transport = ran.scenario.transports[played.table.transport]
        self.ideal = np.zeros(0, dtype=np.int64)
        if not len(rows["src"]):
            return
        flows = (ran.network, ran.routing, rows["src"], rows["dst"])
        wire = (transport.payload, transport.overhead, ran.scenario.load_balancing)
        received = np.maximum(rows["received_bytes"], 1)
        self.ideal = unloaded_times(*flows, received, *wire)

    def spent(self, message: int) -> MessageParts:
        """Return the breakdown of a delivered message."""
        if message not in self._known:
            self._known[message] = self._spent(message)
        return self._known[message]

    def _spent(self, message: int) -> MessageParts:
        rows = self.rows
        number, begin, end, timeout_count = (
            int(rows[name][message]) for name in ("number", "released_ps", "end_ps", "timeouts")
        )
        own = min(int(self.ideal[message]), end - begin)
        rest, recovery = end - begin - own, 0
        since = self.lost.since(number, timeout_count > 0) if rest else -1
        if 0 <= since < end:
            recovery = min(rest, end - since)
        rest -= recovery
        sharing = min(rest, self.traffic.sharing(number)) if rest else 0
        retransmission, timeouts = (0, recovery) if timeout_count > 0 else (recovery, 0)
        return MessageParts(sharing, rest - sharing, retransmission, timeouts, own)
