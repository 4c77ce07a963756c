"""An arena: stretches of the state that come and go with messages and steps, such as bitmaps and lists of followers.

Compiled code allocates from it while it runs (`gradwire.sim.fabric.stretches`); this is the same for Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradwire.components import layout as at
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.fabric.keep import ALLOCATE, FREE
from gradwire.sim.fabric.memory import Memory

Keep = Callable[..., int]
"""`gradwire.sim.fabric.keep.keep` on the state of one fabric, as compiled: (what, first, second)."""

FAILURES = {
    at.FAILED_FLOWS: (f"more than {at.MAX_FLOWS} messages under way at once", "fewer"),
    at.FAILED_ARENA: ("the messages under way have too many packets together", "fewer"),
    at.FAILED_HEAP: ("too many messages under way at one host", "fewer"),
    at.FAILED_ROUTE: (
        "internal error: a switch has no route for a packet, although no cable is cut",
        "a report with the scenario, since the engine's state is damaged",
    ),
    at.FAILED_LATE: (
        "internal error: a message enters the network before the time that it has reached",
        "a report with the scenario",
    ),
}
"""By FAILED_ word: message, and what would be right."""


class Arena:
    """The allocator of the last region of the state. Stretches are handed out filled with zeros."""

    def __init__(self, memory: Memory, keep: Keep) -> None:
        self._M, self._keep = memory.M, keep

    @property
    def used(self) -> int:
        """The first word that was never part of a stretch."""
        return int(self._M[at.H_ARENA_NEXT])

    def allocate(self, words: int) -> int:
        """The base of a stretch.

        Raises
        ------
        GradwireError
            There is no room left.
        """
        base = self._keep(ALLOCATE, words, 0)
        self.check()
        return base

    def free(self, words: int, base: int) -> None:
        """Take one stretch back."""
        self._keep(FREE, words, base)

    def free_many(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Take many stretches back, as pairs of length and base."""
        for words, base in stretches:
            self.free(words, base)

    def check(self) -> None:
        """Raise GradwireError if the run cannot go on: there was no room for something, or a packet had no route."""
        failed = int(self._M[at.H_FAILED])
        if failed:
            message, expected = FAILURES[failed]
            raise GradwireError(message, "fabric", expected)
