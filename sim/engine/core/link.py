"""Links behind egress ports: a packet is serialised and put into the ring of the node at the far end."""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.layout import (
    A_KIND,
    A_LOGGED,
    A_SIZE,
    B_ARGUMENT,
    CAUSE_DOWN,
    CAUSE_EVICTED,
    CAUSE_LINK,
    DATA,
    DROP_WORDS,
    H_SENDERS,
    HEAD_RING_FREE,
    HEAD_SPILL_FREE,
    MASK_FLOW,
    MASK_SIZE,
    P_BUSY,
    P_BYTES,
    P_DROP_LINK,
    P_DROP_TAIL,
    P_FLAGS,
    P_HEAD,
    P_ID,
    P_KEY,
    P_LATENCY,
    P_LOSS,
    P_MORE,
    P_QUEUE,
    P_RING,
    P_SEEN,
    P_SHAPE,
    P_SPEED,
    P_SPILL,
    P_SPILL_MASK,
    P_SPILL_TAIL,
    P_TAIL,
    PAUSE,
    PORT_FLAG_STAMPS,
    RING_WORDS,
    S_SLOTS,
    S_STAMPS,
    SENDER_WORDS,
    SHAPE_DOWN,
    SHAPE_LOSSY,
    SHAPE_RING,
    SHAPE_SPILLING,
    SHAPE_TRACED,
    SLOT_FIRST,
    SLOT_HOPS,
    SLOT_WORDS,
    SPEED_SHIFT,
    STAMP_BYTES,
    STAMP_MOST,
    STAMP_PORT,
    STAMP_QUEUE,
    STAMP_SPEED,
    STAMP_TIME,
    STAMP_WORDS,
    T_DROPS,
    T_DROPS_BASE,
    T_EARLIEST,
    T_TRACE,
    T_TRACE_BASE,
    T_WAKE,
    TRACE_WORDS,
    X_CAUSES,
)
from gradwire.sim.engine.memory.atomics import load_acquire, store_release

from .bindings import INT

ROUND_UP = (1 << SPEED_SHIFT) - 1


@njit
def transmission_time(size, speed):
    """Return the picoseconds to send `size` bytes at `speed` picoseconds per byte << 16, rounded up."""
    return (size * speed + ROUND_UP) >> SPEED_SHIFT


@njit
def log_drop(M, th, p, time, cause, A, B):
    """Log a lost packet and count it at the port."""
    if cause < CAUSE_EVICTED:
        M[p + P_DROP_TAIL + cause] += 1
    else:
        M[M[p + P_MORE] + X_CAUSES + cause - CAUSE_EVICTED] += 1
    n = M[th + T_DROPS]
    at = M[th + T_DROPS_BASE] + n * DROP_WORDS
    M[at] = time
    M[at + 1] = M[p + P_ID] | (cause << 32)
    M[at + 2] = A
    M[at + 3] = B
    M[th + T_DROPS] = n + 1


@njit
def _trace(M, th, p, start, A, B, event):
    n = M[th + T_TRACE]
    at = M[th + T_TRACE_BASE] + n * TRACE_WORDS
    M[at] = start
    M[at + 1] = M[p + P_ID]
    M[at + 2] = A
    M[at + 3] = B
    M[at + 4] = event
    M[th + T_TRACE] = n + 1


@njit
def _push_full(M, p, arrival, A, B):
    """Put a packet on a link whose ring is full as far as the producer knows.

    The ring is small, so that it stays in the cache; further packets go to the spill ring, which has room for whatever
    the link can hold. While it is not empty, new packets follow there, so the ring is always older than the spill ring
    and the consumer reads one after the other.
    """
    ring = M[p + P_SHAPE] & SHAPE_RING
    head = M[p + P_HEAD]
    spilled = M[p + P_SPILL_TAIL]
    tail = M[p + P_TAIL]
    if spilled == load_acquire(M, head + HEAD_SPILL_FREE):
        free = load_acquire(M, head + HEAD_RING_FREE)
        if tail - free <= ring:
            M[p + P_SEEN] = free
            M[p + P_SHAPE] &= ~SHAPE_SPILLING
            at = M[p + P_RING] + (tail & ring) * RING_WORDS
            M[at] = arrival
            M[at + 1] = A
            M[at + 2] = B
            store_release(M, p + P_TAIL, tail + 1)
            return
    at = M[p + P_SPILL] + (spilled & M[p + P_SPILL_MASK]) * RING_WORDS
    M[at] = arrival
    M[at + 1] = A
    M[at + 2] = B
    M[p + P_SHAPE] |= SHAPE_SPILLING
    store_release(M, p + P_SPILL_TAIL, spilled + 1)


