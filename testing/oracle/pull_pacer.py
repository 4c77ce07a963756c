"""`PullPacer` sends the pulls of an oracle host's receivers in turns, at the pace at which requested packets can
arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gradwire.testing.oracle.clock import Link
from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.packets import PULL, Packet
from gradwire.testing.oracle.timers import AFTER_MESSAGES, Timers


class PullPacer:
    """Pending pulls of the receivers at one host."""

    def __init__(self, timers: Timers, link: Link, queue: Callable[[Packet], None], serve: Callable[[], None]) -> None:
        """`link`: by which they leave; `queue`: queues a packet at the NIC; `serve`: sends what can be sent."""
        self._timers, self._link, self._queue, self._serve = timers, link, queue, serve
        self._wanting: deque[Flow] = deque()  # flows with pending pulls
        self._next = 0

    def add_pulls(self, flow: Flow, pulls: int) -> None:
        """Add pulls of a receiver; each is followed by a gap of the time of a packet of its flow."""
        flow.receiver.queued_pulls += pulls
        if pulls and flow not in self._wanting:
            if not self._wanting:
                self._timers.set(max(self._timers.now, self._next), AFTER_MESSAGES, self._pull)
            self._wanting.append(flow)

    def _pull(self) -> None:
        while self._wanting and not self._wanting[0].receiver.queued_pulls:
            self._wanting.popleft()
        if not self._wanting:
            return
        flow = self._wanting[0]
        self._wanting.rotate(-1)
        flow.receiver.queued_pulls -= 1
        flow.receiver.pulls_sent += 1
        self._next = self._timers.now + self._link.duration(flow.wire_bytes(0))
        self._timers.set(self._next, AFTER_MESSAGES, self._pull)
        self._queue(flow.control_packet(PULL, argument=flow.receiver.pulls_sent & 0x3FFFFF))
        self._serve()
