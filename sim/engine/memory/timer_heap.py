"""Timers of one host: a binary heap of (time, key) in the host's own stretch of the state.

A key is `message | base of the record | what` (see `layout`), with the record of a sender or of a waiting receiver;
entries of equal time come out in key order, so the order of timers never depends on history. Entries are never removed
early: a timer that moved leaves a stale entry behind, and so does a message that ends before its timer is due.
`watches` identifies live entries. The stretch has room for the live entries of all active flows of the host (three
each); when stale ones fill it, they are swept out.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    H_RECEIVERS,
    H_SENDERS,
    KEY_ORDER,
    MASK_KEY_SENDER,
    N_HEAP,
    N_HEAP_COUNT,
    R_ARMED,
    R_TIMER,
    RECEIVER_WORDS,
    S_ARMED,
    S_DONE,
    S_LISTED,
    S_ORDER,
    SENDER_WORDS,
    WHAT_PACE,
    WHAT_TIMER,
)

HEAP_FLOW, HEAP_SPARE = 3, 8
"""Entries of a host's heap per flow, and spare ones."""


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
def watches(M, f, armed, time, key):
    """Return True if a timer entry is the one that its flow waits for. The record at `f` may by now belong to another
    message, of any host, that is armed for the same time; timers on a kernel's clock ticks often are. So the message is
    compared as well as the time."""
    return M[armed] == time and (M[f + S_ORDER] ^ key) >> KEY_ORDER == 0


@njit
def sender_of(M, record):
    """Return the sender's record of the flow that a sender's or a receiver's record belongs to."""
    if record < M[H_RECEIVERS]:
        return record
    return M[H_SENDERS] + (record - M[H_RECEIVERS]) // RECEIVER_WORDS * SENDER_WORDS


@njit
def _sweep(M, node):
    """Drop the entries that no flow is waiting for, and rebuild the heap from the rest. A timer that moves back and
    forth between two times leaves the same entry behind repeatedly, of which one is kept: the armed time is inverted in
    the flow's record until all entries have been read."""
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
            continue
        if what == WHAT_TIMER:
            is_receiver = f >= M[H_RECEIVERS]
            armed = f + R_ARMED if is_receiver else f + S_ARMED
            if not watches(M, sender_of(M, f), armed, time, key):
                continue
            if is_receiver and M[f + R_TIMER] == 0:
                M[armed] = 0
                continue
            if not is_receiver and M[f + S_DONE]:
                continue
            M[armed] = ~time
        _sift_up(M, base, kept, time, key)
        kept += 1
    M[node + N_HEAP_COUNT] = kept
    for i in range(kept):
        key = M[base + 2 * i + 1]
        if key & 3 == WHAT_TIMER:
            f = (key & MASK_KEY_SENDER) >> 2
            M[f + R_ARMED if f >= M[H_RECEIVERS] else f + S_ARMED] = M[base + 2 * i]
