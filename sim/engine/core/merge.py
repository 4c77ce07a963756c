"""Merges a node's arrivals in one window by time, with ties broken by a hash of time and link.

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
from gradwire.jit.records import Words
from gradwire.jit.records.constants import FOREVER, MASK_FLOW, SHAPE_RING, SHAPE_SPILLING
from gradwire.jit.records.flows import sender_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import LinkHead, Node, Port, RingEntry
from gradwire.jit.records.packets import flow_of
from gradwire.sim.engine.memory.atomics import load_acquire, prefetch

from .bindings import PFC

INDEX_BITS = 20
INDEX_MASK = (1 << INDEX_BITS) - 1
TIME_SHIFT = INDEX_BITS + TIE_BITS  # a key: time since the start of the window 23 | hash 20 | index 20
FEW = 12
MANY = 24
BUCKET_BITS = 6
BUCKETS = 1 << BUCKET_BITS
SENT, SPILL_TAIL = Port.sent.offset, Port.spill_tail.offset


@njit
def _insertion_sort(keys: Words, first: int, n: int) -> None:
    """Sort `n` keys from index `first` on."""
    for i in range(first + 1, first + n):
        key = keys[i]
        j = i
        while j > first:
            other = keys[j - 1]
            if other <= key:
                break
            keys[j] = other
            j -= 1
        keys[j] = key


@njit
def _shell_sort(keys: Words, n: int) -> None:
    """Sort keys that are far out of place, by insertion sorts over shrinking gaps (Ciura's, 2001)."""
    gap = 701 if n > 1402 else 132 if n > 264 else 57
    while gap > 1:
        for i in range(gap, n):
            key = keys[i]
            j = i
            while j >= gap:
                other = keys[j - gap]
                if other <= key:
                    break
                keys[j] = other
                j -= gap
            keys[j] = key
        gap = 301 if gap == 701 else 132 if gap == 301 else 57 if gap == 132 else 23 if gap == 57 else gap * 2 // 5
    _insertion_sort(keys, 0, n)


@njit
def _bucket_sort(thread: Thread, n: int, shift: int) -> Words:
    """Distribute keys by the top bits of the time, then sort. Returns the sorted keys. Many keys in one bucket are
    mostly simultaneous arrivals, in an order unrelated to their hashes."""
    keys = thread.keys
    counts = thread.buckets
    spare = thread.spare_keys
    for i in range(BUCKETS):
        counts[i] = 0
    for i in range(n):
        counts[keys[i] >> shift] += 1
    total = 0
    most = 0
    for i in range(BUCKETS):
        count = counts[i]
        counts[i] = total
        total += count
        most = max(most, count)
    for i in range(n):
        key = keys[i]
        bucket = key >> shift
        place = counts[bucket]
        spare[place] = key
        counts[bucket] = place + 1
    if most <= MANY:
        _insertion_sort(spare, 0, n)
    else:
        _shell_sort(spare, n)
    return spare


@njit
def fetch(state: State, node: Node) -> None:
    """Prefetch what `merge` reads of a node's links: their counters, and the next entries of their rings. In networks
    too large for the caches this is done one node ahead."""
    ingress = state.ingress
    heads = state.heads
    first = node.ingress
    for i in range(first, first + node.ingress_count):
        prefetch(Port(state, ingress[i]), 0)
        head = LinkHead(state, heads + i * LinkHead.WORDS)
        entry = RingEntry(state, head.ring + (head.taken & head.ring_mask) * RingEntry.WORDS)
        prefetch(entry, 0)
        prefetch(entry, 8)


@njit
def since_of(state: State, body: int) -> int:
    """Return the origin of time for ties of a packet: 0, or the start of its message's iteration."""
    flow_number = flow_of(body)
    if flow_number == MASK_FLOW:
        return 0
    return sender_at(state, flow_number).ties_since


@njit
def _settle_ties(state: State, thread: Thread, keys: Words, n: int, begin: int) -> None:
    """Sort simultaneous arrivals again if some of them have another origin of time."""
    i = 0
    while i + 1 < n:
        time = keys[i] >> TIME_SHIFT
        j = i + 1
        if keys[j] >> TIME_SHIFT == time:
            j = i
            while j < n and keys[j] >> TIME_SHIFT == time:
                index = keys[j] & INDEX_MASK
                since = since_of(state, RingEntry(state, thread.addresses[index]).body)
                if since:
                    tie = tie_break(thread.tie_keys[index], begin + time - since)
                    keys[j] = (time << TIME_SHIFT) | (tie << INDEX_BITS) | index
                j += 1
            _insertion_sort(keys, i, j - i)
        i = j


@njit
def arrival_of(state: State, addresses: Words, key: int) -> RingEntry:
    """Return the packet of a key; `addresses` : those of the thread."""
    return RingEntry(state, addresses[key & INDEX_MASK])


@njit
def merge(state: State, thread: Thread, node: Node, begin: int, end: int, shift: int) -> tuple[Words, int, int]:
    """Collect the packets that reach `node` in [begin, end).

    Returns (sorted keys, number of packets, earliest later arrival known). The packet of a key is
    `arrival_of(state, thread.addresses, key)`, its time `begin + (key >> TIME_SHIFT)`. Entries stay valid for the whole
    window, although the consumer's counters have moved on. With flow control, the port opposite to the link it came
    over is at `thread.opposite_ports[key & INDEX_MASK]`. `shift` brings a key of this window below BUCKETS.
    """
    keys = thread.keys
    addresses = thread.addresses
    tie_keys = thread.tie_keys
    since = state.ties_since_iteration
    ingress = state.ingress
    heads = state.heads
    first = node.ingress
    links = node.ingress_count
    several = links > 1
    n = 0
    later = FOREVER
    last = -1
    in_order = True
    if not state.exceeds_caches:
        fetch(state, node)
    for i in range(first, first + links):
        port = Port(state, ingress[i])
        counters = LinkHead(state, heads + i * LinkHead.WORDS)
        head = counters.taken
        tail = load_acquire(port, SENT)
        shape = port.shape
        # the entries of the last visit have been read by now
        counters.ring_free = head
        if head != tail:
            ring = port.ring
            mask = shape & SHAPE_RING
            ties = state.tie_keys[i]
            while head != tail:
                entry = RingEntry(state, ring + (head & mask) * RingEntry.WORDS)
                time = entry.time
                if time >= end:
                    if time < later:
                        later = time
                    break
                key = ((time - begin) << TIME_SHIFT) | n
                if several:
                    key |= tie_break(ties, time) << INDEX_BITS
                    if since:
                        tie_keys[n] = ties
                if key < last:
                    in_order = False
                last = key
                keys[n] = key
                addresses[n] = entry.base
                if PFC:
                    thread.opposite_ports[n] = state.opposite_ports[i]
                n += 1
                head += 1
            counters.taken = head
        if (shape & SHAPE_SPILLING) and head == tail:
            head = counters.spill_taken
            tail = load_acquire(port, SPILL_TAIL)
            counters.spill_free = head
            ring = port.spill
            mask = port.spill_mask
            ties = state.tie_keys[i]
            while head != tail:
                entry = RingEntry(state, ring + (head & mask) * RingEntry.WORDS)
                time = entry.time
                if time >= end:
                    if time < later:
                        later = time
                    break
                key = ((time - begin) << TIME_SHIFT) | n
                if several:
                    key |= tie_break(ties, time) << INDEX_BITS
                    if since:
                        tie_keys[n] = ties
                if key < last:
                    in_order = False
                last = key
                keys[n] = key
                addresses[n] = entry.base
                if PFC:
                    thread.opposite_ports[n] = state.opposite_ports[i]
                n += 1
                head += 1
            counters.spill_taken = head
    thread.work += n
    if not in_order:
        if n <= FEW:
            _insertion_sort(keys, 0, n)
        else:
            keys = _bucket_sort(thread, n, shift)
    if several and n > 1 and since:
        _settle_ties(state, thread, keys, n, begin)
    return keys, n, later
