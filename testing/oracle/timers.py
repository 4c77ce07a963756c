"""The timers of a host: what goes off at a time that was set, or when the host goes on, if it stands still by then."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.testing.oracle.flows import Flow
from gradwire.testing.oracle.model import TIMER, Clock

START, RELEASE, EXPIRY = 0, 1, 2  # the order of the timers of one message
AFTER_MESSAGES = 1 << 60


class Timers:
    """Timers by their keys: at one time the lower key goes off first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.still = False
        self._late: list[tuple[int, Callable[[], None]]] = []  # those that have passed meanwhile

    @property
    def now(self) -> int:
        """Picoseconds."""
        return self.clock.now

    def set(self, time: int, key: int, action: Callable[[], None]) -> None:
        """Let `action` happen at `time`."""

        def go_off() -> None:
            if self.still:
                self._late.append((key, action))
            else:
                action()

        self.clock.at(time, TIMER, key, go_off)

    def set_for(self, time: int, flow: Flow, what: int, action: Callable[[Flow], None]) -> None:
        """The same for a message; `what`: which of its timers it is."""
        self.set(time, flow.number << 2 | what, lambda: action(flow))

    def stop(self) -> None:
        """Nothing goes off any more."""
        self.still = True

    def resume(self) -> None:
        """What should have gone off meanwhile does so now."""
        self.still = False
        late, self._late = self._late, []
        for key, action in late:
            self.set(self.now, key, action)
