"""Switches that sum: messages of the same contents between one host and many others, a *fan*, meet at the switch that
the one host hangs on (ATP and SwitchML, both NSDI '21).

On the way to the host one packet stands for those of all: packets of the same number are added up in a *slot*, of which
a switch has so many. The first of them takes one, or, where none is free, all of that number go on by themselves and
the host does the rest. The last one frees the slot and goes on for all. On the way from the host the switch makes of
one packet one for each. Data of pushes and acknowledgements of results go one way, results and acknowledgements of
pushes the other, so both are done by the same rules.

The result is what acknowledges: the host answers a packet when it has it of all, and all at once, and a sender of
results counts a packet as acknowledged when it is by all. So whatever is lost - a packet before its switch, one that
stands for all, an answer - somebody sends again what he knows to be missing, and nothing is counted twice: a slot has a
bit for each that is in it, and what comes after one that stood for all goes on by itself, to the host, which has a bit
for each as well. One that comes once more to a slot that it is in gives the slot up, with what is in it, and from there
on all of that number go on by themselves, as in ATP [recalled]: nobody has been told that they are there, so all are
sent again, and none can keep another one waiting for ever. An acknowledgement carries the point below which everything
is there of all, whatever single receivers have beyond it.

Our choices, which the papers do otherwise or leave open: a slot is free when the last packet has come, and not when the
result has gone by, since the host can do what is left. What the first packet of a number met holds for all of them; ATP
lets later ones try again, and time-outs clear what cannot be completed [recalled]. Acknowledgements of results take
slots, too.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    A_ALL,
    A_CE,
    A_ECHO,
    A_IMPORTANT,
    A_KIND,
    A_SIZE,
    ACK,
    B_ARGUMENT,
    B_SEQUENCE,
    DATA,
    FAN_AT_HOST,
    FAN_AT_SWITCH,
    FAN_CUMULATIVE,
    FAN_NODE,
    FAN_OUT,
    FAN_SIZE,
    FAN_STARTED,
    FAN_STRIDE,
    FAN_WORDS,
    H_RECEIVERS,
    H_SENDERS,
    MASK_FLOW,
    MASK_SEQUENCE,
    MASK_SIZE,
    N_COPIED,
    N_SLOTS,
    N_SLOTS_LEAST,
    N_SUMMED,
    N_UNSUMMED,
    PACKET_COUNT,
    PACKET_HELD,
    PACKET_MARK,
    PACKET_PASSED,
    PACKET_VERDICT,
    R_BYTES,
    R_CONTROL,
    R_DONE,
    R_FAN,
    R_FAN_PLACE,
    R_MARKED,
    R_PACKETS,
    R_PAYLOAD,
    R_SENT,
    RECEIVER_WORDS,
    S_DATA,
    S_DONE,
    SENDER_WORDS,
)

from .answer import answer, send_control
from .bound import on_control, on_data
from .event_log import log_delivery, log_end

AGAIN, SOME, ALL = -1, 0, 1
# what a copy has of the packet that it is made of; the rest is its own message's
COPIED = (MASK_SIZE << A_SIZE) | (7 << A_KIND) | (1 << A_IMPORTANT) | (1 << A_CE) | (1 << A_ECHO)


@njit
def fan_of(M, flow):
    """The fan of a message, by the number of its records; 0 if it has none."""
    return M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_FAN]


@njit
def member(M, fan, place):
    """The number of the records of a message of a fan."""
    return (M[fan + FAN_WORDS + 2 * place] - M[H_RECEIVERS]) // RECEIVER_WORDS


@njit
def _contribute(M, fan, packet, place, mark):
    """A packet of one of a fan is there; `packet`: the words of its number. Returns ALL if it is the last one, SOME if
    others are missing, AGAIN if it has been there before."""
    bits = packet + 1 + (place >> 5)
    bit = 1 << (place & 31)
    M[packet] |= mark << PACKET_MARK
    if M[bits] & bit:
        return AGAIN
    M[bits] |= bit
    M[packet] += 1 << PACKET_COUNT
    return ALL if M[packet] >> PACKET_COUNT == M[fan + FAN_SIZE] else SOME


# --- at the switch -------------------------------------------------------------------------------------------------


@njit
def meets(M, node, A, B):
    """The fan of a packet if this is the switch that does something about it, else 0."""
    kind = (A >> A_KIND) & 7
    if kind != DATA and kind != ACK:
        return 0
    fan = fan_of(M, B & MASK_FLOW)
    if fan and M[fan + FAN_NODE] == node:
        return fan
    return 0


@njit
def comes_in(M, fan, A):
    """Whether a packet of a fan is on its way to the one host."""
    return ((A >> A_KIND) & 7 == DATA) != (M[fan + FAN_OUT] == 1)


@njit
def add_up(M, node, fan, A, B):
    """A packet on its way to the one host: word A of what goes on, 0 if it has been added to others and waits."""
    data = (A >> A_KIND) & 7 == DATA
    place = M[M[H_RECEIVERS] + (B & MASK_FLOW) * RECEIVER_WORDS + R_FAN_PLACE]
    packet = M[fan + FAN_AT_SWITCH] + ((B >> B_SEQUENCE) & MASK_SEQUENCE) * M[fan + FAN_STRIDE]
    verdict = M[packet] & PACKET_VERDICT
    if verdict == 0:
        if M[node + N_SLOTS]:
            verdict = PACKET_HELD
            M[node + N_SLOTS] -= 1
            M[node + N_SLOTS_LEAST] = min(M[node + N_SLOTS_LEAST], M[node + N_SLOTS])
        else:
            verdict = PACKET_PASSED
        M[packet] |= verdict
    if verdict == PACKET_PASSED:
        M[node + N_UNSUMMED] += data
        return A
    mark = A_CE if data else A_ECHO
    there = _contribute(M, fan, packet, place, (A >> mark) & 1)
    if there == SOME:
        M[node + N_SUMMED] += data
        M[fan + FAN_WORDS + 2 * place + 1] -= 1
        return 0
    M[packet] += PACKET_PASSED - PACKET_HELD
    M[node + N_SLOTS] += 1
    if there == AGAIN:
        M[node + N_UNSUMMED] += data
        return A
    return A | (1 << A_ALL) | (((M[packet] >> PACKET_MARK) & 1) << mark)


@njit
def goes_out(A, data_fan):
    """Whether a packet on its way from the one host is for all: data always is, an answer if it says so."""
    return data_fan or (A >> A_ALL) & 1 == 1


@njit
def copy_of(M, fan, i, A, B):
    """Words A and B of the packet that the i-th of a fan gets of one for all."""
    flow = member(M, fan, i)
    if (A >> A_KIND) & 7 == DATA:
        own = M[M[H_SENDERS] + flow * SENDER_WORDS + S_DATA]
    else:
        own = M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_CONTROL]
    M[fan + FAN_WORDS + 2 * i + 1] += 1
    return (own & ~COPIED) | (A & COPIED), (B & ~MASK_FLOW) | flow


@njit
def count_copies(M, node, fan, A, B):
    """A packet for all ends at its switch, which makes one for each of it. Returns how many."""
    place = M[M[H_RECEIVERS] + (B & MASK_FLOW) * RECEIVER_WORDS + R_FAN_PLACE]
    M[fan + FAN_WORDS + 2 * place + 1] -= 1
    if (A >> A_KIND) & 7 == DATA:
        M[node + N_COPIED] += M[fan + FAN_SIZE]
    return M[fan + FAN_SIZE]


# --- at the one host ------------------------------------------------------------------------------------------------


@njit
def _all_there(M, fan, flow, A, B, mark):
    """A packet of a fan has come to the one host. `mark`: which bit is its mark. Returns ALL if now it is there of all,
    SOME if not, AGAIN if it, or that of all, was there before."""
    place = M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_FAN_PLACE]
    packet = M[fan + FAN_AT_HOST] + ((B >> B_SEQUENCE) & MASK_SEQUENCE) * M[fan + FAN_STRIDE]
    if M[packet] & PACKET_PASSED:
        return AGAIN
    there = _contribute(M, fan, packet, place, (A >> mark) & 1)
    if there != ALL and (A >> A_ALL) & 1 == 0:
        return there
    M[packet] |= PACKET_PASSED
    below = M[fan + FAN_CUMULATIVE]
    packets = M[M[fan + FAN_WORDS] + R_PACKETS]
    while below < packets and M[M[fan + FAN_AT_HOST] + below * M[fan + FAN_STRIDE]] & PACKET_PASSED:
        below += 1
    M[fan + FAN_CUMULATIVE] = below
    return ALL


@njit
def _mark(M, fan, sequence):
    """Whether any packet of a number had a mark when it came to the one host."""
    return (M[M[fan + FAN_AT_HOST] + sequence * M[fan + FAN_STRIDE]] >> PACKET_MARK) & 1


@njit
def _take(M, th, flow, sequence, size, ce, now):
    """The receiver of one of a fan takes a packet. Returns what it answers."""
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    done = M[r + R_DONE]
    reply = on_data(M, r, sequence, size, ce, now)
    if done == 0 and M[r + R_DONE]:
        log_delivery(M, th, r, flow, now)
    return reply


@njit
def take_for_all(M, th, node, p, fan, flow, A, B, now):
    """A data packet of one of many, or of all, reaches the one host: when it is there of all, their receivers take it,
    and one answer goes to all. If it, or that of all, was there before, its sender alone is answered, who has not heard
    of it: were he to wait for the others, what he sends again could crowd theirs out for ever."""
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    sequence = (B >> B_SEQUENCE) & MASK_SEQUENCE
    size = M[r + R_PAYLOAD]
    if sequence == M[r + R_PACKETS] - 1:
        size = M[r + R_BYTES] - sequence * size
    M[r + R_MARKED] += (A >> A_CE) & 1
    there = _all_there(M, fan, flow, A, B, A_CE)
    if there == AGAIN:
        reply = _take(M, th, flow, sequence, size, (A >> A_CE) & 1, now)
        answer(M, th, node, p, r, reply, A, B, now)
    if there != ALL:
        return
    ce = _mark(M, fan, sequence)
    for i in range(M[fan + FAN_SIZE]):
        _take(M, th, member(M, fan, i), sequence, size, ce, now)
    first = M[fan + FAN_WORDS]
    M[first + R_SENT] += 1
    A = M[first + R_CONTROL] | (ACK << A_KIND) | (ce << A_ECHO) | (1 << A_ALL)
    B = member(M, fan, 0) | (sequence << B_SEQUENCE) | (M[fan + FAN_CUMULATIVE] << B_ARGUMENT)
    send_control(M, th, node, p, A, B, now)


@njit
def starts_for_all(M, fan):
    """A message of a fan starts at its host: from the one host, the first of them sends for all, when all have started.
    Returns the sender's record that starts, 0 if none does yet."""
    M[fan + FAN_STARTED] += 1
    if M[fan + FAN_STARTED] < M[fan + FAN_SIZE]:
        return 0
    return M[H_SENDERS] + member(M, fan, 0) * SENDER_WORDS


@njit
def hear_for_all(M, th, fan, flow, A, B, now):
    """An acknowledgement of one of many, or of all, reaches the one host, where the first message of the fan sends for
    all: it hears of it when all have acknowledged. Returns its record, 0 if it hears nothing or is done."""
    f = M[H_SENDERS] + member(M, fan, 0) * SENDER_WORDS
    if M[f + S_DONE] or _all_there(M, fan, flow, A, B, A_ECHO) != ALL:
        return 0
    sequence = (B >> B_SEQUENCE) & MASK_SEQUENCE
    on_control(M, f, ACK, sequence, M[fan + FAN_CUMULATIVE], _mark(M, fan, sequence), now)
    if M[f + S_DONE] == 0:
        return f
    for i in range(M[fan + FAN_SIZE]):
        each = member(M, fan, i)
        M[M[H_SENDERS] + each * SENDER_WORDS + S_DONE] = 1
        log_end(M, th, each, now)
    return 0