@njit
def _stamp(M, p, B, start):
    """Write the state of this port into the packet's telemetry slot (in-band telemetry)."""
    f = M[H_SENDERS] + (B & MASK_FLOW) * SENDER_WORDS
    slots = M[f + S_STAMPS]
    if slots == 0:
        return
    slot = slots + ((B >> B_ARGUMENT) & M[f + S_SLOTS]) * SLOT_WORDS
    n = M[slot + SLOT_HOPS]
    if n == STAMP_MOST:
        return
    at = slot + SLOT_FIRST + n * STAMP_WORDS
    M[at + STAMP_PORT] = M[p + P_ID]
    M[at + STAMP_QUEUE] = M[p + P_QUEUE] >> 8
    M[at + STAMP_BYTES] = M[p + P_BYTES]
    M[at + STAMP_TIME] = start
    M[at + STAMP_SPEED] = M[p + P_SPEED]
    M[slot + SLOT_HOPS] = n + 1


@njit
def _fate(M, th, p, A, B, start, end):
    """Apply random loss, cuts and logging to a packet on a link. Returns True if it never arrives."""
    shape = M[p + P_SHAPE]
    lost = 0
    cause = CAUSE_LINK
    if shape & SHAPE_DOWN:
        lost = 1
        cause = CAUSE_DOWN
    elif shape & SHAPE_LOSSY and (A >> A_KIND) & 7 != PAUSE:
        # draws are counted by the packets ever transmitted here
        count = M[p + P_TAIL] + M[p + P_SPILL_TAIL] + M[p + P_DROP_LINK]
        count += M[M[p + P_MORE] + X_CAUSES + CAUSE_DOWN - CAUSE_EVICTED]
        if draw(M[p + P_KEY], count) < M[p + P_LOSS]:
            lost = 1
    if shape & SHAPE_TRACED and (A >> A_LOGGED) & 1:
        _trace(M, th, p, start, A, B, lost)
    if lost:
        log_drop(M, th, p, end, cause, A, B)
    return lost != 0


@njit
def transmit(M, th, p, A, B, start):
    """Put a packet on the link of port `p`; its first bit leaves at `start`."""
    size = (A >> A_SIZE) & MASK_SIZE
    end = start + ((size * M[p + P_SPEED] + ROUND_UP) >> SPEED_SHIFT)
    if INT and M[p + P_FLAGS] & PORT_FLAG_STAMPS and (A >> A_KIND) & 7 == DATA:
        _stamp(M, p, B, start)
    M[p + P_BUSY] = end
    M[p + P_BYTES] += size
    shape = M[p + P_SHAPE]
    if shape & (SHAPE_LOSSY | SHAPE_TRACED | SHAPE_DOWN) and _fate(M, th, p, A, B, start, end):
        return
    arrival = end + M[p + P_LATENCY]
    tail = M[p + P_TAIL]
    ring = shape & SHAPE_RING
    if tail - M[p + P_SEEN] <= ring:
        at = M[p + P_RING] + (tail & ring) * RING_WORDS
        M[at] = arrival
        M[at + 1] = A
        M[at + 2] = B
        store_release(M, p + P_TAIL, tail + 1)
    else:
        _push_full(M, p, arrival, A, B)
    flag = M[th + T_WAKE] + (shape >> 32)
    if M[flag] == 0:
        M[flag] = 1
    if arrival < M[th + T_EARLIEST]:
        M[th + T_EARLIEST] = arrival
