"""Timers of one host: a binary heap of (time, key) in the host's own stretch of the state.

A key is `message | base of the record | what` (see `layout`), that of a sender or of a receiver that waits; entries of
equal time come out in key order, so the order of timers never depends on history. Entries are never removed early: a
timer that moved leaves a stale entry behind, which is recognised when it comes out (S_ARMED or R_ARMED names another
time). The stretch has room for the live entries of all active flows of the host (three each); when stale ones fill it,
they are swept out.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    H_RECEIVERS,
    MASK_KEY_SENDER,
    N_HEAP,
    N_HEAP_COUNT,
    R_ARMED,
    R_TIMER,
    S_ARMED,
    S_DONE,
    S_LISTED,
    WHAT_PACE,
    WHAT_TIMER,
)


@njit
def _sift_up(M, base, i, time, key):
    while i > 0:
        parent = (i - 1) >> 1
        at = base + 2 * parent
        other = M[at]
        if other < time or (other == time and M[at + 1] <= key):
            break
        M[base + 2 * i] = other
        M[base + 2 * i + 1] = M[at + 1]
        i = parent
    M[base + 2 * i] = time
    M[base + 2 * i + 1] = key


@njit
def push(M, node, time, key):
    """Add an entry."""
    base = M[node + N_HEAP]
    count = M[node + N_HEAP_COUNT]
    if count >= M[base - 1]:
        _sweep(M, node)
        count = M[node + N_HEAP_COUNT]
    M[node + N_HEAP_COUNT] = count + 1
    _sift_up(M, base, count, time, key)


@njit
def pop(M, node):
    """Remove the first entry (read it at N_HEAP before)."""
    base = M[node + N_HEAP]
    count = M[node + N_HEAP_COUNT] - 1
    M[node + N_HEAP_COUNT] = count
    time = M[base + 2 * count]
    key = M[base + 2 * count + 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        at = base + 2 * child
        if child + 1 < count:
            a, b = M[at], M[at + 2]
            if b < a or (b == a and M[at + 3] < M[at + 1]):
                child += 1
                at += 2
        other = M[at]
        if time < other or (time == other and key <= M[at + 1]):
            break
        M[base + 2 * i] = other
        M[base + 2 * i + 1] = M[at + 1]
        i = child
    if count > 0:
        M[base + 2 * i] = time
        M[base + 2 * i + 1] = key


@njit
def _sweep(M, node):
    """Drop the entries that no flow is waiting for, and rebuild the heap from the rest."""
    base = M[node + N_HEAP]
    count = M[node + N_HEAP_COUNT]
    kept = 0
    for i in range(count):
        time = M[base + 2 * i]
        key = M[base + 2 * i + 1]
        f = (key & MASK_KEY_SENDER) >> 2
        what = key & 3
        if what == WHAT_PACE and M[f + S_DONE]:
            M[f + S_LISTED] = 0
        elif what == WHAT_TIMER and f >= M[H_RECEIVERS]:
            if M[f + R_ARMED] == time and M[f + R_TIMER]:
                _sift_up(M, base, kept, time, key)
                kept += 1
            elif M[f + R_ARMED] == time:
                M[f + R_ARMED] = 0
        elif what != WHAT_TIMER or (M[f + S_ARMED] == time and M[f + S_DONE] == 0):
            _sift_up(M, base, kept, time, key)
            kept += 1
    M[node + N_HEAP_COUNT] = kept
