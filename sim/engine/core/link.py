"""Transmits packets over the link behind an egress port, with loss, logs and telemetry stamps, into the far node's
ring.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.records.constants import (
    CAUSE_DOWN,
    CAUSE_EVICTED,
    CAUSE_LINK,
    DATA,
    PAUSE,
    PORT_FLAG_STAMPS,
    SHAPE_DOWN,
    SHAPE_LOSSY,
    SHAPE_RING,
    SHAPE_SPILLING,
    SHAPE_TRACED,
    SPEED_SHIFT,
    STAMP_MOST,
)
from gradwire.jit.records.flows import Stamps, sender_at, stamp_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import DropEntry, LinkHead, Port, RingEntry, TraceEntry
from gradwire.jit.records.packets import argument_of, flow_of, is_logged, kind_of, size_of
from gradwire.sim.engine.memory.atomics import load_acquire, store_release

from .bindings import INT

ROUND_UP = (1 << SPEED_SHIFT) - 1
SENT, SPILL_TAIL = Port.sent.offset, Port.spill_tail.offset
RING_FREE, SPILL_FREE = LinkHead.ring_free.offset, LinkHead.spill_free.offset


@njit
def transmission_time(size: int, speed: int) -> int:
    """Return the picoseconds to send `size` bytes at `speed` picoseconds per byte << 16, rounded up."""
    return (size * speed + ROUND_UP) >> SPEED_SHIFT


@njit
def log_drop(state: State, thread: Thread, port: Port, time: int, cause: int, header: int, body: int) -> None:
    """Log a lost packet and count it at the port."""
    if cause < CAUSE_EVICTED:
        port.drops[cause] += 1
    else:
        port.extra.drops_by_cause[cause - CAUSE_EVICTED] += 1
    entry = DropEntry(state, thread.drops + thread.drop_count * DropEntry.WORDS)
    entry.time = time
    entry.link_and_cause = port.link | (cause << 32)
    entry.header = header
    entry.body = body
    thread.drop_count += 1


@njit
def _trace(state: State, thread: Thread, port: Port, start: int, header: int, body: int, event: int) -> None:
    """Log a packet on a link."""
    entry = TraceEntry(state, thread.trace + thread.trace_count * TraceEntry.WORDS)
    entry.start = start
    entry.link = port.link
    entry.header = header
    entry.body = body
    entry.event = event
    thread.trace_count += 1


@njit
def _put(entry: RingEntry, arrival: int, header: int, body: int) -> None:
    """Write a packet into an entry of a ring."""
    entry.time = arrival
    entry.header = header
    entry.body = body


@njit
def _push_full(state: State, port: Port, arrival: int, header: int, body: int) -> None:
    """Put a packet on a link whose ring is full as far as the producer knows.

    The ring is small, so that it stays in the cache; further packets go to the spill ring, which has room for whatever
    the link can hold. While it is not empty, new packets follow there, so the ring is always older than the spill ring
    and the consumer reads one after the other.
    """
    ring = port.shape & SHAPE_RING
    head = port.consumer
    spilled = port.spill_tail
    tail = port.sent
    if spilled == load_acquire(head, SPILL_FREE):
        free = load_acquire(head, RING_FREE)
        if tail - free <= ring:
            port.consumed = free
            port.shape &= ~SHAPE_SPILLING
            _put(RingEntry(state, port.ring + (tail & ring) * RingEntry.WORDS), arrival, header, body)
            store_release(port, SENT, tail + 1)
            return
    _put(RingEntry(state, port.spill + (spilled & port.spill_mask) * RingEntry.WORDS), arrival, header, body)
    port.shape |= SHAPE_SPILLING
    store_release(port, SPILL_TAIL, spilled + 1)


@njit
def _stamp(state: State, port: Port, body: int, start: int) -> None:
    """Write the state of this port into the packet's telemetry slot (in-band telemetry)."""
    flow = sender_at(state, flow_of(body))
    if flow.stamps == 0:
        return
    stamps = Stamps(state, flow.stamps + (argument_of(body) & flow.stamp_mask) * Stamps.WORDS)
    if stamps.hops == STAMP_MOST:
        return
    stamp = stamp_at(stamps, stamps.hops)
    stamp.port = port.link
    stamp.queue = port.queue >> 8
    stamp.sent_bytes = port.bytes_sent
    stamp.time = start
    stamp.ps_per_byte = port.ps_per_byte
    stamps.hops += 1


@njit
def _fate(state: State, thread: Thread, port: Port, header: int, body: int, start: int, end: int) -> bool:
    """Apply random loss, cuts and logging to a packet on a link. Returns True if it never arrives."""
    shape = port.shape
    lost = 0
    cause = CAUSE_LINK
    if shape & SHAPE_DOWN:
        lost = 1
        cause = CAUSE_DOWN
    elif shape & SHAPE_LOSSY and kind_of(header) != PAUSE:
        # draws are counted by the packets ever transmitted here
        count = port.sent + port.spill_tail + port.drops[CAUSE_LINK]
        count += port.extra.drops_by_cause[CAUSE_DOWN - CAUSE_EVICTED]
        if draw(port.loss_key, count) < port.loss:
            lost = 1
    if shape & SHAPE_TRACED and is_logged(header):
        _trace(state, thread, port, start, header, body, lost)
    if lost:
        log_drop(state, thread, port, end, cause, header, body)
    return lost != 0


@njit
def transmit(state: State, thread: Thread, port: Port, header: int, body: int, start: int) -> None:
    """Put a packet on the link of port `p`; its first bit leaves at `start`."""
    size = size_of(header)
    end = start + ((size * port.ps_per_byte + ROUND_UP) >> SPEED_SHIFT)
    if INT and port.flags & PORT_FLAG_STAMPS and kind_of(header) == DATA:
        _stamp(state, port, body, start)
    port.busy_until = end
    port.bytes_sent += size
    shape = port.shape
    if shape & (SHAPE_LOSSY | SHAPE_TRACED | SHAPE_DOWN) and _fate(state, thread, port, header, body, start, end):
        return
    arrival = end + port.latency
    tail = port.sent
    ring = shape & SHAPE_RING
    if tail - port.consumed <= ring:
        _put(RingEntry(state, port.ring + (tail & ring) * RingEntry.WORDS), arrival, header, body)
        store_release(port, SENT, tail + 1)
    else:
        _push_full(state, port, arrival, header, body)
    far_end = shape >> 32
    if thread.wake[far_end] == 0:
        thread.wake[far_end] = 1
    if arrival < thread.earliest_arrival:
        thread.earliest_arrival = arrival
