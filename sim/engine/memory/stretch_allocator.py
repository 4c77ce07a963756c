"""Compiled functions allocate and free stretches (runs of words) of the engine's state; Python calls them through
`arena`.

Freed stretches are kept by length, in lists that run through their first words, and reused. A length belongs to one of
four classes per power of two (all lengths up to eight are exact), so that a table finds it; at most a quarter of a
stretch is unused (our choice).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.constants import FAILED_ARENA
from gradwire.jit.records.header import State
from gradwire.sim.engine.memory.atomics import bit_length


@njit
def _class_of(words: int) -> int:
    """Return the class of a length."""
    if words <= 8:
        return words
    bits = bit_length(words - 1)
    return 9 + 4 * (bits - 4) + (((words - 1) >> (bits - 3)) & 3)


@njit
def _longest(words: int) -> int:
    """Return the longest stretch of the class of a length."""
    if words <= 8:
        return words
    shift = bit_length(words - 1) - 3
    return (((words - 1) >> shift) + 1) << shift


@njit
def allocate(state: State, words: int) -> int:
    """Return the base of a zeroed stretch; 0 if the length is 0 or there is no room left (`state.failure`)."""
    if words == 0:
        return 0
    free_lists = state.free_stretches
    base = free_lists[_class_of(words)]
    if base:
        stretch = Words(state, base)
        free_lists[_class_of(words)] = stretch[0]
        for i in range(words):
            stretch[i] = 0
        return base
    base = state.arena_next
    beyond = base + _longest(words)
    if beyond > state.arena_end:
        state.failure = FAILED_ARENA
        return 0
    state.arena_next = beyond
    return base


@njit
def free(state: State, words: int, base: int) -> None:
    """Free a stretch that was allocated with this length."""
    if words:
        free_lists = state.free_stretches
        Words(state, base)[0] = free_lists[_class_of(words)]
        free_lists[_class_of(words)] = base
