"""Allocation of stretches of the state by compiled code.

Freed stretches are kept by length, in lists that run through their first words, and reused. A length belongs to one of
four classes per power of two (all lengths up to eight are exact), so that a table finds it; at most a quarter of a
stretch is unused (our choice).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import FAILED_ARENA, H_ARENA, H_ARENA_END, H_ARENA_NEXT, H_FAILED
from gradwire.sim.engine.memory.atomics import bit_length


@njit
def _class_of(words):
    """Return the class of a length."""
    if words <= 8:
        return words
    bits = bit_length(words - 1)
    return 9 + 4 * (bits - 4) + (((words - 1) >> (bits - 3)) & 3)


@njit
def _longest(words):
    """Return the longest stretch of the class of a length."""
    if words <= 8:
        return words
    shift = bit_length(words - 1) - 3
    return (((words - 1) >> shift) + 1) << shift


@njit
def allocate(M, words):
    """Return the base of a zeroed stretch; 0 if the length is 0 or there is no room left (H_FAILED)."""
    if words == 0:
        return 0
    head = M[H_ARENA] + _class_of(words)
    base = M[head]
    if base:
        M[head] = M[base]
        for i in range(words):
            M[base + i] = 0
        return base
    base = M[H_ARENA_NEXT]
    beyond = base + _longest(words)
    if beyond > M[H_ARENA_END]:
        M[H_FAILED] = FAILED_ARENA
        return 0
    M[H_ARENA_NEXT] = beyond
    return base


@njit
def free(M, words, base):
    """Free a stretch that was allocated with this length."""
    if words:
        head = M[H_ARENA] + _class_of(words)
        M[base] = M[head]
        M[head] = base
