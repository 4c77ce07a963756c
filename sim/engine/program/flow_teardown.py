"""End of messages: entries in the message log, and reuse of their records.

A record may be reused only when no packet of its message is left anywhere, late ones included, and none will be sent:
the counters of sender and receiver, the logged drops and the pending timers of both determine that exactly. Nor may an
end of a message still have to be played, as when a program waits for Python to continue a process.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    B_DST,
    B_END,
    B_FLOW,
    B_GOT,
    B_MARKED,
    B_PACKETS,
    B_RETRANSMITTED,
    B_SENT,
    B_SRC,
    B_STATE,
    B_TAGS,
    B_TIMEOUTS,
    B_TRIMMED,
    BOOK_WORDS,
    DELIVERED,
    F_LEAF_SPARE,
    F_RECORD,
    F_SPARE,
    FAN_OVER,
    FAN_SIZE,
    FAN_WORDS,
    H_BOOK,
    H_BOOK_FIRST,
    H_CLOSING,
    H_CLOSING_COUNT,
    H_DROPPED,
    H_FREE,
    H_FREE_COUNT,
    H_NODES,
    H_RECEIVERS,
    H_SENDERS,
    H_SORTED,
    KEY_ORDER,
    KIND_FRESH,
    KIND_LATE,
    KIND_PROBES,
    KIND_RECEIVER_BITMAPS,
    KIND_SENDER_BITMAPS,
    MEMBER_WORDS,
    N_FLOWS,
    NODE_WORDS,
    R_ARRIVED,
    R_FAN,
    R_GOT,
    R_LEFT,
    R_MARKED,
    R_PULL_LISTED,
    R_SENT,
    R_TIMER,
    R_TRIMMED,
    RECEIVER_WORDS,
    S_BITS,
    S_HEARD,
    S_KIND,
    S_LISTED,
    S_OPEN,
    S_ORDER,
    S_PEER,
    S_SENT,
    S_SLOTS,
    S_STAMPS,
    S_STREAM,
    S_TIMEOUTS,
    S_WORDS,
    SENDER_WORDS,
    SLOT_WORDS,
    STATE_DELIVERED,
    STATE_DONE,
)
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.stretch_allocator import free
from gradwire.sim.engine.program.flow_setup import transport_of


@njit
def note(M, at):
    """Enter a row of a thread's log into the message log: a delivery, or the end of a sender."""
    flow = M[at + 1]
    f = M[H_SENDERS] + flow * SENDER_WORDS
    book = words_at(M[H_BOOK])
    row = ((M[f + S_ORDER] >> KEY_ORDER) - M[H_BOOK_FIRST]) * BOOK_WORDS
    if M[at + 2] == DELIVERED:
        book[row + B_END] = M[at]
        book[row + B_GOT] = M[at + 3]
        book[row + B_STATE] |= STATE_DELIVERED
    else:
        book[row + B_STATE] |= STATE_DONE
        M[M[H_NODES] + book[row + B_SRC] * NODE_WORDS + N_FLOWS] -= 1
        if M[transport_of(M, M[f + S_KIND]) + KIND_LATE]:
            M[M[H_NODES] + book[row + B_DST] * NODE_WORDS + N_FLOWS] -= 1
    if book[row + B_STATE] == STATE_DELIVERED | STATE_DONE:
        M[M[H_CLOSING] + M[H_CLOSING_COUNT]] = flow
        M[H_CLOSING_COUNT] += 1


@njit
def _count(M, row, flow):
    """Copy the counters of a message from its records into its row of the message log."""
    book = words_at(M[H_BOOK])
    f = M[H_SENDERS] + flow * SENDER_WORDS
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    kind = transport_of(M, M[f + S_KIND])
    sent = M[f + S_SENT]
    again = sent - M[f + M[kind + KIND_FRESH]]
    if M[kind + KIND_PROBES]:
        again -= M[f + M[kind + KIND_PROBES]]
    book[row + B_SENT] = sent
    book[row + B_RETRANSMITTED] = again
    book[row + B_TIMEOUTS] = M[f + S_TIMEOUTS]
    book[row + B_MARKED] = M[r + R_MARKED]
    book[row + B_TRIMMED] = M[r + R_TRIMMED]
    if book[row + B_END] < 0:  # arrivals after the delivery do not count
        book[row + B_GOT] = M[r + R_GOT]


