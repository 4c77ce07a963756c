"""Declares the engine's records of flows (sender, receiver), pairs of hosts, parameter sets and telemetry stamps.

A message has one record of each while it is under way, and so have a connection and a group. A transport derives its
own records, with its own fields, from these.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.records.header import State, StateRecord
from gradwire.jit.records.table import Array, Pointer, Record, Reference, Space, Word


class Sender(StateRecord, words=112):
    """The sender of a message, of a connection, or of a group of messages."""

    data_header = Word("first header word of its full data packets")
    packets = Word("packets of the message; of a stream: packets handed over so far", "packets")
    last_bytes = Word("bytes on the wire of the last packet", "bytes")
    bitmaps_base = Word("base of its bitmaps")
    bitmap_words = Word("words of one bitmap, 32 packets to a word")
    bitmaps = Pointer("its bitmaps", at=3)
    kind = Word("index of the transport in the specialised set | number of the parameter set << SET_SHIFT", at=5)
    order = Word("number of the message << KEY_ORDER: orders events at equal times")
    next_ready = Reference(lambda: Sender, "next flow in the host's ready list, -1 = last")
    is_listed = Word("1 while it is in the ready list")
    next_start = Word("earliest start of the next packet", "ps")
    gap = Word("pacing: time from one packet start to the next, 0 = as fast as the port", "ps/B << 16")
    timer = Word("time of the next call of `on_timer`, 0 = never", "ps")
    armed = Word("time of its entry in the host's timer heap, 0 = none", "ps")
    is_done = Word("1 if nothing is left to send")
    sent = Word("packets put on the wire", "packets")
    control_received = Word("control packets received", "packets")
    peer_bitmaps_base = Word("base of the receiver's bitmaps")
    peer_bitmaps = Pointer("the receiver's bitmaps", at=16)
    ps_per_byte = Word("inverse speed of the host's port", "ps/B << 16", at=17)
    tags = Word("important packets: base of the bitmap `tag_bits`, 0 = none, 1 = all")
    tag_bits = Pointer("bitmap of the important packets, if `tags` is a base", at=18)
    program_message = Word("base of the message's words in a program, if a queue releases it; 0 = none")
    timeouts = Word("retransmission time-outs of the message; a transport counts them in `on_timer`")
    own = Space(54, "fields of the transport")
    piggyback = Word("22 bits that every data packet carries; `pull` sets them for the packet it returns")
    stamps = Word("base of the slots for its packets' telemetry, 0 = none")
    stamp_mask = Word("number of slots - 1; the slot of a packet is its piggyback & this")
    stream = Reference(lambda: Sender, "stream of the message (of a stream: itself), 0 = none")
    first_packet = Word(
        "message: number of its first packet in the stream; stream: packets that its transport no longer counts"
    )
    next_message = Reference(lambda: Sender, "message: next message of the stream or group, 0 = none")
    first_sends = Word("message: packets sent for the first time", "packets")
    front_message = Reference(
        lambda: Sender,
        "stream: first message not fully acknowledged; group: oldest message with packets to send; 0 = none",
    )
    last_message = Reference(lambda: Sender, "stream or group: its last message")
    new_data_message = Reference(lambda: Sender, "stream: message of its next new packet, 0 = none yet")
    retransmitted_message = Reference(lambda: Sender, "stream: message of the last retransmission, 0 = none")
    next_number = Word("stream: number of the first packet of the next message")
    has_begun = Word("stream: 1 once it has had a message")
    last_sent_at = Word("stream: time of the last transmission", "ps")
    pair = Reference(lambda: Pair, "state that all messages of the transport between its two hosts share, 0 = none")
    group = Reference(lambda: Sender, "group of the message (of a group: itself), 0 = none")
    allowed_loss = Word("payload that may be missing at delivery", "bytes")
    turn = Word("index among the consecutive messages of the same tensor part; rotating rules rotate by it")
    open_packets = Word("stream: packets of its messages that have records", "packets")
    ties_since = Word("message: reference time of the ties of its packets, 0 = ties go by the absolute time", "ps")
    paths = Space(14, "fields of the load balancer", at=98)
    una = Word("packet number: everything below has been acknowledged (transports with streams)", at=21)
    nxt = Word("number of the next new packet (transports with streams)", at=22)


class Receiver(StateRecord, words=56):
    """The receiver of a message, or of a connection."""

    control_header = Word("first header word of its control packets")
    packets = Word("packets of the message", "packets")
    nbytes = Word("payload of the message", "bytes")
    payload = Word("payload of a full packet", "bytes")
    bitmaps_base = Word("base of its bitmaps")
    bitmap_words = Word("words of one bitmap, 32 packets to a word")
    bitmaps = Pointer("its bitmaps", at=4)
    kind = Word("as in the sender's record", at=6)
    tags = Word("important packets: base of the bitmap `tag_bits`, 0 = none, 1 = all")
    tag_bits = Pointer("bitmap of the important packets, if `tags` is a base", at=7)
    allowed_loss = Word("payload that may be missing at delivery", "bytes")
    received_bytes = Word("payload received", "bytes")
    is_done = Word("1 if the message is delivered")
    arrived = Word("data packets that have arrived", "packets")
    control_sent = Word("control packets sent", "packets")
    important_packets = Word("important packets of the message", "packets")
    notify = Word("bits TELL_*: ends of the message that Python must handle")
    event = Word("base of the event of its delivery, 0 = nothing depends on it")
    deliveries_left = Word("base of the count of deliveries left in its step of a program, 0 = no program")
    marked = Word("data packets that arrived marked", "packets")
    own = Space(14, "fields of the transport")
    queued_pulls = Word("pulls in the host's queue; a transport may set it to 0")
    pulls_sent = Word("pulls that its host has sent for it")
    next_puller = Reference(lambda: Receiver, "next receiver in the host's list of those with pulls, 0 = last")
    is_pull_listed = Word("1 while it is in the host's list of receivers with pulls")
    trimmed = Word("trimmed packets that have arrived", "packets")
    frame_bytes = Word(
        "bytes on the wire of its largest data packet: a pull takes this much of the host's line", "bytes"
    )
    stream = Reference(lambda: Receiver, "stream of the message (of a stream: itself), 0 = none")
    first_packet = Word(
        "message: number of its first packet in the stream; stream: packets that its transport no longer counts"
    )
    next_message = Reference(lambda: Receiver, "message: next one with any arrived packet, 0 = none")
    has_arrived = Word("message: 1 once any packet of it has arrived")
    front_message = Reference(lambda: Receiver, "stream: first message that has arrived in part, 0 = none")
    last_message = Reference(lambda: Receiver, "stream: last message that has arrived in part")
    timer = Word("time of the next call of `on_late`, 0 = never", "ps")
    armed = Word("time of its entry in the host's timer heap, 0 = none", "ps")
    last_data = Word("first header word of the last data packet, for delayed acknowledgements")
    last_data_body = Word("second header word of the last data packet, for delayed acknowledgements")
    last_piggyback = Word("piggyback of the last data packet, if receivers may delay acknowledgements")
    pair = Reference(
        lambda: Record, "state that the messages of its transport between its two hosts share here, 0 = none"
    )
    host = Reference(lambda: Record, "state that all messages of its transport to this host share")
    pool = Word("loss budget that `allowed_loss` is part of: its number, whose lowest bit is the direction; 0 = none")
    max_loss = Word("payload that may be missing at delivery if the budget has as much left", "bytes")
    aggregation = Word("base of the words of its aggregation group, 0 = none")
    aggregation_index = Word("its index in the aggregation group")
    cumulative = Word("first packet that has not arrived (transports with streams)", at=18)


class Pair(StateRecord):
    """Words that all messages from one host to another share at the sender."""

    next_start = Word("earliest start of the pair's next packet", "ps")
    gap = Word("pacing: time from one packet start to the next, 0 = as fast as the port", "ps/B << 16")


class Parameters(StateRecord, words=32):
    """A parameter set: a transport's numbers for flows of one base round trip and line rate."""


class Stamp(StateRecord):
    """In-band telemetry of one switch about a packet."""

    port = Word("number of the directed link")
    queue = Word("bytes queued behind the packet", "bytes")
    sent_bytes = Word("bytes that the port had sent before", "bytes")
    time = Word("start of the transmission", "ps")
    ps_per_byte = Word("inverse speed of the link", "ps/B << 16")


class Stamps(StateRecord, words=32):
    """The stamps of one packet: a slot among those of its flow."""

    hops = Word("switches so far")
    stamps = Array(30, "stamps of up to six switches, in the order of the path")


@njit
def stamp_at(stamps: Stamps, hop: int) -> Stamp:
    return Stamp(stamps, stamps.base + 1 + 5 * hop)


@njit
def sender_at(state: State, number: int) -> Sender:
    return Sender(state, state.senders + number * Sender.WORDS)


@njit
def receiver_at(state: State, number: int) -> Receiver:
    return Receiver(state, state.receivers + number * Receiver.WORDS)


@njit
def number_of_sender(state: State, flow: Sender) -> int:
    return (flow.base - state.senders) // Sender.WORDS


@njit
def number_of_receiver(state: State, receiver: Receiver) -> int:
    return (receiver.base - state.receivers) // Receiver.WORDS
