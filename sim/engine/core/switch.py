"""One switch in one window: take the arrivals in order, route each, offer it to its egress port."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    A_ENTROPY,
    A_KIND,
    B_ARGUMENT,
    CAUSE_NO_ROUTE,
    FAILED_ROUTE,
    H_BLOCK_SHIFT,
    H_DEST,
    H_FAILED,
    H_FAR,
    H_GROUPS,
    H_NOTES_TIES,
    MASK_DESTINATION,
    MASK_SEQUENCE,
    N_ACTIVE_COUNT,
    N_DRAWS,
    N_EDGE,
    N_PORT,
    N_ROUTE,
    N_WANTED,
    P_MORE,
    P_TIED,
    PAUSE,
    STATION_COPIES,
    T_ADDRESS,
    T_BACK,
    T_PORTS,
    T_TIES,
    X_DEAF,
)
from gradwire.sim.engine.memory.atomics import prefetch

from .aggregation import add_up, comes_in, copy_of, ends_here, first_copy, goes_out, next_copy, station_at
from .bindings import AGGREGATION, FAULTS, PFC, SEES_QUEUES, SHARED, SOURCE_ROUTES, choose
from .link import log_drop
from .merge import INDEX_MASK, TIME_SHIFT, merge, since_of
from .port import finish, offer, pause, serve, serve_all

DEST_PORT = 20  # destination word: number of the edge switch | base of that switch's port to the host << 20
GROUP_COUNT = 40  # routing word: first entry of the group's ports | number of ports << 40; one port: its base | 1 << 40
GROUP_MASK = (1 << GROUP_COUNT) - 1
ENTROPY = 0xFFFF


@njit
def _group(M, node, edge):
    """Return the routing word of a switch for an edge switch: that of its block, or its own if those of the block
    differ. The block's word is then negative: the inverse of the position of the separate words."""
    shift = M[H_BLOCK_SHIFT]
    word = M[M[node + N_ROUTE] + (edge >> shift)]
    if word < 0:
        word = M[~word + (edge & ((1 << shift) - 1))]
    return word


@njit
def route(M, th, node, A, B, now):
    """Return the egress port of a packet at a switch; 0 if faults have left none. That is the host's own port if it is
    attached here, else one of the equally short next hops to its edge switch."""
    word = M[M[H_DEST] + (A & MASK_DESTINATION)]
    edge = word & ((1 << DEST_PORT) - 1)
    if edge == M[node + N_EDGE]:
        return word >> DEST_PORT
    group = _group(M, node, edge)
    n = group >> GROUP_COUNT
    if n < 2:
        if n == 0 and not FAULTS:  # without faults all hosts are reachable, so the state is damaged
            M[H_FAILED] = FAILED_ROUTE
            return M[node + N_PORT]
        return group & GROUP_MASK
    count = M[node + N_DRAWS]
    M[node + N_DRAWS] = count + 1
    ways = M[H_GROUPS] + (group & GROUP_MASK)
    if SEES_QUEUES:
        for i in range(n):
            serve(M, th, M[ways + i], now)
    return M[ways + choose(M, node, ways, n, A, B, count, now)]


@njit
def _used_up(M, node, A):
    """Return the packet after a switch has taken its digit of a source route. The remainder selected the next hop; the
    quotient is for the switches behind."""
    edge = M[M[H_DEST] + (A & MASK_DESTINATION)] & ((1 << DEST_PORT) - 1)
    if edge == M[node + N_EDGE]:
        return A
    n = _group(M, node, edge) >> GROUP_COUNT
    if n < 2:
        return A
    left = ((A >> A_ENTROPY) & ENTROPY) // n
    return (A & ~(ENTROPY << A_ENTROPY)) | (left << A_ENTROPY)


