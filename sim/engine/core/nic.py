"""The NIC of a host: the choice of the flow that sends next.

It has the strict-priority classes of the switches. Within a class control packets (acknowledgements) go first, then the
flows that have something to send take turns packet by packet; where switches prefer the shortest message, so does the
NIC. Data packets are made when they are sent, so no queue of data builds up inside a host, however large a window is.

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
from gradwire.jit.layout import (
    A_ENTROPY,
    A_IMPORTANT,
    A_KIND,
    A_PRIORITY,
    A_SIZE,
    B_ARGUMENT,
    B_SEQUENCE,
    BLOCKED,
    C_HEAD,
    CLASS_WORDS,
    DATA,
    GROUPS_FIRST,
    H_SENDERS,
    KEY_CLASS,
    KEY_ORDER,
    MASK_FLOW,
    MASK_SEQUENCE,
    MASK_SIZE,
    N_HEAP,
    N_HEAP_COUNT,
    N_PORT,
    N_READY_HEAD,
    N_READY_MASK,
    N_READY_TAIL,
    P_BUSY,
    P_CLASSES,
    P_FLAGS,
    P_MORE,
    P_QUEUE,
    PAIR_GAP,
    PAIR_NEXT,
    PROBE,
    PULL_PROBE,
    S_ARMED,
    S_BACK,
    S_BEHIND,
    S_DATA,
    S_DONE,
    S_FIRST,
    S_FRONT,
    S_GAP,
    S_GROUP,
    S_LAST,
    S_LISTED,
    S_NEXT,
    S_ORDER,
    S_PACE,
    S_PACKETS,
    S_PAIR,
    S_RIDER,
    S_SENT,
    S_SLOTS,
    S_STAMPS,
    S_STREAM,
    S_TAGS,
    S_TIMER,
    SENDER_WORDS,
    SLOT_HOPS,
    SLOT_WORDS,
    WHAT_PACE,
    WHAT_TIMER,
    X_PAUSED,
)
from gradwire.scenarios.wire import PROBE_BYTES
from gradwire.sim.engine.memory.atomics import count_trailing_zeros
from gradwire.sim.engine.memory.timer_heap import push

from .bindings import HOST_PATHS, HOST_QUEUES, INT, PAIRS, PFC, RIDES, SRPT, STREAMS, at_nic, pick, pull
from .connection import message_of
from .link import transmission_time, transmit
from .pause import AFTER_ALL
from .queue import append, send_first

UNLISTED, LISTED, PACED = 0, 1, 2
SIZE_FIELD = MASK_SIZE << A_SIZE


@njit
def join_group(M, g, f):
    """Insert a message that may have something to send into its group, by age (its number)."""
    M[f + S_BEHIND] = 0
    front = M[g + S_FRONT]
    if front == 0:
        M[g + S_FRONT] = f
        M[g + S_BACK] = f
        return
    age = M[f + S_ORDER]
    back = M[g + S_BACK]
    if M[back + S_ORDER] < age:
        M[back + S_BEHIND] = f
        M[g + S_BACK] = f
        return
    if age < M[front + S_ORDER]:
        M[f + S_BEHIND] = front
        M[g + S_FRONT] = f
        return
    while M[M[front + S_BEHIND] + S_ORDER] < age:
        front = M[front + S_BEHIND]
    M[f + S_BEHIND] = M[front + S_BEHIND]
    M[front + S_BEHIND] = f


@njit
def leave_group(M, g, f):
    """Remove the oldest message of a group, which has nothing to send. Returns the next one, 0 for none."""
    behind = M[f + S_BEHIND]
    M[f + S_BEHIND] = 0
    M[f + S_LISTED] = 0
    M[g + S_FRONT] = behind
    return behind


@njit
def flow_class(M, p, f):
    """Return the NIC class of a sender's packets."""
    return min((M[f + S_DATA] >> A_PRIORITY) & 7, M[p + P_FLAGS] >> 8)


@njit
def ready(M, node, p):
    """Return the classes that have something to send, and may."""
    mask = (M[p + P_QUEUE] & 0xFF) | M[node + N_READY_MASK]
    if PFC:
        mask &= ~M[M[p + P_MORE] + X_PAUSED]
    return mask


@njit
def list_flow(M, node, f):
    """Let a flow take part in the turns of its class."""
    if M[f + S_LISTED] != UNLISTED:
        return
    if PAIRS:
        g = M[f + S_GROUP]
        if g and g != f:
            M[f + S_LISTED] = LISTED
            join_group(M, g, f)
            f = g
            if M[f + S_LISTED] != UNLISTED:
                return
    c = flow_class(M, M[node + N_PORT], f)
    mask = M[node + N_READY_MASK]
    if mask & (1 << c):
        M[M[node + N_READY_TAIL + c] + S_NEXT] = f
    else:
        M[node + N_READY_HEAD + c] = f
        M[node + N_READY_MASK] = mask | (1 << c)
    M[node + N_READY_TAIL + c] = f
    M[f + S_LISTED] = LISTED


