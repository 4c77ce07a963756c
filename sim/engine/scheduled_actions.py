"""`Schedule` runs changes to a fabric (faults) and observations of it (queue samples) at given simulated times.

The engine stops exactly there: everything before the time has happened, nothing at or after it has. Actions of one time
happen in the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from gradwire.jit.records import constants as at
from gradwire.scenarios.inner_units import Ps

Action = Callable[[Ps], Ps | None]
"""Called with the time; returns the next time to be called, or None."""


class Schedule:
    """Scheduled actions by time.

    An *observer* only reads state: it need not be called while nothing has moved since its last call. Progress is
    measured by a number that grows with activity, such as the bytes sent.

    Attributes
    ----------
    acted : number of actions so far that may have changed something.
    """

    def __init__(self) -> None:
        self._actions: list[tuple[Ps, int, Action]] = []
        self._observers: list[tuple[Ps, int, Action, int]] = []  # and the progress at its last call
        self._order = count()
        self.acted = 0

    def add(self, time_ps: Ps, action: Action, *, observer: bool = False) -> None:
        """Call `action` at a time."""
        if observer:
            heappush(self._observers, (time_ps, next(self._order), action, 0))
        else:
            heappush(self._actions, (time_ps, next(self._order), action))

    @property
    def next_action(self) -> Ps:
        """The time of the next action that may change something."""
        return self._actions[0][0] if self._actions else Ps(at.FOREVER)

    @property
    def next_observer(self) -> Ps:
        """The time of the next observer."""
        return self._observers[0][0] if self._observers else Ps(at.FOREVER)

    def next_unseen(self, moved: int) -> Ps:
        """Return the time of the next observer that has not seen the state at progress `moved`."""
        return min(
            (time for time, _, _, last_progress in self._observers if last_progress != moved), default=Ps(at.FOREVER)
        )

    def act(self, now: Ps, moved: Callable[[], int]) -> None:
        """Run what is due, observers first, so that they see the state before; `moved` returns the progress."""
        while self.next_observer <= now:
            _, _, action, _ = heappop(self._observers)
            again = action(now)
            if again is not None:
                heappush(self._observers, (again, next(self._order), action, moved()))
        while self.next_action <= now:
            _, _, action = heappop(self._actions)
            self.acted += 1
            again = action(now)
            if again is not None:
                heappush(self._actions, (again, next(self._order), action))
