"""Queues of a port: packets enter at the end of their class and leave from its front.

Where the shortest message goes first (pFabric), they leave from any position.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    A_KIND,
    A_SIZE,
    B_ARGUMENT,
    C_BYTES,
    C_HEAD,
    C_TAIL,
    CAUSE_EVICTED,
    CLASS_WORDS,
    DATA,
    DELAY_BINS,
    DELAY_FIRST,
    H_STATUS,
    MASK_FLOW,
    MASK_SEQUENCE,
    MASK_SIZE,
    N_USED,
    N_USED_BY,
    P_CLASSES,
    P_MORE,
    P_NODE,
    P_QUEUE,
    POOL_FULL,
    POOL_WORDS,
    T_BUMP,
    T_BUMP_END,
    T_FREE,
    X_DELAYS,
)
from gradwire.sim.engine.memory.atomics import bit_length, prefetch

from .bindings import DELAYS, LIMITS, PFC, SHARED, SRPT
from .link import log_drop, transmit
from .pause import release

BACK = POOL_WORDS  # the port opposite to the link that the packet came over, 0 at hosts
SINCE = POOL_WORDS + PFC  # arrival time
ENTRY_WORDS = POOL_WORDS + PFC + DELAYS


@njit
def take_entry(M, th):
    """Return a free entry of the thread's pool."""
    entry = M[th + T_FREE]
    if entry:
        M[th + T_FREE] = M[entry]
    else:
        entry = M[th + T_BUMP]
        if entry >= M[th + T_BUMP_END]:
            M[H_STATUS] = POOL_FULL
        else:
            M[th + T_BUMP] = entry + ENTRY_WORDS
    return entry


@njit
def give_entry(M, th, entry):
    """Free an entry."""
    M[entry] = M[th + T_FREE]
    M[th + T_FREE] = entry


@njit
def use_shared(M, node, c, size):
    """Count bytes that a class holds of its switch's shared buffer."""
    M[node + N_USED] += size
    if LIMITS:
        M[node + N_USED_BY + c] += size


@njit
def append(M, th, p, A, B, size, c, back, time):
    """Put a packet at the end of class `c` of port `p`. Returns the bytes that wait at the port now."""
    entry = take_entry(M, th)
    M[entry + 1] = A
    M[entry + 2] = B
    if PFC:
        M[entry + BACK] = back
    if DELAYS:
        M[entry + SINCE] = time
    record = p + P_CLASSES + c * CLASS_WORDS
    queue = M[p + P_QUEUE]
    bit = 1 << c
    if queue & bit:
        M[M[record + C_TAIL]] = entry
    else:
        M[record + C_HEAD] = entry
        queue |= bit
    M[record + C_TAIL] = entry
    M[record + C_BYTES] += size
    queue += size << 8
    M[p + P_QUEUE] = queue
    if SHARED:
        use_shared(M, M[p + P_NODE], c, size)
    return queue >> 8


@njit
def _take_out(M, p, c, before, entry):
    """Unlink an entry of class `c`; `before` is the one ahead of it, 0 for none. Returns its size."""
    record = p + P_CLASSES + c * CLASS_WORDS
    size = (M[entry + 1] >> A_SIZE) & MASK_SIZE
    queue = M[p + P_QUEUE] - (size << 8)
    if before == 0:
        if entry == M[record + C_TAIL]:
            queue &= ~(1 << c)
        else:
            M[record + C_HEAD] = M[entry]
    elif entry == M[record + C_TAIL]:
        M[record + C_TAIL] = before
    else:
        M[before] = M[entry]
    M[p + P_QUEUE] = queue
    if SHARED:
        use_shared(M, M[p + P_NODE], c, -size)
    M[record + C_BYTES] -= size
    return size


@njit
def rank_of(A, B):
    """Return the rank of a packet, lower first: what is left of its message, 0 for control packets."""
    if (A >> A_KIND) & 7 != DATA:
        return 0
    return (B >> B_ARGUMENT) & MASK_SEQUENCE