@njit
def _unlist_first(M, node, c, f, state):
    if f == M[node + N_READY_TAIL + c]:
        M[node + N_READY_MASK] = M[node + N_READY_MASK] & ~(1 << c)
    else:
        M[node + N_READY_HEAD + c] = M[f + S_NEXT]
    M[f + S_LISTED] = state


@njit
def _rotate(M, node, c, f):
    tail = M[node + N_READY_TAIL + c]
    if f != tail:
        M[node + N_READY_HEAD + c] = M[f + S_NEXT]
        M[tail + S_NEXT] = f
        M[node + N_READY_TAIL + c] = f


@njit
def _best_first(M, node, c):
    """Move the flow of class `c` with the least left to the head of the list; of equals the first."""
    head = M[node + N_READY_HEAD + c]
    tail = M[node + N_READY_TAIL + c]
    best = head
    best_before = head
    f = head
    while f != tail:
        before = f
        f = M[f + S_NEXT]
        if M[f + S_RIDER] < M[best + S_RIDER]:
            best = f
            best_before = before
    if best == head:
        return
    if best == tail:
        M[node + N_READY_TAIL + c] = best_before
    else:
        M[best_before + S_NEXT] = M[best + S_NEXT]
    M[best + S_NEXT] = head
    M[node + N_READY_HEAD + c] = best


@njit
def with_entropy(A, entropy):
    """Return the packet word with another entropy."""
    return (A & ~(0xFFFF << A_ENTROPY)) | (entropy << A_ENTROPY)


@njit
def arm(M, node, f):
    """Put a flow's timer on the heap if no earlier entry of it is there."""
    timer = M[f + S_TIMER]
    if timer:
        armed = M[f + S_ARMED]
        if armed == 0 or timer < armed:
            M[f + S_ARMED] = timer
            push(M, node, timer, M[f + S_ORDER] | (f << 2) | WHAT_TIMER)


@njit
def _next_of_group(M, node, g, now):
    """Return the packet of the oldest message of a group that has something to send; BLOCKED if none has. Messages
    without anything to send leave the group."""
    f = M[g + S_FRONT]
    while f:
        if M[f + S_DONE] == 0:
            got = pull(M, f, now)
            if got != BLOCKED:
                return got
            arm(M, node, f)
        f = leave_group(M, g, f)
    return BLOCKED


@njit
def _send_of_group(M, th, node, p, c, g, now):
    """Let a group of class `c` send one packet, delay it until its pair may send, or take it off the list."""
    pair = M[g + S_PAIR]
    if M[pair + PAIR_NEXT] > now:
        _unlist_first(M, node, c, g, PACED)
        oldest = (M[M[g + S_FRONT] + S_ORDER] >> KEY_ORDER) & ((1 << KEY_CLASS) - 1)
        order = (c << KEY_CLASS | oldest) - GROUPS_FIRST
        push(M, node, M[pair + PAIR_NEXT], (order << KEY_ORDER) | (g << 2) | WHAT_PACE)
        return
    got = _next_of_group(M, node, g, now)
    if got == BLOCKED:
        _unlist_first(M, node, c, g, UNLISTED)
        return
    A = _send_packet(M, th, node, p, c, g, M[g + S_FRONT], got, now)
    gap = M[pair + PAIR_GAP]
    if gap:
        M[pair + PAIR_NEXT] = now + transmission_time((A >> A_SIZE) & MASK_SIZE, gap)


@njit
def _send_data(M, th, node, p, c, f, now):
    """Let the first flow of class `c` send one packet, or take it off the list."""
    if PAIRS and M[f + S_GROUP] == f:
        _send_of_group(M, th, node, p, c, f, now)
        return
    if M[f + S_DONE]:
        # it became done while it waited for its turn
        _unlist_first(M, node, c, f, UNLISTED)
        return
    if M[f + S_PACE] > now:
        _unlist_first(M, node, c, f, PACED)
        push(M, node, M[f + S_PACE], M[f + S_ORDER] | (f << 2) | WHAT_PACE)
        return
    got = pull(M, f, now)
    if got == BLOCKED:
        _unlist_first(M, node, c, f, UNLISTED)
        arm(M, node, f)
        return
    _send_packet(M, th, node, p, c, f, f, got, now)


