"""Advances one host through one window, with its timers, its arrivals, and the transports at both ends of its flows.

The order at equal times: transmissions that can start, then timers (message starts, releases of paced flows, transport
timers; by message, and in this order within one; then the pull that is due), then arrivals. After each of them the idle
NIC (`nic`) starts at once.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.constants import (
    DATA,
    FOREVER,
    MASK_KEY_SENDER,
    PAUSE,
    PROBE,
    WHAT_PULL,
    WHAT_START,
    WHAT_TIMER,
)
from gradwire.jit.records.flows import Receiver, Sender, number_of_sender, receiver_at, sender_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, Node, Port
from gradwire.jit.records.packets import (
    argument_of,
    entropy_of,
    flow_of,
    has_echo,
    is_marked,
    is_trimmed,
    kind_of,
    sequence_of,
)
from gradwire.sim.engine.memory.atomics import prefetch
from gradwire.sim.engine.memory.timer_heap import first_timer, next_timer, pop, watches

from .aggregation import group_of, hear_for_all, starts_for_all, take_for_all
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
    on_control,
    on_data,
    on_feedback,
    on_probe,
    on_timer,
    on_trimmed,
    start,
)
from .connection import deliver_from_stream, hear_in_stream, join_stream, take_in_stream, time_out_in_stream
from .event_log import log_delivery, log_end
from .merge import TIME_SHIFT, arrival_of, merge
from .nic import PACED, UNLISTED, arm, kick, make_ready, ready, serve_nic
from .queue import give_entry, take_entry


@njit
def _arrival(state: State, thread: Thread, node: Host, port: Port, header: int, body: int, now: int) -> None:
    """Handle an arriving packet: data and probes go to the receiver of the flow, all else to its sender."""
    flow_number = flow_of(body)
    kind = kind_of(header)
    if PFC and kind == PAUSE:
        classes = argument_of(body)
        extra = port.extra
        if FAULTS and extra.ignores_pauses:
            return
        if classes & ~extra.paused:
            extra.pauses += 1
        extra.paused = classes
        return
    sequence = sequence_of(body)
    argument = argument_of(body)
    if kind == DATA or kind == PROBE:
        receiver = receiver_at(state, flow_number)
        receiver.arrived += 1
        if AGGREGATION and receiver.aggregation and group_of(state, flow_number).is_outward == 0:
            take_for_all(state, thread, node, port, group_of(state, flow_number), flow_number, header, body, now)
            return
        done = receiver.is_done
        if kind == DATA and TRIMMING and is_trimmed(header):
            receiver.trimmed += 1
            reply = on_trimmed(receiver, sequence, now)
        elif kind == DATA:
            size = receiver.payload
            last = receiver.packets - 1
            if sequence == last:
                size = receiver.nbytes - last * size
            ce = is_marked(header)
            receiver.marked += ce
            if ACK_DELAY and RIDES:
                receiver.last_piggyback = argument
            if STREAMS and receiver.stream:
                reply = take_in_stream(state, receiver, sequence, size, ce, now)
                if ACK_DELAY:
                    answer_or_wait(state, thread, node, port, receiver, receiver.stream, reply, header, body, now)
                else:
                    answer(state, thread, node, port, receiver, reply, header, body, now)
                deliver_from_stream(state, thread, node, receiver.stream, now)
                return
            reply = on_data(receiver, sequence, size, ce, now)
            if ACK_DELAY:
                answer_or_wait(state, thread, node, port, receiver, receiver, reply, header, body, now)
                reply = 0
        else:
            reply = on_probe(receiver, argument, now)
        if reply:
            answer(state, thread, node, port, receiver, reply, header, body, now)
        if done == 0 and receiver.is_done:
            log_delivery(state, thread, receiver, flow_number, now)
        return
    flow = sender_at(state, flow_number)
    flow.control_received += 1
    if AGGREGATION and group_of(state, flow_number) and group_of(state, flow_number).is_outward:
        flow = hear_for_all(state, thread, group_of(state, flow_number), flow_number, header, body, now)
        if flow:
            arm(state, node, flow)
            make_ready(state, thread, node, port, flow, now)
        return
    if STREAMS and flow.stream:
        if HOST_PATHS:
            on_feedback(flow.stream, kind, entropy_of(header), has_echo(header), now)
        flow = hear_in_stream(state, thread, flow, kind, sequence, argument, has_echo(header), now)
        arm(state, node, flow)
        make_ready(state, thread, node, port, flow, now)
        return
    if flow.is_done:
        return
    if HOST_PATHS:
        on_feedback(flow, kind, entropy_of(header), has_echo(header), now)
    on_control(flow, kind, sequence, argument, has_echo(header), now)
    if flow.is_done:
        log_end(state, thread, flow_number, now)
    else:
        arm(state, node, flow)
        make_ready(state, thread, node, port, flow, now)


@njit
def _timer(state: State, thread: Thread, node: Host, port: Port, time: int, key: int) -> None:
    """Handle one entry of the host's heap."""
    base = (key & MASK_KEY_SENDER) >> 2
    flow = Sender(state, base)
    what = key & 3
    if PULLS and what == WHAT_PULL:
        send_pull(state, thread, node, port, time)
        return
    if ACK_DELAY and what == WHAT_TIMER and base >= state.receivers:
        receiver_timer(state, thread, node, port, Receiver(state, base), time, key)
        return
    if what == WHAT_TIMER:
        if not watches(flow, flow.armed, time, key):
            return
        flow.armed = 0
        wanted = flow.timer
        if flow.is_done or wanted == 0:
            return
        if wanted <= time:
            flow.timer = 0
            met = flow.timeouts
            on_timer(flow, time)
            if STREAMS and flow.stream and flow.timeouts > met:
                time_out_in_stream(state, flow)
            make_ready(state, thread, node, port, flow, time)
        arm(state, node, flow)
        return
    if what == WHAT_START:
        if AGGREGATION:
            aggregation = group_of(state, number_of_sender(state, flow))
            if aggregation and aggregation.is_outward:
                flow = starts_for_all(state, aggregation)
                if not flow:
                    return
        if STREAMS and flow.stream:
            flow = join_stream(state, flow, time)
        else:
            start(flow, time)
        arm(state, node, flow)
    elif flow.is_listed == PACED:
        flow.is_listed = UNLISTED
    else:
        return
    if flow.is_done == 0:
        make_ready(state, thread, node, port, flow, time)


