"""Implements in-network aggregation, in which switches sum or copy messages of the same contents between one host and
many.

The messages of such a group (one host and the others), a *fan*, meet at the switch that the one host is attached to
(ATP and SwitchML, both NSDI '21), and before that at switches to which several of the others are attached (ATP's two
levels [recalled]).

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
from gradwire.jit.records import Words
from gradwire.jit.records.aggregation import AggregationGroup, AggregationNode, Member
from gradwire.jit.records.constants import (
    ACK,
    DATA,
    MASK_FLOW,
    MASK_PACKET_COUNT,
    PACKET_COPIED,
    PACKET_COUNT,
    PACKET_HELD,
    PACKET_MARK,
    PACKET_PASSED,
    PACKET_VERDICT,
)
from gradwire.jit.records.flows import Sender, number_of_receiver, receiver_at, sender_at
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, Port, Switch
from gradwire.jit.records.packets import (
    body_of,
    flow_of,
    has_echo,
    is_group_sum,
    is_important,
    is_marked,
    is_node_sum,
    kind_of,
    sequence_of,
    size_of,
    with_echo,
    with_group_sum,
    with_kind,
    with_mark,
    with_node_sum,
)

from .answer import answer, send_control
from .bindings import on_control, on_data
from .event_log import log_delivery, log_end

AGAIN, SOME, ALL = -1, 0, 1
# the fields that a copy of a packet for another message keeps; the others are that message's
COPIED = sum(field.mask << field.shift for field in (size_of, kind_of, is_important, is_marked, has_echo))


@njit
def group_of(state: State, flow_number: int) -> AggregationGroup:
    """Return the group of a message, by the number of its records; none if it has none."""
    return AggregationGroup(state, receiver_at(state, flow_number).aggregation)


@njit
def place_of(state: State, flow_number: int) -> int:
    """Return the position of a message in its group."""
    return receiver_at(state, flow_number).aggregation_index


@njit
def one_of(group: AggregationGroup, place: int) -> Member:
    """Return a member's words."""
    return Member(group, group.base + AggregationGroup.WORDS + Member.WORDS * place)


@njit
def packet_at(group: AggregationGroup, packet_states: int, sequence: int) -> Words:
    """Return the state of the packets of one number: PACKET_ fields, then a bit for each contributor. `packet_states`:
    the states of all numbers, at a meeting point or at the one host."""
    return Words(group, packet_states + sequence * group.stride)


@njit
def member(state: State, group: AggregationGroup, place: int) -> int:
    """Return the number of a member's records."""
    return number_of_receiver(state, one_of(group, place).receiver)


@njit
def _there(state: State, packet: Words, place: int) -> bool:
    """Return True if a member's packet has arrived; `packet`: the words of its number."""
    return (packet[1 + (place >> 5)] >> (place & 31)) & 1 == 1


@njit
def _tick(state: State, packet: Words, place: int) -> None:
    """Record that a member's packet has arrived."""
    packet[1 + (place >> 5)] |= 1 << (place & 31)
    packet[0] += 1 << PACKET_COUNT


@njit
def _contribute(
    state: State, group: AggregationGroup, packet: Words, place: int, size: int, header: int, mark: int
) -> int:
    """Add the packet of one member, or of all at its first station, to the words of its number (`packet`).

    `size`: number of packets expected. `mark`: 1 if it is marked. Returns ALL if it is the last one, SOME if others are
    missing, AGAIN if it, or a part of it, has arrived before.
    """
    packet[0] |= mark << PACKET_MARK
    leaf = one_of(group, place).leaf
    if not leaf or is_node_sum(header) == 0:
        if _there(state, packet, place):
            return AGAIN
        _tick(state, packet, place)
    else:
        first = leaf.first_copy
        i = first
        while True:
            if _there(state, packet, i):
                return AGAIN
            i = one_of(group, i).leaf_next_copy
            if i == first:
                break
        while True:
            _tick(state, packet, i)
            i = one_of(group, i).leaf_next_copy
            if i == first:
                break
    return ALL if (packet[0] >> PACKET_COUNT) & MASK_PACKET_COUNT == size else SOME


# --- at the switch -------------------------------------------------------------------------------------------------


@njit
def station_at(state: State, node: Switch, header: int, body: int) -> tuple[AggregationGroup, AggregationNode]:
    """Return the fan of a packet, and its station at a switch; 0, 0 if it has none. The station is the fan itself if
    all meet there."""
    kind = kind_of(header)
    if kind != DATA and kind != ACK:
        return AggregationGroup(state, 0), AggregationNode(state, 0)
    group = group_of(state, flow_of(body))
    if not group:
        return group, AggregationNode(state, 0)
    if group.switch == node:
        return group, AggregationNode(state, group.base)
    leaf = one_of(group, place_of(state, flow_of(body))).leaf
    if leaf and leaf.switch == node:
        return group, leaf
    return AggregationGroup(state, 0), AggregationNode(state, 0)


