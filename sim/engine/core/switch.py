"""Advances one switch through one window, routing each arrival in order and offering it to its egress port."""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.constants import CAUSE_NO_ROUTE, FAILED_ROUTE, PAUSE
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Node, Port, Switch
from gradwire.jit.records.packets import argument_of, destination_of, entropy_of, kind_of, with_entropy
from gradwire.sim.engine.memory.atomics import prefetch

from .aggregation import add_up, comes_in, copy_of, ends_here, first_copy, goes_out, next_copy, station_at
from .bindings import AGGREGATION, FAULTS, PFC, SEES_QUEUES, SHARED, SOURCE_ROUTES, select
from .link import log_drop
from .merge import INDEX_MASK, TIME_SHIFT, arrival_of, merge, since_of
from .port import finish, offer, pause, serve, serve_all

DEST_PORT = 20  # destination word: number of the edge switch | base of that switch's port to the host << 20
GROUP_COUNT = 40  # routing word: first entry of the group's ports | number of ports << 40; one port: its base | 1 << 40
GROUP_MASK = (1 << GROUP_COUNT) - 1
ENTROPY = 0xFFFF


@njit
def _group(state: State, node: Switch, edge: int) -> int:
    """Return the routing word of a switch for an edge switch: that of its block, or its own if those of the block
    differ. The block's word is then negative: the inverse of the position of the separate words."""
    shift = state.block_shift
    word = state.words[node.routes + (edge >> shift)]
    if word < 0:
        word = state.words[~word + (edge & ((1 << shift) - 1))]
    return word


@njit
def route(state: State, thread: Thread, node: Switch, header: int, body: int, now: int) -> Port:
    """Return the egress port of a packet at a switch; 0 if faults have left none. That is the host's own port if it is
    attached here, else one of the equally short next hops to its edge switch."""
    word = state.destinations[destination_of(header)]
    edge = word & ((1 << DEST_PORT) - 1)
    if edge == node.edge:
        return Port(state, word >> DEST_PORT)
    group = _group(state, node, edge)
    n = group >> GROUP_COUNT
    if n < 2:
        if n == 0 and not FAULTS:  # without faults all hosts are reachable, so the state is damaged
            state.failure = FAILED_ROUTE
            return node.port
        return Port(state, group & GROUP_MASK)
    draws = node.draws
    node.draws = draws + 1
    next_hops = Words(state, state.groups + (group & GROUP_MASK))
    if SEES_QUEUES:
        for i in range(n):
            serve(state, thread, Port(state, next_hops[i]), now)
    return Port(state, next_hops[select(node, next_hops, n, header, body, draws, now)])


