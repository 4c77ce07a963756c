"""Egress ports: the choice of the queue to serve, and the handling of packets that reach a port.

A port is served *lazily*. Nothing can change the order of transmissions between two packets that reach the port, so
before a packet is handled, and once at the end of a window, the transmissions that could have started by then are
started; until then no time is spent on the port. A packet that finds the port idle goes straight onto the link.

The queue length that a packet meets excludes the packet on the wire (our choice).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.layout import (
    A_CE,
    A_KIND,
    A_PRIORITY,
    A_SIZE,
    A_TRIMMED,
    ALPHA_UNIT,
    C_BYTES,
    C_HEAD,
    C_TAIL,
    CAUSE_TAIL,
    CLASS_WORDS,
    DATA,
    FOREVER,
    H_ALPHA,
    H_FAR,
    H_LIMITS,
    H_SHARED,
    H_TRIM,
    H_TRIM_CLASS,
    H_TRIM_SIZE,
    MASK_SIZE,
    N_ACTIVE,
    N_ACTIVE_COUNT,
    N_USED,
    N_USED_BY,
    N_WANTED,
    P_BUSY,
    P_CLASSES,
    P_CONTROL_MARKS,
    P_FLAGS,
    P_ID,
    P_LIMIT,
    P_MARKS,
    P_MORE,
    P_PEAK,
    P_QUEUE,
    P_RED_KEY,
    P_TESTS,
    PORT_FLAG_ACTIVE,
    X_DEFICIT,
    X_HELD,
    X_PAUSED,
    X_PAUSES,
    X_QUANTUM,
    X_SIGNAL,
    X_TRIMMED,
    X_TURN,
)
from gradwire.sim.engine.memory.atomics import count_trailing_zeros, prefetch

from .bindings import DELAYS, DRR, LIMITS, PFC, SHARED, SRPT, TRIMMING, admit
from .link import log_drop, transmit
from .pause import AFTER_ALL, eligible, hold, limit_of, list_port, may_send, overfull, pausable, send_pause
from .queue import SINCE, append, count_delay, make_room, send_first, use_shared

ACCEPT, MARK = 0, 1  # verdicts of a queue policy; 2 and up: drop for cause verdict - 2
SIZE_FIELD = MASK_SIZE << A_SIZE


@njit
def _turn(M, p, mask):
    """Return the class whose first packet may go by deficit round robin (Shreedhar and Varghese, SIGCOMM '95). A class
    whose turn begins gets its quantum on top of its remaining deficit, which it loses when it runs empty."""
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
def _next_start(M, p):
    """Return the time at which port `p` can start its next transmission; FOREVER if it has none."""
    if PFC and M[M[p + P_MORE] + X_SIGNAL]:
        return max(M[p + P_BUSY], M[M[p + P_MORE] + X_SIGNAL])
    if eligible(M, p):
        return M[p + P_BUSY]
    return FOREVER


@njit
def _serve_one(M, th, p, start, mask, order):
    """Start the transmission whose turn it is among the classes in `mask`, or the pause frame that is due."""
    if PFC and M[M[p + P_MORE] + X_SIGNAL]:
        send_pause(M, th, p, start)
        return
    c = count_trailing_zeros(mask)
    if DRR and M[M[p + P_MORE] + X_QUANTUM + c]:
        c = _turn(M, p, mask)
    send_first(M, th, p, c, start, order)


@njit
def serve(M, th, p, limit):
    """Start every transmission of port `p` that can start at or before `limit`. A queue never waits at an idle port
    that may send, so each starts when the one before ends."""
    while True:
        start = M[p + P_BUSY]
        if start > limit:
            break
        mask = eligible(M, p)
        if PFC:
            start = _next_start(M, p)
            if start > limit:
                break
        elif mask == 0:
            break
        _serve_one(M, th, p, start, mask, M[p + P_ID])


@njit
def _serve_in_order(M, th, node, limit):
    """Start what the ports of a switch can start at or before `limit`, in order of time, then of link."""
    while True:
        first = FOREVER
        port = 0
        for i in range(M[node + N_ACTIVE_COUNT]):
            p = M[M[node + N_ACTIVE] + i]
            start = _next_start(M, p)
            if start < first or (start == first and start < FOREVER and M[p + P_ID] < M[port + P_ID]):
                first = start
                port = p
        if first > limit:
            return
        _serve_one(M, th, port, first, eligible(M, port), M[port + P_ID])


@njit
def serve_all(M, th, node, limit):
    """Bring all ports of a switch to `limit`."""
    if PFC and M[node + N_WANTED]:
        _serve_in_order(M, th, node, limit)
        return
    for i in range(M[node + N_ACTIVE_COUNT]):
        serve(M, th, M[M[node + N_ACTIVE] + i], limit)


@njit
def _fetch_firsts(M, active, count):
    """Prefetch the first packets of these ports."""
    for i in range(count):
        p = M[active + i]
        mask = M[p + P_QUEUE] & 0xFF
        if mask:
            prefetch(M, M[p + P_CLASSES + count_trailing_zeros(mask) * CLASS_WORDS + C_HEAD])


@njit
def finish(M, th, node, end):
    """Start what can start before `end` at the ports that have packets; return when the next one could start after."""
    if PFC and M[node + N_WANTED]:
        _serve_in_order(M, th, node, end - 1)
    active = M[node + N_ACTIVE]
    count = M[node + N_ACTIVE_COUNT]
    if M[H_FAR]:
        _fetch_firsts(M, active, count)
    kept = 0
    earliest = FOREVER
    for i in range(count):
        p = M[active + i]
        serve(M, th, p, end - 1)
        if PFC:
            start = _next_start(M, p)
            if start < earliest:
                earliest = start
            listed = M[p + P_QUEUE] & 0xFF or M[M[p + P_MORE] + X_SIGNAL]
        else:
            listed = M[p + P_QUEUE] & 0xFF
            if listed and M[p + P_BUSY] < earliest:
                earliest = M[p + P_BUSY]
        if listed:
            M[active + kept] = p
            kept += 1
        else:
            M[p + P_FLAGS] = M[p + P_FLAGS] & ~PORT_FLAG_ACTIVE
    M[node + N_ACTIVE_COUNT] = kept
    return earliest


@njit
def _full(M, node, p, c, waiting, size):
    """Return True if there is no room for a packet in the port's buffer or the switch's shared one. A queue may fill
    the shared buffer up to alpha times its free part (dynamic thresholds, Choudhury and Hahne, ToN 1998). A class may
    have its own limit in either."""
    if LIMITS:
        held = M[node + N_USED_BY + c] if SHARED else M[p + P_CLASSES + c * CLASS_WORDS + C_BYTES]
        if held + size > M[H_LIMITS + c]:
            return True
    if SHARED:
        free = M[H_SHARED] - M[node + N_USED]
        queued = M[p + P_CLASSES + c * CLASS_WORDS + C_BYTES]
        return size > free or queued + size > (free * M[H_ALPHA]) // ALPHA_UNIT
    return waiting + size > M[p + P_LIMIT]


@njit
def _trim(M, th, node, p, A, B, size, c, back, time):
    """Cut a data packet that finds its queue too long to its header, or every other time the last packet of the queue.
    This prevents unfairness among senders that send in step (NDP, SIGCOMM '17)."""
    count = M[p + P_TESTS]
    M[p + P_TESTS] = count + 1
    if (M[p + P_QUEUE] >> c) & 1 and draw(M[p + P_RED_KEY], count) & 1:
        record = p + P_CLASSES + c * CLASS_WORDS
        last = M[record + C_TAIL]
        other = M[last + 1]
        other_size = (other >> A_SIZE) & MASK_SIZE
        cut = (other >> A_TRIMMED) & 1
        if (other >> A_KIND) & 7 == DATA and not cut and other_size >= size:
            B, M[last + 2] = M[last + 2], B
            A, M[last + 1] = other, A
            M[record + C_BYTES] -= other_size - size
            M[p + P_QUEUE] -= (other_size - size) << 8
            if SHARED:
                use_shared(M, node, c, size - other_size)
            if DELAYS:
                M[last + SINCE] = time
    M[M[p + P_MORE] + X_TRIMMED] += 1
    A = (A & ~(SIZE_FIELD | (7 << A_PRIORITY))) | (M[H_TRIM_SIZE] << A_SIZE)
    A |= (1 << A_TRIMMED) | (M[H_TRIM_CLASS] << A_PRIORITY)
    size = M[H_TRIM_SIZE]
    c = min(M[H_TRIM_CLASS], M[p + P_FLAGS] >> 8)
    if _full(M, node, p, c, M[p + P_QUEUE] >> 8, size):
        log_drop(M, th, p, time, CAUSE_TAIL, A, B)
        return
    _enqueue(M, th, node, p, A, B, size, c, back, time)


@njit
def _enqueue(M, th, node, p, A, B, size, c, back, time):
    waiting = append(M, th, p, A, B, size, c, back, time)
    if waiting > M[p + P_PEAK]:
        M[p + P_PEAK] = waiting
    if not M[p + P_FLAGS] & PORT_FLAG_ACTIVE:
        list_port(M, node, p)
    if PFC:
        hold(M, th, back, c, size, time)


@njit
def _no_room(M, th, node, p, c, A, B, size, back, time):
    """Return True if a packet has to be dropped; with flow control, the bytes from the same link count."""
    if PFC and pausable(M, c):
        if not M[node + N_WANTED] and M[M[back + P_MORE] + X_HELD + c] + size > limit_of(M, back):
            serve_all(M, th, node, time)  # some of it may have left
        return overfull(M, back, c, size)
    if SRPT:
        return not make_room(M, th, p, c, size, M[p + P_LIMIT], A, B, time)
    return _full(M, node, p, c, M[p + P_QUEUE] >> 8, size)


@njit
def offer(M, th, node, p, A, B, back, time):
    """Send, queue, mark, trim or drop a packet that reaches egress port `p` of switch `node` at `time`. `back`: the
    port opposite to the link it came over."""
    queue = M[p + P_QUEUE]
    if queue & 0xFF or PFC:
        serve(M, th, p, time)
        queue = M[p + P_QUEUE]
    flags = M[p + P_FLAGS]
    c = min((A >> A_PRIORITY) & 7, flags >> 8)
    if M[p + P_BUSY] <= time and (queue == 0 or PFC) and may_send(M, p, c):
        transmit(M, th, p, A, B, time)
        if DELAYS:
            count_delay(M, p, 0)
        return
    size = (A >> A_SIZE) & MASK_SIZE
    if TRIMMING and (A >> A_KIND) & 7 == DATA and not (A >> A_TRIMMED) & 1 and size > M[H_TRIM_SIZE]:
        queued = M[p + P_CLASSES + c * CLASS_WORDS + C_BYTES]
        if queued + size > M[H_TRIM] or _full(M, node, p, c, queue >> 8, size):
            _trim(M, th, node, p, A, B, size, c, back, time)
            return
    if _no_room(M, th, node, p, c, A, B, size, back, time):
        log_drop(M, th, p, time, CAUSE_TAIL, A, B)
        return
    verdict = admit(M, p, c, A)
    if verdict > MARK:
        log_drop(M, th, p, time, verdict - 2, A, B)
        return
    if verdict == MARK:
        A |= 1 << A_CE
        M[p + P_MARKS] += 1
        M[p + P_CONTROL_MARKS] += (A >> A_KIND) & 7 != DATA
    _enqueue(M, th, node, p, A, B, size, c, back, time)


@njit
def pause(M, th, p, classes, time):
    """Apply a pause frame for `classes` at port `p`, which has been served up to `time`."""
    more = M[p + P_MORE]
    if classes & ~M[more + X_PAUSED]:
        M[more + X_PAUSES] += 1
    M[more + X_PAUSED] = classes
    if M[p + P_BUSY] < time:
        M[p + P_BUSY] = time
    mask = eligible(M, p)
    if M[p + P_BUSY] == time and mask and not M[more + X_SIGNAL]:
        _serve_one(M, th, p, time, mask, AFTER_ALL)
