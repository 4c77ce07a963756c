"""In-network aggregation: switches that sum messages of the same contents between one host and many others.

The messages of such a group, a *fan*, meet at the switch that the one host is attached to (ATP and SwitchML, both NSDI
'21), and before that at switches to which several of the others are attached (ATP's two levels [recalled]).

A switch at which some of a fan meet is a *station* of it, an aggregation node. On the way to the host one packet
represents those of all that meet: packets of the same number are summed in a *slot*, of which a switch has a fixed
number. The first packet takes a slot; if none is free, all of that number pass unsummed, and the next station or the
host does the rest. The last packet frees the slot and continues for all. On the way from the host a station copies one
packet for each member that meets there, or for each station before it. Data of pushes and acknowledgements of results
go one way, results and acknowledgements of pushes the other, so the same rules serve both.

The result acts as the acknowledgement: the host answers a packet when it has it of all members, and all at once, and a
sender of results counts a packet as acknowledged when it is by all. So whatever is lost (a packet before its switch, a
packet that represents some or all, an answer), the sender that misses an answer retransmits, and nothing is counted
twice: a slot has a bit for each packet in it, and what arrives after the sum passes on to the host, which has a bit for
each as well. A packet that arrives again while it is in a slot releases the slot and discards its contents, and from
there on all of that number pass unsummed, as in ATP [recalled]: no sender has been acknowledged, so all retransmit, and
none can block another forever. The same holds for a sum that a retransmitted part has overtaken: if the host already
has that part it cannot add the sum and drops it, and the other parts are retransmitted separately. An acknowledgement
carries the point below which everything has arrived of all, whatever single receivers have beyond it.

Our choices, which the papers make otherwise or leave open: a slot is free when the last packet has arrived, not when
the result has passed by, since the host can do the rest. The verdict for the first packet of a number holds for all of
them at that switch; ATP lets later ones try again, and time-outs clear what cannot be completed [recalled]. A packet
without a slot at its first switch may find one at the second. If all of the others are attached to one switch, they
meet only there. Acknowledgements of results take slots, too. Copies of retransmissions begin with another receiver each
time.

A station and the host are each advanced by one thread, and each writes words of the fan that no other writes.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
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
from .bindings import on_control, on_data
from .event_log import log_delivery, log_end

AGAIN, SOME, ALL = -1, 0, 1
# the fields that a copy of a packet for another message keeps; the others are that message's
COPIED = (MASK_SIZE << A_SIZE) | (7 << A_KIND) | (1 << A_IMPORTANT) | (1 << A_CE) | (1 << A_ECHO)


@njit
def fan_of(M, flow):
    """Return the fan of a message, by the number of its records; 0 if it has none."""
    return M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_FAN]


@njit
def place_of(M, flow):
    """Return the position of a message in its fan."""
    return M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_FAN_PLACE]


@njit
def one_of(fan, place):
    """Return the base of a member's words."""
    return fan + FAN_WORDS + MEMBER_WORDS * place


@njit
def member(M, fan, place):
    """Return the number of a member's records."""
    return (M[one_of(fan, place) + F_RECORD] - M[H_RECEIVERS]) // RECEIVER_WORDS


@njit
def _there(M, packet, place):
    """Return True if a member's packet has arrived; `packet`: the words of its number."""
    return (M[packet + 1 + (place >> 5)] >> (place & 31)) & 1 == 1


@njit
def _tick(M, packet, place):
    """Record that a member's packet has arrived."""
    M[packet + 1 + (place >> 5)] |= 1 << (place & 31)
    M[packet] += 1 << PACKET_COUNT


@njit
def _contribute(M, fan, packet, place, size, A, mark):
    """Add the packet of one member, or of all at its first station, to the words of its number (`packet`). `size`:
    number of packets expected, `mark`: bit of its mark. Returns ALL if it is the last one, SOME if others are missing,
    AGAIN if it, or a part of it, has arrived before."""
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
    """Return the fan of a packet, and its station at a switch; 0, 0 if it has none. The station is the fan itself if
    all meet there."""
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
    """Return True if a packet of a fan is on its way to the one host."""
    return ((A >> A_KIND) & 7 == DATA) != (M[fan + FAN_OUT] == 1)


@njit
def _count_made(M, fan, station, place, change):
    """Count a packet that a station makes for a member, or one that ends there."""
    M[one_of(fan, place) + (F_SPARE if station == fan else F_LEAF_SPARE)] += change