@njit
def comes_in(state: State, group: AggregationGroup, header: int) -> bool:
    """Return True if a packet of a fan is on its way to the one host."""
    return (kind_of(header) == DATA) != (group.is_outward == 1)


@njit
def _count_made(state: State, group: AggregationGroup, meeting: AggregationNode, place: int, change: int) -> None:
    """Count a packet that a station makes for a member, or one that ends there."""
    if meeting == group:
        one_of(group, place).spare += change
    else:
        one_of(group, place).leaf_spare += change


@njit
def _as_of(
    state: State, group: AggregationGroup, meeting: AggregationNode, i: int, header: int, body: int
) -> tuple[int, int]:
    """Return words A and B of the i-th member's packet that a station makes from another's."""
    flow_number = member(state, group, i)
    if kind_of(header) == DATA:
        own = sender_at(state, flow_number).data_header
    else:
        own = receiver_at(state, flow_number).control_header
    _count_made(state, group, meeting, i, 1)
    return (own & ~COPIED) | (header & COPIED), (body & ~MASK_FLOW) | flow_number


@njit
def add_up(
    state: State, node: Switch, group: AggregationGroup, meeting: AggregationNode, header: int, body: int
) -> tuple[int, int]:
    """Add a packet on its way to the one host to a sum; return words A and B of the outgoing packet. A = 0 if it waits
    in a slot. A sum is a packet of the first of those that meet, whichever was last, so that sums keep to one path."""
    if meeting != group and is_node_sum(header):
        return header, body  # a detour has led it back here
    data = kind_of(header) == DATA
    place = place_of(state, flow_of(body))
    packet = packet_at(group, meeting.packet_states, sequence_of(body))
    verdict = packet[0] & PACKET_VERDICT
    if verdict == 0:
        if node.free_slots:
            verdict = PACKET_HELD
            node.free_slots -= 1
            node.min_free_slots = min(node.min_free_slots, node.free_slots)
        else:
            verdict = PACKET_PASSED
        packet[0] |= verdict
    if verdict == PACKET_PASSED:
        node.unsummed += data
        return header, body
    mark = is_marked(header) if data else has_echo(header)
    there = _contribute(state, group, packet, place, meeting.size, header, mark)
    if there == SOME:
        node.summed += data
        _count_made(state, group, meeting, place, -1)
        return 0, body
    packet[0] += PACKET_PASSED - PACKET_HELD
    node.free_slots += 1
    if there == AGAIN:
        node.unsummed += data
        return header, body
    _count_made(state, group, meeting, place, -1)
    marked = (packet[0] >> PACKET_MARK) & 1
    header, body = _as_of(state, group, meeting, meeting.first_copy, header, body)
    header = with_mark(header, marked) if data else with_echo(header, marked)
    return with_group_sum(header, 1) if meeting == group else with_node_sum(header, 1), body


@njit
def goes_out(state: State, group: AggregationGroup, meeting: AggregationNode, header: int) -> bool:
    """Return True if a packet on its way from the one host is for all that meet at a station. Where all members meet,
    data always is; an answer is if it says so."""
    if meeting != group:
        return is_node_sum(header) == 1
    return group.is_outward == 1 or is_group_sum(header) == 1


@njit
def next_copy(state: State, group: AggregationGroup, meeting: AggregationNode, i: int) -> int:
    """Return the position of the next member that a station makes a packet for."""
    return one_of(group, i).next_copy if meeting == group else one_of(group, i).leaf_next_copy


@njit
def first_copy(state: State, group: AggregationGroup, meeting: AggregationNode, body: int) -> int:
    """Return the position of the first member that a station copies a packet for. It is another one each time the same
    packet arrives; otherwise copies that never find room behind the others would never arrive."""
    packet = packet_at(group, meeting.packet_states, sequence_of(body))
    i = meeting.first_copy
    for _ in range((packet[0] >> PACKET_COPIED) % meeting.copies):
        i = next_copy(state, group, meeting, i)
    packet[0] += 1 << PACKET_COPIED
    return i


@njit
def copy_of(
    state: State, group: AggregationGroup, meeting: AggregationNode, i: int, header: int, body: int
) -> tuple[int, int]:
    """Return the header and the body of the copy, for the i-th member or its first station, of a packet for all."""
    first = meeting == group and bool(one_of(group, i).leaf)
    header, body = _as_of(state, group, meeting, i, header, body)
    return with_node_sum(header, first), body


