"""Scheduled actions: what Python does to a fabric, or wants to see of it, at times of its own, such as faults, samples.

The engine stops exactly there: everything before the time has happened, nothing at or after it has. What happens at
one time happens in the order in which it was put down.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from gradwire.components import layout as at
from gradwire.scenarios.inner_units import Ps

Action = Callable[[Ps], Ps | None]
"""Called with the time; answers with the next time it wants to be called, or None."""


class Agenda:
    """Scheduled actions by time. An *observer* only looks: nobody has to wake it while nothing has moved
    since it looked last.

    How far things have moved is a number that grows as they do, such as the bytes that have been sent.

    Attributes
    ----------
    acted : actions so far that may have changed something.
    """

    def __init__(self) -> None:
        self._actions: list[tuple[Ps, int, Action]] = []
        self._observers: list[tuple[Ps, int, Action, int]] = []  # and how far things had moved when it looked
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
        """The time of the next one that only looks."""
        return self._observers[0][0] if self._observers else Ps(at.FOREVER)

    def next_unseen(self, moved: int) -> Ps:
        """The time of the next one that has not seen how far things have moved."""
        return min((time for time, _, _, seen in self._observers if seen != moved), default=Ps(at.FOREVER))

    def act(self, now: Ps, moved: Callable[[], int]) -> None:
        """Do what is due; observers first, so that they see what was before. `moved`: how far things have."""
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
