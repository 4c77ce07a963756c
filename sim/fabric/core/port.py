"""Egress ports: a set of strict-priority queues and the link behind them.

A port is served *lazily*. Nothing can change the order of transmissions between two packets that reach the port, so
before a packet is looked at, and once at the end of a window, the transmissions that could have started by then are
started, and until then no time is spent on the port. A packet that finds the port idle goes straight onto the link.

The queue a packet sees is what waits; the packet on the wire is no longer part of it (our choice).
"""

from numba import njit

from sim.fabric.atomics import count_trailing_zeros, load_acquire, store_release
from sim.fabric.draws import draw
from sim.fabric.layout import (
    A_CE,
    A_PRIORITY,
    A_SIZE,
    ALPHA_UNIT,
    C_BYTES,
    C_HEAD,
    C_TAIL,
    CAUSE_LINK,
    CAUSE_TAIL,
    CLASS_WORDS,
    DROP_WORDS,
    H_ALPHA,
    H_SHARED,
    H_STATUS,
    HEAD_RING_FREE,
    HEAD_SPILL_FREE,
    MASK_SIZE,
    N_ACTIVE,
    N_ACTIVE_COUNT,
    N_USED,
    P_BUSY,
    P_BYTES,
    P_CLASSES,
    P_DROP_LINK,
    P_DROP_TAIL,
    P_FLAGS,
    P_HEAD,
    P_ID,
    P_KEY,
    P_LATENCY,
    P_LIMIT,
    P_LOSS,
    P_MARKS,
    P_MORE,
    P_NODE,
    P_PEAK,
    P_QUEUE,
    P_RING,
    P_SEEN,
    P_SHAPE,
    P_SPEED,
    P_SPILL,
    P_SPILL_MASK,
    P_SPILL_TAIL,
    P_TAIL,
    POOL_FULL,
    POOL_WORDS,
    PORT_FLAG_ACTIVE,
    RING_WORDS,
    SHAPE_LOSSY,
    SHAPE_RING,
    SHAPE_SPILLING,
    SHAPE_TRACED,
    SPEED_SHIFT,
    T_BUMP,
    T_BUMP_END,
    T_DROPS,
    T_DROPS_BASE,
    T_EARLIEST,
    T_FREE,
    T_TRACE,
    T_TRACE_BASE,
    T_WAKE,
    TRACE_WORDS,
    X_DEFICIT,
    X_QUANTUM,
    X_TURN,
)

from .bound import SHARED, TURNS, admit

ROUND_UP = (1 << SPEED_SHIFT) - 1
ACCEPT, MARK = 0, 1  # verdicts of a queue policy; 2 and up: drop for cause verdict - 2


@njit
def transmission_time(size, speed):
    """Picoseconds to send `size` bytes at `speed` picoseconds per byte << 16, rounded up."""
    return (size * speed + ROUND_UP) >> SPEED_SHIFT