@njit
def _as_of(M, fan, station, i, A, B):
    """Return words A and B of the i-th member's packet that a station makes from another's."""
    flow = member(M, fan, i)
    if (A >> A_KIND) & 7 == DATA:
        own = M[M[H_SENDERS] + flow * SENDER_WORDS + S_DATA]
    else:
        own = M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_CONTROL]
    _count_made(M, fan, station, i, 1)
    return (own & ~COPIED) | (A & COPIED), (B & ~MASK_FLOW) | flow


@njit
def add_up(M, node, fan, station, A, B):
    """Add a packet on its way to the one host to a sum; return words A and B of the outgoing packet. A = 0 if it waits
    in a slot. A sum is a packet of the first of those that meet, whichever was last, so that sums keep to one path."""
    if station != fan and (A >> A_LEAF) & 1:
        return A, B  # a detour has led it back here
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
    """Return True if a packet on its way from the one host is for all that meet at a station. Where all members meet,
    data always is; an answer is if it says so."""
    if station != fan:
        return (A >> A_LEAF) & 1 == 1
    return M[fan + FAN_OUT] == 1 or (A >> A_ALL) & 1 == 1


@njit
def next_copy(M, fan, station, i):
    """Return the position of the next member that a station makes a packet for."""
    return M[one_of(fan, i) + (F_NEXT if station == fan else F_LEAF_NEXT)]


@njit
def first_copy(M, fan, station, B):
    """Return the position of the first member that a station copies a packet for. It is another one each time the same
    packet arrives; otherwise copies that never find room behind the others would never arrive."""
    packet = M[station + STATION_AT] + ((B >> B_SEQUENCE) & MASK_SEQUENCE) * M[fan + FAN_STRIDE]
    i = M[station + STATION_FIRST]
    for _ in range((M[packet] >> PACKET_COPIED) % M[station + STATION_COPIES]):
        i = next_copy(M, fan, station, i)
    M[packet] += 1 << PACKET_COPIED
    return i


@njit
def copy_of(M, fan, station, i, A, B):
    """Return words A and B of the copy, for the i-th member or its first station, of a packet for all."""
    first = station == fan and M[one_of(fan, i) + F_LEAF] != 0
    A, B = _as_of(M, fan, station, i, A, B)
    return A | (first << A_LEAF), B


@njit
def ends_here(M, node, fan, station, A, B):
    """Count a packet for all that ends at a station, and the STATION_COPIES made of it."""
    _count_made(M, fan, station, place_of(M, B & MASK_FLOW), -1)
    if (A >> A_KIND) & 7 == DATA:
        M[node + N_COPIED] += M[station + STATION_COPIES]


# --- at the one host ------------------------------------------------------------------------------------------------


@njit
def _all_there(M, fan, flow, A, B, mark):
    """Record the arrival of a packet of a fan at the one host; `mark`: bit of its mark. Returns ALL if it has now
    arrived of all, SOME if not, AGAIN if it, a part of it, or that of all had arrived before."""
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
    """Return 1 if any packet of a number had a mark when it arrived at the one host."""
    return (M[M[fan + FAN_AT_HOST] + sequence * M[fan + FAN_STRIDE]] >> PACKET_MARK) & 1


@njit
def _take(M, th, flow, sequence, size, ce, now):
    """Pass a packet to the receiver of one member, and return its answer."""
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    done = M[r + R_DONE]
    reply = on_data(M, r, sequence, size, ce, now)
    if done == 0 and M[r + R_DONE]:
        log_delivery(M, th, r, flow, now)
    return reply


@njit
def take_for_all(M, th, node, p, fan, flow, A, B, now):
    """Handle a data packet of one or all members at the one host.

    When it has arrived of all, their receivers take it, and one answer goes to all. If it, or that of all, had arrived
    before, only its sender is answered, which has missed the answer: waiting for the others, its retransmissions could
    crowd theirs out forever. A sum of which a part had arrived before is dropped: its senders retransmit separately.
    """
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
    """Start a message of a fan at its host; from the one host, the first member sends for all when all have started.
    Returns the sender's record that starts, 0 if none does yet."""
    M[fan + FAN_STARTED] += 1
    if M[fan + FAN_STARTED] < M[fan + FAN_SIZE]:
        return 0
    return M[H_SENDERS] + member(M, fan, 0) * SENDER_WORDS


@njit
def hear_for_all(M, th, fan, flow, A, B, now):
    """Handle an acknowledgement of one or all members at the one host, where the first member sends for all. Its
    transport gets the acknowledgement when all have acknowledged. Returns its record, 0 if there is nothing to do or it
    is done."""
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
