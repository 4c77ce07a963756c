"""Compiled functions write the flow records of a message when it starts, for the program player or for Python.

What messages of a step have in common is stored in few records (V_), what differs (ends and number) with the message.
So a message costs a handful of words beforehand, and there are as many flow records as messages under way.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import flow_entropy
from gradwire.jit.records import Words
from gradwire.jit.records.aggregation import AggregationGroup, Member
from gradwire.jit.records.constants import (
    FAILED_FLOWS,
    FAILED_HEAP,
    KEY_ORDER,
    MASK_KEY_NUMBER,
    MAX_FLOWS,
    SET_SHIFT,
    TURN_SHIFT,
    WHAT_START,
)
from gradwire.jit.records.flows import Receiver, Sender, Stamps, number_of_sender, receiver_at, sender_at
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Host
from gradwire.jit.records.packets import destination_of, with_entropy, with_logged, with_priority, with_size
from gradwire.jit.records.programs import Event, LogRow, ProgramMessage, TransportKind, Variant
from gradwire.scenarios.wire import MIN_FRAME
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.stretch_allocator import allocate, free
from gradwire.sim.engine.memory.timer_heap import HEAP_FLOW, HEAP_SPARE, push


@njit
def transport_of(state: State, kind: int) -> TransportKind:
    """Return the base of the words of a transport, by `Sender.kind`."""
    return TransportKind(state, state.transports + (kind & ((1 << SET_SHIFT) - 1)) * TransportKind.WORDS)


@njit
def log_row(state: State, message_number: int) -> LogRow:
    """Return a message's row of the message log."""
    return LogRow(words_at(state.message_log), (message_number - state.log_first) * LogRow.WORDS)


@njit
def expect_timers(state: State, node: Host) -> None:
    """Make room in a host's heap for one more flow: three entries per flow, and some to spare."""
    node.timer_flows += 1
    heap = Words(state, node.timer_heap - 1)  # its size, then the entries
    need = HEAP_FLOW * node.timer_flows + HEAP_SPARE
    if need <= heap[0]:
        return
    size = 2 * need
    fresh = state.heap_next + 8
    if fresh + 2 * size > state.heap_end:
        state.failure = FAILED_HEAP
        return
    state.heap_next = fresh + 2 * size
    larger = Words(state, fresh - 1)
    for i in range(1, 1 + 2 * node.timer_count):
        larger[i] = heap[i]
    larger[0] = size
    node.timer_heap = fresh


@njit
def host_at(state: State, number: int) -> Host:
    """Return the record of a host."""
    return Host(state, state.nodes + number * Host.WORDS)


@njit
def _clear(words: Words, count: int) -> None:
    """Set words to zero."""
    for i in range(count):
        words[i] = 0


@njit
def take_record(state: State) -> int:
    """Return the number of a free pair of records, the last one freed if any; -1 if none is free (H_FAILED)."""
    count = state.free_count
    if count:
        state.free_count = count - 1
        return state.free_records[count - 1]
    flow_number = state.used_records
    if flow_number >= MAX_FLOWS:
        state.failure = FAILED_FLOWS
        return -1
    state.used_records = flow_number + 1
    return flow_number


@njit
def new_record(state: State, source: Host, destination: Host) -> int:
    """Return the number of a new pair of zeroed records without a message, between two hosts (bases of their nodes). -1
    if none is free."""
    flow_number = take_record(state)
    if flow_number >= 0:
        flow = sender_at(state, flow_number)
        _clear(Words(flow, flow.base), Sender.WORDS)
        receiver = receiver_at(state, flow_number)
        _clear(Words(receiver, receiver.base), Receiver.WORDS)
        expect_timers(state, source)
        expect_timers(state, destination)
    return flow_number


