"""Implements priority flow control (IEEE 802.1Qbb), by which a switch pauses a neighbour's class before dropping its
packets.

A switch counts the bytes that wait in it by class and by the link they came over. Above X_LIMIT it sends a pause frame
back along that link, and another one when there are H_HYSTERESIS bytes less. A frame covers all classes at once, goes
ahead of everything that waits at its port, and holds until the next one (the standard's pauses expire and are renewed;
ours do not expire, and a frame is never lost at random, as if it had been renewed).

Order matters here, as a packet that leaves through one port may cause a frame at another one. So while a switch pauses
any neighbour, its ports are served not one by one but in order of time, equal times by the number of the link.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import ALPHA_UNIT, MASK_FLOW, PAUSE, PORT_FLAG_ACTIVE
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Port, Switch
from gradwire.jit.records.packets import body_of, with_kind, with_logged, with_size
from gradwire.scenarios.wire import MIN_FRAME

from .bindings import PFC, SHARED
from .link import transmit

AFTER_ALL = 1 << 40  # instead of a link's number: after everything else at that time


@njit
def eligible(state: State, port: Port) -> int:
    """Return the classes of port `p` that have packets and may send them."""
    if PFC:
        return port.queue & 0xFF & ~port.extra.paused
    return port.queue & 0xFF


@njit
def may_send(state: State, port: Port, c: int) -> bool:
    """Return True if the far end accepts packets of class `c`."""
    if PFC:
        return not (port.extra.paused >> c) & 1
    return True


@njit
def list_port(state: State, node: Switch, port: Port) -> None:
    """Have the port served when the window ends."""
    flags = port.flags
    if not flags & PORT_FLAG_ACTIVE:
        port.flags = flags | PORT_FLAG_ACTIVE
        count = node.active_count
        node.active_ports[count] = port.base
        node.active_count = count + 1


@njit
def send_pause(state: State, thread: Thread, port: Port, start: int) -> None:
    """Send the far end of port `p` a frame with the classes to pause."""
    extra = port.extra
    extra.pause_due = 0
    header = with_logged(with_kind(with_size(0, MIN_FRAME), PAUSE), 1)
    transmit(state, thread, port, header, body_of(MASK_FLOW, 0, extra.pause_wanted), start)


@njit
def _signal(state: State, thread: Thread, port: Port, time: int, order: int) -> None:
    """Schedule a pause frame at port `p` at `time`: it goes at once, or after the packet that the port is sending.
    `order`: the number of the link whose event caused it, or AFTER_ALL."""
    extra = port.extra
    if extra.pause_due:
        return
    busy = port.busy_until
    if busy < time or (busy == time and port.link < order):
        send_pause(state, thread, port, time)
    else:
        extra.pause_due = time
        list_port(state, port.node, port)


@njit
def limit_of(state: State, port: Port) -> int:
    """Return the bytes of one class, from the link opposite to port `p`, above which its far end is paused."""
    limit = port.extra.pause_limit
    if SHARED:
        free = max(state.shared_buffer - port.node.used_bytes, 0)
        limit = min(limit, (free * state.shared_alpha) // ALPHA_UNIT)
    return limit


@njit
def overfull(state: State, back: Port, c: int, size: int) -> bool:
    """Return True if a packet from the link opposite to port `back` finds no room: its sender did not pause in time."""
    extra = back.extra
    return extra.held[c] + size > extra.pause_limit + extra.headroom


@njit
def pausable(state: State, c: int) -> int:
    """Return 1 if class `c` has flow control."""
    return (state.pause_classes >> c) & 1


@njit
def hold(state: State, thread: Thread, back: Port, c: int, size: int, time: int) -> None:
    """Count a packet, from the link opposite to port `back`, that waits in the switch."""
    extra = back.extra
    held = extra.held[c] + size
    extra.held[c] = held
    if pausable(state, c) and held > limit_of(state, back) and not (extra.pause_wanted >> c) & 1:
        extra.pause_wanted |= 1 << c
        back.node.pause_wanted += 1
        _signal(state, thread, back, time, AFTER_ALL)


@njit
def release(state: State, thread: Thread, back: Port, c: int, size: int, time: int, order: int) -> None:
    """Count a packet that has left the queue, through the port with the number `order`."""
    extra = back.extra
    held = extra.held[c] - size
    extra.held[c] = held
    if (extra.pause_wanted >> c) & 1 and held <= max(limit_of(state, back) - state.pause_hysteresis, 0):
        extra.pause_wanted &= ~(1 << c)
        back.node.pause_wanted -= 1
        _signal(state, thread, back, time, order)
