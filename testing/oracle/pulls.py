"""The pacer of a host's pulls: receivers that want some sent take turns, at the pace at which what they ask for can
come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.model import Link
from gradwire.testing.oracle.packets import PULL, Packet
from gradwire.testing.oracle.timers import AFTER_MESSAGES, Timers


class Pulls:
    """Pulls that receivers at one host want sent."""

    def __init__(
        self, timers: Timers, link: Link, queue: Callable[[Packet], None], serve: Callable[[], None]
    ) -> None:
        """`link`: by which they leave; `queue`: lets a packet wait at the NIC; `serve`: sends what can be sent."""
        self._timers, self._link, self._queue, self._serve = timers, link, queue, serve
        self._wanting: deque[Flow] = deque()  # of which a receiver here wants pulls sent
        self._next = 0

    def want(self, flow: Flow, pulls: int) -> None:
        """A receiver wants more of them; behind each there is the time of a packet of its flow."""
        flow.pulls += pulls
        if pulls and flow not in self._wanting:
            if not self._wanting:
                self._timers.set(max(self._timers.now, self._next), AFTER_MESSAGES, self._pull)
            self._wanting.append(flow)

    def _pull(self) -> None:
        """The time for a pull has come."""
        while self._wanting and not self._wanting[0].pulls:
            self._wanting.popleft()
        if not self._wanting:
            return
        flow = self._wanting[0]
        self._wanting.rotate(-1)
        flow.pulls -= 1
        flow.pulled += 1
        protocol = flow.protocol
        self._next = self._timers.now + self._link.duration(flow.wire_bytes(0))
        self._timers.set(self._next, AFTER_MESSAGES, self._pull)
        self._queue(
            Packet(
                flow.number, PULL, flow.src, protocol.control_bytes, protocol.control_priority,
                protocol.control_important, flow.entropy, argument=flow.pulled & 0x3FFFFF,
            )
        )  # fmt: skip
        self._serve()
