"""The timers of compiled code, and the clock: a heap of (time, number, index of the flow).

Numbers follow the order of setting, here and in Python alike, so that equal times fire in that order wherever they were
set. A cancelled timer stays until it reaches the front, where its number no longer matches.
"""

from __future__ import annotations

from gradwire.emu.agent.core.layout import (
    ASK_ROOM,
    BROKEN_ASKED,
    BROKEN_RULES,
    F_ARMED,
    NEVER,
    RAISED,
    TIMER_WORDS,
    W_BEGINNING,
    W_BROKEN,
    W_CALL,
    W_CALLED,
    W_ERRNO,
    W_HEAP,
    W_HEAP_COUNT,
    W_HEAP_ROOM,
    W_LATE,
    W_LATE_COUNT,
    W_LATE_ROOM,
    W_ORIGIN,
    W_SEEN,
    W_SET,
    W_SPEC,
    W_STILL,
    W_WAKE,
)
from gradwire.emu.native.calls import invoke, monotonic_ns, words_at
from gradwire.jit.compiled import njit


@njit
def memory(A):
    """Return all records, by index."""
    return words_at(A[W_ORIGIN])


@njit
def ask(A, what, first, second, third, fourth):
    """Request a rare operation from Python (ASK_*); return its result."""
    found = invoke(A[W_CALL], (what, first, second, third, fourth))
    if found == RAISED:
        A[W_BROKEN] = BROKEN_ASKED
        return 0
    return found


@njit
def raised(A, which):
    """Record that a function of a transport (L_*) has raised an exception."""
    A[W_ERRNO] = which
    A[W_BROKEN] = BROKEN_RULES


@njit
def clock(A):
    """Return nanoseconds since the beginning."""
    if A[W_STILL]:
        return A[W_SEEN] - A[W_BEGINNING]
    return monotonic_ns(A[W_SPEC]) - A[W_BEGINNING]


@njit
def scheduled(A):
    """Return the due time of the current call; the present if it is not a timer."""
    return min(A[W_CALLED], clock(A))


@njit
def before(H, i, j):
    """Return True if the heap entry at i precedes that at j, by its first word, then by its second."""
    return H[i] < H[j] or (H[i] == H[j] and H[i + 1] < H[j + 1])


@njit
def swap(H, i, j):
    """Swap two entries of a heap."""
    for word in range(TIMER_WORDS):
        kept = H[i + word]
        H[i + word] = H[j + word]
        H[j + word] = kept


@njit
def push(H, count, first, second, third):
    """Push an entry onto a heap of `count` entries."""
    i = count
    H[i * TIMER_WORDS] = first
    H[i * TIMER_WORDS + 1] = second
    H[i * TIMER_WORDS + 2] = third
    while i > 0:
        above = (i - 1) >> 1
        if not before(H, i * TIMER_WORDS, above * TIMER_WORDS):
            return
        swap(H, i * TIMER_WORDS, above * TIMER_WORDS)
        i = above


@njit
def pop(H, count):
    """Remove the first entry of a heap of `count` entries."""
    last = count - 1
    swap(H, 0, last * TIMER_WORDS)
    i = 0
    while True:
        below = 2 * i + 1
        if below >= last:
            return
        if below + 1 < last and before(H, (below + 1) * TIMER_WORDS, below * TIMER_WORDS):
            below += 1
        if not before(H, below * TIMER_WORDS, i * TIMER_WORDS):
            return
        swap(H, i * TIMER_WORDS, below * TIMER_WORDS)
        i = below


@njit
def set_timer_of(A, time_ns, what):
    """Set a timer for a flow, or for the NIC (0); return its number."""
    if A[W_HEAP_COUNT] == A[W_HEAP_ROOM]:
        ask(A, ASK_ROOM, 0, 0, 0, 0)
        if A[W_BROKEN]:
            return 0
    A[W_SET] += 1
    number = A[W_SET]
    ahead = 1 if time_ns > clock(A) else 0
    push(words_at(A[W_HEAP]), A[W_HEAP_COUNT], time_ns, number << 1 | ahead, what)
    A[W_HEAP_COUNT] += 1
    return number


@njit
def first_timer(A):
    """Remove cancelled timers from the front of the heap; return the due time of the first one, or NEVER."""
    M = memory(A)
    H = words_at(A[W_HEAP])
    while A[W_HEAP_COUNT]:
        number, what = H[1] >> 1, H[2]
        if number == (M[what + F_ARMED] if what else A[W_WAKE]):
            return H[0]
        pop(H, A[W_HEAP_COUNT])
        A[W_HEAP_COUNT] -= 1
    return NEVER


@njit
def note_late(A, late_ns):
    """Record the lateness of a timer."""
    if A[W_LATE_COUNT] == A[W_LATE_ROOM]:
        ask(A, ASK_ROOM, 0, 0, 0, 0)
        if A[W_BROKEN]:
            return
    words_at(A[W_LATE])[A[W_LATE_COUNT]] = late_ns
    A[W_LATE_COUNT] += 1