@njit
def write_records(state: State, message: ProgramMessage, flow_number: int, number: int) -> None:
    """Write the records of a message, or of a stream that looks like one, to number `flow`, which no packet uses any
    more."""
    variant = message.variant
    kind = transport_of(state, variant.kind)
    node = message.host
    packets = variant.packets
    words = (packets + 31) >> 5
    stream = variant.stream
    flow = sender_at(state, flow_number)
    receiver = receiver_at(state, flow_number)
    _clear(Words(flow, flow.base), Sender.WORDS)
    _clear(Words(receiver, receiver.base), Receiver.WORDS)
    entropy = variant.entropy
    if entropy < 0:
        entropy = flow_entropy(state.flow_key, number)
    both = with_logged(with_entropy(0, entropy), variant.is_logged)
    full = kind.payload + kind.overhead
    last = max(MIN_FRAME, variant.nbytes - (packets - 1) * kind.payload + kind.overhead)
    if not stream:
        flow.bitmaps_base = allocate(state, words * kind.sender_bitmaps)
        flow.peer_bitmaps_base = allocate(state, words * kind.receiver_bitmaps)
    header = with_size(destination_of(message.destination), full)
    flow.data_header = with_priority(header, variant.priority) | both
    flow.packets = packets
    flow.last_bytes = last
    flow.bitmap_words = words
    flow.kind = variant.kind
    flow.order = (number & MASK_KEY_NUMBER) << KEY_ORDER
    flow.next_ready = -1
    flow.ps_per_byte = node.ps_per_byte
    flow.tags = variant.tags
    flow.program_message = message.base if message.queue or message.done_event else 0
    flow.allowed_loss = variant.allowed_loss
    flow.turn = message.destination >> TURN_SHIFT
    flow.pair = variant.pair[0]
    flow.group = variant.pair[1]
    flow.stamps = allocate(state, variant.slots * Stamps.WORDS)
    flow.stamp_mask = variant.slots - 1
    receiver.control_header = ((node.base - state.nodes) // Host.WORDS) | kind.control_header | both
    receiver.packets = packets
    receiver.nbytes = variant.nbytes
    receiver.payload = kind.payload
    receiver.bitmaps_base = flow.peer_bitmaps_base
    receiver.bitmap_words = words
    receiver.kind = variant.kind
    receiver.tags = variant.tags
    receiver.allowed_loss = variant.allowed_loss
    receiver.max_loss = variant.max_loss
    receiver.pool = variant.pool
    receiver.important_packets = variant.important_packets
    receiver.notify = variant.notify
    receiver.frame_bytes = full if packets > 1 else last
    receiver.deliveries_left = variant.step_count.base
    receiver.pair = variant.pair[2]
    receiver.host = variant.pair[3]
    if stream:
        flow.stream = stream
        receiver.stream = receiver_at(state, number_of_sender(state, stream))


@njit
def _widened(state: State, old: Words, old_base: int, old_words: int, words: int, bitmaps: int) -> int:
    """Return the base of larger bitmaps of a stream, with the contents of the old ones, which are freed."""
    base = allocate(state, words * bitmaps)
    if state.failure:
        return 0
    if old_words:
        larger = Words(state, base)
        for bitmap in range(bitmaps):
            for i in range(old_words):
                larger[bitmap * words + i] = old[bitmap * old_words + i]
        free(state, old_words * bitmaps, old_base)
    return base


@njit
def _join(state: State, stream: Sender, kind: TransportKind, packets: int) -> None:
    """Add the packets of one more message to a stream. Its bitmaps have room for twice as many packets as may be open,
    since the engine moves them down when they are full."""
    stream.open_packets += packets
    need = 2 * stream.open_packets + 64
    receiver = receiver_at(state, number_of_sender(state, stream))
    if need <= receiver.packets:
        return
    words = 2
    while words << 5 < need:
        words *= 2
    base = _widened(state, stream.bitmaps, stream.bitmaps_base, stream.bitmap_words, words, kind.sender_bitmaps)
    if state.failure:
        return
    stream.bitmaps_base = base
    stream.bitmap_words = words
    base = _widened(state, receiver.bitmaps, receiver.bitmaps_base, receiver.bitmap_words, words, kind.receiver_bitmaps)
    if state.failure:
        return
    receiver.bitmaps_base = base
    receiver.bitmap_words = words
    stream.peer_bitmaps_base = base
    receiver.packets = words << 5


@njit
def _event_of(state: State, variant: Variant, i: int) -> int:
    """Return the event that is the delivery of the i-th message of a step; 0 if there is none."""
    if variant.events == 0:
        return 0
    event = Event(state, variant.events + Event.WORDS * i)
    if variant.has_no_events and event.dependent_count + event.post_count == 0:
        return 0
    return event.base


@njit
def _join_fan(state: State, variant: Variant, i: int, receiver: Receiver) -> None:
    """Register the i-th message of a step with its aggregation group, if it has one."""
    place = Words(state, variant.aggregations + 2 * i)  # base of the group, and index in it
    if place[0]:
        receiver.aggregation = place[0]
        receiver.aggregation_index = place[1]
        Member(state, place[0] + AggregationGroup.WORDS + Member.WORDS * place[1]).receiver = receiver


@njit
def open_message(state: State, message: ProgramMessage) -> bool:
    """Write the records of a message that starts at G_RELEASED, and set its timer. Returns False without room
    (H_FAILED)."""
    variant = message.variant
    flow_number = take_record(state)
    if flow_number < 0:
        return False
    i = (message.base - variant.messages) // ProgramMessage.WORDS
    number = variant.first_message + i
    write_records(state, message, flow_number, number)
    kind = transport_of(state, variant.kind)
    if variant.stream:
        _join(state, variant.stream, kind, variant.packets)
    node = message.host
    expect_timers(state, node)
    if kind.delays_answers:
        expect_timers(state, host_at(state, destination_of(message.destination)))
    if state.failure:
        return False
    receiver = receiver_at(state, flow_number)
    receiver.event = _event_of(state, variant, i)
    if variant.aggregations:
        _join_fan(state, variant, i, receiver)
    since = variant.step_count.since if variant.step_count else variant.ties_since
    if since:
        sender_at(state, flow_number).ties_since = since
        state.ties_since_iteration = 1
    log_row(state, number).flow = flow_number
    flow = sender_at(state, flow_number)
    message.flow = flow
    begin = message.released_at
    push(node, begin, flow.order | (flow.base << 2) | WHAT_START)
    state.next_events[node.position] = min(state.next_events[node.position], begin)
    state.earliest_consequence = min(state.earliest_consequence, begin)
    return True


@njit
def open_some(state: State, message: ProgramMessage, many: int) -> None:
    """Open those of `many` messages that have been released and have no records yet."""
    for i in range(many):
        own = ProgramMessage(state, message.base + i * ProgramMessage.WORDS)
        if own.released_at >= 0 and not own.flow and not open_message(state, own):
            return
