"""A port's queues serve each class's packets first in, first out, or shortest message first with eviction (pFabric).

Packets enter at the end of their class; where the shortest message goes first, they leave from any position.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import CAUSE_EVICTED, DATA, DELAY_BINS, DELAY_FIRST, POOL_FULL
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Port, QueueEntry, Switch, queue_of
from gradwire.jit.records.packets import argument_of, flow_of, kind_of, size_of
from gradwire.sim.engine.memory.atomics import bit_length, prefetch

from .bindings import DELAYS, LIMITS, PFC, SHARED, SRPT
from .link import log_drop, transmit
from .pause import release

ENTRY_WORDS = 5 if DELAYS else 3 + PFC  # of a QueueEntry, as far as they are used


@njit
def take_entry(state: State, thread: Thread) -> QueueEntry:
    """Return a free entry of the thread's pool."""
    base = thread.free_entries
    entry = QueueEntry(state, base)
    if base:
        thread.free_entries = entry.next.base
    else:
        base = thread.next_entry
        entry = QueueEntry(state, base)
        if base >= thread.pool_end:
            state.status = POOL_FULL
        else:
            thread.next_entry = base + ENTRY_WORDS
    return entry


@njit
def give_entry(state: State, thread: Thread, entry: QueueEntry) -> None:
    """Free an entry."""
    entry.next = thread.free_entries
    thread.free_entries = entry.base


@njit
def use_shared(state: State, node: Switch, c: int, size: int) -> None:
    """Count bytes that a class holds of its switch's shared buffer."""
    node.used_bytes += size
    if LIMITS:
        node.used_by_class[c] += size


@njit
def append(
    state: State, thread: Thread, port: Port, header: int, body: int, size: int, c: int, back: Port, time: int
) -> int:
    """Put a packet at the end of class `c` of port `p`. Returns the bytes that wait at the port now."""
    entry = take_entry(state, thread)
    entry.header = header
    entry.body = body
    if PFC:
        entry.back = back
    if DELAYS:
        entry.since = time
    fifo = queue_of(port, c)
    queue = port.queue
    bit = 1 << c
    if queue & bit:
        fifo.tail.next = entry
    else:
        fifo.head = entry
        queue |= bit
    fifo.tail = entry
    fifo.nbytes += size
    queue += size << 8
    port.queue = queue
    if SHARED:
        use_shared(state, port.node, c, size)
    return queue >> 8


@njit
def _take_out(state: State, port: Port, c: int, before: QueueEntry, entry: QueueEntry) -> int:
    """Unlink an entry of class `c`; `before` is the one ahead of it, 0 for none. Returns its size."""
    fifo = queue_of(port, c)
    size = size_of(entry.header)
    queue = port.queue - (size << 8)
    if not before:
        if entry == fifo.tail:
            queue &= ~(1 << c)
        else:
            fifo.head = entry.next
    elif entry == fifo.tail:
        fifo.tail = before
    else:
        before.next = entry.next
    port.queue = queue
    if SHARED:
        use_shared(state, port.node, c, -size)
    fifo.nbytes -= size
    return size


@njit
def rank_of(header: int, body: int) -> int:
    """Return the rank of a packet, lower first: what is left of its message, 0 for control packets."""
    if kind_of(header) != DATA:
        return 0
    return argument_of(body)


@njit
def _best(state: State, port: Port, c: int) -> QueueEntry:
    """Return the entry ahead of the one that goes first: the earliest packet of the message with the lowest rank."""
    fifo = queue_of(port, c)
    tail = fifo.tail
    entry = fifo.head
    before = QueueEntry(state, 0)
    best = entry
    best_before = QueueEntry(state, 0)
    least = rank_of(entry.header, entry.body)
    while entry != tail:
        before = entry
        entry = entry.next
        rank = rank_of(entry.header, entry.body)
        if rank < least:
            best = entry
            best_before = before
            least = rank
    if kind_of(best.header) != DATA:
        return best_before
    flow_number = flow_of(best.body)
    entry = fifo.head
    before = QueueEntry(state, 0)
    while kind_of(entry.header) != DATA or flow_of(entry.body) != flow_number:
        before = entry
        entry = entry.next
    return before


@njit
def make_room(
    state: State, thread: Thread, port: Port, c: int, size: int, room: int, header: int, body: int, time: int
) -> bool:
    """Drop packets of class `c` with a higher rank than the arriving one until `size` bytes fit into `room` at port
    `p`. The highest rank goes first, and of equals the latest. Returns True if the bytes fit."""
    own = rank_of(header, body)
    fifo = queue_of(port, c)
    while (port.queue >> 8) + size > room:
        if not (port.queue >> c) & 1:
            return False
        tail = fifo.tail
        entry = fifo.head
        before = QueueEntry(state, 0)
        worst = entry
        worst_before = QueueEntry(state, 0)
        most = rank_of(entry.header, entry.body)
        while entry != tail:
            before = entry
            entry = entry.next
            rank = rank_of(entry.header, entry.body)
            if rank >= most:
                worst = entry
                worst_before = before
                most = rank
        if most <= own:
            return False
        _take_out(state, port, c, worst_before, worst)
        log_drop(state, thread, port, time, CAUSE_EVICTED, worst.header, worst.body)
        give_entry(state, thread, worst)
    return True


@njit
def delay_bin(delay: int) -> int:
    """Return the bin of a waiting time: bin 0 below 2**DELAY_FIRST ps, then four bins per octave."""
    if delay < 1 << DELAY_FIRST:
        return 0
    octave = bit_length(delay) - 1
    return min(1 + 4 * (octave - DELAY_FIRST) + ((delay >> (octave - 2)) & 3), DELAY_BINS - 1)


@njit
def count_delay(state: State, port: Port, delay: int) -> None:
    """Count a packet's waiting time at port `p`."""
    port.extra.delays[delay_bin(delay)] += 1


@njit
def send_first(state: State, thread: Thread, port: Port, c: int, start: int, order: int) -> None:
    """Start the transmission of the packet of class `c` that goes first. `order`: see `pause.release`."""
    fifo = queue_of(port, c)
    if SRPT:
        before = _best(state, port, c)
        entry = before.next if before else fifo.head
        size = _take_out(state, port, c, before, entry)
        header = entry.header
        body = entry.body
    else:
        entry = fifo.head
        header = entry.header
        body = entry.body
        size = size_of(header)
        queue = port.queue - (size << 8)
        if entry == fifo.tail:
            queue &= ~(1 << c)
        else:
            follower = entry.next
            fifo.head = follower
            prefetch(follower, 0)
        port.queue = queue
        if SHARED:
            use_shared(state, port.node, c, -size)
        fifo.nbytes -= size
    if DELAYS:
        count_delay(state, port, start - entry.since)
    give_entry(state, thread, entry)
    transmit(state, thread, port, header, body, start)
    if PFC and entry.back:
        release(state, thread, entry.back, c, size, start, order)