@njit
def count_some(M, first, many):
    """Update the message log for `many` messages from `first` on."""
    book = words_at(M[H_BOOK])
    for i in range(many):
        row = (first + i - M[H_BOOK_FIRST]) * BOOK_WORDS
        if book[row + B_FLOW] >= 0:
            _count(M, row, book[row + B_FLOW])


@njit
def _close(M, flow):
    """Free the records of a message, and what belongs to them."""
    book = words_at(M[H_BOOK])
    f = M[H_SENDERS] + flow * SENDER_WORDS
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    row = ((M[f + S_ORDER] >> KEY_ORDER) - M[H_BOOK_FIRST]) * BOOK_WORDS
    _count(M, row, flow)
    book[row + B_FLOW] = -1
    kind = transport_of(M, M[f + S_KIND])
    words = M[f + S_WORDS]
    if M[f + S_STREAM]:
        M[M[f + S_STREAM] + S_OPEN] -= book[row + B_PACKETS]
    else:
        free(M, words * M[kind + KIND_SENDER_BITMAPS], M[f + S_BITS])
        free(M, words * M[kind + KIND_RECEIVER_BITMAPS], M[f + S_PEER])
    if book[row + B_TAGS]:
        free(M, words, book[row + B_TAGS])
    if M[f + S_STAMPS]:
        free(M, (M[f + S_SLOTS] + 1) * SLOT_WORDS, M[f + S_STAMPS])
    if M[r + R_LEFT]:
        M[M[r + R_LEFT] + 2] += 1
    M[M[H_DROPPED] + flow] = 0
    M[M[H_FREE] + M[H_FREE_COUNT]] = flow
    M[H_FREE_COUNT] += 1


@njit
def _balance(M, flow):
    """Return the packets of a message that have been sent, by either end, and have not ended anywhere."""
    f = M[H_SENDERS] + flow * SENDER_WORDS
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    return M[f + S_SENT] + M[r + R_SENT] - M[f + S_HEARD] - M[r + R_ARRIVED] - M[M[H_DROPPED] + flow]


@njit
def _fan_is_over(M, fan):
    """Return True if all messages of an aggregation group are delivered and acknowledged, and no packet is left. A
    switch that makes copies needs the addresses of all until then."""
    if M[fan + FAN_OVER]:
        return True
    book = words_at(M[H_BOOK])
    for i in range(M[fan + FAN_SIZE]):
        one = fan + FAN_WORDS + MEMBER_WORDS * i
        r = M[one + F_RECORD]
        if r == 0:
            return False
        flow = (r - M[H_RECEIVERS]) // RECEIVER_WORDS
        f = M[H_SENDERS] + flow * SENDER_WORDS
        row = ((M[f + S_ORDER] >> KEY_ORDER) - M[H_BOOK_FIRST]) * BOOK_WORDS
        if book[row + B_STATE] != STATE_DELIVERED | STATE_DONE:
            return False
        if _balance(M, flow) + M[one + F_SPARE] + M[one + F_LEAF_SPARE] or M[f + S_LISTED]:
            return False
    M[fan + FAN_OVER] = 1  # closing the messages changes the counters
    return True


@njit
def close_some(M, at_least):
    """Free the records of messages without packets left, if at least `at_least` wait, and return their number."""
    count = M[H_CLOSING_COUNT]
    if count < at_least or M[H_SORTED]:
        return 0
    base = M[H_CLOSING]
    kept = 0
    for i in range(count):
        flow = M[base + i]
        f = M[H_SENDERS] + flow * SENDER_WORDS
        r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
        if M[r + R_FAN]:
            over = _fan_is_over(M, M[r + R_FAN])
        else:
            waits = M[f + S_LISTED] or M[r + R_PULL_LISTED] or M[r + R_TIMER]  # R_TIMER: a delayed answer
            over = _balance(M, flow) == 0 and waits == 0
        if over:
            _close(M, flow)
        else:
            M[base + kept] = flow
            kept += 1
    M[H_CLOSING_COUNT] = kept
    return count - kept
