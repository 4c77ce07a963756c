"""The arrivals of one node in one window, in the order in which they are handled: by time, ties by ingress link.

Each ingress link is already in order, so what has to be sorted is a handful of runs. A key holds the time since the
start of the window and the position in which the packet was found, which breaks ties by link and, within a link, by
arrival; sorting the keys alone is enough. Many keys go through a bucket sort by time (a counting pass, then an
insertion sort of an almost sorted list), a few through the insertion sort alone.
"""

from numba import njit

from sim.fabric.atomics import load_acquire, prefetch
from sim.fabric.layout import (
    FOREVER,
    H_BACK,
    H_HEADS,
    H_INGRESS,
    HEAD_RING_FREE,
    HEAD_SPILL,
    HEAD_SPILL_FREE,
    HEAD_WORDS,
    N_IN,
    N_IN_COUNT,
    P_RING,
    P_SHAPE,
    P_SPILL,
    P_SPILL_MASK,
    P_SPILL_TAIL,
    P_TAIL,
    RING_WORDS,
    SHAPE_RING,
    SHAPE_SPILLING,
    T_ADDRESS,
    T_BACK,
    T_BUCKETS,
    T_KEYS,
    T_SPARE,
    T_WORK,
)

from .bound import PAUSES

INDEX_BITS = 20
INDEX_MASK = (1 << INDEX_BITS) - 1
FEW = 12
BUCKET_BITS = 6
BUCKETS = 1 << BUCKET_BITS


@njit
def _insertion_sort(M, base, n):
    for i in range(1, n):
        key = M[base + i]
        j = i
        while j > 0:
            other = M[base + j - 1]
            if other <= key:
                break
            M[base + j] = other
            j -= 1
        M[base + j] = key


@njit
def _bucket_sort(M, th, keys, n, shift):
    """Distribute by the top bits of the time, then mend. Returns the base of the sorted keys."""
    counts = M[th + T_BUCKETS]
    spare = M[th + T_SPARE]
    for i in range(BUCKETS):
        M[counts + i] = 0
    for i in range(n):
        at = counts + (M[keys + i] >> shift)
        M[at] += 1
    total = spare
    for i in range(BUCKETS):
        count = M[counts + i]
        M[counts + i] = total
        total += count
    for i in range(n):
        key = M[keys + i]
        at = counts + (key >> shift)
        place = M[at]
        M[place] = key
        M[at] = place + 1
    _insertion_sort(M, spare, n)
    return spare


@njit
def gather(M, th, node, begin, end, shift):
    """Collect the packets that reach `node` in [begin, end).

    Returns (base of the sorted keys, how many, earliest later arrival known). The ring entry of key k is at
    `M[M[th + T_ADDRESS] + (k & INDEX_MASK)]`, its time is `begin + (k >> INDEX_BITS)`. Entries stay valid for the whole
    window; the consumer's counters are moved on already. With flow control, the port opposite
    to the link it came by is `M[M[th + T_BACK] + (k & INDEX_MASK)]`. `shift` brings a key of this window below BUCKETS.
    """
    keys = M[th + T_KEYS]
    addresses = M[th + T_ADDRESS]
    first = M[node + N_IN]
    ingress = M[H_INGRESS] + first
    head_at = M[H_HEADS] + first * HEAD_WORDS - HEAD_WORDS
    n = 0
    later = FOREVER
    last = -1
    in_order = True
    for i in range(M[node + N_IN_COUNT]):
        prefetch(M, M[ingress + i])
    for i in range(M[node + N_IN_COUNT]):
        p = M[ingress + i]
        prefetch(
            M, M[p + P_RING] + (M[head_at + HEAD_WORDS * (i + 1)] & M[p + P_SHAPE] & SHAPE_RING) * RING_WORDS
        )
    for i in range(M[node + N_IN_COUNT]):
        p = M[ingress + i]
        head_at += HEAD_WORDS
        head = M[head_at]
        tail = load_acquire(M, p + P_TAIL)
        shape = M[p + P_SHAPE]
        # what was taken in the last visit has been read by now
        M[head_at + HEAD_RING_FREE] = head
        if head != tail:
            ring = M[p + P_RING]
            mask = shape & SHAPE_RING
            while head != tail:
                at = ring + (head & mask) * RING_WORDS
                time = M[at]
                if time >= end:
                    if time < later:
                        later = time
                    break
                key = ((time - begin) << INDEX_BITS) | n
                if key < last:
                    in_order = False
                last = key
                M[keys + n] = key
                M[addresses + n] = at
                if PAUSES:
                    M[M[th + T_BACK] + n] = M[M[H_BACK] + first + i]
                n += 1
                head += 1
            M[head_at] = head
        if (shape & SHAPE_SPILLING) and head == tail:
            head = M[head_at + HEAD_SPILL]
            tail = load_acquire(M, p + P_SPILL_TAIL)
            M[head_at + HEAD_SPILL_FREE] = head
            ring = M[p + P_SPILL]
            mask = M[p + P_SPILL_MASK]
            while head != tail:
                at = ring + (head & mask) * RING_WORDS
                time = M[at]
                if time >= end:
                    if time < later:
                        later = time
                    break
                key = ((time - begin) << INDEX_BITS) | n
                if key < last:
                    in_order = False
                last = key
                M[keys + n] = key
                M[addresses + n] = at
                if PAUSES:
                    M[M[th + T_BACK] + n] = M[M[H_BACK] + first + i]
                n += 1
                head += 1
            M[head_at + HEAD_SPILL] = head
    M[th + T_WORK] += n
    if not in_order:
        if n <= FEW:
            _insertion_sort(M, keys, n)
        else:
            keys = _bucket_sort(M, th, keys, n, shift)
    return keys, n, later
