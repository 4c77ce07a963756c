"""Merge of the arrivals of one node in one window: in order of time, ties by a hash of the time and the link.

Equal cables make packets arrive at the same picosecond again and again. Were ties broken by the number of the link, the
lowest number would win every one of them: it would enter the queue first, be marked last and find room where others do
not, for as long as the flows last. A hash of the time and the link gives every link the same chance in every tie, and
needs no state, so the outcome depends neither on windows nor on threads. In long jobs the time is that since their
iteration began (`gradwire.experiment.program.DRAWN`), so that iterations that begin alike go alike.

Each ingress link is already in order, so what has to be sorted is a handful of runs. A key holds the time since the
start of the window, the hash, and the position in which the packet was found, which keeps the packets of one link in
order and decides between links of equal hash; sorting the keys alone is enough. Many keys go through a bucket sort by
time (a counting pass, then an insertion sort of an almost sorted list, or Shell's where many have come at once), a few
through the insertion sort alone.
"""

from gradwire.components.compiled import njit
from gradwire.components.draws import TIE_BITS, tie_break
from gradwire.components.layout import (
    FOREVER,
    H_BACK,
    H_HEADS,
    H_INGRESS,
    H_SENDERS,
    H_SINCE,
    H_TIES,
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
from gradwire.sim.fabric.atomics import load_acquire, prefetch

from .bound import PFC

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
    """Insertion sorts over a distance that shrinks (with Ciura's gaps, 2001): for keys that are far out of place."""
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
    """Distribute by the top bits of the time, then mend. Returns the base of the sorted keys.

    Many in one bucket are mostly those that have come at the same time, in an order that says nothing of their hashes.
    """
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
def since_of(M, B):
    """Since when time is counted for ties of a packet: 0, or when the iteration began that its message belongs to."""
    flow = B & MASK_FLOW
    if flow == MASK_FLOW:
        return 0
    return M[M[H_SENDERS] + flow * SENDER_WORDS + S_SINCE]


@njit
def _settle_ties(M, th, keys, n, begin):
    """Put arrivals of one time in order anew where some of them count time otherwise."""
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

    Returns (base of the sorted keys, how many, earliest later arrival known). The ring entry of key k is at
    `M[M[th + T_ADDRESS] + (k & INDEX_MASK)]`, its time is `begin + (k >> TIME_SHIFT)`. Entries stay valid for the whole
    window; the consumer's counters are moved on already. With flow control, the port opposite
    to the link it came by is `M[M[th + T_BACK] + (k & INDEX_MASK)]`. `shift` brings a key of this window below BUCKETS.
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
