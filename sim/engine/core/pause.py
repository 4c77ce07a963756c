"""Priority flow control (IEEE 802.1Qbb): a switch pauses a neighbour's class before it has to drop its packets.

A switch counts the bytes that wait in it by class and by the link they came over. Above X_LIMIT it sends a pause frame
back along that link, and another one when there are H_HYSTERESIS bytes less. A frame covers all classes at once, goes
ahead of everything that waits at its port, and holds until the next one (the standard's pauses expire and are renewed;
ours do not expire, and a frame is never lost at random, as if it had been renewed).

Order matters here, as a packet that leaves through one port may cause a frame at another one. So while a switch pauses
any neighbour, its ports are served not one by one but in order of time, equal times by the number of the link.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    A_KIND,
    A_LOGGED,
    A_SIZE,
    ALPHA_UNIT,
    B_ARGUMENT,
    H_ALPHA,
    H_HYSTERESIS,
    H_PAUSE_CLASSES,
    H_SHARED,
    MASK_FLOW,
    N_ACTIVE,
    N_ACTIVE_COUNT,
    N_USED,
    N_WANTED,
    P_BUSY,
    P_FLAGS,
    P_ID,
    P_MORE,
    P_NODE,
    P_QUEUE,
    PAUSE,
    PORT_FLAG_ACTIVE,
    X_HELD,
    X_LIMIT,
    X_PAUSED,
    X_ROOM,
    X_SIGNAL,
    X_WANTED,
)
from gradwire.scenarios.wire import MIN_FRAME

from .bindings import PFC, SHARED
from .link import transmit

AFTER_ALL = 1 << 40  # instead of a link's number: after everything else at that time


@njit
def eligible(M, p):
    """Return the classes of port `p` that have packets and may send them."""
    if PFC:
        return M[p + P_QUEUE] & 0xFF & ~M[M[p + P_MORE] + X_PAUSED]
    return M[p + P_QUEUE] & 0xFF


@njit
def may_send(M, p, c):
    """Return True if the far end accepts packets of class `c`."""
    if PFC:
        return not (M[M[p + P_MORE] + X_PAUSED] >> c) & 1
    return True


@njit
def list_port(M, node, p):
    """Have the port served when the window ends."""
    flags = M[p + P_FLAGS]
    if not flags & PORT_FLAG_ACTIVE:
        M[p + P_FLAGS] = flags | PORT_FLAG_ACTIVE
        count = M[node + N_ACTIVE_COUNT]
        M[M[node + N_ACTIVE] + count] = p
        M[node + N_ACTIVE_COUNT] = count + 1


@njit
def send_pause(M, th, p, start):
    """Send the far end of port `p` a frame with the classes to pause."""
    more = M[p + P_MORE]
    M[more + X_SIGNAL] = 0
    A = (MIN_FRAME << A_SIZE) | (PAUSE << A_KIND) | (1 << A_LOGGED)
    transmit(M, th, p, A, MASK_FLOW | (M[more + X_WANTED] << B_ARGUMENT), start)


@njit
def _signal(M, th, p, time, order):
    """Schedule a pause frame at port `p` at `time`: it goes at once, or after the packet that the port is sending.
    `order`: the number of the link whose event caused it, or AFTER_ALL."""
    more = M[p + P_MORE]
    if M[more + X_SIGNAL]:
        return
    busy = M[p + P_BUSY]
    if busy < time or (busy == time and M[p + P_ID] < order):
        send_pause(M, th, p, time)
    else:
        M[more + X_SIGNAL] = time
        list_port(M, M[p + P_NODE], p)


@njit
def limit_of(M, p):
    """Return the bytes of one class, from the link opposite to port `p`, above which its far end is paused."""
    limit = M[M[p + P_MORE] + X_LIMIT]
    if SHARED:
        free = max(M[H_SHARED] - M[M[p + P_NODE] + N_USED], 0)
        limit = min(limit, (free * M[H_ALPHA]) // ALPHA_UNIT)
    return limit


@njit
def overfull(M, back, c, size):
    """Return True if a packet from the link opposite to port `back` finds no room: its sender did not pause in time."""
    more = M[back + P_MORE]
    return M[more + X_HELD + c] + size > M[more + X_LIMIT] + M[more + X_ROOM]


@njit
def pausable(M, c):
    """Return 1 if class `c` has flow control."""
    return (M[H_PAUSE_CLASSES] >> c) & 1


@njit
def hold(M, th, back, c, size, time):
    """Count a packet, from the link opposite to port `back`, that waits in the switch."""
    more = M[back + P_MORE]
    held = M[more + X_HELD + c] + size
    M[more + X_HELD + c] = held
    if pausable(M, c) and held > limit_of(M, back) and not (M[more + X_WANTED] >> c) & 1:
        M[more + X_WANTED] |= 1 << c
        M[M[back + P_NODE] + N_WANTED] += 1
        _signal(M, th, back, time, AFTER_ALL)


@njit
def release(M, th, back, c, size, time, order):
    """Count a packet that has left the queue, through the port with the number `order`."""
    more = M[back + P_MORE]
    held = M[more + X_HELD + c] - size
    M[more + X_HELD + c] = held
    if (M[more + X_WANTED] >> c) & 1 and held <= max(limit_of(M, back) - M[H_HYSTERESIS], 0):
        M[more + X_WANTED] &= ~(1 << c)
        M[M[back + P_NODE] + N_WANTED] -= 1
        _signal(M, th, back, time, order)
