"""One host through one window: its NIC, its timers, and the transports at both ends of its flows.

At equal times things happen in this order: transmissions that can start, then timers (message starts, releases of
paced flows, transport timers; by message, and in this order within one), then arrivals. After each of them the idle NIC
starts at once.

The NIC has the strict-priority classes of the switches. Within a class control packets (acknowledgements) go first,
then the flows that have something to send take turns, one packet each. Data packets are made when they are sent, so no
queue of data builds up inside a host, however large a window is.
"""

from numba import njit

from sim.fabric.atomics import count_trailing_zeros
from sim.fabric.heap import pop, push
from sim.fabric.layout import (
    A_CE,
    A_ECHO,
    A_IMPORTANT,
    A_KIND,
    A_PRIORITY,
    A_SIZE,
    B_ARGUMENT,
    B_SEQUENCE,
    BLOCKED,
    DATA,
    DELIVERED,
    DONE_WORDS,
    FINISHED,
    FOREVER,
    H_HOST_LATENCY,
    H_RECEIVERS,
    H_SENDERS,
    MASK_FLOW,
    MASK_KEY_SENDER,
    MASK_SEQUENCE,
    MASK_SIZE,
    N_HEAP,
    N_HEAP_COUNT,
    N_PORT,
    N_READY_HEAD,
    N_READY_MASK,
    N_READY_TAIL,
    P_BUSY,
    P_FLAGS,
    P_QUEUE,
    PROBE,
    PULL_PROBE,
    R_ARRIVED,
    R_BYTES,
    R_CONTROL,
    R_DONE,
    R_FOLLOW,
    R_GOT,
    R_JOIN,
    R_PACKETS,
    R_PAYLOAD,
    R_SENT,
    R_TELL,
    RECEIVER_WORDS,
    S_ARMED,
    S_DATA,
    S_DONE,
    S_EARLIEST,
    S_GAP,
    S_HEARD,
    S_LAST,
    S_LISTED,
    S_NEXT,
    S_ORDER,
    S_PACE,
    S_PACKETS,
    S_SENT,
    S_TAGS,
    S_TIMER,
    S_WAIT,
    SENDER_WORDS,
    T_ADDRESS,
    T_DELIVERED,
    T_DONE,
    T_DONE_BASE,
    WHAT_PACE,
    WHAT_START,
    WHAT_TIMER,
)

from .bound import on_control, on_data, on_probe, on_timer, pull, start
from .gather import INDEX_BITS, INDEX_MASK, gather
from .port import append, send_first, transmission_time, transmit

UNLISTED, LISTED, PACED = 0, 1, 2
SIZE_FIELD = MASK_SIZE << A_SIZE


@njit
def flow_class(M, p, f):
    """The NIC class of a sender's packets."""
    return min((M[f + S_DATA] >> A_PRIORITY) & 7, M[p + P_FLAGS] >> 8)


@njit
def list_flow(M, node, f):
    """Let a flow take part in the turns of its class."""
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
def _arm(M, node, f):
    """See to it that the heap looks at a flow no later than its transport asked for."""
    timer = M[f + S_TIMER]
    if timer:
        armed = M[f + S_ARMED]
        if armed == 0 or timer < armed:
            M[f + S_ARMED] = timer
            push(M, node, timer, M[f + S_ORDER] | (f << 2) | WHAT_TIMER)


@njit
def _log_done(M, th, time, f, what, got):
    n = M[th + T_DONE]
    at = M[th + T_DONE_BASE] + n * DONE_WORDS
    M[at] = time
    M[at + 1] = f
    M[at + 2] = what
    M[at + 3] = got
    M[th + T_DONE] = n + 1