@njit
def _route_all(M, th, node, keys, n, begin):
    """Find the egress ports of all arrivals, and prefetch them."""
    ports = M[th + T_PORTS]
    if M[H_FAR]:
        routes, shift = M[node + N_ROUTE], M[H_BLOCK_SHIFT]
        for i in range(n):
            at = M[M[th + T_ADDRESS] + (M[keys + i] & INDEX_MASK)]
            edge = M[M[H_DEST] + (M[at + 1] & MASK_DESTINATION)] & ((1 << DEST_PORT) - 1)
            prefetch(M, routes + (edge >> shift))
    for i in range(n):
        key = M[keys + i]
        at = M[M[th + T_ADDRESS] + (key & INDEX_MASK)]
        p = 0
        if not (PFC and (M[at + 1] >> A_KIND) & 7 == PAUSE):
            p = route(M, th, node, M[at + 1], M[at + 2], begin + (key >> TIME_SHIFT))
            prefetch(M, p)
            prefetch(M, p + 8)
        M[ports + i] = p


@njit
def _note_tie(M, th, before, p, now, drawn):
    """Record that packets for ports `before` and `p` have arrived simultaneously, in a random order if `drawn`. That
    matters if they leave by one port, or if ports share anything."""
    if SHARED or PFC or SEES_QUEUES or p == 0:
        M[th + T_TIES] += drawn
        return
    if before:
        M[before + P_TIED] = now
    if M[p + P_TIED] == now:
        M[th + T_TIES] += drawn
    M[p + P_TIED] = now


@njit
def _forward(M, th, node, p, A, B, back, now):
    if FAULTS and p == 0:
        log_drop(M, th, M[node + N_PORT], now, CAUSE_NO_ROUTE, A, B)
        return
    if SOURCE_ROUTES:
        A = _used_up(M, node, A)
    offer(M, th, node, p, A, B, back, now)


@njit
def _fan_step(M, th, node, A, B, now):
    """Return True if a packet ends here, in a sum or as a source of copies, and words A and B of the outgoing one."""
    fan, station = station_at(M, node, A, B)
    if fan == 0:
        return False, A, B
    if comes_in(M, fan, A):
        A, B = add_up(M, node, fan, station, A, B)
        return A == 0, A, B
    if not goes_out(M, fan, station, A):
        return False, A, B
    i = first_copy(M, fan, station, B)
    for _ in range(M[station + STATION_COPIES]):
        own, other = copy_of(M, fan, station, i, A, B)
        _forward(M, th, node, route(M, th, node, own, other, now), own, other, 0, now)
        i = next_copy(M, fan, station, i)
    ends_here(M, node, fan, station, A, B)
    return True, A, B


@njit
def switch_step(M, th, node, begin, end, shift):
    """Advance a switch over [begin, end). Returns the time at which it next has to be visited, as far as it knows."""
    keys, n, later = merge(M, th, node, begin, end, shift)
    addresses = M[th + T_ADDRESS]
    if not (SEES_QUEUES or AGGREGATION):
        _route_all(M, th, node, keys, n, begin)
    noting = M[H_NOTES_TIES] != 0
    last = -1
    drawn = False
    before = 0
    B = 0
    for i in range(n):
        key = M[keys + i]
        at = M[addresses + (key & INDEX_MASK)]
        now = begin + (key >> TIME_SHIFT)
        tied = noting and now == last
        if tied:
            drawn = drawn or since_of(M, B) == 0 or since_of(M, M[at + 2]) == 0
        else:
            drawn = False
        last = now
        A = M[at + 1]
        B = M[at + 2]
        if SHARED or (PFC and M[node + N_WANTED]):
            serve_all(M, th, node, now)
        back = 0
        if PFC:
            back = M[M[th + T_BACK] + (key & INDEX_MASK)]
            if (A >> A_KIND) & 7 == PAUSE:
                M[th + T_TIES] += tied and drawn
                if FAULTS and M[M[back + P_MORE] + X_DEAF]:
                    continue
                serve(M, th, back, now)
                pause(M, th, back, (B >> B_ARGUMENT) & MASK_SEQUENCE, now)
                continue
        if AGGREGATION:
            ended, A, B = _fan_step(M, th, node, A, B, now)
            if ended:
                continue
        p = route(M, th, node, A, B, now) if SEES_QUEUES or AGGREGATION else M[M[th + T_PORTS] + i]
        if tied:
            _note_tie(M, th, before, p, now, drawn)
        before = p
        _forward(M, th, node, p, A, B, back, now)
    if M[node + N_ACTIVE_COUNT]:
        waiting = finish(M, th, node, end)
        if waiting < later:
            later = waiting
    return later
