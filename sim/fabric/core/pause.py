"""Priority flow control (IEEE 802.1Qbb): a switch tells a neighbour to stop sending a class before it has to drop.

A switch counts, by the link they came in and by class, the bytes that wait in it. Above X_LIMIT it sends a pause frame
back along that link, and another one when there are H_HYSTERESIS bytes less. A frame tells of all classes at once, goes
ahead of everything that waits at its port, and holds until the next one (the standard's pauses run out and are
renewed; ours do not run out, and a frame is never lost to random loss, as if it had been renewed).

Why order matters here: a packet that leaves through one port may cause a frame at another one. So while a switch wants
anybody stopped, its ports are not served one by one but in the order of time, equal times by the number of the link.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
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

from .bound import PFC, SHARED
from .link import transmit

FRAME = 60
AFTER_ALL = 1 << 40  # in the place of a link's number: when everything else of that time has happened


@njit
def eligible(M, p):
    """The classes of port `p` that have packets and may send them."""
    if PFC:
        return M[p + P_QUEUE] & 0xFF & ~M[M[p + P_MORE] + X_PAUSED]
    return M[p + P_QUEUE] & 0xFF


@njit
def may_send(M, p, c):
    """Whether the far end wants packets of class `c`."""
    if PFC:
        return not (M[M[p + P_MORE] + X_PAUSED] >> c) & 1
    return True


@njit
def list_port(M, node, p):
    """Have the port looked at when the window ends."""
    flags = M[p + P_FLAGS]
    if not flags & PORT_FLAG_ACTIVE:
        M[p + P_FLAGS] = flags | PORT_FLAG_ACTIVE
        count = M[node + N_ACTIVE_COUNT]
        M[M[node + N_ACTIVE] + count] = p
        M[node + N_ACTIVE_COUNT] = count + 1


@njit
def send_pause(M, th, p, start):
    """Tell the far end of port `p` which classes are wanted stopped."""
    more = M[p + P_MORE]
    M[more + X_SIGNAL] = 0
    A = (FRAME << A_SIZE) | (PAUSE << A_KIND) | (1 << A_LOGGED)
    transmit(M, th, p, A, MASK_FLOW | (M[more + X_WANTED] << B_ARGUMENT), start)


@njit
def _signal(M, th, p, time, order):
    """A pause frame is due at port `p` at `time`: it goes at once, or when the port has sent what it is sending.
    `order`: the number of the link at which this was found out, or AFTER_ALL."""
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
    """Bytes of one class from the link opposite to port `p` above which its far end is told to stop."""
    limit = M[M[p + P_MORE] + X_LIMIT]
    if SHARED:
        free = max(M[H_SHARED] - M[M[p + P_NODE] + N_USED], 0)
        limit = min(limit, (free * M[H_ALPHA]) // ALPHA_UNIT)
    return limit


@njit
def overfull(M, back, c, size):
    """Whether a packet that came by the link opposite to port `back` finds no room: its sender did not stop in time."""
    more = M[back + P_MORE]
    return M[more + X_HELD + c] + size > M[more + X_LIMIT] + M[more + X_ROOM]


@njit
def pausable(M, c):
    """Whether there is flow control for class `c`."""
    return (M[H_PAUSE_CLASSES] >> c) & 1


@njit
def hold(M, th, back, c, size, time):
    """A packet that came by the link opposite to port `back` waits in the switch."""
    more = M[back + P_MORE]
    held = M[more + X_HELD + c] + size
    M[more + X_HELD + c] = held
    if pausable(M, c) and held > limit_of(M, back) and not (M[more + X_WANTED] >> c) & 1:
        M[more + X_WANTED] |= 1 << c
        M[M[back + P_NODE] + N_WANTED] += 1
        _signal(M, th, back, time, AFTER_ALL)


@njit
def release(M, th, back, c, size, time, order):
    """It has left the queue, through the port with the number `order`."""
    more = M[back + P_MORE]
    held = M[more + X_HELD + c] - size
    M[more + X_HELD + c] = held
    if (M[more + X_WANTED] >> c) & 1 and held <= max(limit_of(M, back) - M[H_HYSTERESIS], 0):
        M[more + X_WANTED] &= ~(1 << c)
        M[M[back + P_NODE] + N_WANTED] -= 1
        _signal(M, th, back, time, order)
