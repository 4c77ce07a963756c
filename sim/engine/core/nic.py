"""Chooses the flow of a host that sends next, by class and turn, and makes and sends its packet.

The NIC has the strict-priority classes of the switches. Within a class control packets (acknowledgements) go first,
then the flows that have something to send take turns packet by packet; where switches prefer the shortest message, so
does the NIC. Data packets are made when they are sent, so no queue of data builds up inside a host, however large a
window is.

Flows whose transport says so (`at_nic`) do not take turns: their packets are made as soon as the transport provides
them, and wait in the queue of their class, together with control packets. Whenever one of them leaves, its transport is
asked for more.

Groups: the messages of one transport from one host to another in one class share a pace (`PAIR_NEXT`). If each were
listed separately, a pair with a hundred messages would wake all of them for every packet, only to find that another one
has just sent. So their group is listed as one flow: when its turn comes and the pair may send, its oldest message with
something to send does; so a message that has begun ends before the next one takes bandwidth from it. The NIC serves the
groups of the best class first.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import (
    BLOCKED,
    DATA,
    GROUPS_FIRST,
    KEY_CLASS,
    KEY_ORDER,
    MASK_SEQUENCE,
    PROBE,
    PULL_PROBE,
    WHAT_PACE,
    WHAT_TIMER,
)
from gradwire.jit.records.flows import Sender, Stamps, number_of_sender, sender_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, Port, queue_of
from gradwire.jit.records.packets import (
    body_of,
    flow_of,
    kind_of,
    priority_of,
    size_of,
    with_entropy,
    with_importance,
    with_kind,
    with_size,
)
from gradwire.protocols.transports.base import bit
from gradwire.scenarios.wire import PROBE_BYTES
from gradwire.sim.engine.memory.atomics import count_trailing_zeros
from gradwire.sim.engine.memory.timer_heap import next_timer, push

from .bindings import HOST_PATHS, HOST_QUEUES, INT, PAIRS, PFC, RIDES, SRPT, STREAMS, at_nic, pick_path, pull
from .connection import message_of
from .link import transmission_time, transmit
from .pause import AFTER_ALL
from .queue import append, send_first

UNLISTED, LISTED, PACED = 0, 1, 2


@njit
def join_group(state: State, group: Sender, flow: Sender) -> None:
    """Insert a message that may have something to send into its group, by age (its number)."""
    flow.next_message = 0
    front = group.front_message
    if not front:
        group.front_message = flow
        group.last_message = flow
        return
    age = flow.order
    back = group.last_message
    if back.order < age:
        back.next_message = flow
        group.last_message = flow
        return
    if age < front.order:
        flow.next_message = front
        group.front_message = flow
        return
    while front.next_message.order < age:
        front = front.next_message
    flow.next_message = front.next_message
    front.next_message = flow


@njit
def leave_group(state: State, group: Sender, flow: Sender) -> Sender:
    """Remove the oldest message of a group, which has nothing to send. Returns the next one, 0 for none."""
    behind = flow.next_message
    flow.next_message = 0
    flow.is_listed = 0
    group.front_message = behind
    return behind


@njit
def flow_class(port: Port, flow: Sender) -> int:
    """Return the NIC class of a sender's packets."""
    return min(priority_of(flow.data_header), port.flags >> 8)


@njit
def ready(state: State, node: Host, port: Port) -> int:
    """Return the classes that have something to send, and may."""
    mask = (port.queue & 0xFF) | node.ready_mask
    if PFC:
        mask &= ~port.extra.paused
    return mask


@njit
def list_flow(state: State, node: Host, flow: Sender) -> None:
    """Let a flow take part in the turns of its class."""
    if flow.is_listed != UNLISTED:
        return
    if PAIRS:
        group = flow.group
        if group and group != flow:
            flow.is_listed = LISTED
            join_group(state, group, flow)
            flow = group
            if flow.is_listed != UNLISTED:
                return
    c = flow_class(node.port, flow)
    if node.ready_mask & (1 << c):
        Sender(state, node.ready_tail[c]).next_ready = flow
    else:
        node.ready_head[c] = flow.base
        node.ready_mask |= 1 << c
    node.ready_tail[c] = flow.base
    flow.is_listed = LISTED


@njit
def _unlist_first(node: Host, c: int, flow: Sender, listed: int) -> None:
    """Take the first flow of class `c` off the list. `listed`: UNLISTED or PACED."""
    if flow.base == node.ready_tail[c]:
        node.ready_mask &= ~(1 << c)
    else:
        node.ready_head[c] = flow.next_ready.base
    flow.is_listed = listed


