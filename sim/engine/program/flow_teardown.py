"""Compiled functions enter deliveries and counters into the message log, and free flow records that no packet needs.

A record may be reused only when no packet of its message is left anywhere, late ones included, and none will be sent:
the counters of sender and receiver, the logged drops and the pending timers of both determine that exactly. Nor may an
end of a message still have to be played, as when a program waits for Python to continue a process.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.aggregation import AggregationGroup, Member
from gradwire.jit.records.constants import DELIVERED, KEY_ORDER, STATE_DELIVERED, STATE_DONE
from gradwire.jit.records.flows import Sender, Stamps, number_of_receiver, receiver_at, sender_at
from gradwire.jit.records.header import DeliveryEntry, State
from gradwire.jit.records.programs import LogRow, StepCount
from gradwire.sim.engine.memory.stretch_allocator import free
from gradwire.sim.engine.program.flow_setup import host_at, log_row, transport_of


@njit
def row_of(state: State, flow: Sender) -> LogRow:
    """Return the row of a sender's message in the message log."""
    return log_row(state, flow.order >> KEY_ORDER)


@njit
def note(state: State, entry: DeliveryEntry) -> None:
    """Enter a row of a thread's log into the message log: a delivery, or the end of a sender."""
    flow = sender_at(state, entry.flow)
    row = row_of(state, flow)
    if entry.what == DELIVERED:
        row.end = entry.time
        row.received = entry.received
        row.status |= STATE_DELIVERED
    else:
        row.status |= STATE_DONE
        host_at(state, row.src).timer_flows -= 1
        if transport_of(state, flow.kind).delays_answers:
            host_at(state, row.dst).timer_flows -= 1
    if row.status == STATE_DELIVERED | STATE_DONE:
        state.closing[state.closing_count] = entry.flow
        state.closing_count += 1


@njit
def _count(state: State, row: LogRow, flow_number: int) -> None:
    """Copy the counters of a message from its records into its row of the message log."""
    flow = sender_at(state, flow_number)
    receiver = receiver_at(state, flow_number)
    kind = transport_of(state, flow.kind)
    words = Words(flow, flow.base)
    retransmitted = flow.sent - words[kind.sent_once_offset]
    if kind.probes_offset:
        retransmitted -= words[kind.probes_offset]
    row.sent = flow.sent
    row.retransmitted = retransmitted
    row.timeouts = flow.timeouts
    row.marked = receiver.marked
    row.trimmed = receiver.trimmed
    if row.end < 0:  # arrivals after the delivery do not count
        row.received = receiver.received_bytes


@njit
def count_some(state: State, first: int, many: int) -> None:
    """Update the message log for `many` messages from `first` on."""
    for number in range(first, first + many):
        row = log_row(state, number)
        if row.flow >= 0:
            _count(state, row, row.flow)


@njit
def _close(state: State, flow_number: int) -> None:
    """Free the records of a message, and what belongs to them."""
    flow = sender_at(state, flow_number)
    receiver = receiver_at(state, flow_number)
    row = row_of(state, flow)
    _count(state, row, flow_number)
    row.flow = -1
    kind = transport_of(state, flow.kind)
    words = flow.bitmap_words
    if flow.stream:
        flow.stream.open_packets -= row.packets
    else:
        free(state, words * kind.sender_bitmaps, flow.bitmaps_base)
        free(state, words * kind.receiver_bitmaps, flow.peer_bitmaps_base)
    if row.tags:
        free(state, words, row.tags)
    if flow.stamps:
        free(state, (flow.stamp_mask + 1) * Stamps.WORDS, flow.stamps)
    if receiver.deliveries_left:
        StepCount(state, receiver.deliveries_left).closed += 1
    state.dropped[flow_number] = 0
    state.free_records[state.free_count] = flow_number
    state.free_count += 1


@njit
def _balance(state: State, flow_number: int) -> int:
    """Return the packets of a message that have been sent, by either end, and have not ended anywhere."""
    flow = sender_at(state, flow_number)
    receiver = receiver_at(state, flow_number)
    return flow.sent + receiver.control_sent - flow.control_received - receiver.arrived - state.dropped[flow_number]


@njit
def _group_is_over(state: State, group: AggregationGroup) -> bool:
    """Return True if all messages of an aggregation group are delivered and acknowledged, and no packet is left. A
    switch that makes copies needs the addresses of all until then."""
    if group.is_over:
        return True
    for i in range(group.size):
        member = Member(state, group.base + AggregationGroup.WORDS + Member.WORDS * i)
        if not member.receiver:
            return False
        flow_number = number_of_receiver(state, member.receiver)
        flow = sender_at(state, flow_number)
        if row_of(state, flow).status != STATE_DELIVERED | STATE_DONE:
            return False
        if _balance(state, flow_number) + member.spare + member.leaf_spare or flow.is_listed:
            return False
    group.is_over = 1  # closing the messages changes the counters
    return True


@njit
def close_some(state: State, at_least: int) -> int:
    """Free the records of messages without packets left, if at least `at_least` wait, and return their number."""
    count = state.closing_count
    if count < at_least or state.event_heap_count:
        return 0
    kept = 0
    for i in range(count):
        flow_number = state.closing[i]
        flow = sender_at(state, flow_number)
        receiver = receiver_at(state, flow_number)
        if receiver.aggregation:
            over = _group_is_over(state, AggregationGroup(state, receiver.aggregation))
        else:
            waits = flow.is_listed or receiver.is_pull_listed or receiver.timer  # the timer: a delayed answer
            over = _balance(state, flow_number) == 0 and waits == 0
        if over:
            _close(state, flow_number)
        else:
            state.closing[kept] = flow_number
            kept += 1
    state.closing_count = kept
    return count - kept
