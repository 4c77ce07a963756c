"""Handles packets that reach a switch's egress port (send, queue, mark, trim, drop), and chooses the queue to serve.

A port is served *lazily*. Nothing can change the order of transmissions between two packets that reach the port, so
before a packet is handled, and once at the end of a window, the transmissions that could have started by then are
started; until then no time is spent on the port. A packet that finds the port idle goes straight onto the link.

The queue length that a packet meets excludes the packet on the wire (our choice).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.records import Words
from gradwire.jit.records.constants import ALPHA_UNIT, CAUSE_TAIL, DATA, FOREVER, PORT_FLAG_ACTIVE
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Port, Switch, queue_of
from gradwire.jit.records.packets import (
    is_trimmed,
    kind_of,
    priority_of,
    size_of,
    with_mark,
    with_priority,
    with_size,
    with_trimmed,
)
from gradwire.sim.engine.memory.atomics import count_trailing_zeros, prefetch

from .bindings import DELAYS, DRR, LIMITS, PFC, SHARED, SRPT, TRIMMING, admit
from .link import log_drop, transmit
from .pause import AFTER_ALL, eligible, hold, limit_of, list_port, may_send, overfull, pausable, send_pause
from .queue import append, count_delay, make_room, send_first, use_shared

ACCEPT, MARK = 0, 1  # verdicts of a queue policy; 2 and up: drop for cause verdict - 2


@njit
def _turn(state: State, port: Port, mask: int) -> int:
    """Return the class whose first packet may go by deficit round robin (Shreedhar and Varghese, SIGCOMM '95). A class
    whose turn begins gets its quantum on top of its remaining deficit, which it loses when it runs empty."""
    extra = port.extra
    c = extra.turn & 7
    granted = extra.turn >> 3
    while True:
        if (mask >> c) & 1:
            if not granted:
                extra.deficit[c] += extra.quantum[c]
                granted = 1
            fifo = queue_of(port, c)
            entry = fifo.head
            size = size_of(entry.header)
            if size <= extra.deficit[c]:
                extra.deficit[c] -= size
                if entry == fifo.tail:
                    extra.deficit[c] = 0
                    extra.turn = (c + 1) & 7
                else:
                    extra.turn = c | 8
                return c
        granted = 0
        c = (c + 1) & 7


@njit
def _next_start(state: State, port: Port) -> int:
    """Return the time at which port `p` can start its next transmission; FOREVER if it has none."""
    if PFC and port.extra.pause_due:
        return max(port.busy_until, port.extra.pause_due)
    if eligible(state, port):
        return port.busy_until
    return FOREVER


@njit
def _serve_one(state: State, thread: Thread, port: Port, start: int, mask: int, order: int) -> None:
    """Start the transmission whose turn it is among the classes in `mask`, or the pause frame that is due."""
    if PFC and port.extra.pause_due:
        send_pause(state, thread, port, start)
        return
    c = count_trailing_zeros(mask)
    if DRR and port.extra.quantum[c]:
        c = _turn(state, port, mask)
    send_first(state, thread, port, c, start, order)


@njit
def serve(state: State, thread: Thread, port: Port, limit: int) -> None:
    """Start every transmission of port `p` that can start at or before `limit`. A queue never waits at an idle port
    that may send, so each starts when the one before ends."""
    while True:
        start = port.busy_until
        if start > limit:
            break
        mask = eligible(state, port)
        if PFC:
            start = _next_start(state, port)
            if start > limit:
                break
        elif mask == 0:
            break
        _serve_one(state, thread, port, start, mask, port.link)


@njit
def _serve_in_order(state: State, thread: Thread, node: Switch, limit: int) -> None:
    """Start what the ports of a switch can start at or before `limit`, in order of time, then of link."""
    while True:
        first = FOREVER
        first_port = Port(state, 0)
        for i in range(node.active_count):
            port = Port(state, node.active_ports[i])
            start = _next_start(state, port)
            if start < first or (start == first and start < FOREVER and port.link < first_port.link):
                first = start
                first_port = port
        if first > limit:
            return
        _serve_one(state, thread, first_port, first, eligible(state, first_port), first_port.link)


@njit
def serve_all(state: State, thread: Thread, node: Switch, limit: int) -> None:
    """Bring all ports of a switch to `limit`."""
    if PFC and node.pause_wanted:
        _serve_in_order(state, thread, node, limit)
        return
    for i in range(node.active_count):
        serve(state, thread, Port(state, node.active_ports[i]), limit)


@njit
def _fetch_firsts(state: State, active: Words, count: int) -> None:
    """Prefetch the first packets of these ports."""
    for i in range(count):
        port = Port(state, active[i])
        mask = port.queue & 0xFF
        if mask:
            prefetch(queue_of(port, count_trailing_zeros(mask)).head, 0)


@njit
def finish(state: State, thread: Thread, node: Switch, end: int) -> int:
    """Start what can start before `end` at the ports that have packets; return when the next one could start after."""
    if PFC and node.pause_wanted:
        _serve_in_order(state, thread, node, end - 1)
    active = node.active_ports
    count = node.active_count
    if state.exceeds_caches:
        _fetch_firsts(state, active, count)
    kept = 0
    earliest = FOREVER
    for i in range(count):
        port = Port(state, active[i])
        serve(state, thread, port, end - 1)
        if PFC:
            start = _next_start(state, port)
            if start < earliest:
                earliest = start
            listed = port.queue & 0xFF or port.extra.pause_due
        else:
            listed = port.queue & 0xFF
            if listed and port.busy_until < earliest:
                earliest = port.busy_until
        if listed:
            active[kept] = port.base
            kept += 1
        else:
            port.flags = port.flags & ~PORT_FLAG_ACTIVE
    node.active_count = kept
    return earliest


@njit
def _full(state: State, node: Switch, port: Port, c: int, waiting: int, size: int) -> bool:
    """Return True if there is no room for a packet in the port's buffer or the switch's shared one. A queue may fill
    the shared buffer up to alpha times its free part (dynamic thresholds, Choudhury and Hahne, ToN 1998). A class may
    have its own limit in either."""
    if LIMITS:
        held = node.used_by_class[c] if SHARED else queue_of(port, c).nbytes
        if held + size > state.class_limits[c]:
            return True
    if SHARED:
        free = state.shared_buffer - node.used_bytes
        queued = queue_of(port, c).nbytes
        return size > free or queued + size > (free * state.shared_alpha) // ALPHA_UNIT
    return waiting + size > port.buffer


@njit
def _trim(
    state: State,
    thread: Thread,
    node: Switch,
    port: Port,
    header: int,
    body: int,
    size: int,
    c: int,
    back: Port,
    time: int,
) -> None:
    """Cut a data packet that finds its queue too long to its header, or every other time the last packet of the queue.
    This prevents unfairness among senders that send in step (NDP, SIGCOMM '17)."""
    count = port.red_draws
    port.red_draws = count + 1
    if (port.queue >> c) & 1 and draw(port.red_key, count) & 1:
        fifo = queue_of(port, c)
        last = fifo.tail
        other = last.header
        other_size = size_of(other)
        cut = is_trimmed(other)
        if kind_of(other) == DATA and not cut and other_size >= size:
            body, last.body = last.body, body
            header, last.header = other, header
            fifo.nbytes -= other_size - size
            port.queue -= (other_size - size) << 8
            if SHARED:
                use_shared(state, node, c, size - other_size)
            if DELAYS:
                last.since = time
    port.extra.trimmed += 1
    header = with_size(with_trimmed(header, 1), state.trim_size)
    header = with_priority(header, state.trim_class)
    size = state.trim_size
    c = min(state.trim_class, port.flags >> 8)
    if _full(state, node, port, c, port.queue >> 8, size):
        log_drop(state, thread, port, time, CAUSE_TAIL, header, body)
        return
    _enqueue(state, thread, node, port, header, body, size, c, back, time)


@njit
def _enqueue(
    state: State,
    thread: Thread,
    node: Switch,
    port: Port,
    header: int,
    body: int,
    size: int,
    c: int,
    back: Port,
    time: int,
) -> None:
    waiting = append(state, thread, port, header, body, size, c, back, time)
    if waiting > port.peak:
        port.peak = waiting
    if not port.flags & PORT_FLAG_ACTIVE:
        list_port(state, node, port)
    if PFC:
        hold(state, thread, back, c, size, time)


@njit
def _no_room(
    state: State,
    thread: Thread,
    node: Switch,
    port: Port,
    c: int,
    header: int,
    body: int,
    size: int,
    back: Port,
    time: int,
) -> int:
    """Return True if a packet has to be dropped; with flow control, the bytes from the same link count."""
    if PFC and pausable(state, c):
        if not node.pause_wanted and back.extra.held[c] + size > limit_of(state, back):
            serve_all(state, thread, node, time)  # some of it may have left
        return overfull(state, back, c, size)
    if SRPT:
        return not make_room(state, thread, port, c, size, port.buffer, header, body, time)
    return _full(state, node, port, c, port.queue >> 8, size)


@njit
def offer(
    state: State, thread: Thread, node: Switch, port: Port, header: int, body: int, back: Port, time: int
) -> None:
    """Send, queue, mark, trim or drop a packet that reaches egress port `p` of switch `node` at `time`. `back`: the
    port opposite to the link it came over."""
    queue = port.queue
    if queue & 0xFF or PFC:
        serve(state, thread, port, time)
        queue = port.queue
    flags = port.flags
    c = min(priority_of(header), flags >> 8)
    if port.busy_until <= time and (queue == 0 or PFC) and may_send(state, port, c):
        transmit(state, thread, port, header, body, time)
        if DELAYS:
            count_delay(state, port, 0)
        return
    size = size_of(header)
    if TRIMMING and kind_of(header) == DATA and not is_trimmed(header) and size > state.trim_size:
        queued = queue_of(port, c).nbytes
        if queued + size > port.trim_threshold or _full(state, node, port, c, queue >> 8, size):
            _trim(state, thread, node, port, header, body, size, c, back, time)
            return
    if _no_room(state, thread, node, port, c, header, body, size, back, time):
        log_drop(state, thread, port, time, CAUSE_TAIL, header, body)
        return
    verdict = admit(port, queue_of(port, c), header)
    if verdict > MARK:
        log_drop(state, thread, port, time, verdict - 2, header, body)
        return
    if verdict == MARK:
        header = with_mark(header, 1)
        port.marks += 1
        port.control_marks += kind_of(header) != DATA
    _enqueue(state, thread, node, port, header, body, size, c, back, time)


@njit
def pause(state: State, thread: Thread, port: Port, classes: int, time: int) -> None:
    """Apply a pause frame for `classes` at port `p`, which has been served up to `time`."""
    extra = port.extra
    if classes & ~extra.paused:
        extra.pauses += 1
    extra.paused = classes
    if port.busy_until < time:
        port.busy_until = time
    mask = eligible(state, port)
    if port.busy_until == time and mask and not extra.pause_due:
        _serve_one(state, thread, port, time, mask, AFTER_ALL)