@njit
def _send_data(M, th, node, p, c, f, now):
    """Let the first flow of class `c` send one packet, or take it off the list."""
    if M[f + S_DONE]:
        # it was told to stop while it waited for its turn
        _unlist_first(M, node, c, f, UNLISTED)
        return
    if M[f + S_PACE] > now:
        _unlist_first(M, node, c, f, PACED)
        push(M, node, M[f + S_PACE], M[f + S_ORDER] | (f << 2) | WHAT_PACE)
        return
    got = pull(M, f, now)
    if got == BLOCKED:
        _unlist_first(M, node, c, f, UNLISTED)
        _arm(M, node, f)
        return
    flow = (f - M[H_SENDERS]) // SENDER_WORDS
    A = M[f + S_DATA]
    if got >= PULL_PROBE:
        # a probe is a control packet in the data's own class, so that it queues behind the data it asks about
        argument = got - PULL_PROBE
        A = (A & ~SIZE_FIELD) | (60 << A_SIZE) | (PROBE << A_KIND) | (1 << A_IMPORTANT)
        B = flow | (argument << B_ARGUMENT)
    else:
        sequence = got & MASK_SEQUENCE
        if sequence == M[f + S_PACKETS] - 1:
            A = (A & ~SIZE_FIELD) | (M[f + S_LAST] << A_SIZE)
        tags = M[f + S_TAGS]
        if tags <= 1:
            A |= (tags | (got >> 30)) << A_IMPORTANT
        else:
            A |= (((M[tags + (sequence >> 5)] >> (sequence & 31)) & 1) | (got >> 30)) << A_IMPORTANT
        B = flow | (sequence << B_SEQUENCE)
    _rotate(M, node, c, f)
    M[f + S_SENT] += 1
    gap = M[f + S_GAP]
    if gap:
        M[f + S_PACE] = now + transmission_time((A >> A_SIZE) & MASK_SIZE, gap)
    _arm(M, node, f)
    transmit(M, th, p, A, B, now)


@njit
def serve_nic(M, th, node, p, limit):
    """Start every transmission of the NIC that can start at or before `limit`, and before any timer goes off."""
    while True:
        now = M[p + P_BUSY]
        if now > limit:
            return
        queued = M[p + P_QUEUE] & 0xFF
        mask = queued | M[node + N_READY_MASK]
        if mask == 0:
            return
        c = count_trailing_zeros(mask)
        if (queued >> c) & 1:
            send_first(M, th, p, c, now)
        else:
            _send_data(M, th, node, p, c, M[node + N_READY_HEAD + c], now)
            if M[node + N_HEAP_COUNT]:
                # the flow may have been put aside, or its transport have set a timer, until before `limit`
                limit = min(limit, M[M[node + N_HEAP]])


@njit
def kick(M, th, node, p, now):
    """Something may have become ready at `now`: an idle NIC starts it at once."""
    if M[p + P_BUSY] <= now and ((M[p + P_QUEUE] & 0xFF) | M[node + N_READY_MASK]):
        M[p + P_BUSY] = now
        serve_nic(M, th, node, p, now)


@njit
def _answer(M, th, node, p, r, reply, B, now):
    """Send the control packets a receiver asked for.

    `reply`: kind 3 | echo 1 | size 14 | count 22 | argument 22 (see `sim.transports.base.reply`)."""
    A = M[r + R_CONTROL] | ((reply & 7) << A_KIND) | (((reply >> 3) & 1) << A_ECHO)
    size = (reply >> 4) & MASK_SIZE
    if size:
        A = (A & ~SIZE_FIELD) | (size << A_SIZE)
    size = (A >> A_SIZE) & MASK_SIZE
    count = (reply >> 18) & 0xFFF
    argument = (reply >> 40) & MASK_SEQUENCE
    M[r + R_SENT] += count
    B = (B & MASK_FLOW) | (argument << B_ARGUMENT) | (((B >> B_SEQUENCE) & MASK_SEQUENCE) << B_SEQUENCE)
    c = min((A >> A_PRIORITY) & 7, M[p + P_FLAGS] >> 8)
    if count == 1:
        if M[p + P_BUSY] <= now and ((M[p + P_QUEUE] & 0xFF) | M[node + N_READY_MASK]) == 0:
            transmit(M, th, p, A, B, now)
        else:
            append(M, th, p, A, B, size, c)
        return
    for i in range(count):
        append(M, th, p, A, (B & ~(MASK_SEQUENCE << B_SEQUENCE)) | (i << B_SEQUENCE), size, c)


@njit
def _follow(M, node, r, now):
    """A message has been delivered: count down what waits for it, and start, a software latency later, what waits for
    nothing else. Those senders are on this very host. True if Python has to hear of it in time."""
    tell = M[r + R_TELL] == 1
    join = M[r + R_JOIN]
    if join:
        M[join] -= 1
        tell |= M[join] == 0
    waiting = M[r + R_FOLLOW]
    if waiting:
        for i in range(1, M[waiting] + 1):
            f = M[waiting + i]
            if f == 0:  # has no record yet
                tell = True
                continue
            M[f + S_EARLIEST] = max(M[f + S_EARLIEST], now + M[H_HOST_LATENCY])
            M[f + S_WAIT] -= 1
            if M[f + S_WAIT] == 0:
                push(M, node, M[f + S_EARLIEST], M[f + S_ORDER] | (f << 2) | WHAT_START)
    return tell