@njit
def _best(M, p, c):
    """Return the entry ahead of the one that goes first: the earliest packet of the message with the lowest rank."""
    record = p + P_CLASSES + c * CLASS_WORDS
    tail = M[record + C_TAIL]
    entry = M[record + C_HEAD]
    before = 0
    best = entry
    best_before = 0
    least = rank_of(M[entry + 1], M[entry + 2])
    while entry != tail:
        before = entry
        entry = M[entry]
        rank = rank_of(M[entry + 1], M[entry + 2])
        if rank < least:
            best = entry
            best_before = before
            least = rank
    if (M[best + 1] >> A_KIND) & 7 != DATA:
        return best_before
    flow = M[best + 2] & MASK_FLOW
    entry = M[record + C_HEAD]
    before = 0
    while (M[entry + 1] >> A_KIND) & 7 != DATA or M[entry + 2] & MASK_FLOW != flow:
        before = entry
        entry = M[entry]
    return before


@njit
def make_room(M, th, p, c, size, room, A, B, time):
    """Drop packets of class `c` with a higher rank than the arriving one until `size` bytes fit into `room` at port
    `p`. The highest rank goes first, and of equals the latest. Returns True if the bytes fit."""
    own = rank_of(A, B)
    record = p + P_CLASSES + c * CLASS_WORDS
    while (M[p + P_QUEUE] >> 8) + size > room:
        if not (M[p + P_QUEUE] >> c) & 1:
            return False
        tail = M[record + C_TAIL]
        entry = M[record + C_HEAD]
        before = 0
        worst = entry
        worst_before = 0
        most = rank_of(M[entry + 1], M[entry + 2])
        while entry != tail:
            before = entry
            entry = M[entry]
            rank = rank_of(M[entry + 1], M[entry + 2])
            if rank >= most:
                worst = entry
                worst_before = before
                most = rank
        if most <= own:
            return False
        _take_out(M, p, c, worst_before, worst)
        log_drop(M, th, p, time, CAUSE_EVICTED, M[worst + 1], M[worst + 2])
        give_entry(M, th, worst)
    return True


@njit
def delay_bin(delay):
    """Return the bin of a waiting time: bin 0 below 2**DELAY_FIRST ps, then four bins per octave."""
    if delay < 1 << DELAY_FIRST:
        return 0
    octave = bit_length(delay) - 1
    return min(1 + 4 * (octave - DELAY_FIRST) + ((delay >> (octave - 2)) & 3), DELAY_BINS - 1)


@njit
def count_delay(M, p, delay):
    """Count a packet's waiting time at port `p`."""
    M[M[M[p + P_MORE] + X_DELAYS] + delay_bin(delay)] += 1


@njit
def send_first(M, th, p, c, start, order):
    """Start the transmission of the packet of class `c` that goes first. `order`: see `pause.release`."""
    record = p + P_CLASSES + c * CLASS_WORDS
    if SRPT:
        before = _best(M, p, c)
        entry = M[before] if before else M[record + C_HEAD]
        size = _take_out(M, p, c, before, entry)
        A = M[entry + 1]
        B = M[entry + 2]
    else:
        entry = M[record + C_HEAD]
        A = M[entry + 1]
        B = M[entry + 2]
        size = (A >> A_SIZE) & MASK_SIZE
        queue = M[p + P_QUEUE] - (size << 8)
        if entry == M[record + C_TAIL]:
            queue &= ~(1 << c)
        else:
            follower = M[entry]
            M[record + C_HEAD] = follower
            prefetch(M, follower)
        M[p + P_QUEUE] = queue
        if SHARED:
            use_shared(M, M[p + P_NODE], c, -size)
        M[record + C_BYTES] -= size
    if DELAYS:
        count_delay(M, p, start - M[entry + SINCE])
    give_entry(M, th, entry)
    transmit(M, th, p, A, B, start)
    if PFC and M[entry + BACK]:
        release(M, th, M[entry + BACK], c, size, start, order)
