"""What Python does to a fabric, or wants to see of it, at times of its own: faults, samples.

The engine stops exactly there: everything before the time has happened, nothing at or after it has. What happens at
one time happens in the order in which it was put down.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from sim.fabric.layout import FOREVER

Action = Callable[[int], int | None]
"""Called with the time; answers with the next time it wants to be called, or None."""


class Agenda:
    """Actions by time. A *watcher* only looks: nobody has to wake it while nothing moves."""

    def __init__(self) -> None:
        self._actions: list[tuple[int, int, Action]] = []
        self._watchers: list[tuple[int, int, Action]] = []
        self._order = count()

    def add(self, time_ps: int, action: Action, *, watcher: bool = False) -> None:
        """Call `action` at a time."""
        heappush(self._watchers if watcher else self._actions, (time_ps, next(self._order), action))

    @property
    def next_action(self) -> int:
        """The time of the next action that may change something."""
        return self._actions[0][0] if self._actions else FOREVER

    @property
    def next_watcher(self) -> int:
        """The time of the next one that only looks."""
        return self._watchers[0][0] if self._watchers else FOREVER

    def act(self, now: int) -> None:
        """Do what is due; watchers first, so that they see what was before."""
        for heap in (self._watchers, self._actions):
            while heap and heap[0][0] <= now:
                _, _, action = heappop(heap)
                again = action(now)
                if again is not None:
                    heappush(heap, (again, next(self._order), action))