@njit
def ends_here(
    state: State, node: Switch, group: AggregationGroup, meeting: AggregationNode, header: int, body: int
) -> None:
    """Count a packet for all that ends at a station, and the STATION_COPIES made of it."""
    _count_made(state, group, meeting, place_of(state, flow_of(body)), -1)
    if kind_of(header) == DATA:
        node.copied += meeting.copies


# --- at the one host ------------------------------------------------------------------------------------------------


@njit
def _all_there(state: State, group: AggregationGroup, flow_number: int, header: int, body: int, mark: int) -> int:
    """Record the arrival of a packet of a fan at the one host; `mark`: 1 if it is marked. Returns ALL if it has now
    arrived of all, SOME if not, AGAIN if it, a part of it, or that of all had arrived before."""
    packet = packet_at(group, group.host_packet_states, sequence_of(body))
    if packet[0] & PACKET_PASSED:
        return AGAIN
    there = _contribute(state, group, packet, place_of(state, flow_number), group.size, header, mark)
    if there != ALL and is_group_sum(header) == 0:
        return there
    packet[0] |= PACKET_PASSED
    below = group.cumulative
    packets = one_of(group, 0).receiver.packets
    while below < packets and packet_at(group, group.host_packet_states, below)[0] & PACKET_PASSED:
        below += 1
    group.cumulative = below
    return ALL


@njit
def _mark(state: State, group: AggregationGroup, sequence: int) -> int:
    """Return 1 if any packet of a number had a mark when it arrived at the one host."""
    return (packet_at(group, group.host_packet_states, sequence)[0] >> PACKET_MARK) & 1


@njit
def _take(state: State, thread: Thread, flow_number: int, sequence: int, size: int, ce: int, now: int) -> int:
    """Pass a packet to the receiver of one member, and return its answer."""
    receiver = receiver_at(state, flow_number)
    done = receiver.is_done
    reply = on_data(receiver, sequence, size, ce, now)
    if done == 0 and receiver.is_done:
        log_delivery(state, thread, receiver, flow_number, now)
    return reply


@njit
def take_for_all(
    state: State,
    thread: Thread,
    node: Host,
    port: Port,
    group: AggregationGroup,
    flow_number: int,
    header: int,
    body: int,
    now: int,
) -> None:
    """Handle a data packet of one or all members at the one host.

    When it has arrived of all, their receivers take it, and one answer goes to all. If it, or that of all, had arrived
    before, only its sender is answered, which has missed the answer: waiting for the others, its retransmissions could
    crowd theirs out forever. A sum of which a part had arrived before is dropped: its senders retransmit separately.
    """
    receiver = receiver_at(state, flow_number)
    sequence = sequence_of(body)
    size = receiver.payload
    if sequence == receiver.packets - 1:
        size = receiver.nbytes - sequence * size
    receiver.marked += is_marked(header)
    there = _all_there(state, group, flow_number, header, body, is_marked(header))
    if there == AGAIN and is_node_sum(header) == 0:
        reply = _take(state, thread, flow_number, sequence, size, is_marked(header), now)
        answer(state, thread, node, port, receiver, reply, header, body, now)
    if there != ALL:
        return
    ce = _mark(state, group, sequence)
    for i in range(group.size):
        _take(state, thread, member(state, group, i), sequence, size, ce, now)
    first = one_of(group, 0).receiver
    first.control_sent += 1
    header = with_group_sum(with_echo(with_kind(first.control_header, ACK), ce), 1)
    body = body_of(member(state, group, 0), sequence, group.cumulative)
    send_control(state, thread, node, port, header, body, now)


@njit
def starts_for_all(state: State, group: AggregationGroup) -> Sender:
    """Start a message of a fan at its host; from the one host, the first member sends for all when all have started.
    Returns the sender's record that starts, 0 if none does yet."""
    group.started += 1
    if group.started < group.size:
        return Sender(state, 0)
    return sender_at(state, member(state, group, 0))


@njit
def hear_for_all(
    state: State, thread: Thread, group: AggregationGroup, flow_number: int, header: int, body: int, now: int
) -> Sender:
    """Handle an acknowledgement of one or all members at the one host, where the first member sends for all. Its
    transport gets the acknowledgement when all have acknowledged. Returns its record, 0 if there is nothing to do or it
    is done."""
    flow = sender_at(state, member(state, group, 0))
    if flow.is_done or _all_there(state, group, flow_number, header, body, has_echo(header)) != ALL:
        return Sender(state, 0)
    sequence = sequence_of(body)
    on_control(flow, ACK, sequence, group.cumulative, _mark(state, group, sequence), now)
    if flow.is_done == 0:
        return flow
    for i in range(group.size):
        each = member(state, group, i)
        sender_at(state, each).is_done = 1
        log_end(state, thread, each, now)
    return Sender(state, 0)
