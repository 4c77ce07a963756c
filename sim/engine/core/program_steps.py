"""The player of programs: reactions of jobs to deliveries, between two windows.

A program is an event graph (`gradwire.workload.program`). Its events, the messages they post, processes, stations and
release queues are records in the state (written by `gradwire.sim.engine.program.track`). After every window in which a
message of a program was delivered, a sender has learned that it is done, or a timer of a program is due, one thread
plays all of that in order of time. This is possible afterwards because what follows enters the network one software
latency later at the earliest, and a window is not longer than that.

At one time, events of the network come first, by message, senders before receivers; then timers, in the order in which
they were set. A process that an event wakes continues by a timer that is due at once.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    DELIVERED,
    DONE_WORDS,
    E_AFTER,
    E_AFTER_COUNT,
    E_AT,
    E_EFFORT,
    E_NEEDS,
    E_PARENT,
    E_POSTS,
    E_POSTS_COUNT,
    E_STATION,
    E_WAITER,
    FAILED_LATE,
    FIRED,
    FOREVER,
    G_DONE,
    G_QUEUE,
    G_RANK,
    G_READY,
    G_RELEASED,
    G_VARIANT,
    H_FAILED,
    H_HOST_LATENCY,
    H_RECEIVERS,
    H_SENDERS,
    H_SOON,
    H_SORT,
    H_SORTED,
    H_STARVED,
    H_THREAD,
    H_TIMER_COUNT,
    H_TIMER_NEXT,
    H_TIMER_SET,
    H_TIMERS,
    H_TOLD,
    KEY_ORDER,
    O_BEGIN,
    O_COMPUTE,
    O_FIRE,
    O_NOTE,
    O_UNTIL,
    O_WAIT,
    OPERATION_WORDS,
    Q_COUNT,
    Q_CREDIT,
    Q_HEAP,
    Q_OFFERED,
    Q_UNDER_WAY,
    R_EVENT,
    R_LEFT,
    RECEIVER_WORDS,
    S_HOME,
    S_ORDER,
    SENDER_WORDS,
    SLOW_UNIT,
    T_DONE,
    T_DONE_BASE,
    T_PLAYED,
    THREAD_WORDS,
    TIMER_WORDS,
    V_BYTES,
    W_AT,
    W_BEGUN,
    W_COMPUTED,
    W_END,
    W_ENDED,
    W_NEXT,
    W_NEXT_END,
    W_SLOW,
    W_STARVED,
    W_TIMES,
)
from gradwire.sim.engine.program.flow_setup import open_message
from gradwire.sim.engine.program.flow_teardown import note


@njit
def _add(M, base, count, time, number, key):
    """Add to a heap of (time, number, key), lowest time and number first, that has `count` entries."""
    i = count
    while i > 0:
        parent = (i - 1) >> 1
        at = base + TIMER_WORDS * parent
        if M[at] < time or (M[at] == time and M[at + 1] < number):
            break
        place = base + TIMER_WORDS * i
        M[place] = M[at]
        M[place + 1] = M[at + 1]
        M[place + 2] = M[at + 2]
        i = parent
    place = base + TIMER_WORDS * i
    M[place] = time
    M[place + 1] = number
    M[place + 2] = key


@njit
def _drop(M, base, count):
    """Remove the first entry; `count` are left."""
    last = base + TIMER_WORDS * count
    time = M[last]
    number = M[last + 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        at = base + TIMER_WORDS * child
        if child + 1 < count:
            other = at + TIMER_WORDS
            if M[other] < M[at] or (M[other] == M[at] and M[other + 1] < M[at + 1]):
                child += 1
                at = other
        if time < M[at] or (time == M[at] and number < M[at + 1]):
            break
        place = base + TIMER_WORDS * i
        M[place] = M[at]
        M[place + 1] = M[at + 1]
        M[place + 2] = M[at + 2]
        i = child
    if count:
        place = base + TIMER_WORDS * i
        M[place] = time
        M[place + 1] = number
        M[place + 2] = M[last + 2]


@njit
def set_timer(M, time, key):
    """Set a timer of a program: `key` is the base of a process << 1, or of an event << 1 | 1. Timers of equal times
    fire in the order in which they were set."""
    count = M[H_TIMER_COUNT]
    M[H_TIMER_COUNT] = count + 1
    M[H_TIMER_SET] += 1
    _add(M, M[H_TIMERS], count, time, M[H_TIMER_SET], key)
    M[H_TIMER_NEXT] = M[M[H_TIMERS]]


@njit
def _drop_timer(M):
    count = M[H_TIMER_COUNT] - 1
    M[H_TIMER_COUNT] = count
    _drop(M, M[H_TIMERS], count)
    M[H_TIMER_NEXT] = M[M[H_TIMERS]] if count else FOREVER


@njit
def _tell(M, now):
    """Return to Python before a host could react to an event at `now`."""
    M[H_TOLD] = min(M[H_TOLD], now)


@njit
def _release(M, g, now):
    """Release a message: it starts one software latency later."""
    begin = now + M[H_HOST_LATENCY]
    M[g + G_RELEASED] = begin
    if not open_message(M, g):
        _tell(M, now)  # Python reports the missing room


@njit
def _fill(M, q, now):
    """Release what the credit of a queue allows; a message larger than the credit goes alone."""
    heap = M[q + Q_HEAP]
    while M[q + Q_COUNT]:
        g = M[heap + 1]
        if M[q + Q_UNDER_WAY] and M[q + Q_UNDER_WAY] + M[M[g + G_VARIANT] + V_BYTES] > M[q + Q_CREDIT]:
            return
        count = M[q + Q_COUNT] - 1
        M[q + Q_COUNT] = count
        key = M[heap + 2 * count]
        other = M[heap + 2 * count + 1]
        i = 0
        while True:
            child = 2 * i + 1
            if child >= count:
                break
            if child + 1 < count and M[heap + 2 * child + 2] < M[heap + 2 * child]:
                child += 1
            if key <= M[heap + 2 * child]:
                break
            M[heap + 2 * i] = M[heap + 2 * child]
            M[heap + 2 * i + 1] = M[heap + 2 * child + 1]
            i = child
        M[heap + 2 * i] = key
        M[heap + 2 * i + 1] = other
        M[q + Q_UNDER_WAY] += M[M[g + G_VARIANT] + V_BYTES]
        _release(M, g, now)


@njit
def _ready(M, g, now):
    """Release a message that is ready at its host, or queue it for release, by rank and then by readiness."""
    M[g + G_READY] = now
    q = M[g + G_QUEUE]
    if q == 0:
        _release(M, g, now)
        return
    heap = M[q + Q_HEAP]
    key = (M[g + G_RANK] << KEY_ORDER) | M[q + Q_OFFERED]
    M[q + Q_OFFERED] += 1
    i = M[q + Q_COUNT]
    M[q + Q_COUNT] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if M[heap + 2 * parent] <= key:
            break
        M[heap + 2 * i] = M[heap + 2 * parent]
        M[heap + 2 * i + 1] = M[heap + 2 * parent + 1]
        i = parent
    M[heap + 2 * i] = key
    M[heap + 2 * i + 1] = g
    _fill(M, q, now)


@njit
def _begin_firing(M, e, now):
    """Let an event happen: the messages that it posts become ready, and the process that waits for it continues."""
    M[e + E_NEEDS] = FIRED
    M[e + E_AT] = 0
    posts = M[e + E_POSTS]
    for i in range(M[e + E_POSTS_COUNT]):
        _ready(M, M[posts + i], now)
    if M[e + E_WAITER]:
        set_timer(M, now, M[e + E_WAITER] << 1)
        M[e + E_WAITER] = 0


@njit
def _fire(M, e, now):
    """Let an event happen, with all that follows from it at once, depth first. An event that counts it happens with all
    that follows from that before the next one counts."""
    M[e + E_PARENT] = 0
    _begin_firing(M, e, now)
    while e:
        if M[e + E_AT] == M[e + E_AFTER_COUNT]:
            e = M[e + E_PARENT]
            continue
        following = M[M[e + E_AFTER] + M[e + E_AT]]
        M[e + E_AT] += 1
        M[following + E_NEEDS] -= 1
        if M[following + E_NEEDS] == 0 and not _works(M, following, now):
            M[following + E_PARENT] = e
            e = following
            _begin_firing(M, e, now)


@njit
def _works(M, e, now):
    """Return True if an event that has all it needs takes work first, which its station does after earlier work."""
    station = M[e + E_STATION]
    if station == 0:
        return False
    end = max(now, M[station]) + M[e + E_EFFORT]
    M[station] = end
    set_timer(M, end, e << 1 | 1)
    return True


@njit
def _count(M, e, now):
    """Count one of the things that an event needs."""
    M[e + E_NEEDS] -= 1
    if M[e + E_NEEDS] == 0 and not _works(M, e, now):
        _fire(M, e, now)


@njit
def _proceed(M, w, now):
    """Continue a process until it computes, waits, or has come to the end of its known operations."""
    while True:
        at = M[w + W_AT]
        if at == M[w + W_END]:
            M[w + W_TIMES + (M[w + W_BEGUN] & 3)] = now
            M[w + W_BEGUN] += 1
            _tell(M, now)
            if M[w + W_NEXT] == 0:
                M[w + W_STARVED] = 1
                M[w + W_ENDED] = now
                M[H_STARVED] = w
                return
            M[w + W_AT] = M[w + W_NEXT]
            M[w + W_END] = M[w + W_NEXT_END]
            M[w + W_NEXT] = 0
            continue
        operation = M[at]
        value = M[at + 1]
        M[w + W_AT] = at + OPERATION_WORDS
        if operation == O_COMPUTE:
            if M[w + W_SLOW] != SLOW_UNIT:
                value = value // SLOW_UNIT * M[w + W_SLOW] + (value % SLOW_UNIT) * M[w + W_SLOW] // SLOW_UNIT
            M[w + W_COMPUTED] += value
            set_timer(M, now + value, w << 1)
            return
        if operation == O_WAIT:
            if value and M[value + E_NEEDS] != FIRED:
                M[value + E_WAITER] = w
                return
        elif operation == O_FIRE:
            _count(M, value, now)
        elif operation == O_UNTIL:
            if value > now:
                set_timer(M, value, w << 1)
                return
        elif operation == O_NOTE:
            M[value] = now
        elif operation == O_BEGIN:
            if M[value] == 0:
                M[value] = now
        else:
            M[value] = M[w + W_COMPUTED]
            M[w + W_COMPUTED] = 0


@njit
def _collect(M, threads):
    """Sort the new log rows of all threads by time and message; what nothing waits for is only counted. Every row is
    entered into the message log."""
    for thread in range(threads):
        th = M[H_THREAD] + thread * THREAD_WORDS
        for row in range(M[th + T_PLAYED], M[th + T_DONE]):
            at = M[th + T_DONE_BASE] + row * DONE_WORDS
            note(M, at)
            flow = M[at + 1]
            r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
            left = M[r + R_LEFT]
            if left == 0:
                continue
            f = M[H_SENDERS] + flow * SENDER_WORDS
            delivered = M[at + 2] == DELIVERED
            if delivered:
                M[left] -= 1
                M[left + 1] = max(M[left + 1], M[at])
                if M[left] == 0:
                    _tell(M, M[left + 1])
                if M[r + R_EVENT] == 0:
                    continue
            elif M[f + S_HOME] == 0:
                continue
            _add(M, M[H_SORT], M[H_SORTED], M[at], (M[f + S_ORDER] >> KEY_ORDER) << 1 | delivered, flow)
            M[H_SORTED] += 1
        M[th + T_PLAYED] = M[th + T_DONE]


@njit
def _hear(M, flow, delivered, now):
    """Handle a delivery, or the end of a sender, which returns credit to its queue and may be an event."""
    if delivered:
        _count(M, M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_EVENT], now)
        return
    g = M[M[H_SENDERS] + flow * SENDER_WORDS + S_HOME]
    q = M[g + G_QUEUE]
    if q:
        M[q + Q_UNDER_WAY] -= M[M[g + G_VARIANT] + V_BYTES]
        _fill(M, q, now)
    if M[g + G_DONE]:
        _count(M, M[g + G_DONE], now)


@njit
def play(M, end, threads):
    """Play everything before `end`. H_SOON: the earliest thing that follows in the network or here; H_TOLD: the
    earliest event that Python must know of. When a process comes to the end of its known operations (H_STARVED),
    everything stops: Python provides the next ones, and calls again before the network advances."""
    M[H_SOON] = FOREVER
    M[H_TOLD] = FOREVER
    sort = M[H_SORT]
    _collect(M, threads)
    w = M[H_STARVED]
    if w:
        M[H_STARVED] = 0
        if M[w + W_STARVED] == 0:  # otherwise it has come to its end
            _proceed(M, w, M[w + W_ENDED])
    while M[H_STARVED] == 0:
        if M[H_SORTED] and M[sort] <= M[H_TIMER_NEXT]:
            now = M[sort]
            delivered = M[sort + 1] & 1
            flow = M[sort + 2]
            M[H_SORTED] -= 1
            _drop(M, sort, M[H_SORTED])
            _hear(M, flow, delivered, now)
            continue
        now = M[H_TIMER_NEXT]
        if now >= end:
            break
        key = M[M[H_TIMERS] + 2]
        _drop_timer(M)
        if key & 1:
            _fire(M, key >> 1, now)
        else:
            _proceed(M, key >> 1, now)
    if M[H_SOON] < end:
        M[H_FAILED] = FAILED_LATE
    M[H_SOON] = min(M[H_SOON], M[H_TIMER_NEXT])