@njit
def _make_packet(M, node, f, got, now):
    """Return words A and B of the packet that a flow has pulled, and update the flow for its sending."""
    m = f  # the record of the packet's message
    if STREAMS and M[f + S_STREAM]:
        m = message_of(M, f, got, now)
        got += M[f + S_FIRST] - M[m + S_FIRST]
    flow = (m - M[H_SENDERS]) // SENDER_WORDS
    A = M[m + S_DATA]
    if got >= PULL_PROBE:
        # a probe is a control packet in the data's class, so that it queues behind the data it asks about
        argument = got - PULL_PROBE
        A = (A & ~SIZE_FIELD) | (PROBE_BYTES << A_SIZE) | (PROBE << A_KIND) | (1 << A_IMPORTANT)
        B = flow | (argument << B_ARGUMENT)
    else:
        sequence = got & MASK_SEQUENCE
        if sequence == M[m + S_PACKETS] - 1:
            A = (A & ~SIZE_FIELD) | (M[m + S_LAST] << A_SIZE)
        tags = M[m + S_TAGS]
        if tags <= 1:
            A |= (tags | (got >> 30)) << A_IMPORTANT
        else:
            A |= (((M[tags + (sequence >> 5)] >> (sequence & 31)) & 1) | (got >> 30)) << A_IMPORTANT
        B = flow | (sequence << B_SEQUENCE)
        if RIDES:
            B |= M[f + S_RIDER] << B_ARGUMENT
        if INT and M[f + S_STAMPS]:
            M[M[f + S_STAMPS] + (M[f + S_RIDER] & M[f + S_SLOTS]) * SLOT_WORDS + SLOT_HOPS] = 0
        if HOST_PATHS:
            A = with_entropy(A, pick(M, f, M[f + S_SENT]))
    M[f + S_SENT] += 1
    if STREAMS and m != f:
        M[m + S_SENT] += 1
    gap = M[f + S_GAP]
    if gap:
        M[f + S_PACE] = now + transmission_time((A >> A_SIZE) & MASK_SIZE, gap)
    arm(M, node, f)
    return A, B


@njit
def _send_packet(M, th, node, p, c, listed, f, got, now):
    """Put a pulled packet on the link, and return its word A. `listed`: the first record in the list of class `c`, the
    flow's or its group's, which goes to the end of the list."""
    A, B = _make_packet(M, node, f, got, now)
    _rotate(M, node, c, listed)
    transmit(M, th, p, A, B, now)
    return A


@njit
def _fill(M, th, node, p, f, now):
    """Append all packets that a flow's transport provides now to their class."""
    while M[f + S_DONE] == 0:
        if M[f + S_PACE] > now:
            M[f + S_LISTED] = PACED
            push(M, node, M[f + S_PACE], M[f + S_ORDER] | (f << 2) | WHAT_PACE)
            return
        got = pull(M, f, now)
        if got == BLOCKED:
            arm(M, node, f)
            return
        A, B = _make_packet(M, node, f, got, now)
        size = (A >> A_SIZE) & MASK_SIZE
        at_nic(M, f, size)
        append(M, th, p, A, B, size, min((A >> A_PRIORITY) & 7, M[p + P_FLAGS] >> 8), 0, now)


@njit
def make_ready(M, th, node, p, f, now):
    """List a flow that may have something to send, or queue its packets."""
    if HOST_QUEUES and at_nic(M, f, 0):
        if M[f + S_LISTED] == UNLISTED:
            _fill(M, th, node, p, f, now)
        return
    list_flow(M, node, f)


@njit
def _send_queued(M, th, node, p, c, now):
    """Start the first packet of the queue of class `c`; the flow of a queued data packet may then add more."""
    f = 0
    size = 0
    if HOST_QUEUES:
        first = M[p + P_CLASSES + c * CLASS_WORDS + C_HEAD]
        A = M[first + 1]
        kind = (A >> A_KIND) & 7
        if kind == DATA or kind == PROBE:
            f = M[H_SENDERS] + (M[first + 2] & MASK_FLOW) * SENDER_WORDS
            size = (A >> A_SIZE) & MASK_SIZE
            if STREAMS and M[f + S_STREAM]:
                f = M[f + S_STREAM]
    send_first(M, th, p, c, now, AFTER_ALL)
    if HOST_QUEUES and f:
        at_nic(M, f, -size)
        if M[f + S_LISTED] == UNLISTED:
            _fill(M, th, node, p, f, now)


@njit
def serve_nic(M, th, node, p, limit):
    """Start every transmission of the NIC that can start at or before `limit`, and before any timer fires."""
    while True:
        now = M[p + P_BUSY]
        if now > limit:
            return
        mask = ready(M, node, p)
        if mask == 0:
            return
        c = count_trailing_zeros(mask)
        queued = (M[p + P_QUEUE] >> c) & 1
        if queued:
            _send_queued(M, th, node, p, c, now)
        else:
            if SRPT:
                _best_first(M, node, c)
            _send_data(M, th, node, p, c, M[node + N_READY_HEAD + c], now)
        if (HOST_QUEUES or queued == 0) and M[node + N_HEAP_COUNT]:
            # the flow may have been delayed, or its transport may have set a timer, to before `limit`
            limit = min(limit, M[M[node + N_HEAP]])


@njit
def kick(M, th, node, p, now):
    """Let an idle NIC start at once what may have become ready at `now`."""
    if M[p + P_BUSY] <= now and ready(M, node, p):
        M[p + P_BUSY] = now
        serve_nic(M, th, node, p, now)
