"""Windows: every node is advanced separately through [T, T + L), then all threads meet, then the next window begins.

L is at most the lookahead, the shortest time in which anything a node does can reach another node. So within a window
nodes are independent, and neither the order in which they are advanced nor the threads can matter. One barrier per
window suffices because what threads exchange (wake flags, the slots below) exists twice, used by turns. When jobs react
to a window, one thread plays that (`play`) while the others wait for it.

A node is visited when it is due, that is, its own next event lies in the window, or when a neighbour has put a packet
on a link to it since its last visit. The next window starts at the earliest next event of all nodes and the earliest
arrival of all packets put on links in this window, so idle time costs nothing.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    BUSY,
    EXHAUSTED,
    FOREVER,
    H_BARRIER,
    H_BUDGET,
    H_FAR,
    H_GO,
    H_HOLDS,
    H_HOST_LATENCY,
    H_NEXT,
    H_NOW,
    H_ORDER,
    H_PARITY,
    H_POSITIONS,
    H_QUIT,
    H_SENSE,
    H_SOON,
    H_STARVED,
    H_STATUS,
    H_STREAK,
    H_THREAD,
    H_TIMER_NEXT,
    H_TOLD,
    H_UNTIL,
    H_WAKE,
    H_WINDOW,
    HOST,
    LOG_FULL,
    N_KIND,
    POOL_FULL,
    QUIET,
    REACHED,
    RUNNING,
    T_CLAIM,
    T_COUNT,
    T_DELIVERED,
    T_DONE,
    T_DROPS,
    T_EARLIEST,
    T_FIRST,
    T_LOG_LIMIT,
    T_PLAYED,
    T_SLOT,
    T_TOTAL,
    T_TRACE,
    T_WAKE,
    T_WORK,
    THREAD_WORDS,
)
from gradwire.sim.engine.memory.atomics import (
    SPINS_BEFORE_YIELDING,
    fetch_add,
    load_acquire,
    prefetch,
    sched_yield,
    store_release,
    wait_while_equal,
    words_at,
)

from .host import host_step
from .merge import BUCKET_BITS, TIME_SHIFT, fetch
from .program_steps import play
from .switch import switch_step

MANY = 600  # packets in a window that are worth a barrier (measured on two cores)
CLAIM = 8  # nodes that a thread takes at a time
PERSISTENT = 4  # windows in a row before the number of threads changes
PATIENCE = 100_000  # reads of the epoch before a worker returns to Python


@njit
def meet(M, threads):
    """Wait until all threads are here, or one of them has failed (H_QUIT)."""
    if threads == 1:
        return
    generation = load_acquire(M, H_SENSE)
    if fetch_add(M, H_BARRIER, 1) == threads - 1:
        M[H_BARRIER] = 0
        store_release(M, H_SENSE, generation + 1)
    else:
        wait_while_equal(M, H_SENSE, generation, H_QUIT)


@njit
def bucket_shift(length):
    """Return the shift of a key after which its top bits number the buckets, for windows of `length`."""
    shift = TIME_SHIFT
    while (max(length - 1, 0) >> (shift - TIME_SHIFT)) >> BUCKET_BITS:
        shift += 1
    return shift


@njit
def visit(M, th, begin, end, shift, position, beyond, parity):
    """Advance the nodes from `position` to `beyond` over [begin, end). Returns the earliest next event of them all."""
    order = M[H_ORDER]
    wake = M[H_WAKE] + parity * M[H_POSITIONS]
    due = M[H_NEXT]
    earliest = FOREVER
    far = M[H_FAR]
    if far and position < beyond:
        fetch(M, M[order + position])
    for i in range(position, beyond):
        later = M[due + i]
        if M[wake + i]:
            M[wake + i] = 0
        elif later >= end:
            if later < earliest:
                earliest = later
            continue
        node = M[order + i]
        if far:
            if i + 1 < beyond and (M[wake + i + 1] or M[due + i + 1] < end):
                fetch(M, M[order + i + 1])
            if i + 2 < beyond:
                prefetch(M, M[order + i + 2])
        if M[node + N_KIND] == HOST:
            later = host_step(M, th, node, begin, end, shift)
        else:
            later = switch_step(M, th, node, begin, end, shift)
        M[due + i] = later
        if later < earliest:
            earliest = later
    return earliest


@njit
def _share(M, th, begin, end, shift, thread, threads, parity):
    """Advance unclaimed nodes until none is left. A thread takes its own nodes first, which the cache may still hold,
    then those that the others have not reached. The thread that advances a node does not affect the outcome."""
    first = M[H_THREAD]
    earliest = FOREVER
    for turn in range(threads):
        other = thread + turn
        if other >= threads:
            other -= threads
        owner = first + other * THREAD_WORDS
        position = M[owner + T_FIRST]
        count = M[owner + T_COUNT]
        while True:
            claimed = fetch_add(M, owner + T_CLAIM + 8 * parity, CLAIM)
            if claimed >= count:
                break
            beyond = position + min(claimed + CLAIM, count)
            earliest = min(earliest, visit(M, th, begin, end, shift, position + claimed, beyond, parity))
    return earliest


@njit
def _window(M, begin, end, thread, threads, alone, parity):
    """Advance one thread's nodes over [begin, end), then the others' unless `alone`, and publish the results."""
    th = M[H_THREAD] + thread * THREAD_WORDS
    M[th + T_EARLIEST] = FOREVER
    M[th + T_DELIVERED] = FOREVER
    M[th + T_WORK] = 0
    M[th + T_WAKE] = M[H_WAKE] + (1 - parity) * M[H_POSITIONS]
    M[th + T_CLAIM + 8 * (1 - parity)] = 0  # not used before all have met
    shift = bucket_shift(end - begin)
    if alone:
        first = M[th + T_FIRST]
        earliest = visit(M, th, begin, end, shift, first, first + M[th + T_COUNT], parity)
    else:
        earliest = _share(M, th, begin, end, shift, thread, threads, parity)
    limit = M[th + T_LOG_LIMIT]
    M[th + T_TOTAL] += M[th + T_WORK]
    slot = th + T_SLOT + 8 * parity
    M[slot] = min(earliest, M[th + T_EARLIEST])
    M[slot + 1] = M[th + T_DELIVERED]
    M[slot + 2] = M[th + T_DONE] >= limit or M[th + T_DROPS] >= limit or M[th + T_TRACE] >= limit
    M[slot + 3] = M[th + T_WORK]
    M[slot + 4] = M[th + T_DONE] - M[th + T_PLAYED]
    M[slot + 5] = 0 if M[H_STARVED] else M[H_TIMER_NEXT]  # does not change before all have met


@njit
def _advance(M, thread, threads, alone):
    """Run windows from H_NOW until H_UNTIL, or until Python has to act (H_STATUS).

    Every thread calls this with its own number and leaves after the same window, or when another one has raised an
    exception and the run is over (H_QUIT); or thread 0 calls it `alone` and does the work of all. Both give the same
    results and differ only in speed: a window with few packets is over before two threads have met.
    """
    now = M[H_NOW]
    until = M[H_UNTIL]
    length = M[H_WINDOW]
    latency = M[H_HOST_LATENCY]
    budget = M[H_BUDGET]
    parity = M[H_PARITY]
    streak = M[H_STREAK]
    first = M[H_THREAD]
    status = RUNNING
    while status == RUNNING:
        end = min(now + length, until)
        if alone:
            for other in range(threads):
                _window(M, now, end, other, threads, True, parity)
        else:
            _window(M, now, end, thread, threads, False, parity)
            meet(M, threads)
            if M[H_QUIT]:
                break
        earliest = FOREVER
        delivered = FOREVER
        full = 0
        work = 0
        told = 0
        timer = FOREVER
        for other in range(threads):
            slot = first + other * THREAD_WORDS + T_SLOT + 8 * parity
            earliest = min(earliest, M[slot])
            delivered = min(delivered, M[slot + 1])
            full |= M[slot + 2]
            work += M[slot + 3]
            told += M[slot + 4]
            timer = M[slot + 5]
        if told or timer < end:  # a process with new operations counts as one that was due before
            if thread == 0:
                play(M, end, threads)
            if not alone:
                meet(M, threads)
                if M[H_QUIT]:
                    break
            earliest = min(earliest, M[H_SOON])
            delivered = min(delivered, M[H_TOLD])
        else:
            earliest = min(earliest, timer)
        if delivered != FOREVER:
            until = max(end, min(until, delivered + latency))
        if M[H_STARVED]:
            until = end
        parity = 1 - parity
        now = max(end, min(earliest, until))
        budget -= 1
        streak = streak + 1 if (work > MANY) == alone else 0
        if now >= until:
            status = REACHED
        elif full:
            status = LOG_FULL
        elif budget <= 0:
            status = EXHAUSTED
        elif streak >= PERSISTENT and threads > 1 and M[H_HOLDS] == 0:
            status = BUSY if alone else QUIET
    if thread == 0:
        M[H_NOW] = now
        M[H_UNTIL] = until
        M[H_PARITY] = parity
        M[H_STREAK] = streak
        if M[H_STATUS] != POOL_FULL:
            M[H_STATUS] = status
    if not alone:
        meet(M, threads)


@njit("int64(int64, int64, int64, int64)", nogil=True)
def run(address, thread, threads, epoch):
    """Enter the engine, on the state at a machine address. Thread 0 calls `_advance`, with `epoch` 1 if alone. Another
    thread takes part in its calls; it returns the last epoch in which it took part, after a while without a new one or
    on H_QUIT."""
    M = words_at(address)
    patience = PATIENCE
    alone = thread == 0 and epoch != 0
    while patience > 0 and (thread == 0 or M[H_QUIT] == 0):
        if thread and load_acquire(M, H_GO) == epoch:
            patience -= 1
            if patience < PATIENCE - SPINS_BEFORE_YIELDING:
                sched_yield()
            continue
        epoch += 1
        _advance(M, thread, threads, alone)
        if thread == 0:
            break
        patience = PATIENCE
    return epoch
