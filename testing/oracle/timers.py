"""`Timers` fires the timers of an oracle's host in order, and defers them while the host is stopped."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.testing.oracle.clock import TIMER, Clock
from gradwire.testing.oracle.flows import Flow

START, RELEASE, EXPIRY = 0, 1, 2  # the order of the timers of one message
AFTER_MESSAGES = 1 << 60


class Timers:
    """Timers by key: at equal times the lower key fires first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.still = False
        self._late: list[tuple[int, Callable[[], None]]] = []  # expired while the host is stopped

    @property
    def now(self) -> int:
        return self.clock.now

    def set(self, time: int, key: int, action: Callable[[], None]) -> None:

        def expire() -> None:
            if self.still:
                self._late.append((key, action))
            else:
                action()

        self.clock.at(time, TIMER, key, expire)

    def set_for(self, time: int, flow: Flow, what: int, action: Callable[[Flow], None]) -> None:
        """Schedule `action` for a message; `what`: which of its timers."""
        self.set(time, flow.number << 2 | what, lambda: action(flow))

    def stop(self) -> None:
        """Defer all timers from now on."""
        self.still = True

    def resume(self) -> None:
        """Fire the deferred timers now."""
        self.still = False
        late, self._late = self._late, []
        for key, action in late:
            self.set(self.now, key, action)
