"""What the time of one message was spent on, from release to delivery, as far as a Result tells.

A message m of a host, released at r (its first packet may go then) and delivered at d, takes I on the empty network
(`gradwire.experiment.ideal`, of the bytes that it was delivered with). The rest, X = d - r - I, is split:

1. **recovery**, if packets of it were dropped that it was not delivered without. Of these, the packet that was
   dropped last counts, and the time from when it was first dropped to d; at most X. It is `timeouts` if the message
   met a retransmission time-out and `retransmission` otherwise. Where nothing but control packets was dropped, the
   first of these counts, if there was a time-out.
2. **sharing**: other messages of the same host left by the same network card meanwhile. Each that was delivered
   before d counts with its time on the cable, at most with the time that both were on their way; of those delivered
   later a more urgent one counts as much, one of the same class at most as much as m itself (cards serve messages of
   a class in turn; those of one pair of a transport with connections one after the other: a later one counts
   nothing), a less urgent one nothing. At most what is left of X.
3. **queueing**: what is left of X - waiting in queues of the network for what others sent, and being held back by the
   transport (window, pace, credit, pause), which answers to queues.

All are integers, none is negative, and they add up to d - r. In time they lie in this order: sharing, queueing,
recovery, and at the end the message's own I. (A convention, as in truth they take turns. It matters where only the
end of a message was waited for.)
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.components.layout import FOREVER, SPEED_SHIFT
from gradwire.experiment.ideal import ideal_times
from gradwire.experiment.program import Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.wire import speed_of

if TYPE_CHECKING:
    from gradwire.analysis.played import Played
    from gradwire.analysis.ran import Ran


class Spent(NamedTuple):
    """Picoseconds from release to delivery, in this order."""

    sharing: int
    queueing: int
    retransmission: int
    timeouts: int
    serialisation: int


class Traffic:
    """All messages of a Result, by the network card that they left."""

    def __init__(self, ran: Ran) -> None:
        self.ran = ran
        columns, scenario = ran.columns, ran.scenario
        kinds = {
            table.name: scenario.transports[scenario.transport_of(table)]
            for table in scenario.senders
        }
        transports = [kinds.get(name) for name in columns["jobs"]]
        overhead = np.array([each.overhead if each else 0 for each in transports] + [0], dtype=np.int64)
        in_turn = np.array([hasattr(each, "pair_words") for each in transports] + [False])
        self.in_turn = in_turn[columns["job"]]
        rate = speed_of(ran.network.link_rate[ran.routing.up_link].astype(object)).astype(np.int64)
        speed = np.append(rate, 0)[columns["src"]]
        self.wire = (columns["bytes"] + columns["packets"] * overhead[columns["job"]]) * speed >> SPEED_SHIFT
        self.end = np.where(columns["end_ps"] >= 0, columns["end_ps"], FOREVER)
        self.released = columns["released_ps"]
        on_its_way = np.flatnonzero(self.released >= 0)
        order = on_its_way[np.lexsort((self.released[on_its_way], columns["src"][on_its_way]))]
        self._order = order
        self._first = np.searchsorted(columns["src"][order], np.arange(ran.network.host_count + 1))
        self._releases = self.released[order]
        # of those of a card that were released up to each, when the last one ends: by that they are found as well
        self._last_end = np.zeros(len(order), dtype=np.int64)
        for low, high in zip(self._first[:-1].tolist(), self._first[1:].tolist(), strict=True):
            self._last_end[low:high] = np.maximum.accumulate(self.end[order[low:high]])
        self._row_of = {int(number): row for row, number in enumerate(columns["number"].tolist())}

    def sharing(self, number: int) -> int:
        """Picoseconds at most that a message of this number shared its network card with others."""
        row, columns = self._row_of[number], self.ran.columns
        card, begin, end = int(columns["src"][row]), int(self.released[row]), int(self.end[row])
        low, high = self._first[card : card + 2].tolist()
        low += int(np.searchsorted(self._last_end[low:high], begin, side="right"))
        high = low + int(np.searchsorted(self._releases[low:high], end))
        mine = self._order[low:high]
        mine = mine[(self.end[mine] > begin) & (mine != row)]
        together = np.minimum(self.end[mine], end) - np.maximum(self.released[mine], begin)
        most = np.minimum(self.wire[mine], together)
        urgency = columns["priority"][mine] - columns["priority"][row]
        behind = (columns["dst"][mine] == columns["dst"][row]) & (columns["number"][mine] > number) & self.in_turn[mine]
        alike = np.where(behind, 0, np.minimum(most, self.wire[row]))
        later = np.where(urgency < 0, most, np.where(urgency == 0, alike, 0))
        return int(np.where(self.end[mine] <= end, most, later).sum())


class Lost:
    """What was dropped, by message."""

    def __init__(self, ran: Ran) -> None:
        drops = ran.result.select("drops", "message", "packet", "time_ps")
        self.message, self.packet, self.time = (
            numpy_of(drops[name]).astype(np.int64) for name in ("message", "packet", "time_ps")
        )
        order = np.lexsort((self.time, self.message))
        self.message, self.packet, self.time = self.message[order], self.packet[order], self.time[order]
        gone = ran.result.select("missing", "message", "packet", "packets")
        self._gone, self._gone_at, self._gone_many = (
            numpy_of(gone[name]).astype(np.int64) for name in ("message", "packet", "packets")
        )

    @cached_property
    def _gone_order(self) -> Ints:
        return np.argsort(self._gone, kind="stable")

    def since(self, number: int, timed_out: bool) -> int:
        """When the packet of a message that was dropped last was first dropped; -1 where nothing was that counts."""
        packets, times = (each[slice(*np.searchsorted(self.message, (number, number + 1)))] for each in (
            self.packet, self.time,
        ))  # fmt: skip
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
    """What the messages of one job spent their time on."""

    def __init__(self, played: Played, traffic: Traffic, lost: Lost) -> None:
        self.rows, self.traffic, self.lost = played.messages, traffic, lost
        self._known: dict[int, Spent] = {}
        ran, rows = traffic.ran, played.messages
        transport = ran.scenario.transports[played.table.transport]
        self.ideal = np.zeros(0, dtype=np.int64)
        if not len(rows["src"]):
            return
        given = (ran.network, ran.routing, rows["src"], rows["dst"])
        how = (transport.payload, transport.overhead, ran.scenario.load_balancing)
        got = np.maximum(rows["received_bytes"], 1)
        self.ideal = ideal_times(*given, got, *how)

    def spent(self, message: int) -> Spent:
        """What a delivered message spent its time on."""
        if message not in self._known:
            self._known[message] = self._spent(message)
        return self._known[message]

    def _spent(self, message: int) -> Spent:
        rows = self.rows
        number, begin, end, met = (
            int(rows[name][message]) for name in ("number", "released_ps", "end_ps", "timeouts")
        )
        own = min(int(self.ideal[message]), end - begin)
        rest, recovery = end - begin - own, 0
        since = self.lost.since(number, met > 0) if rest else -1
        if 0 <= since < end:
            recovery = min(rest, end - since)
        rest -= recovery
        sharing = min(rest, self.traffic.sharing(number)) if rest else 0
        again, waited = (0, recovery) if met > 0 else (recovery, 0)
        return Spent(sharing, rest - sharing, again, waited, own)
