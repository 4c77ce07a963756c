"""One switch through one window: take the arrivals in order, route each, offer it to its egress port."""

from numba import njit

from sim.fabric.layout import (
    FOREVER,
    H_DEST,
    H_GROUPS,
    MASK_DESTINATION,
    N_ACTIVE,
    N_ACTIVE_COUNT,
    N_DRAWS,
    N_EDGE,
    N_ROUTE,
    P_BUSY,
    P_FLAGS,
    P_QUEUE,
    PORT_FLAG_ACTIVE,
    T_ADDRESS,
)

from .bound import SEES_QUEUES, SHARED, choose
from .gather import INDEX_BITS, INDEX_MASK, gather
from .port import offer, serve

DEST_PORT = 20  # destination word: edge switch index | base of that switch's port to the host << 20
GROUP_COUNT = (
    40  # routing word: first entry of the group's ports | number of ports << 40; one port: its base | 1 << 40
)
GROUP_MASK = (1 << GROUP_COUNT) - 1


@njit
def route(M, th, node, A, B, now):
    """The egress port of a packet at a switch: the host's own port if it hangs here, else one of the equally short
    ways to its edge switch."""
    word = M[M[H_DEST] + (A & MASK_DESTINATION)]
    edge = word & ((1 << DEST_PORT) - 1)
    if edge == M[node + N_EDGE]:
        return word >> DEST_PORT
    group = M[M[node + N_ROUTE] + edge]
    n = group >> GROUP_COUNT
    if n == 1:
        return group & GROUP_MASK
    count = M[node + N_DRAWS]
    M[node + N_DRAWS] = count + 1
    ways = M[H_GROUPS] + (group & GROUP_MASK)
    if SEES_QUEUES:
        for i in range(n):
            serve(M, th, M[ways + i], now)
    return M[ways + choose(M, node, ways, n, A, B, count, now)]


@njit
def finish(M, th, node, end):
    """Start what can still start before `end` at the ports that have packets; when the next one could start after."""
    active = M[node + N_ACTIVE]
    count = M[node + N_ACTIVE_COUNT]
    kept = 0
    earliest = FOREVER
    for i in range(count):
        p = M[active + i]
        serve(M, th, p, end - 1)
        if M[p + P_QUEUE] & 0xFF:
            M[active + kept] = p
            kept += 1
            busy = M[p + P_BUSY]
            if busy < earliest:
                earliest = busy
        else:
            M[p + P_FLAGS] = M[p + P_FLAGS] & ~PORT_FLAG_ACTIVE
    M[node + N_ACTIVE_COUNT] = kept
    return earliest


@njit
def switch_step(M, th, node, begin, end, shift):
    """Advance a switch over [begin, end). Returns when it has to be looked at next, as far as it knows."""
    keys, n, later = gather(M, th, node, begin, end, shift)
    addresses = M[th + T_ADDRESS]
    for i in range(n):
        key = M[keys + i]
        at = M[addresses + (key & INDEX_MASK)]
        A = M[at + 1]
        B = M[at + 2]
        now = begin + (key >> INDEX_BITS)
        if SHARED:
            for active in range(M[node + N_ACTIVE_COUNT]):
                serve(M, th, M[M[node + N_ACTIVE] + active], now)
        offer(M, th, node, route(M, th, node, A, B, now), A, B, now)
    if M[node + N_ACTIVE_COUNT]:
        waiting = finish(M, th, node, end)
        if waiting < later:
            later = waiting
    return later
