"""Runs the engine in windows [T, T + L), advancing every node separately, and lets all threads meet in between.

L is at most the lookahead, the shortest time in which anything a node does can reach another node. So within a window
nodes are independent, and neither the order in which they are advanced nor the threads can matter. One barrier per
window suffices because what threads exchange (wake flags, the slots below) exists twice, used by turns. When jobs react
to a window, one thread plays that (`play`) while the others wait for it.

A node is visited when it is due, that is, its own next event lies in the window, or when a neighbour has put a packet
on a link to it since its last visit. The next window starts at the earliest next event of all nodes and the earliest
arrival of all packets put on links in this window, so idle time costs nothing.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.constants import BUSY, EXHAUSTED, FOREVER, HOST, LOG_FULL, POOL_FULL, QUIET, REACHED, RUNNING
from gradwire.jit.records.header import State, Thread, WindowResult
from gradwire.jit.records.network import Host, Node, Switch
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
CLAIMS, PUBLISHED = Thread.claims.offset, Thread.published.offset
SENSE, BARRIER, QUIT, GO = State.sense.offset, State.barrier.offset, State.quit.offset, State.go.offset
HOLDS = State.holds.offset
PATIENCE = 100_000  # reads of the epoch before a worker returns to Python


@njit
def meet(state: State, threads: int) -> None:
    """Wait until all threads are here, or one of them has failed (H_QUIT)."""
    if threads == 1:
        return
    generation = load_acquire(state, SENSE)
    if fetch_add(state, BARRIER, 1) == threads - 1:
        state.barrier = 0
        store_release(state, SENSE, generation + 1)
    else:
        wait_while_equal(state, SENSE, generation, QUIT)


@njit
def thread_at(state: State, number: int) -> Thread:
    """Return the record of a thread."""
    return Thread(state, state.thread_records + number * Thread.WORDS)


@njit
def result_of(thread: Thread, parity: int) -> WindowResult:
    """Return what a thread publishes in the windows of one parity."""
    return WindowResult(thread, thread.base + PUBLISHED + 8 * parity)


@njit
def bucket_shift(length: int) -> int:
    """Return the shift of a key after which its top bits number the buckets, for windows of `length`."""
    shift = TIME_SHIFT
    while (max(length - 1, 0) >> (shift - TIME_SHIFT)) >> BUCKET_BITS:
        shift += 1
    return shift


@njit
def visit(
    state: State, thread: Thread, begin: int, end: int, shift: int, position: int, beyond: int, parity: int
) -> int:
    """Advance the nodes from `position` to `beyond` over [begin, end). Returns the earliest next event of them all."""
    order = state.order
    wake = Words(state, state.wake + parity * state.positions)
    due = state.next_events
    earliest = FOREVER
    far = state.exceeds_caches
    if far and position < beyond:
        fetch(state, Node(state, order[position]))
    for i in range(position, beyond):
        later = due[i]
        if wake[i]:
            wake[i] = 0
        elif later >= end:
            if later < earliest:
                earliest = later
            continue
        node = Node(state, order[i])
        if far:
            if i + 1 < beyond and (wake[i + 1] or due[i + 1] < end):
                fetch(state, Node(state, order[i + 1]))
            if i + 2 < beyond:
                prefetch(Node(state, order[i + 2]), 0)
        if node.kind == HOST:
            later = host_step(state, thread, Host(state, node.base), begin, end, shift)
        else:
            later = switch_step(state, thread, Switch(state, node.base), begin, end, shift)
        due[i] = later
        if later < earliest:
            earliest = later
    return earliest


@njit
def _share(
    state: State, thread: Thread, begin: int, end: int, shift: int, thread_number: int, threads: int, parity: int
) -> int:
    """Advance unclaimed nodes until none is left. A thread takes its own nodes first, which the cache may still hold,
    then those that the others have not reached. The thread that advances a node does not affect the outcome."""
    earliest = FOREVER
    for turn in range(threads):
        other = thread_number + turn
        if other >= threads:
            other -= threads
        owner = thread_at(state, other)
        position = owner.first_position
        count = owner.node_count
        while True:
            claimed = fetch_add(owner, CLAIMS + 8 * parity, CLAIM)
            if claimed >= count:
                break
            beyond = position + min(claimed + CLAIM, count)
            earliest = min(earliest, visit(state, thread, begin, end, shift, position + claimed, beyond, parity))
    return earliest


@njit
def _window(state: State, begin: int, end: int, thread_number: int, threads: int, alone: int, parity: int) -> None:
    """Advance one thread's nodes over [begin, end), then the others' unless `alone`, and publish the results."""
    thread = thread_at(state, thread_number)
    thread.earliest_arrival = FOREVER
    thread.earliest_delivery = FOREVER
    thread.work = 0
    thread.wake_base = state.wake + (1 - parity) * state.positions
    thread.claims[8 * (1 - parity)] = 0  # not used before all have met
    shift = bucket_shift(end - begin)
    if alone:
        first = thread.first_position
        earliest = visit(state, thread, begin, end, shift, first, first + thread.node_count, parity)
    else:
        earliest = _share(state, thread, begin, end, shift, thread_number, threads, parity)
    limit = thread.log_limit
    thread.total_work += thread.work
    result = result_of(thread, parity)
    result.earliest = min(earliest, thread.earliest_arrival)
    result.delivered = thread.earliest_delivery
    result.is_full = thread.delivery_count >= limit or thread.drop_count >= limit or thread.trace_count >= limit
    result.work = thread.work
    result.to_play = thread.delivery_count - thread.played
    result.next_timer = 0 if state.starved_process else state.next_timer  # does not change before all have met


@njit
def _advance(state: State, thread_number: int, threads: int, alone: int) -> None:
    """Run windows from H_NOW until H_UNTIL, or until Python has to act (H_STATUS).

    Every thread calls this with its own number and leaves after the same window, or when another one has raised an
    exception and the run is over (H_QUIT); or thread 0 calls it `alone` and does the work of all. Both give the same
    results and differ only in speed: a window with few packets is over before two threads have met.
    """
    now = state.now
    until = state.until
    length = state.window
    latency = state.host_latency
    budget = state.budget
    parity = state.parity
    streak = state.streak
    status = RUNNING
    while status == RUNNING:
        end = min(now + length, until)
        if alone:
            for other in range(threads):
                _window(state, now, end, other, threads, True, parity)
        else:
            _window(state, now, end, thread_number, threads, False, parity)
            meet(state, threads)
            if state.quit:
                break
        earliest = FOREVER
        delivered = FOREVER
        full = 0
        work = 0
        to_play = 0
        timer = FOREVER
        for other in range(threads):
            result = result_of(thread_at(state, other), parity)
            earliest = min(earliest, result.earliest)
            delivered = min(delivered, result.delivered)
            full |= result.is_full
            work += result.work
            to_play += result.to_play
            timer = result.next_timer
        if to_play or timer < end:  # a process with new operations counts as one that was due before
            if thread_number == 0:
                play(state, end, threads)
            if not alone:
                meet(state, threads)
                if state.quit:
                    break
            earliest = min(earliest, state.earliest_consequence)
            delivered = min(delivered, state.earliest_python_event)
        else:
            earliest = min(earliest, timer)
        if delivered != FOREVER:
            until = max(end, min(until, delivered + latency))
        if state.starved_process:
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
        elif streak >= PERSISTENT and threads > 1 and state.holds == 0:
            status = BUSY if alone else QUIET
    if thread_number == 0:
        state.now = now
        state.until = until
        state.parity = parity
        state.streak = streak
        if state.status != POOL_FULL:
            state.status = status
    if not alone:
        meet(state, threads)


@njit("int64(int64, int64, int64, int64)", nogil=True)
def run(address: int, thread_number: int, threads: int, epoch: int) -> int:
    """Enter the engine, on the state at a machine address. Thread 0 calls `_advance`, with `epoch` 1 if alone. Another
    thread takes part in its calls; it returns the last epoch in which it took part, after a while without a new one or
    on H_QUIT."""
    state = State(words_at(address), 0)
    patience = PATIENCE
    alone = thread_number == 0 and epoch != 0
    while patience > 0 and (thread_number == 0 or state.quit == 0):
        if thread_number and load_acquire(state, GO) == epoch:
            patience -= 1
            if load_acquire(state, HOLDS) == 2:  # a waiting worker takes processor time from thread 0
                break
            if patience < PATIENCE - SPINS_BEFORE_YIELDING:
                sched_yield()
            continue
        epoch += 1
        _advance(state, thread_number, threads, alone)
        if thread_number == 0:
            break
        patience = PATIENCE
    return epoch
