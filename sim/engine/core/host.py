"""One host in one window: its timers, its arrivals, and the transports at both ends of its flows.

The order at equal times: transmissions that can start, then timers (message starts, releases of paced flows, transport
timers; by message, and in this order within one; then the pull that is due), then arrivals. After each of them the idle
NIC (`nic`) starts at once.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    A_CE,
    A_ECHO,
    A_ENTROPY,
    A_KIND,
    A_TRIMMED,
    B_ARGUMENT,
    B_SEQUENCE,
    DATA,
    FAN_OUT,
    FOREVER,
    H_FAR,
    H_RECEIVERS,
    H_SENDERS,
    MASK_FLOW,
    MASK_KEY_SENDER,
    MASK_SEQUENCE,
    N_HEAP,
    N_HEAP_COUNT,
    N_HELD,
    N_HELD_HEAD,
    N_HELD_TAIL,
    N_PORT,
    N_STILL,
    P_BUSY,
    P_MORE,
    PAUSE,
    PROBE,
    R_ARRIVED,
    R_BITS,
    R_BYTES,
    R_DONE,
    R_FAN,
    R_MARKED,
    R_PACKETS,
    R_PAYLOAD,
    R_RIDER,
    R_STREAM,
    R_TRIMMED,
    RECEIVER_WORDS,
    S_ARMED,
    S_BITS,
    S_DONE,
    S_HEARD,
    S_LISTED,
    S_STREAM,
    S_TIMEOUTS,
    S_TIMER,
    SENDER_WORDS,
    T_ADDRESS,
    WHAT_PULL,
    WHAT_START,
    WHAT_TIMER,
    X_DEAF,
    X_PAUSED,
    X_PAUSES,
)
from gradwire.sim.engine.memory.atomics import prefetch
from gradwire.sim.engine.memory.timer_heap import pop, watches

from .aggregation import fan_of, hear_for_all, starts_for_all, take_for_all
from .answer import answer, answer_or_wait, receiver_timer, send_pull
from .bindings import (
    ACK_DELAY,
    AGGREGATION,
    FAULTS,
    HOST_PATHS,
    PFC,
    PULLS,
    RIDES,
    STREAMS,
    TRIMMING,
    heard,
    on_control,
    on_data,
    on_probe,
    on_timer,
    on_trimmed,
    start,
)
from .connection import deliver_from_stream, hear_in_stream, join_stream, take_in_stream, time_out_in_stream
from .event_log import log_delivery, log_end
from .merge import INDEX_MASK, TIME_SHIFT, merge
from .nic import PACED, UNLISTED, arm, kick, make_ready, ready, serve_nic
from .queue import give_entry, take_entry


@njit
def _arrival(M, th, node, p, A, B, now):
    """Handle an arriving packet: data and probes go to the receiver of the flow, all else to its sender."""
    flow = B & MASK_FLOW
    kind = (A >> A_KIND) & 7
    if PFC and kind == PAUSE:
        classes = (B >> B_ARGUMENT) & MASK_SEQUENCE
        more = M[p + P_MORE]
        if FAULTS and M[more + X_DEAF]:
            return
        if classes & ~M[more + X_PAUSED]:
            M[more + X_PAUSES] += 1
        M[more + X_PAUSED] = classes
        return
    sequence = (B >> B_SEQUENCE) & MASK_SEQUENCE
    argument = (B >> B_ARGUMENT) & MASK_SEQUENCE
    if kind == DATA or kind == PROBE:
        r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
        M[r + R_ARRIVED] += 1
        if AGGREGATION and M[r + R_FAN] and M[M[r + R_FAN] + FAN_OUT] == 0:
            take_for_all(M, th, node, p, M[r + R_FAN], flow, A, B, now)
            return
        done = M[r + R_DONE]
        if kind == DATA and TRIMMING and (A >> A_TRIMMED) & 1:
            M[r + R_TRIMMED] += 1
            reply = on_trimmed(M, r, sequence, now)
        elif kind == DATA:
            size = M[r + R_PAYLOAD]
            last = M[r + R_PACKETS] - 1
            if sequence == last:
                size = M[r + R_BYTES] - last * size
            ce = (A >> A_CE) & 1
            M[r + R_MARKED] += ce
            if ACK_DELAY and RIDES:
                M[r + R_RIDER] = argument
            if STREAMS and M[r + R_STREAM]:
                reply = take_in_stream(M, r, sequence, size, ce, now)
                if ACK_DELAY:
                    answer_or_wait(M, th, node, p, r, M[r + R_STREAM], reply, A, B, now)
                else:
                    answer(M, th, node, p, r, reply, A, B, now)
                deliver_from_stream(M, th, node, M[r + R_STREAM], now)
                return
            reply = on_data(M, r, sequence, size, ce, now)
            if ACK_DELAY:
                answer_or_wait(M, th, node, p, r, r, reply, A, B, now)
                reply = 0
        else:
            reply = on_probe(M, r, argument, now)
        if reply:
            answer(M, th, node, p, r, reply, A, B, now)
        if done == 0 and M[r + R_DONE]:
            log_delivery(M, th, r, flow, now)
        return
    f = M[H_SENDERS] + flow * SENDER_WORDS
    M[f + S_HEARD] += 1
    if AGGREGATION and fan_of(M, flow) and M[fan_of(M, flow) + FAN_OUT]:
        f = hear_for_all(M, th, fan_of(M, flow), flow, A, B, now)
        if f:
            arm(M, node, f)
            make_ready(M, th, node, p, f, now)
        return
    if STREAMS and M[f + S_STREAM]:
        if HOST_PATHS:
            heard(M, M[f + S_STREAM], kind, (A >> A_ENTROPY) & 0xFFFF, (A >> A_ECHO) & 1, now)
        f = hear_in_stream(M, th, f, kind, sequence, argument, (A >> A_ECHO) & 1, now)
        arm(M, node, f)
        make_ready(M, th, node, p, f, now)
        return
    if M[f + S_DONE]:
        return
    if HOST_PATHS:
        heard(M, f, kind, (A >> A_ENTROPY) & 0xFFFF, (A >> A_ECHO) & 1, now)
    on_control(M, f, kind, sequence, argument, (A >> A_ECHO) & 1, now)
    if M[f + S_DONE]:
        log_end(M, th, flow, now)
    else:
        arm(M, node, f)
        make_ready(M, th, node, p, f, now)


@njit
def _timer(M, th, node, p, time, key):
    """Handle one entry of the host's heap."""
    f = (key & MASK_KEY_SENDER) >> 2
    what = key & 3
    if PULLS and what == WHAT_PULL:
        send_pull(M, th, node, p, time)
        return
    if ACK_DELAY and what == WHAT_TIMER and f >= M[H_RECEIVERS]:
        receiver_timer(M, th, node, p, f, time, key)
        return
    if what == WHAT_TIMER:
        if not watches(M, f, f + S_ARMED, time, key):
            return
        M[f + S_ARMED] = 0
        wanted = M[f + S_TIMER]
        if M[f + S_DONE] or wanted == 0:
            return
        if wanted <= time:
            M[f + S_TIMER] = 0
            met = M[f + S_TIMEOUTS]
            on_timer(M, f, time)
            if STREAMS and M[f + S_STREAM] and M[f + S_TIMEOUTS] > met:
                time_out_in_stream(M, f)
            make_ready(M, th, node, p, f, time)
        arm(M, node, f)
        return
    if what == WHAT_START:
        if AGGREGATION:
            fan = fan_of(M, (f - M[H_SENDERS]) // SENDER_WORDS)
            if fan and M[fan + FAN_OUT]:
                f = starts_for_all(M, fan)
                if f == 0:
                    return
        if STREAMS and M[f + S_STREAM]:
            f = join_stream(M, f, time)
        else:
            start(M, f, time)
        arm(M, node, f)
    elif M[f + S_LISTED] == PACED:
        M[f + S_LISTED] = UNLISTED
    else:
        return
    if M[f + S_DONE] == 0:
        make_ready(M, th, node, p, f, time)


@njit
def _hold_all(M, th, node, keys, n):
    """Hold the arrivals of a stopped host."""
    for i in range(n):
        at = M[M[th + T_ADDRESS] + (M[keys + i] & INDEX_MASK)]
        entry = take_entry(M, th)
        M[entry] = 0
        M[entry + 1] = M[at + 1]
        M[entry + 2] = M[at + 2]
        if M[node + N_HELD]:
            M[M[node + N_HELD_TAIL]] = entry
        else:
            M[node + N_HELD_HEAD] = entry
        M[node + N_HELD_TAIL] = entry
        M[node + N_HELD] += 1


@njit
def _held_arrival(M, th, node, p, now):
    """Handle the first packet that arrived while the host was stopped."""
    entry = M[node + N_HELD_HEAD]
    M[node + N_HELD_HEAD] = M[entry]
    M[node + N_HELD] -= 1
    A = M[entry + 1]
    B = M[entry + 2]
    give_entry(M, th, entry)
    _arrival(M, th, node, p, A, B, now)


@njit
def _fetch_records(M, th, keys, n):
    """Prefetch the records of the flows that the arrivals belong to."""
    for i in range(n):
        at = M[M[th + T_ADDRESS] + (M[keys + i] & INDEX_MASK)]
        kind = (M[at + 1] >> A_KIND) & 7
        flow = M[at + 2] & MASK_FLOW
        if kind == DATA or kind == PROBE:
            r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
            prefetch(M, r)
            prefetch(M, r + 8)
            prefetch(M, r + 16)
        else:
            f = M[H_SENDERS] + flow * SENDER_WORDS
            prefetch(M, f)
            prefetch(M, f + 8)
            prefetch(M, f + 16)
            prefetch(M, f + 24)
            prefetch(M, f + 32)
    if not M[H_FAR]:
        return
    for i in range(n):
        at = M[M[th + T_ADDRESS] + (M[keys + i] & INDEX_MASK)]
        kind = (M[at + 1] >> A_KIND) & 7
        flow = M[at + 2] & MASK_FLOW
        if kind == DATA:
            r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
            prefetch(M, M[r + R_BITS] + (((M[at + 2] >> B_SEQUENCE) & MASK_SEQUENCE) >> 5))
        elif kind != PROBE:
            f = M[H_SENDERS] + flow * SENDER_WORDS
            prefetch(M, M[f + S_BITS])


@njit
def host_step(M, th, node, begin, end, shift):
    """Advance a host over [begin, end). Returns the time at which it next has to be visited, as far as it knows."""
    keys, n, later = merge(M, th, node, begin, end, shift)
    if FAULTS and M[node + N_STILL]:
        _hold_all(M, th, node, keys, n)
        return later
    _fetch_records(M, th, keys, n)
    addresses = M[th + T_ADDRESS]
    p = M[node + N_PORT]
    heap = M[node + N_HEAP]
    i = 0
    now = FOREVER
    key = 0
    if n:
        key = M[keys]
        now = begin + (key >> TIME_SHIFT)
    if FAULTS and M[node + N_HELD]:
        now = begin
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
        if (M[heap] if M[node + N_HEAP_COUNT] else FOREVER) != timer:
            # a paced flow has been delayed, perhaps to before `first`; the heap may have been swept for it
            continue
        if timer <= now:
            timer_key = M[heap + 1]
            pop(M, node)
            _timer(M, th, node, p, timer, timer_key)
            kick(M, th, node, p, timer)
            continue
        if FAULTS and M[node + N_HELD]:
            _held_arrival(M, th, node, p, now)
            kick(M, th, node, p, now)
            if M[node + N_HELD]:
                continue
        else:
            at = M[addresses + (key & INDEX_MASK)]
            _arrival(M, th, node, p, M[at + 1], M[at + 2], now)
            kick(M, th, node, p, now)
            i += 1
        now = FOREVER
        if i < n:
            key = M[keys + i]
            now = begin + (key >> TIME_SHIFT)
    if M[node + N_HEAP_COUNT] and M[heap] < later:
        later = M[heap]
    if ready(M, node, p) and M[p + P_BUSY] < later:
        later = M[p + P_BUSY]
    return later
