"""Streams: connections that carry several messages as one sequence of packets with one window.

A stream has its own record at either end, on which its transport works; it takes the turns at the NIC, and it has the
timers. A message that starts joins the end of its stream, and its sender is done when the packets before it and its own
have been acknowledged; its receiver delivers it when they have arrived. On a link a packet belongs to its message and
carries its number within it, so that counters by message, and logs, are as without streams; the cumulative point of an
acknowledgement is that of the stream.

A receiver reads in the sender's record of a message where it begins in its stream. That was written before the first of
its packets left, at least a window ago, and does not change: the words on the wire would say the same.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    H_RECEIVERS,
    H_SENDERS,
    MASK_SEQUENCE,
    R_BACK,
    R_BEHIND,
    R_CUMULATIVE,
    R_DONE,
    R_FIRST,
    R_FRONT,
    R_GOT,
    R_KNOWN,
    R_PACKETS,
    R_STREAM,
    R_WORDS,
    RECEIVER_WORDS,
    S_AT,
    S_BACK,
    S_BEGUN,
    S_BEHIND,
    S_DONE,
    S_FIRST,
    S_FRESH,
    S_FRONT,
    S_LAST_SENT,
    S_NXT,
    S_ORDER,
    S_PACKETS,
    S_RETRANSMITTED,
    S_STREAM,
    S_TIMEOUTS,
    S_TOTAL,
    S_UNA,
    S_WORDS,
    SENDER_WORDS,
    STREAM_SPAN,
)

from .bindings import forget, forget_received, on_control, on_data, resume, start
from .event_log import log_delivery, log_end

ARGUMENT = 40  # first bit of the argument of a receiver's answer
HALF = (MASK_SEQUENCE + 1) >> 1


@njit
def _open_window(M, s):
    """Limit what the transport may send to what has been handed over, and not too far ahead."""
    first = M[s + S_FIRST]
    M[s + S_PACKETS] = min(M[s + S_TOTAL] - first, M[s + S_UNA] + STREAM_SPAN)


@njit
def join_stream(M, f, now):
    """Add a message that enters the host to its stream. Returns the sender's record of the stream."""
    s = M[f + S_STREAM]
    first = M[s + S_TOTAL]
    last = first + M[f + S_PACKETS]
    if M[s + S_BEGUN] == 0:
        M[s + S_BEGUN] = 1
        M[s + S_ORDER] = M[f + S_ORDER]
        start(M, s, now)
    elif first - M[s + S_FIRST] == M[s + S_UNA]:
        resume(M, s, now)
    if last - M[s + S_FIRST] > M[s + S_WORDS] << 5:
        packets = max(M[s + S_UNA] - 1, 0) & ~31
        forget(M, s, packets)
        M[s + S_FIRST] += packets
    M[f + S_FIRST] = first
    M[s + S_TOTAL] = last
    if M[s + S_FRONT]:
        M[M[s + S_BACK] + S_BEHIND] = f
    else:
        M[s + S_FRONT] = f
    M[s + S_BACK] = f
    if M[s + S_AT] == 0:
        M[s + S_AT] = f
    _open_window(M, s)
    return s


@njit
def message_of(M, s, sequence, now):
    """Return the message of packet `sequence` of the stream, in its transport's numbering; the packet leaves now."""
    M[s + S_LAST_SENT] = now
    place = M[s + S_FIRST] + sequence
    f = M[s + S_AT]
    if place < M[f + S_FIRST]:
        f = M[s + S_RETRANSMITTED]
        if f == 0 or place < M[f + S_FIRST]:
            f = M[s + S_FRONT]
        while place >= M[f + S_FIRST] + M[f + S_PACKETS]:
            f = M[f + S_BEHIND]
        M[s + S_RETRANSMITTED] = f
        return f
    while place >= M[f + S_FIRST] + M[f + S_PACKETS]:
        f = M[f + S_BEHIND]
    M[s + S_AT] = f
    if place - M[f + S_FIRST] == M[f + S_FRESH]:
        M[f + S_FRESH] += 1
    return f


