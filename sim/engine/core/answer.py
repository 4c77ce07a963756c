"""Sends the control packets of a host's receivers, which are answers, delayed acknowledgements and pulls.

A pull asks a sender for a packet. Receivers that pace their senders take turns in sending pulls, spaced by the time
that a full packet of the flow takes on the host's line.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import KEY_ORDER, MASK_KEY_NUMBER, MASK_SEQUENCE, PULL, WHAT_PULL, WHAT_TIMER
from gradwire.jit.records.flows import Receiver, number_of_receiver, receiver_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, Port
from gradwire.jit.records.packets import (
    argument_of,
    body_of,
    entropy_of,
    flow_of,
    priority_of,
    sequence_of,
    size_of,
    with_echo,
    with_kind,
    with_size,
)
from gradwire.jit.records.replies import (
    has_piggyback,
    is_for_previous,
    reply_argument,
    reply_count,
    reply_echo,
    reply_kind,
    reply_pulls,
    reply_size,
)
from gradwire.sim.engine.memory.timer_heap import push, sender_of, watches

from .bindings import HOST_PATHS, PULLS, STREAMS, on_late
from .connection import in_stream
from .link import transmission_time, transmit
from .nic import with_entropy
from .pause import may_send
from .queue import append


@njit
def send_control(state: State, thread: Thread, node: Host, port: Port, header: int, body: int, now: int) -> None:
    """Put a control packet on the link, or into its class."""
    c = min(priority_of(header), port.flags >> 8)
    idle = port.busy_until <= now and ((port.queue & 0xFF) | node.ready_mask) == 0
    if idle and may_send(state, port, c):
        transmit(state, thread, port, header, body, now)
    else:
        append(state, thread, port, header, body, size_of(header), c, Port(state, 0), now)


@njit
def _want_pulls(state: State, node: Host, receiver: Receiver, pulls: int, now: int) -> None:
    """Request more pulls for a receiver: it joins the host's list, and the host's timer is set if it was not."""
    receiver.queued_pulls += pulls
    if receiver.is_pull_listed:
        return
    receiver.is_pull_listed = 1
    receiver.next_puller = 0
    if node.pull_head:
        node.pull_tail.next_puller = receiver
    else:
        node.pull_head = receiver
        push(node, max(now, node.next_pull), (MASK_KEY_NUMBER << KEY_ORDER) | (node.base << 2) | WHAT_PULL)
    node.pull_tail = receiver


@njit
def send_pull(state: State, thread: Thread, node: Host, port: Port, now: int) -> None:
    """Send a pull for the receiver whose turn it is; those that want none any more leave the list."""
    receiver = node.pull_head
    while receiver and receiver.queued_pulls == 0:
        receiver.is_pull_listed = 0
        receiver = receiver.next_puller
    node.pull_head = receiver
    if not receiver:
        return
    receiver.queued_pulls -= 1
    receiver.pulls_sent += 1
    receiver.control_sent += 1
    flow_number = number_of_receiver(state, receiver)
    header = with_kind(receiver.control_header, PULL)
    body = body_of(flow_number, 0, receiver.pulls_sent & MASK_SEQUENCE)
    if receiver != node.pull_tail:
        node.pull_head = receiver.next_puller
        node.pull_tail.next_puller = receiver
        node.pull_tail = receiver
        receiver.next_puller = 0
    node.next_pull = now + transmission_time(receiver.frame_bytes, port.ps_per_byte)
    push(node, node.next_pull, (MASK_KEY_NUMBER << KEY_ORDER) | (node.base << 2) | WHAT_PULL)
    send_control(state, thread, node, port, header, body, now)


@njit
def answer(
    state: State,
    thread: Thread,
    node: Host,
    port: Port,
    receiver: Receiver,
    reply: int,
    header: int,
    body: int,
    now: int,
) -> None:
    """Send the control packets that a receiver wants in answer to a packet (`gradwire.jit.records.replies`)."""
    if PULLS:
        pulls = reply_pulls(reply)
        if pulls:
            _want_pulls(state, node, receiver, pulls, now)
    count = reply_count(reply)
    if count == 0:
        return
    entropy = entropy_of(header)
    header = with_echo(with_kind(receiver.control_header, reply_kind(reply)), reply_echo(reply))
    if HOST_PATHS:
        header = with_entropy(header, entropy)
    size = reply_size(reply)
    if size:
        header = with_size(header, size)
    sequence = sequence_of(body)
    if has_piggyback(reply):
        sequence = argument_of(body)
    receiver.control_sent += count
    flow_number, argument = flow_of(body), reply_argument(reply)
    if count == 1:
        send_control(state, thread, node, port, header, body_of(flow_number, sequence, argument), now)
        return
    c = min(priority_of(header), port.flags >> 8)
    size = size_of(header)
    for i in range(count):
        append(state, thread, port, header, body_of(flow_number, i, argument), size, c, Port(state, 0), now)


@njit
def answer_or_wait(
    state: State,
    thread: Thread,
    node: Host,
    port: Port,
    receiver: Receiver,
    stream: Receiver,
    reply: int,
    header: int,
    body: int,
    now: int,
) -> None:
    """Send the answer of a receiver that may delay it to a data packet, or to the one before, and arm its timer.

    `stream`: the record that its transport works on.
    """
    if is_for_previous(reply):
        _answer_last(state, thread, node, port, stream, reply, now)
    elif reply:
        answer(state, thread, node, port, receiver, reply, header, body, now)
    stream.last_data = header
    stream.last_data_body = body
    _arm_receiver(state, node, stream)


@njit
def _answer_last(state: State, thread: Thread, node: Host, port: Port, stream: Receiver, reply: int, now: int) -> None:
    """Send an answer to the last data packet."""
    body = stream.last_data_body
    answer(state, thread, node, port, receiver_at(state, flow_of(body)), reply, stream.last_data, body, now)


@njit
def _arm_receiver(state: State, node: Host, stream: Receiver) -> None:
    """Put a receiver's timer on the heap if no earlier entry of it is there."""
    timer = stream.timer
    if timer and (stream.armed == 0 or timer < stream.armed):
        stream.armed = timer
        push(node, timer, sender_of(stream).order | (stream.base << 2) | WHAT_TIMER)


@njit
def receiver_timer(state: State, thread: Thread, node: Host, port: Port, stream: Receiver, time: int, key: int) -> None:
    """Handle the entry of a receiver in the host's heap."""
    if not watches(sender_of(stream), stream.armed, time, key):
        return
    stream.armed = 0
    wanted = stream.timer
    if wanted and wanted <= time:
        stream.timer = 0
        reply = on_late(stream, time)
        if STREAMS and stream.stream:
            reply = in_stream(state, stream, reply)
        if reply:
            _answer_last(state, thread, node, port, stream, reply, time)
    _arm_receiver(state, node, stream)