@njit
def _rotate(node: Host, c: int, flow: Sender) -> None:
    """Move the first flow of class `c` to the end of the list."""
    tail = Sender(node, node.ready_tail[c])
    if flow != tail:
        node.ready_head[c] = flow.next_ready.base
        tail.next_ready = flow
        node.ready_tail[c] = flow.base


@njit
def _best_first(node: Host, c: int) -> None:
    """Move the flow of class `c` with the least left to the head of the list; of equals the first."""
    head = Sender(node, node.ready_head[c])
    tail = Sender(node, node.ready_tail[c])
    best = head
    best_before = head
    flow = head
    while flow != tail:
        before = flow
        flow = flow.next_ready
        if flow.piggyback < best.piggyback:
            best = flow
            best_before = before
    if best == head:
        return
    if best == tail:
        node.ready_tail[c] = best_before.base
    else:
        best_before.next_ready = best.next_ready
    best.next_ready = head
    node.ready_head[c] = best.base


@njit
def arm(state: State, node: Host, flow: Sender) -> None:
    """Put a flow's timer on the heap if no earlier entry of it is there."""
    timer = flow.timer
    if timer:
        armed = flow.armed
        if armed == 0 or timer < armed:
            flow.armed = timer
            push(node, timer, flow.order | (flow.base << 2) | WHAT_TIMER)


@njit
def _next_of_group(state: State, node: Host, group: Sender, now: int) -> int:
    """Return the packet of the oldest message of a group that has something to send; BLOCKED if none has. Messages
    without anything to send leave the group."""
    flow = group.front_message
    while flow:
        if flow.is_done == 0:
            got = pull(flow, now)
            if got != BLOCKED:
                return got
            arm(state, node, flow)
        flow = leave_group(state, group, flow)
    return BLOCKED


@njit
def _send_of_group(state: State, thread: Thread, node: Host, port: Port, c: int, group: Sender, now: int) -> None:
    """Let a group of class `c` send one packet, delay it until its pair may send, or take it off the list."""
    pair = group.pair
    if pair.next_start > now:
        _unlist_first(node, c, group, PACED)
        oldest = (group.front_message.order >> KEY_ORDER) & ((1 << KEY_CLASS) - 1)
        order = (c << KEY_CLASS | oldest) - GROUPS_FIRST
        push(node, pair.next_start, (order << KEY_ORDER) | (group.base << 2) | WHAT_PACE)
        return
    got = _next_of_group(state, node, group, now)
    if got == BLOCKED:
        _unlist_first(node, c, group, UNLISTED)
        return
    header = _send_packet(state, thread, node, port, c, group, group.front_message, got, now)
    gap = pair.gap
    if gap:
        pair.next_start = now + transmission_time(size_of(header), gap)


@njit
def _send_data(state: State, thread: Thread, node: Host, port: Port, c: int, flow: Sender, now: int) -> None:
    """Let the first flow of class `c` send one packet, or take it off the list."""
    if PAIRS and flow.group == flow:
        _send_of_group(state, thread, node, port, c, flow, now)
        return
    if flow.is_done:
        # it became done while it waited for its turn
        _unlist_first(node, c, flow, UNLISTED)
        return
    if flow.next_start > now:
        _unlist_first(node, c, flow, PACED)
        push(node, flow.next_start, flow.order | (flow.base << 2) | WHAT_PACE)
        return
    got = pull(flow, now)
    if got == BLOCKED:
        _unlist_first(node, c, flow, UNLISTED)
        arm(state, node, flow)
        return
    _send_packet(state, thread, node, port, c, flow, flow, got, now)