@njit
def hear_in_stream(M, th, f, kind, sequence, argument, echo, now):
    """Handle an acknowledgement of packet `sequence` of message `f` at the sender of its stream, which is returned."""
    s = M[f + S_STREAM]
    una = M[s + S_UNA]
    ahead = (argument - M[s + S_FIRST] - una) & MASK_SEQUENCE
    if ahead >= HALF:
        ahead -= MASK_SEQUENCE + 1
    on_control(M, s, kind, M[f + S_FIRST] - M[s + S_FIRST] + sequence, una + ahead, echo, now)
    if M[s + S_UNA] == una:
        return s
    place = M[s + S_FIRST] + M[s + S_UNA]
    front = M[s + S_FRONT]
    while front and M[front + S_FIRST] + M[front + S_PACKETS] <= place:
        M[front + S_DONE] = 1
        behind = M[front + S_BEHIND]
        if M[s + S_RETRANSMITTED] == front:
            M[s + S_RETRANSMITTED] = 0
        if M[s + S_AT] == front:
            M[s + S_AT] = behind
        log_end(M, th, (front - M[H_SENDERS]) // SENDER_WORDS, now)
        front = behind
    M[s + S_FRONT] = front
    _open_window(M, s)
    return s


@njit
def time_out_in_stream(M, s):
    """Count a time-out of a stream for its messages that have packets outstanding."""
    sent = M[s + S_FIRST] + M[s + S_NXT]
    f = M[s + S_FRONT]
    while f and M[f + S_FIRST] < sent:
        M[f + S_TIMEOUTS] += 1
        f = M[f + S_BEHIND]


@njit
def _come_to_know(M, r, s):
    """Insert a message whose first packet has arrived among those that have begun."""
    M[r + R_KNOWN] = 1
    flow = (r - M[H_RECEIVERS]) // RECEIVER_WORDS
    first = M[M[H_SENDERS] + flow * SENDER_WORDS + S_FIRST]
    M[r + R_FIRST] = first
    if first + M[r + R_PACKETS] - M[s + R_FIRST] > M[s + R_WORDS] << 5:
        packets = max(M[s + R_CUMULATIVE] - 1, 0) & ~31
        forget_received(M, s, packets)
        M[s + R_FIRST] += packets
    front = M[s + R_FRONT]
    if front == 0:
        M[s + R_FRONT] = r
        M[s + R_BACK] = r
    elif M[M[s + R_BACK] + R_FIRST] < first:
        M[M[s + R_BACK] + R_BEHIND] = r
        M[s + R_BACK] = r
    elif first < M[front + R_FIRST]:
        M[r + R_BEHIND] = front
        M[s + R_FRONT] = r
    else:
        while M[M[front + R_BEHIND] + R_FIRST] < first:
            front = M[front + R_BEHIND]
        M[r + R_BEHIND] = M[front + R_BEHIND]
        M[front + R_BEHIND] = r


@njit
def in_stream(M, s, answer):
    """Return an answer of a stream's receiver for the wire: its cumulative point counts all packets of the stream."""
    if answer == 0:
        return 0
    cumulative = ((answer >> ARGUMENT) + M[s + R_FIRST]) & MASK_SEQUENCE
    return (answer & ((1 << ARGUMENT) - 1)) | (cumulative << ARGUMENT)


@njit
def take_in_stream(M, r, sequence, size, ce, now):
    """Handle a packet of message `r` at the receiver of its stream. Returns the answer."""
    s = M[r + R_STREAM]
    if M[r + R_KNOWN] == 0:
        _come_to_know(M, r, s)
    had = M[s + R_GOT]
    place = max(
        M[r + R_FIRST] - M[s + R_FIRST] + sequence, 0
    )  # packets before the numbering have arrived, and so has 0 then
    answer = on_data(M, s, place, size, ce, now)
    M[r + R_GOT] += M[s + R_GOT] - had
    return in_stream(M, s, answer)


@njit
def deliver_from_stream(M, th, node, s, now):
    """Deliver, in order, the messages up to which everything has arrived."""
    place = M[s + R_FIRST] + M[s + R_CUMULATIVE]
    front = M[s + R_FRONT]
    while front and M[front + R_FIRST] + M[front + R_PACKETS] <= place:
        M[front + R_DONE] = 1
        log_delivery(M, th, front, (front - M[H_RECEIVERS]) // RECEIVER_WORDS, now)
        front = M[front + R_BEHIND]
    M[s + R_FRONT] = front