@njit
def _hold_all(state: State, thread: Thread, node: Host, keys: Words, n: int) -> None:
    """Hold the arrivals of a stopped host."""
    addresses = thread.addresses
    for i in range(n):
        arrival = arrival_of(state, addresses, keys[i])
        entry = take_entry(state, thread)
        entry.next = 0
        entry.header = arrival.header
        entry.body = arrival.body
        if node.held:
            node.held_tail.next = entry
        else:
            node.held_head = entry
        node.held_tail = entry
        node.held += 1


@njit
def _held_arrival(state: State, thread: Thread, node: Host, port: Port, now: int) -> None:
    """Handle the first packet that arrived while the host was stopped."""
    entry = node.held_head
    node.held_head = entry.next
    node.held -= 1
    header = entry.header
    body = entry.body
    give_entry(state, thread, entry)
    _arrival(state, thread, node, port, header, body, now)


@njit
def _fetch_records(state: State, thread: Thread, keys: Words, n: int) -> None:
    """Prefetch the records of the flows that the arrivals belong to."""
    addresses = thread.addresses
    for i in range(n):
        arrival = arrival_of(state, addresses, keys[i])
        kind = kind_of(arrival.header)
        flow_number = flow_of(arrival.body)
        if kind == DATA or kind == PROBE:
            receiver = receiver_at(state, flow_number)
            prefetch(receiver, 0)
            prefetch(receiver, 8)
            prefetch(receiver, 16)
        else:
            flow = sender_at(state, flow_number)
            prefetch(flow, 0)
            prefetch(flow, 8)
            prefetch(flow, 16)
            prefetch(flow, 24)
            prefetch(flow, 32)
    if not state.exceeds_caches:
        return
    for i in range(n):
        arrival = arrival_of(state, addresses, keys[i])
        kind = kind_of(arrival.header)
        flow_number = flow_of(arrival.body)
        if kind == DATA:
            prefetch(receiver_at(state, flow_number).bitmaps, sequence_of(arrival.body) >> 5)
        elif kind != PROBE:
            prefetch(sender_at(state, flow_number).bitmaps, 0)


@njit
def host_step(state: State, thread: Thread, node: Host, begin: int, end: int, shift: int) -> int:
    """Advance a host over [begin, end). Returns the time at which it next has to be visited, as far as it knows."""
    addresses = thread.addresses
    keys, n, later = merge(state, thread, Node(state, node.base), begin, end, shift)
    if FAULTS and node.is_paused:
        _hold_all(state, thread, node, keys, n)
        return later
    _fetch_records(state, thread, keys, n)
    port = node.port
    i = 0
    now = FOREVER
    key = 0
    if n:
        key = keys[0]
        now = begin + (key >> TIME_SHIFT)
    if FAULTS and node.held:
        now = begin
    while True:
        timer = next_timer(node)
        first = min(now, timer)
        if first >= end:
            serve_nic(state, thread, node, port, end - 1)
            if next_timer(node) < end:
                continue
            break
        serve_nic(state, thread, node, port, first)
        if next_timer(node) != timer:
            # a paced flow has been delayed, perhaps to before `first`; the heap may have been swept for it
            continue
        if timer <= now:
            timer_key = first_timer(node).key
            pop(node)
            _timer(state, thread, node, port, timer, timer_key)
            kick(state, thread, node, port, timer)
            continue
        if FAULTS and node.held:
            _held_arrival(state, thread, node, port, now)
            kick(state, thread, node, port, now)
            if node.held:
                continue
        else:
            arrival = arrival_of(state, addresses, key)
            _arrival(state, thread, node, port, arrival.header, arrival.body, now)
            kick(state, thread, node, port, now)
            i += 1
        now = FOREVER
        if i < n:
            key = keys[i]
            now = begin + (key >> TIME_SHIFT)
    later = min(later, next_timer(node))
    if ready(state, node, port) and port.busy_until < later:
        later = port.busy_until
    return later