@njit
def _make_packet(state: State, node: Host, flow: Sender, got: int, now: int) -> tuple[int, int]:
    """Return the header and the body of the packet that a flow has pulled, and update the flow for its sending."""
    message = flow  # the record of the packet's message
    if STREAMS and flow.stream:
        message = message_of(state, flow, got, now)
        got += flow.first_packet - message.first_packet
    flow_number = number_of_sender(state, message)
    header = message.data_header
    if got >= PULL_PROBE:
        # a probe is a control packet in the data's class, so that it queues behind the data it asks about
        argument = got - PULL_PROBE
        header = with_importance(with_kind(with_size(header, PROBE_BYTES), PROBE), 1)
        body = body_of(flow_number, 0, argument)
    else:
        sequence = got & MASK_SEQUENCE
        if sequence == message.packets - 1:
            header = with_size(header, message.last_bytes)
        tags = message.tags
        if tags <= 1:
            header = with_importance(header, tags | (got >> 30))
        else:
            header = with_importance(header, bit(message.tag_bits, sequence) | (got >> 30))
        body = body_of(flow_number, sequence, flow.piggyback if RIDES else 0)
        if INT and flow.stamps:
            Stamps(state, flow.stamps + (flow.piggyback & flow.stamp_mask) * Stamps.WORDS).hops = 0
        if HOST_PATHS:
            header = with_entropy(header, pick_path(flow, flow.sent))
    flow.sent += 1
    if STREAMS and message != flow:
        message.sent += 1
    gap = flow.gap
    if gap:
        flow.next_start = now + transmission_time(size_of(header), gap)
    arm(state, node, flow)
    return header, body


@njit
def _send_packet(
    state: State, thread: Thread, node: Host, port: Port, c: int, listed: Sender, flow: Sender, got: int, now: int
) -> int:
    """Put a pulled packet on the link, and return its word A. `listed`: the first record in the list of class `c`, the
    flow's or its group's, which goes to the end of the list."""
    header, body = _make_packet(state, node, flow, got, now)
    _rotate(node, c, listed)
    transmit(state, thread, port, header, body, now)
    return header


@njit
def _fill(state: State, thread: Thread, node: Host, port: Port, flow: Sender, now: int) -> None:
    """Append all packets that a flow's transport provides now to their class."""
    while flow.is_done == 0:
        if flow.next_start > now:
            flow.is_listed = PACED
            push(node, flow.next_start, flow.order | (flow.base << 2) | WHAT_PACE)
            return
        got = pull(flow, now)
        if got == BLOCKED:
            arm(state, node, flow)
            return
        header, body = _make_packet(state, node, flow, got, now)
        size = size_of(header)
        at_nic(flow, size)
        append(state, thread, port, header, body, size, min(priority_of(header), port.flags >> 8), Port(state, 0), now)


@njit
def make_ready(state: State, thread: Thread, node: Host, port: Port, flow: Sender, now: int) -> None:
    """List a flow that may have something to send, or queue its packets."""
    if HOST_QUEUES and at_nic(flow, 0):
        if flow.is_listed == UNLISTED:
            _fill(state, thread, node, port, flow, now)
        return
    list_flow(state, node, flow)


@njit
def _send_queued(state: State, thread: Thread, node: Host, port: Port, c: int, now: int) -> None:
    """Start the first packet of the queue of class `c`; the flow of a queued data packet may then add more."""
    flow = Sender(state, 0)
    size = 0
    if HOST_QUEUES:
        first = queue_of(port, c).head
        header = first.header
        kind = kind_of(header)
        if kind == DATA or kind == PROBE:
            flow = sender_at(state, flow_of(first.body))
            size = size_of(header)
            if STREAMS and flow.stream:
                flow = flow.stream
    send_first(state, thread, port, c, now, AFTER_ALL)
    if HOST_QUEUES and flow:
        at_nic(flow, -size)
        if flow.is_listed == UNLISTED:
            _fill(state, thread, node, port, flow, now)


@njit
def serve_nic(state: State, thread: Thread, node: Host, port: Port, limit: int) -> None:
    """Start every transmission of the NIC that can start at or before `limit`, and before any timer fires."""
    while True:
        now = port.busy_until
        if now > limit:
            return
        mask = ready(state, node, port)
        if mask == 0:
            return
        c = count_trailing_zeros(mask)
        queued = (port.queue >> c) & 1
        if queued:
            _send_queued(state, thread, node, port, c, now)
        else:
            if SRPT:
                _best_first(node, c)
            _send_data(state, thread, node, port, c, Sender(state, node.ready_head[c]), now)
        if (HOST_QUEUES or queued == 0) and node.timer_count:
            # the flow may have been delayed, or its transport may have set a timer, to before `limit`
            limit = min(limit, next_timer(node))


@njit
def kick(state: State, thread: Thread, node: Host, port: Port, now: int) -> None:
    """Let an idle NIC start at once what may have become ready at `now`."""
    if port.busy_until <= now and ready(state, node, port):
        port.busy_until = now
        serve_nic(state, thread, node, port, now)
