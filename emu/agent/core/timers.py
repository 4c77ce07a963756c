"""The timers of compiled code, and the clock: a heap of (time, number, index of the flow).

Numbers follow the order of setting, here and in Python alike, so that equal times fire in that order wherever they were
set. A cancelled timer stays until it reaches the front, where its number no longer matches.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.native.calls import invoke, monotonic_ns, words_at
from gradwire.emu.native.heap import pop, push
from gradwire.jit.compiled import njit


@njit
def memory(A):
    """Return all records, by index."""
    return words_at(A[at.W_ORIGIN])


@njit
def ask(A, what, first, second, third, fourth):
    """Request a rare operation from Python (ASK_*); return its result."""
    found = invoke(A[at.W_CALL], (what, first, second, third, fourth))
    if found == at.RAISED:
        A[at.W_BROKEN] = at.BROKEN_ASKED
        return 0
    return found


@njit
def raised(A, which):
    """Record that a function of a transport (L_*) has raised an exception."""
    A[at.W_ERRNO] = which
    A[at.W_BROKEN] = at.BROKEN_RULES


@njit
def clock(A):
    """Return nanoseconds since the beginning."""
    if A[at.W_STILL]:
        return A[at.W_SEEN] - A[at.W_BEGINNING]
    return monotonic_ns(A[at.W_SPEC]) - A[at.W_BEGINNING]


@njit
def scheduled(A):
    """Return the due time of the current call; the present if it is not a timer."""
    return min(A[at.W_CALLED], clock(A))


@njit
def set_timer_of(A, time_ns, what):
    """Set a timer for a flow, or for the NIC (0); return its number."""
    if A[at.W_HEAP_COUNT] == A[at.W_HEAP_ROOM]:
        ask(A, at.ASK_ROOM, 0, 0, 0, 0)
        if A[at.W_BROKEN]:
            return 0
    A[at.W_SET] += 1
    number = A[at.W_SET]
    ahead = 1 if time_ns > clock(A) else 0
    push(words_at(A[at.W_HEAP]), A[at.W_HEAP_COUNT], time_ns, number << 1 | ahead, what)
    A[at.W_HEAP_COUNT] += 1
    return number


@njit
def first_timer(A):
    """Remove cancelled timers from the front of the heap; return the due time of the first one, or NEVER."""
    M = memory(A)
    H = words_at(A[at.W_HEAP])
    while A[at.W_HEAP_COUNT]:
        number, what = H[1] >> 1, H[2]
        if number == (M[what + at.F_ARMED] if what else A[at.W_WAKE]):
            return H[0]
        pop(H, A[at.W_HEAP_COUNT])
        A[at.W_HEAP_COUNT] -= 1
    return at.NEVER


@njit
def note_late(A, late_ns):
    """Record the lateness of a timer."""
    if A[at.W_LATE_COUNT] == A[at.W_LATE_ROOM]:
        ask(A, at.ASK_ROOM, 0, 0, 0, 0)
        if A[at.W_BROKEN]:
            return
    words_at(A[at.W_LATE])[A[at.W_LATE_COUNT]] = late_ns
    A[at.W_LATE_COUNT] += 1