@njit
def _arrival(M, th, node, p, A, B, now):
    """A packet reaches the host: data and probes go to the receiver of the flow, all else to its sender."""
    flow = B & MASK_FLOW
    kind = (A >> A_KIND) & 7
    sequence = (B >> B_SEQUENCE) & MASK_SEQUENCE
    argument = (B >> B_ARGUMENT) & MASK_SEQUENCE
    if kind == DATA or kind == PROBE:
        r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
        M[r + R_ARRIVED] += 1
        done = M[r + R_DONE]
        if kind == DATA:
            size = M[r + R_PAYLOAD]
            last = M[r + R_PACKETS] - 1
            if sequence == last:
                size = M[r + R_BYTES] - last * size
            reply = on_data(M, r, sequence, size, (A >> A_CE) & 1, now)
        else:
            reply = on_probe(M, r, argument, now)
        if reply:
            _answer(M, th, node, p, r, reply, B, now)
        if done == 0 and M[r + R_DONE]:
            _log_done(M, th, now, flow, DELIVERED, M[r + R_GOT])
            if _follow(M, node, r, now) and now < M[th + T_DELIVERED]:
                M[th + T_DELIVERED] = now
        return
    f = M[H_SENDERS] + flow * SENDER_WORDS
    M[f + S_HEARD] += 1
    if M[f + S_DONE]:
        return
    on_control(M, f, kind, sequence, argument, (A >> A_ECHO) & 1, now)
    if M[f + S_DONE]:
        _log_done(M, th, now, flow, FINISHED, 0)
    else:
        _arm(M, node, f)
        list_flow(M, node, f)


@njit
def _timer(M, th, node, time, key):
    """Handle one entry of the host's heap."""
    f = (key & MASK_KEY_SENDER) >> 2
    what = key & 3
    if what == WHAT_TIMER:
        if M[f + S_ARMED] != time:
            return
        M[f + S_ARMED] = 0
        wanted = M[f + S_TIMER]
        if M[f + S_DONE] or wanted == 0:
            return
        if wanted <= time:
            M[f + S_TIMER] = 0
            on_timer(M, f, time)
            list_flow(M, node, f)
        _arm(M, node, f)
        return
    if what == WHAT_START:
        start(M, f, time)
        _arm(M, node, f)
    elif M[f + S_LISTED] == PACED:
        M[f + S_LISTED] = UNLISTED
    else:
        return
    if M[f + S_DONE] == 0:
        list_flow(M, node, f)


@njit
def host_step(M, th, node, begin, end, shift):
    """Advance a host over [begin, end). Returns when it has to be looked at next, as far as it knows."""
    keys, n, later = gather(M, th, node, begin, end, shift)
    addresses = M[th + T_ADDRESS]
    p = M[node + N_PORT]
    heap = M[node + N_HEAP]
    i = 0
    now = FOREVER
    key = 0
    if n:
        key = M[keys]
        now = begin + (key >> INDEX_BITS)
    while True:
        timer = FOREVER
        if M[node + N_HEAP_COUNT]:
            timer = M[heap]
        first = min(now, timer)
        if first >= end:
            serve_nic(M, th, node, p, end - 1)
            if M[node + N_HEAP_COUNT] and M[heap] < end:
                continue
            break
        serve_nic(M, th, node, p, first)
        if M[node + N_HEAP_COUNT]:
            # a paced flow may have been put aside just now, until before `first`
            timer = M[heap]
            if timer < first:
                continue
        if timer <= now:
            timer_key = M[heap + 1]
            pop(M, node)
            _timer(M, th, node, timer, timer_key)
            kick(M, th, node, p, timer)
            continue
        at = M[addresses + (key & INDEX_MASK)]
        _arrival(M, th, node, p, M[at + 1], M[at + 2], now)
        kick(M, th, node, p, now)
        i += 1
        now = FOREVER
        if i < n:
            key = M[keys + i]
            now = begin + (key >> INDEX_BITS)
    if M[node + N_HEAP_COUNT] and M[heap] < later:
        later = M[heap]
    if ((M[p + P_QUEUE] & 0xFF) | M[node + N_READY_MASK]) and M[p + P_BUSY] < later:
        later = M[p + P_BUSY]
    return later
