"""Merge of a node's arrivals in one window: in order of time, ties by a hash of the time and the link.

With equal cables packets often arrive at the same picosecond. If ties were broken by the number of the link, the lowest
number would win all of them: it would enter the queue first, be marked last and find room where others do not, as long
as the flows last. A hash of the time and the link gives every link the same chance in every tie, and needs no state, so
the outcome depends neither on windows nor on threads. In long jobs the time is relative to the start of their iteration
(`gradwire.workload.program.TIE_DRAW_STEPS`), so that iterations that begin alike continue alike.

Each ingress link is already in order, so a handful of runs has to be merged. A key holds the time since the start of
the window, the hash, and the packet's index in the collection, which keeps the packets of one link in order and decides
between links of equal hash; sorting the keys alone suffices. Many keys go through a bucket sort by time (a counting
pass, then an insertion sort of an almost sorted list, or Shell's sort for crowded buckets), a few through the insertion
sort alone.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import TIE_BITS, tie_break
from gradwire.jit.layout import (
    FOREVER,
    H_BACK,
    H_FAR,
    H_HEADS,
    H_INGRESS,
    H_SENDERS,
    H_SINCE,
    H_TIES,
    HEAD_MASK,
    HEAD_RING,
    HEAD_RING_FREE,
    HEAD_SPILL,
    HEAD_SPILL_FREE,
    HEAD_WORDS,
    MASK_FLOW,
    N_IN,
    N_IN_COUNT,
    P_RING,
    P_SHAPE,
    P_SPILL,
    P_SPILL_MASK,
    P_SPILL_TAIL,
    P_TAIL,
    RING_WORDS,
    S_SINCE,
    SENDER_WORDS,
    SHAPE_RING,
    SHAPE_SPILLING,
    T_ADDRESS,
    T_BACK,
    T_BUCKETS,
    T_KEYS,
    T_SPARE,
    T_TIE_KEYS,
    T_WORK,
)
from gradwire.sim.engine.memory.atomics import load_acquire, prefetch

from .bindings import PFC

INDEX_BITS = 20
INDEX_MASK = (1 << INDEX_BITS) - 1
TIME_SHIFT = INDEX_BITS + TIE_BITS  # a key: time since the start of the window 23 | hash 20 | index 20
FEW = 12
MANY = 24
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
def _shell_sort(M, base, n):
    """Sort keys that are far out of place, by insertion sorts over shrinking gaps (Ciura's, 2001)."""
    gap = 701 if n > 1402 else 132 if n > 264 else 57
    while gap > 1:
        for i in range(gap, n):
            key = M[base + i]
            j = i
            while j >= gap:
                other = M[base + j - gap]
                if other <= key:
                    break
                M[base + j] = other
                j -= gap
            M[base + j] = key
        gap = 301 if gap == 701 else 132 if gap == 301 else 57 if gap == 132 else 23 if gap == 57 else gap * 2 // 5
    _insertion_sort(M, base, n)


@njit
def _bucket_sort(M, th, keys, n, shift):
    """Distribute keys by the top bits of the time, then sort. Returns the base of the sorted keys. Many keys in one
    bucket are mostly simultaneous arrivals, in an order unrelated to their hashes."""
    counts = M[th + T_BUCKETS]
    spare = M[th + T_SPARE]
    for i in range(BUCKETS):
        M[counts + i] = 0
    for i in range(n):
        at = counts + (M[keys + i] >> shift)
        M[at] += 1
    total = spare
    most = 0
    for i in range(BUCKETS):
        count = M[counts + i]
        M[counts + i] = total
        total += count
        most = max(most, count)
    for i in range(n):
        key = M[keys + i]
        at = counts + (key >> shift)
        place = M[at]
        M[place] = key
        M[at] = place + 1
    if most <= MANY:
        _insertion_sort(M, spare, n)
    else:
        _shell_sort(M, spare, n)
    return spare


@njit
def fetch(M, node):
    """Prefetch what `merge` reads of a node's links: their counters, and the next entries of their rings. In networks
    too large for the caches this is done one node ahead."""
    first = M[node + N_IN]
    ingress = M[H_INGRESS] + first
    head_at = M[H_HEADS] + first * HEAD_WORDS
    for i in range(M[node + N_IN_COUNT]):
        prefetch(M, M[ingress + i])
        at = M[head_at + HEAD_RING] + (M[head_at] & M[head_at + HEAD_MASK]) * RING_WORDS
        prefetch(M, at)
        prefetch(M, at + 8)
        head_at += HEAD_WORDS


@njit
def since_of(M, B):
    """Return the origin of time for ties of a packet: 0, or the start of its message's iteration."""
    flow = B & MASK_FLOW
    if flow == MASK_FLOW:
        return 0
    return M[M[H_SENDERS] + flow * SENDER_WORDS + S_SINCE]


@njit
def _settle_ties(M, th, keys, n, begin):
    """Sort simultaneous arrivals again if some of them have another origin of time."""
    i = 0
    while i + 1 < n:
        time = M[keys + i] >> TIME_SHIFT
        j = i + 1
        if M[keys + j] >> TIME_SHIFT == time:
            j = i
            while j < n and M[keys + j] >> TIME_SHIFT == time:
                index = M[keys + j] & INDEX_MASK
                since = since_of(M, M[M[M[th + T_ADDRESS] + index] + 2])
                if since:
                    tie = tie_break(M[M[th + T_TIE_KEYS] + index], begin + time - since)
                    M[keys + j] = (time << TIME_SHIFT) | (tie << INDEX_BITS) | index
                j += 1
            _insertion_sort(M, keys + i, j - i)
        i = j


@njit
def merge(M, th, node, begin, end, shift):
    """Collect the packets that reach `node` in [begin, end).

    Returns (base of the sorted keys, number of packets, earliest later arrival known). The ring entry of key k is at
    `M[M[th + T_ADDRESS] + (k & INDEX_MASK)]`, its time is `begin + (k >> TIME_SHIFT)`. Entries stay valid for the whole
    window, although the consumer's counters have moved on. With flow control, the port opposite to the link it came
    over is `M[M[th + T_BACK] + (k & INDEX_MASK)]`. `shift` brings a key of this window below BUCKETS.
    """
    keys = M[th + T_KEYS]
    addresses = M[th + T_ADDRESS]
    tie_keys = M[th + T_TIE_KEYS]
    since = M[H_SINCE]
    first = M[node + N_IN]
    ingress = M[H_INGRESS] + first
    head_at = M[H_HEADS] + first * HEAD_WORDS - HEAD_WORDS
    several = M[node + N_IN_COUNT] > 1
    n = 0
    later = FOREVER
    last = -1
    in_order = True
    if not M[H_FAR]:
        fetch(M, node)
    for i in range(M[node + N_IN_COUNT]):
        p = M[ingress + i]
        head_at += HEAD_WORDS
        head = M[head_at]
        tail = load_acquire(M, p + P_TAIL)
        shape = M[p + P_SHAPE]
        # the entries of the last visit have been read by now
        M[head_at + HEAD_RING_FREE] = head
        if head != tail:
            ring = M[p + P_RING]
            mask = shape & SHAPE_RING
            ties = M[M[H_TIES] + first + i]
            while head != tail:
                at = ring + (head & mask) * RING_WORDS
                time = M[at]
                if time >= end:
                    if time < later:
                        later = time
                    break
                key = ((time - begin) << TIME_SHIFT) | n
                if several:
                    key |= tie_break(ties, time) << INDEX_BITS
                    if since:
                        M[tie_keys + n] = ties
                if key < last:
                    in_order = False
                last = key
                M[keys + n] = key
                M[addresses + n] = at
                if PFC:
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
            ties = M[M[H_TIES] + first + i]
            while head != tail:
                at = ring + (head & mask) * RING_WORDS
                time = M[at]
                if time >= end:
                    if time < later:
                        later = time
                    break
                key = ((time - begin) << TIME_SHIFT) | n
                if several:
                    key |= tie_break(ties, time) << INDEX_BITS
                    if since:
                        M[tie_keys + n] = ties
                if key < last:
                    in_order = False
                last = key
                M[keys + n] = key
                M[addresses + n] = at
                if PFC:
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
    if several and n > 1 and since:
        _settle_ties(M, th, keys, n, begin)
    return keys, n, later
