"""Compiled functions keep a host's timers in a binary heap of (time, key), and sweep out stale entries. The heap is in
the host's own stretch of the state.

A key is `message | base of the record | what` (see `gradwire.jit.records.constants`), with the record of a sender or of
a waiting receiver; entries of equal time come out in key order, so the order of timers never depends on history.
Entries are never removed early: a timer that moved leaves a stale entry behind, and so does a message that ends before
its timer is due. `watches` identifies live entries. The stretch has room for the live entries of all active flows of
the host (three each); when stale ones fill it, they are swept out.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.jit.records.constants import FOREVER, KEY_ORDER, MASK_KEY_SENDER, WHAT_PACE, WHAT_TIMER
from gradwire.jit.records.flows import Receiver, Sender, number_of_receiver, sender_at
from gradwire.jit.records.header import StateRecord
from gradwire.jit.records.network import Host

HEAP_FLOW, HEAP_SPARE = 3, 8
"""Entries of a host's heap per flow, and spare ones."""


class TimerEntry(StateRecord):
    """An entry of a host's heap."""

    time = Word("when the timer is due", "ps")
    key = Word("message | base of the record | what, as in `gradwire.jit.records.constants`")


@njit
def first_timer(host: Host) -> TimerEntry:
    """Return the first entry of a host's heap."""
    return TimerEntry(host, host.timer_heap)


@njit
def _entry(first: TimerEntry, index: int) -> TimerEntry:
    """Return an entry of the heap with this first entry."""
    return TimerEntry(first, first.base + TimerEntry.WORDS * index)


@njit
def next_timer(host: Host) -> int:
    """Return the time of a host's first timer; FOREVER if it has none."""
    return first_timer(host).time if host.timer_count else FOREVER


@njit
def _put(first: TimerEntry, index: int, time: int, key: int) -> None:
    """Write an entry."""
    entry = _entry(first, index)
    entry.time = time
    entry.key = key


@njit
def _sift_up(first: TimerEntry, index: int, time: int, key: int) -> None:
    """Insert an entry at a free place at the end."""
    while index > 0:
        parent = (index - 1) >> 1
        other = _entry(first, parent)
        if other.time < time or (other.time == time and other.key <= key):
            break
        _put(first, index, other.time, other.key)
        index = parent
    _put(first, index, time, key)


@njit
def push(host: Host, time: int, key: int) -> None:
    """Add an entry."""
    if host.timer_count >= host.words[host.timer_heap - 1]:  # the word before the heap holds its size
        _sweep(host)
    host.timer_count += 1
    _sift_up(first_timer(host), host.timer_count - 1, time, key)


@njit
def pop(host: Host) -> None:
    """Remove the first entry (read it before, with `first_timer`)."""
    count = host.timer_count - 1
    host.timer_count = count
    first = first_timer(host)
    last = _entry(first, count)
    time, key = last.time, last.key
    index = 0
    while True:
        child = 2 * index + 1
        if child >= count:
            break
        entry = _entry(first, child)
        if child + 1 < count:
            other = _entry(first, child + 1)
            if other.time < entry.time or (other.time == entry.time and other.key < entry.key):
                child += 1
                entry = other
        if time < entry.time or (time == entry.time and key <= entry.key):
            break
        _put(first, index, entry.time, entry.key)
        index = child
    if count > 0:
        _put(first, index, time, key)


@njit
def watches(flow: Sender, armed: int, time: int, key: int) -> bool:
    """Return True if a timer entry is the one that its flow waits for. `armed`: the time for which it is armed. The
    record may by now belong to another message, of any host, that is armed for the same time; timers on a kernel's
    clock ticks often are. So the message is compared as well as the time."""
    return armed == time and (flow.order ^ key) >> KEY_ORDER == 0


@njit
def sender_of(receiver: Receiver) -> Sender:
    """Return the sender's record of the flow of a receiver."""
    return sender_at(receiver.state, number_of_receiver(receiver.state, receiver))


@njit
def _is_live(host: Host, time: int, key: int) -> bool:
    """Return True if a flow waits for an entry; then its armed time is inverted."""
    state, what = host.state, key & 3
    base = (key & MASK_KEY_SENDER) >> 2
    if what == WHAT_TIMER and base >= state.receivers:
        receiver = Receiver(host, base)
        if not watches(sender_of(receiver), receiver.armed, time, key):
            return False
        receiver.armed = ~time if receiver.timer else 0
        return receiver.timer != 0
    flow = Sender(host, base)
    if what == WHAT_PACE and flow.is_done:
        flow.is_listed = 0
        return False
    if what == WHAT_TIMER:
        if not watches(flow, flow.armed, time, key) or flow.is_done:
            return False
        flow.armed = ~time
    return True


@njit
def _sweep(host: Host) -> None:
    """Drop the entries that no flow is waiting for, and rebuild the heap from the rest. A timer that moves back and
    forth between two times leaves the same entry behind repeatedly, of which one is kept: the armed time is inverted in
    the flow's record until all entries have been read."""
    first = first_timer(host)
    kept = 0
    for i in range(host.timer_count):
        entry = _entry(first, i)
        time, key = entry.time, entry.key
        if _is_live(host, time, key):
            _sift_up(first, kept, time, key)
            kept += 1
    host.timer_count = kept
    for i in range(kept):
        entry = _entry(first, i)
        if entry.key & 3 == WHAT_TIMER:
            base = (entry.key & MASK_KEY_SENDER) >> 2
            if base >= host.state.receivers:
                Receiver(host, base).armed = entry.time
            else:
                Sender(host, base).armed = entry.time
