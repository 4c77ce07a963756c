"""Implements streams, connections that carry several messages as one sequence of packets with one window.

A stream has its own record at either end, on which its transport works; it takes the turns at the NIC, and it has the
timers. A message that starts joins the end of its stream, and its sender is done when the packets before it and its own
have been acknowledged; its receiver delivers it when they have arrived. On a link a packet belongs to its message and
carries its number within it, so that counters by message, and logs, are as without streams; the cumulative point of an
acknowledgement is that of the stream.

A receiver reads in the sender's record of a message where it begins in its stream. That was written before the first of
its packets left, at least a window ago, and does not change: the words on the wire would say the same.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import MASK_SEQUENCE, STREAM_SPAN
from gradwire.jit.records.flows import Receiver, Sender, number_of_receiver, number_of_sender, sender_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host

from .bindings import forget, forget_received, on_control, on_data, resume, start
from .event_log import log_delivery, log_end

ARGUMENT = 40  # first bit of the argument of a receiver's answer
HALF = (MASK_SEQUENCE + 1) >> 1


@njit
def _open_window(state: State, stream: Sender) -> None:
    """Limit what the transport may send to what has been handed over, and not too far ahead."""
    first = stream.first_packet
    stream.packets = min(stream.next_number - first, stream.una + STREAM_SPAN)


@njit
def join_stream(state: State, flow: Sender, now: int) -> Sender:
    """Add a message that enters the host to its stream. Returns the sender's record of the stream."""
    stream = flow.stream
    first = stream.next_number
    last = first + flow.packets
    if stream.has_begun == 0:
        stream.has_begun = 1
        stream.order = flow.order
        start(stream, now)
    elif first - stream.first_packet == stream.una:
        resume(stream, now)
    if last - stream.first_packet > stream.bitmap_words << 5:
        packets = max(stream.una - 1, 0) & ~31
        forget(stream, packets)
        stream.first_packet += packets
    flow.first_packet = first
    stream.next_number = last
    if stream.front_message:
        stream.last_message.next_message = flow
    else:
        stream.front_message = flow
    stream.last_message = flow
    if not stream.new_data_message:
        stream.new_data_message = flow
    _open_window(state, stream)
    return stream


@njit
def message_of(state: State, stream: Sender, sequence: int, now: int) -> Sender:
    """Return the message of packet `sequence` of the stream, in its transport's numbering; the packet leaves now."""
    stream.last_sent_at = now
    place = stream.first_packet + sequence
    flow = stream.new_data_message
    if place < flow.first_packet:
        flow = stream.retransmitted_message
        if not flow or place < flow.first_packet:
            flow = stream.front_message
        while place >= flow.first_packet + flow.packets:
            flow = flow.next_message
        stream.retransmitted_message = flow
        return flow
    while place >= flow.first_packet + flow.packets:
        flow = flow.next_message
    stream.new_data_message = flow
    if place - flow.first_packet == flow.first_sends:
        flow.first_sends += 1
    return flow


@njit
def hear_in_stream(
    state: State, thread: Thread, flow: Sender, kind: int, sequence: int, argument: int, echo: int, now: int
) -> Sender:
    """Handle an acknowledgement of packet `sequence` of message `f` at the sender of its stream, which is returned."""
    stream = flow.stream
    una = stream.una
    ahead = (argument - stream.first_packet - una) & MASK_SEQUENCE
    if ahead >= HALF:
        ahead -= MASK_SEQUENCE + 1
    on_control(stream, kind, flow.first_packet - stream.first_packet + sequence, una + ahead, echo, now)
    if stream.una == una:
        return stream
    place = stream.first_packet + stream.una
    front = stream.front_message
    while front and front.first_packet + front.packets <= place:
        front.is_done = 1
        behind = front.next_message
        if stream.retransmitted_message == front:
            stream.retransmitted_message = 0
        if stream.new_data_message == front:
            stream.new_data_message = behind
        log_end(state, thread, number_of_sender(state, front), now)
        front = behind
    stream.front_message = front
    _open_window(state, stream)
    return stream


@njit
def time_out_in_stream(state: State, stream: Sender) -> None:
    """Count a time-out of a stream for its messages that have packets outstanding."""
    sent = stream.first_packet + stream.nxt
    flow = stream.front_message
    while flow and flow.first_packet < sent:
        flow.timeouts += 1
        flow = flow.next_message


@njit
def _come_to_know(state: State, receiver: Receiver, stream: Receiver) -> None:
    """Insert a message whose first packet has arrived among those that have begun."""
    receiver.has_arrived = 1
    flow_number = number_of_receiver(state, receiver)
    first = sender_at(state, flow_number).first_packet
    receiver.first_packet = first
    if first + receiver.packets - stream.first_packet > stream.bitmap_words << 5:
        packets = max(stream.cumulative - 1, 0) & ~31
        forget_received(stream, packets)
        stream.first_packet += packets
    front = stream.front_message
    if not front:
        stream.front_message = receiver
        stream.last_message = receiver
    elif stream.last_message.first_packet < first:
        stream.last_message.next_message = receiver
        stream.last_message = receiver
    elif first < front.first_packet:
        receiver.next_message = front
        stream.front_message = receiver
    else:
        while front.next_message.first_packet < first:
            front = front.next_message
        receiver.next_message = front.next_message
        front.next_message = receiver


@njit
def in_stream(state: State, stream: Receiver, answer: int) -> int:
    """Return an answer of a stream's receiver for the wire: its cumulative point counts all packets of the stream."""
    if answer == 0:
        return 0
    cumulative = ((answer >> ARGUMENT) + stream.first_packet) & MASK_SEQUENCE
    return (answer & ((1 << ARGUMENT) - 1)) | (cumulative << ARGUMENT)


@njit
def take_in_stream(state: State, receiver: Receiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Handle a packet of message `r` at the receiver of its stream. Returns the answer."""
    stream = receiver.stream
    if receiver.has_arrived == 0:
        _come_to_know(state, receiver, stream)
    had = stream.received_bytes
    place = max(
        receiver.first_packet - stream.first_packet + sequence, 0
    )  # packets before the numbering have arrived, and so has 0 then
    answer = on_data(stream, place, size, ce, now)
    receiver.received_bytes += stream.received_bytes - had
    return in_stream(state, stream, answer)


@njit
def deliver_from_stream(state: State, thread: Thread, node: Host, stream: Receiver, now: int) -> None:
    """Deliver, in order, the messages up to which everything has arrived."""
    place = stream.first_packet + stream.cumulative
    front = stream.front_message
    while front and front.first_packet + front.packets <= place:
        front.is_done = 1
        log_delivery(state, thread, front, number_of_receiver(state, front), now)
        front = front.next_message
    stream.front_message = front
