"""Switches that sum: messages of the same contents between one host and many others, a *fan*, meet at the switch that
the one host hangs on (ATP and SwitchML, both NSDI '21), and before that, where several of the others hang on one
switch, there (ATP's two levels [recalled]).

A switch at which some of a fan meet is a *station* of it. On the way to the host one packet stands for those of all
that meet: packets of the same number are added up in a *slot*, of which a switch has so many. The first of them takes
one, or, where none is free, all of that number go on by themselves and the next station or the host does the rest. The
last one frees the slot and goes on for all. On the way from the host a station makes of one packet one for each that
meets there, or for each station before it. Data of pushes and acknowledgements of results go one way, results and
acknowledgements of pushes the other, so both are done by the same rules.

The result is what acknowledges: the host answers a packet when it has it of all, and all at once, and a sender of
results counts a packet as acknowledged when it is by all. So whatever is lost - a packet before its switch, one that
stands for some or for all, an answer - somebody sends again what he knows to be missing, and nothing is counted twice:
a slot has a bit for each that is in it, and what comes after one that stood for all goes on by itself, to the host,
which has a bit for each as well. One that comes once more to a slot that it is in gives the slot up, with what is in
it, and from there on all of that number go on by themselves, as in ATP [recalled]: nobody has been told that they are
there, so all are sent again, and none can keep another one waiting for ever. So it is with a sum of which a part has
overtaken it, sent again by itself; where the host has that part already it cannot add the sum, drops it, and the other
parts are sent again by themselves. An acknowledgement carries the point below which everything is there of all,
whatever single receivers have beyond it.

Our choices, which the papers do otherwise or leave open: a slot is free when the last packet has come, and not when
the result has gone by, since the host can do what is left. What the first packet of a number met holds for all of them
at that switch; ATP lets later ones try again, and time-outs clear what cannot be completed [recalled]. What found no
slot at its first switch may find one at the second. Where all of the others hang on one switch, all meet there and
nowhere else. Acknowledgements of results take slots, too. Copies of what is sent again begin with another receiver
each time.

A station and the host are each advanced by one thread, and each writes words of the fan that no other writes.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    A_ALL,
    A_CE,
    A_ECHO,
    A_IMPORTANT,
    A_KIND,
    A_LEAF,
    A_SIZE,
    ACK,
    B_ARGUMENT,
    B_SEQUENCE,
    DATA,
    F_LEAF,
    F_LEAF_NEXT,
    F_LEAF_SPARE,
    F_NEXT,
    F_RECORD,
    F_SPARE,
    FAN_AT_HOST,
    FAN_CUMULATIVE,
    FAN_OUT,
    FAN_SIZE,
    FAN_STARTED,
    FAN_STRIDE,
    FAN_WORDS,
    H_RECEIVERS,
    H_SENDERS,
    MASK_FLOW,
    MASK_PACKET_COUNT,
    MASK_SEQUENCE,
    MASK_SIZE,
    MEMBER_WORDS,
    N_COPIED,
    N_SLOTS,
    N_SLOTS_LEAST,
    N_SUMMED,
    N_UNSUMMED,
    PACKET_COPIED,
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
    STATION_AT,
    STATION_COPIES,
    STATION_FIRST,
    STATION_NODE,
    STATION_SIZE,
)

from .answer import answer, send_control
from .bound import on_control, on_data
from .event_log import log_delivery, log_end

AGAIN, SOME, ALL = -1, 0, 1
# what is left of a packet when one of another message is made of it; the rest is that one's own
COPIED = (MASK_SIZE << A_SIZE) | (7 << A_KIND) | (1 << A_IMPORTANT) | (1 << A_CE) | (1 << A_ECHO)


@njit
def fan_of(M, flow):
    """The fan of a message, by the number of its records; 0 if it has none."""
    return M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_FAN]


@njit
def place_of(M, flow):
    """Which of its fan a message is."""
    return M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_FAN_PLACE]


@njit
def one_of(fan, place):
    """Base of the words of one of a fan."""
    return fan + FAN_WORDS + MEMBER_WORDS * place


@njit
def member(M, fan, place):
    """The number of the records of a message of a fan."""
    return (M[one_of(fan, place) + F_RECORD] - M[H_RECEIVERS]) // RECEIVER_WORDS


@njit
def _there(M, packet, place):
    """Whether the packet of one of a fan is among those that have come; `packet`: the words of its number."""
    return (M[packet + 1 + (place >> 5)] >> (place & 31)) & 1 == 1


@njit
def _tick(M, packet, place):
    """The packet of one of a fan has come."""
    M[packet + 1 + (place >> 5)] |= 1 << (place & 31)
    M[packet] += 1 << PACKET_COUNT


@njit
def _contribute(M, fan, packet, place, size, A, mark):
    """A packet of one of a fan, or of all at its first station, is there; `packet`: the words of its number, `size`:
    how many are expected, `mark`: which bit is its mark. Returns ALL if it is the last one, SOME if others are missing,
    AGAIN if it, or a part of it, has been there before."""
    M[packet] |= ((A >> mark) & 1) << PACKET_MARK
    leaf = M[one_of(fan, place) + F_LEAF]
    if leaf == 0 or (A >> A_LEAF) & 1 == 0:
        if _there(M, packet, place):
            return AGAIN
        _tick(M, packet, place)
    else:
        first = M[leaf + STATION_FIRST]
        i = first
        while True:
            if _there(M, packet, i):
                return AGAIN
            i = M[one_of(fan, i) + F_LEAF_NEXT]
            if i == first:
                break
        while True:
            _tick(M, packet, i)
            i = M[one_of(fan, i) + F_LEAF_NEXT]
            if i == first:
                break
    return ALL if (M[packet] >> PACKET_COUNT) & MASK_PACKET_COUNT == size else SOME


# --- at the switch -------------------------------------------------------------------------------------------------


@njit
def station_at(M, node, A, B):
    """The fan of a packet, and its station at a switch, which is the fan itself where all meet; 0, 0 if it has none."""
    kind = (A >> A_KIND) & 7
    if kind != DATA and kind != ACK:
        return 0, 0
    fan = fan_of(M, B & MASK_FLOW)
    if fan == 0:
        return 0, 0
    if M[fan + STATION_NODE] == node:
        return fan, fan
    leaf = M[one_of(fan, place_of(M, B & MASK_FLOW)) + F_LEAF]
    if leaf and M[leaf + STATION_NODE] == node:
        return fan, leaf
    return 0, 0


@njit
def comes_in(M, fan, A):
    """Whether a packet of a fan is on its way to the one host."""
    return ((A >> A_KIND) & 7 == DATA) != (M[fan + FAN_OUT] == 1)


@njit
def _count_made(M, fan, station, place, change):
    """A station makes a packet of one of a fan, or one ends there."""
    M[one_of(fan, place) + (F_SPARE if station == fan else F_LEAF_SPARE)] += change


@njit
def _as_of(M, fan, station, i, A, B):
    """Words A and B of the packet of the i-th of a fan that a station makes of one of another."""
    flow = member(M, fan, i)
    if (A >> A_KIND) & 7 == DATA:
        own = M[M[H_SENDERS] + flow * SENDER_WORDS + S_DATA]
    else:
        own = M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_CONTROL]
    _count_made(M, fan, station, i, 1)
    return (own & ~COPIED) | (A & COPIED), (B & ~MASK_FLOW) | flow


@njit
def add_up(M, node, fan, station, A, B):
    """A packet on its way to the one host: words A and B of what goes on, A = 0 if it has been added to others and
    waits. A sum is a packet of the first of those that meet, whoever was the last, so that sums keep to one path."""
    if station != fan and (A >> A_LEAF) & 1:
        return A, B  # led back here by a detour
    data = (A >> A_KIND) & 7 == DATA
    place = place_of(M, B & MASK_FLOW)
    packet = M[station + STATION_AT] + ((B >> B_SEQUENCE) & MASK_SEQUENCE) * M[fan + FAN_STRIDE]
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
        return A, B
    mark = A_CE if data else A_ECHO
    there = _contribute(M, fan, packet, place, M[station + STATION_SIZE], A, mark)
    if there == SOME:
        M[node + N_SUMMED] += data
        _count_made(M, fan, station, place, -1)
        return 0, B
    M[packet] += PACKET_PASSED - PACKET_HELD
    M[node + N_SLOTS] += 1
    if there == AGAIN:
        M[node + N_UNSUMMED] += data
        return A, B
    _count_made(M, fan, station, place, -1)
    marked = (M[packet] >> PACKET_MARK) & 1
    A, B = _as_of(M, fan, station, M[station + STATION_FIRST], A, B)
    return A | (1 << (A_ALL if station == fan else A_LEAF)) | (marked << mark), B


@njit
def goes_out(M, fan, station, A):
    """Whether a packet on its way from the one host is for all that meet at a station: where all do, data always is, an
    answer if it says so."""
    if station != fan:
        return (A >> A_LEAF) & 1 == 1
    return M[fan + FAN_OUT] == 1 or (A >> A_ALL) & 1 == 1


@njit
def next_copy(M, fan, station, i):
    """The place of the next one that a station makes a packet for."""
    return M[one_of(fan, i) + (F_NEXT if station == fan else F_LEAF_NEXT)]


@njit
def first_copy(M, fan, station, B):
    """The place of the first one that a station makes a packet for, now that it has one for all: each time that it has
    the same one again, another one, or copies for which there is never room behind the others would never arrive."""
    packet = M[station + STATION_AT] + ((B >> B_SEQUENCE) & MASK_SEQUENCE) * M[fan + FAN_STRIDE]
    i = M[station + STATION_FIRST]
    for _ in range((M[packet] >> PACKET_COPIED) % M[station + STATION_COPIES]):
        i = next_copy(M, fan, station, i)
    M[packet] += 1 << PACKET_COPIED
    return i


@njit
def copy_of(M, fan, station, i, A, B):
    """Words A and B of the packet that the i-th of a fan, or its first station, gets of one for all."""
    first = station == fan and M[one_of(fan, i) + F_LEAF] != 0
    A, B = _as_of(M, fan, station, i, A, B)
    return A | (first << A_LEAF), B


@njit
def ends_here(M, node, fan, station, A, B):
    """A packet for all ends at a station, which makes STATION_COPIES of it."""
    _count_made(M, fan, station, place_of(M, B & MASK_FLOW), -1)
    if (A >> A_KIND) & 7 == DATA:
        M[node + N_COPIED] += M[station + STATION_COPIES]


# --- at the one host ------------------------------------------------------------------------------------------------


@njit
def _all_there(M, fan, flow, A, B, mark):
    """A packet of a fan has come to the one host. `mark`: which bit is its mark. Returns ALL if now it is there of all,
    SOME if not, AGAIN if it, a part of it, or that of all, was there before."""
    packet = M[fan + FAN_AT_HOST] + ((B >> B_SEQUENCE) & MASK_SEQUENCE) * M[fan + FAN_STRIDE]
    if M[packet] & PACKET_PASSED:
        return AGAIN
    there = _contribute(M, fan, packet, place_of(M, flow), M[fan + FAN_SIZE], A, mark)
    if there != ALL and (A >> A_ALL) & 1 == 0:
        return there
    M[packet] |= PACKET_PASSED
    below = M[fan + FAN_CUMULATIVE]
    packets = M[M[one_of(fan, 0) + F_RECORD] + R_PACKETS]
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
    of it: were he to wait for the others, what he sends again could crowd theirs out for ever. A sum of some of them of
    which a part was there before is dropped: who is in it sends again by himself."""
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    sequence = (B >> B_SEQUENCE) & MASK_SEQUENCE
    size = M[r + R_PAYLOAD]
    if sequence == M[r + R_PACKETS] - 1:
        size = M[r + R_BYTES] - sequence * size
    M[r + R_MARKED] += (A >> A_CE) & 1
    there = _all_there(M, fan, flow, A, B, A_CE)
    if there == AGAIN and (A >> A_LEAF) & 1 == 0:
        reply = _take(M, th, flow, sequence, size, (A >> A_CE) & 1, now)
        answer(M, th, node, p, r, reply, A, B, now)
    if there != ALL:
        return
    ce = _mark(M, fan, sequence)
    for i in range(M[fan + FAN_SIZE]):
        _take(M, th, member(M, fan, i), sequence, size, ce, now)
    first = M[one_of(fan, 0) + F_RECORD]
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