@njit
def log_drop(M, th, p, time, cause, A, B):
    """Note a lost packet and count it at the port."""
    M[p + P_DROP_TAIL + cause] += 1
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

    The ring is small, so that it stays in the cache; what does not fit goes to the spill ring, which has room for
    whatever the link can hold. While anything is there, new packets follow it, so the ring is always older than the
    spill ring and the consumer reads one after the other."""
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
def transmit(M, th, p, A, B, start):
    """Put a packet on the link of port `p`; its first bit leaves at `start`."""
    size = (A >> A_SIZE) & MASK_SIZE
    end = start + ((size * M[p + P_SPEED] + ROUND_UP) >> SPEED_SHIFT)
    M[p + P_BUSY] = end
    M[p + P_BYTES] += size
    shape = M[p + P_SHAPE]
    if shape & (SHAPE_LOSSY | SHAPE_TRACED):
        lost = 0
        if shape & SHAPE_LOSSY:
            # the counter of the draws is the number of packets ever transmitted here
            if draw(M[p + P_KEY], M[p + P_TAIL] + M[p + P_SPILL_TAIL] + M[p + P_DROP_LINK]) < M[p + P_LOSS]:
                lost = 1
        if shape & SHAPE_TRACED:
            _trace(M, th, p, start, A, B, lost)
        if lost:
            log_drop(M, th, p, end, CAUSE_LINK, A, B)
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


@njit
def append(M, th, p, A, B, size, c):
    """Put a packet at the end of class `c` of port `p`."""
    entry = M[th + T_FREE]
    if entry:
        M[th + T_FREE] = M[entry]
    else:
        entry = M[th + T_BUMP]
        if entry >= M[th + T_BUMP_END]:
            M[H_STATUS] = POOL_FULL
        else:
            M[th + T_BUMP] = entry + POOL_WORDS
    M[entry + 1] = A
    M[entry + 2] = B
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
        M[M[p + P_NODE] + N_USED] += size
    return queue >> 8


@njit
def send_first(M, th, p, c, start):
    """Start the transmission of the first packet of class `c`."""
    record = p + P_CLASSES + c * CLASS_WORDS
    entry = M[record + C_HEAD]
    A = M[entry + 1]
    B = M[entry + 2]
    size = (A >> A_SIZE) & MASK_SIZE
    queue = M[p + P_QUEUE] - (size << 8)
    if entry == M[record + C_TAIL]:
        queue &= ~(1 << c)
    else:
        M[record + C_HEAD] = M[entry]
    M[p + P_QUEUE] = queue
    if SHARED:
        M[M[p + P_NODE] + N_USED] -= size
    M[record + C_BYTES] -= size
    M[entry] = M[th + T_FREE]
    M[th + T_FREE] = entry
    transmit(M, th, p, A, B, start)


@njit
def _turn(M, p, mask):
    """Deficit round robin (Shreedhar and Varghese, SIGCOMM '95): the class whose first packet may go. A class whose
    turn begins gets its quantum on top of what it had left; it gives up what is left when it runs empty."""
    more = M[p + P_MORE]
    c = M[more + X_TURN] & 7
    granted = M[more + X_TURN] >> 3
    while True:
        deficit = more + X_DEFICIT + c
        if (mask >> c) & 1:
            if not granted:
                M[deficit] += M[more + X_QUANTUM + c]
                granted = 1
            record = p + P_CLASSES + c * CLASS_WORDS
            entry = M[record + C_HEAD]
            size = (M[entry + 1] >> A_SIZE) & MASK_SIZE
            if size <= M[deficit]:
                M[deficit] -= size
                if entry == M[record + C_TAIL]:
                    M[deficit] = 0
                    M[more + X_TURN] = (c + 1) & 7
                else:
                    M[more + X_TURN] = c | 8
                return c
        granted = 0
        c = (c + 1) & 7


@njit
def serve(M, th, p, limit):
    """Start every transmission of port `p` that can start at or before `limit`. A queue never waits at an idle port,
    so each starts when the one before ends."""
    while True:
        start = M[p + P_BUSY]
        if start > limit:
            break
        mask = M[p + P_QUEUE] & 0xFF
        if mask == 0:
            break
        c = count_trailing_zeros(mask)
        if TURNS and M[M[p + P_MORE] + X_QUANTUM + c]:
            c = _turn(M, p, mask)
        send_first(M, th, p, c, start)


@njit
def _full(M, node, p, c, waiting, size):
    """Whether there is no room for a packet: in the port's own buffer, or in what the switch's shared one leaves to a
    queue: alpha times what is free of it (Choudhury and Hahne, ToN 1998: dynamic thresholds)."""
    if SHARED:
        free = M[H_SHARED] - M[node + N_USED]
        queued = M[p + P_CLASSES + c * CLASS_WORDS + C_BYTES]
        return size > free or queued + size > (free * M[H_ALPHA]) // ALPHA_UNIT
    return waiting + size > M[p + P_LIMIT]


@njit
def offer(M, th, node, p, A, B, time):
    """A packet reaches egress port `p` of switch `node` at `time`: send, queue, mark or drop it."""
    queue = M[p + P_QUEUE]
    if queue & 0xFF:
        serve(M, th, p, time)
        queue = M[p + P_QUEUE]
    if queue == 0 and M[p + P_BUSY] <= time:
        transmit(M, th, p, A, B, time)
        return
    size = (A >> A_SIZE) & MASK_SIZE
    flags = M[p + P_FLAGS]
    c = min((A >> A_PRIORITY) & 7, flags >> 8)
    if _full(M, node, p, c, queue >> 8, size):
        log_drop(M, th, p, time, CAUSE_TAIL, A, B)
        return
    verdict = admit(M, p, c, A)
    if verdict > MARK:
        log_drop(M, th, p, time, verdict - 2, A, B)
        return
    if verdict == MARK:
        A |= 1 << A_CE
        M[p + P_MARKS] += 1
    waiting = append(M, th, p, A, B, size, c)
    if waiting > M[p + P_PEAK]:
        M[p + P_PEAK] = waiting
    if not flags & PORT_FLAG_ACTIVE:
        M[p + P_FLAGS] = flags | PORT_FLAG_ACTIVE
        count = M[node + N_ACTIVE_COUNT]
        M[M[node + N_ACTIVE] + count] = p
        M[node + N_ACTIVE_COUNT] = count + 1
