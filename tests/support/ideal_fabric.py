"""A network without packets, for tests of what runs above one.

It has the interface of the packet engine.  Every host sends one message at a time through its uplink, the
first in line (or, with `priorities`, the first of the lowest priority number) first; a message takes
size/rate and then `latency`; receivers and the network in between are infinitely fast, and a sender hears of
the delivery in no time.  So completion times have closed forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from gradwire.sim.engine.events import Settled

PS = 10**12


@dataclass
class Delivery:
    message: int
    time_ps: int
    received_bytes: int
    lost_bytes: int


@dataclass
class Tables:
    sent_packets: list[int]
    retransmitted: list[int]
    marked: list[int]
    trimmed: list[int]
    timeouts: list[int]
    end_ps: list[int]
    received_bytes: list[int]
    packet_hops: int = 0
    first: int = 0
    ports: dict[str, list[Any]] = field(default_factory=dict)
    drops: dict[str, list[Any]] = field(default_factory=dict)
    missing: dict[str, list[Any]] = field(default_factory=dict)


class IdealFabric:
    """`lossy` takes (number, bytes, bound) to the bytes that are lost; `swallow` names messages that never
    arrive."""

    def __init__(self, *, rate=10**11, latency=10**6, lookahead=10**6, priorities=False, lossy=None, swallow=None):
        self.rate, self.latency, self.lookahead = rate, latency, lookahead
        self.priorities, self.lossy = priorities, lossy
        self.swallow = swallow or (lambda number: False)
        self.now = 0
        self.sent: list[tuple[Any, ...]] = []
        self.runs = 0
        self._arrivals: list[tuple[int, int, int]] = []  # (time at the NIC, number, src)
        self._waiting: dict[int, list[tuple[int, int, int]]] = {}  # src -> (priority, time, number)
        self._free: dict[int, int] = {}
        self._done: list[tuple[int, int]] = []  # (time, number)
        self._asked: set[int] = set()
        self.ends: dict[int, tuple[int, int]] = {}  # number -> (time, bytes)

    @property
    def idle(self):
        return not (self._arrivals or self._done or any(self._waiting.values()))

    stalled = ""
    deadlock = ""

    def send(
        self,
        at_ps,
        src,
        dst,
        nbytes,
        *,
        transport=0,
        priority=0,
        bound=0.0,
        important=None,
        settled=False,
        logged=True,
        **_,
    ):
        assert type(at_ps) is int and type(nbytes) is int and at_ps >= self.now and nbytes > 0 and src != dst
        number = len(self.sent)
        self.sent.append((at_ps, src, dst, nbytes, priority, bound, important))
        if settled:
            self._asked.add(number)
        heappush(self._arrivals, (at_ps, number, src))
        return number

    def run(self, until_ps):
        """To `until_ps`, but no further than a lookahead beyond the first delivery."""
        assert until_ps >= self.now
        self.runs += 1
        until_ps = self._transmit(until_ps)
        found = []
        while self._done and self._done[0][0] < until_ps:
            time, number = heappop(self._done)
            _, _, _, nbytes, _, bound, _ = self.sent[number]
            lost = self.lossy(number, nbytes, bound) if self.lossy else 0
            found.append(Delivery(number, time, nbytes - lost, lost))
            self.ends[number] = time, nbytes - lost
            if number in self._asked:
                found.append(Settled(number, time))
        self.now = until_ps
        return found[::-1]  # the order must not matter

    def _transmit(self, until):
        """Start what starts before `until`, or a lookahead after the first delivery; return which."""
        while True:
            if self._done:
                until = min(until, max(self.now, self._done[0][0]) + self.lookahead)
            head = self._arrivals[0][0] if self._arrivals else math.inf
            ready = [(max(self._free.get(src, 0), queue[0][1]), src) for src, queue in self._waiting.items() if queue]
            start, src = min(ready, default=(math.inf, -1))
            if min(head, start) >= until:
                return until
            if head <= start:
                at, number, source = heappop(self._arrivals)
                rank = self.sent[number][4] if self.priorities else 0
                heappush(self._waiting.setdefault(source, []), (rank, at, number))
                continue
            _, _, number = heappop(self._waiting[src])
            end = start + -(-self.sent[number][3] * 8 * PS // self.rate)
            self._free[src] = end
            if not self.swallow(number):
                heappush(self._done, (end + self.latency, number))

    def finish(self):
        none = [0] * len(self.sent)
        ends, got = (
            zip(*(self.ends.get(number, (-1, 0)) for number in range(len(self.sent))), strict=True)
            if none
            else ((), ())
        )
        return Tables([1] * len(self.sent), none, none, none, none, list(ends), list(got))