@njit
def _used_up(state: State, node: Switch, header: int) -> int:
    """Return the packet after a switch has taken its digit of a source route. The remainder selected the next hop; the
    quotient is for the switches behind."""
    edge = state.destinations[destination_of(header)] & ((1 << DEST_PORT) - 1)
    if edge == node.edge:
        return header
    n = _group(state, node, edge) >> GROUP_COUNT
    if n < 2:
        return header
    return with_entropy(header, entropy_of(header) // n)


@njit
def _route_all(state: State, thread: Thread, node: Switch, keys: Words, n: int, begin: int) -> None:
    """Find the egress ports of all arrivals, and prefetch them."""
    addresses = thread.addresses
    ports = thread.egress_ports
    if state.exceeds_caches:
        routes, shift = node.routes, state.block_shift
        for i in range(n):
            header = arrival_of(state, addresses, keys[i]).header
            edge = state.destinations[destination_of(header)] & ((1 << DEST_PORT) - 1)
            prefetch(state, routes + (edge >> shift))
    for i in range(n):
        arrival = arrival_of(state, addresses, keys[i])
        port = Port(state, 0)
        if not (PFC and kind_of(arrival.header) == PAUSE):
            port = route(state, thread, node, arrival.header, arrival.body, begin + (keys[i] >> TIME_SHIFT))
            prefetch(port, 0)
            prefetch(port, 8)
        ports[i] = port.base


@njit
def _note_tie(state: State, thread: Thread, before: Port, port: Port, now: int, drawn: int) -> None:
    """Record that packets for ports `before` and `p` have arrived simultaneously, in a random order if `drawn`. That
    matters if they leave by one port, or if ports share anything."""
    if SHARED or PFC or SEES_QUEUES or not port:
        thread.ties += drawn
        return
    if before:
        before.tied_at = now
    if port.tied_at == now:
        thread.ties += drawn
    port.tied_at = now


@njit
def _forward(
    state: State, thread: Thread, node: Switch, port: Port, header: int, body: int, back: Port, now: int
) -> None:
    if FAULTS and not port:
        log_drop(state, thread, node.port, now, CAUSE_NO_ROUTE, header, body)
        return
    if SOURCE_ROUTES:
        header = _used_up(state, node, header)
    offer(state, thread, node, port, header, body, back, now)


@njit
def _fan_step(state: State, thread: Thread, node: Switch, header: int, body: int, now: int) -> tuple[int, int, int]:
    """Return True if a packet ends here, in a sum or as a source of copies, and words A and B of the outgoing one."""
    group, meeting = station_at(state, node, header, body)
    if not group:
        return False, header, body
    if comes_in(state, group, header):
        header, body = add_up(state, node, group, meeting, header, body)
        return header == 0, header, body
    if not goes_out(state, group, meeting, header):
        return False, header, body
    i = first_copy(state, group, meeting, body)
    for _ in range(meeting.copies):
        own, other = copy_of(state, group, meeting, i, header, body)
        _forward(state, thread, node, route(state, thread, node, own, other, now), own, other, Port(state, 0), now)
        i = next_copy(state, group, meeting, i)
    ends_here(state, node, group, meeting, header, body)
    return True, header, body


@njit
def switch_step(state: State, thread: Thread, node: Switch, begin: int, end: int, shift: int) -> int:
    """Advance a switch over [begin, end). Returns the time at which it next has to be visited, as far as it knows."""
    addresses = thread.addresses
    keys, n, later = merge(state, thread, Node(state, node.base), begin, end, shift)
    if not (SEES_QUEUES or AGGREGATION):
        _route_all(state, thread, node, keys, n, begin)
    noting = state.counts_ties != 0
    last = -1
    drawn = False
    before = Port(state, 0)
    body = 0
    for i in range(n):
        key = keys[i]
        arrival = arrival_of(state, addresses, key)
        now = begin + (key >> TIME_SHIFT)
        tied = noting and now == last
        if tied:
            drawn = drawn or since_of(state, body) == 0 or since_of(state, arrival.body) == 0
        else:
            drawn = False
        last = now
        header = arrival.header
        body = arrival.body
        if SHARED or (PFC and node.pause_wanted):
            serve_all(state, thread, node, now)
        back = Port(state, 0)
        if PFC:
            back = Port(state, thread.opposite_ports[key & INDEX_MASK])
            if kind_of(header) == PAUSE:
                thread.ties += tied and drawn
                if FAULTS and back.extra.ignores_pauses:
                    continue
                serve(state, thread, back, now)
                pause(state, thread, back, argument_of(body), now)
                continue
        if AGGREGATION:
            ended, header, body = _fan_step(state, thread, node, header, body, now)
            if ended:
                continue
        port = (
            route(state, thread, node, header, body, now)
            if SEES_QUEUES or AGGREGATION
            else Port(state, thread.egress_ports[i])
        )
        if tied:
            _note_tie(state, thread, before, port, now, drawn)
        before = port
        _forward(state, thread, node, port, header, body, back, now)
    if node.active_count:
        waiting = finish(state, thread, node, end)
        if waiting < later:
            later = waiting
    return later
