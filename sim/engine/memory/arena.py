"""`Arena` allocates and frees stretches (runs of words) of the engine's state from Python; compiled code uses
`stretch_allocator`.

Stretches come and go with messages and steps, such as bitmaps and lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradwire.jit.records import constants as at
from gradwire.jit.records.header import State
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.record_retention import ALLOCATE, FREE

RecordOperation = Callable[..., int]
"""`gradwire.sim.engine.memory.record_retention.keep`, compiled, on the state of one fabric: (what, first, second)."""

FAILURES = {
    at.FAILED_FLOWS: (f"more than {at.MAX_FLOWS} messages under way at once", "fewer"),
    at.FAILED_ARENA: ("the messages under way have too many packets together", "fewer"),
    at.FAILED_HEAP: ("too many messages under way at one host", "fewer"),
    at.FAILED_ROUTE: (
        "internal error: a switch has no route for a packet, although no cable is cut",
        "a report with the scenario, since the engine's state is damaged",
    ),
    at.FAILED_LATE: (
        "internal error: a message enters the network at a time that has passed",
        "a report with the scenario",
    ),
}
"""Message and expectation by FAILED_ word."""


class Arena:
    """The allocator of the last region of the state. Stretches are zeroed."""

    def __init__(self, memory: EngineMemory, keep: RecordOperation) -> None:
        self._state, self._keep = memory.state, keep

    @property
    def used(self) -> int:
        """The first word that was never part of a stretch."""
        return int(self._state[State.arena_next.offset])

    def allocate(self, words: int) -> int:
        """Allocate a stretch, and return its base. Raises GradwireError if there is no room left."""
        base = self._keep(ALLOCATE, words, 0)
        self.check()
        return base

    def free(self, words: int, base: int) -> None:
        """Free one stretch."""
        self._keep(FREE, words, base)

    def free_many(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Free many stretches, given as pairs of length and base."""
        for words, base in stretches:
            self.free(words, base)

    def check(self) -> None:
        """Raise GradwireError if the run cannot continue: a region is full, or the state is damaged."""
        failed = int(self._state[State.failure.offset])
        if failed:
            message, expected = FAILURES[failed]
            raise GradwireError(message, "fabric", expected)
