"""Declares the engine's records of job programs (events, messages, queues, processes), transport sizes, and the message
log's rows.
"""

from __future__ import annotations

from gradwire.jit.records.flows import Sender
from gradwire.jit.records.header import StateRecord
from gradwire.jit.records.network import Host
from gradwire.jit.records.table import Array, Pointer, Record, Reference, Word


class TimerEntry(StateRecord):
    """An entry of a heap of the player: timers, or events to be played."""

    time = Word("when it is due", "ps")
    number = Word("orders entries of equal times")
    key = Word("what is due")


class ReleaseEntry(StateRecord):
    """An entry of a queue: a message that is ready."""

    rank = Word("rank | order of readiness, lowest first")
    message = Reference(lambda: ProgramMessage, "the message")


class Operation(StateRecord):
    """An operation of a process."""

    kind = Word("O_COMPUTE, O_WAIT, ...")
    value = Word("ps, the base of an event, or that of a word for the time")


class Event(StateRecord, words=10):
    """An event of a program."""

    needs = Word("firings it waits for; FIRED once it has happened")
    dependents = Pointer("the events that depend on it")
    dependent_count = Word("their number")
    posts = Pointer("the messages that it posts")
    post_count = Word("their number")
    resource = Word("base of its station (a word: busy until then), 0 = firing takes no time")
    effort = Word("time that firing takes its station", "ps")
    waiter = Reference(lambda: Process, "base of the process that waits for it, 0 = none")
    counted = Word("while it fires: dependent events already counted")
    parent = Reference(lambda: Event, "while it fires: the event it follows from, 0 = none")


class ProgramMessage(StateRecord, words=9):
    """A message of a program."""

    flow = Reference(lambda: Sender, "its sender's record, once assigned; 0 = none yet")
    host = Reference(lambda: Host, "base of its host")
    destination = Word("the destination host | `Sender.turn` of the message << TURN_SHIFT")
    queue = Reference(lambda: ReleaseQueue, "base of the queue that releases it, 0 = none")
    rank = Word("rank among the messages of its queue, lowest first")
    variant = Reference(lambda: Variant, "base of the words shared with other messages of its step")
    ready_at = Word("time when it was ready, -1 = not yet")
    released_at = Word("its start time, -1 = not released yet")
    done_event = Reference(lambda: Event, "base of the event that its sender's end counts for, 0 = none")


class Variant(StateRecord, words=32):
    """Words that several messages of a step have in common."""

    nbytes = Word("payload of the message", "bytes")
    packets = Word("packets of the message", "packets")
    kind = Word("as `Sender.kind`")
    priority = Word("queue of its data packets, 0 is served first")
    tags = Word("as `Sender.tags`")
    important_packets = Word("important packets of the message", "packets")
    allowed_loss = Word("payload that may be missing at delivery", "bytes")
    max_loss = Word("as `Receiver.max_loss`", "bytes")
    pool = Word("as `Receiver.pool`")
    notify = Word("as `Receiver.notify`")
    is_logged = Word("1: its packets are logged")
    slots = Word("slots for stamps")
    step_count = Reference(lambda: StepCount, "deliveries left in its step")
    messages = Word("base of the words of the first message of its step")
    first_message = Word("number of the first message of its step")
    events = Word("base of the step's events, deliveries first; 0 = nothing depends on any")
    has_no_events = Word("1: a delivery on which nothing depends is no event")
    stream = Reference(lambda: Sender, "base of the sender's record of its stream, 0 = none")
    entropy = Word("path entropy of the stream, -1 = every message draws its own")
    pair = Array(4, "`Sender.pair`, `Sender.group`, `Receiver.pair`, `Receiver.host`")
    aggregations = Word("base of the aggregation groups of its step's messages, two words each: group, index; 0 = none")
    ties_since = Word("as `Sender.ties_since`, of messages without a step")


class StepCount(StateRecord, words=4):
    """Counts of one step of a program."""

    left = Word("deliveries left")
    last_delivery = Word("time of the last delivery so far", "ps")
    closed = Word("messages that no longer have records")
    since = Word("when its first process began it, if ties depend on that", "ps")


class TransportKind(StateRecord, words=16):
    """Sizes of a transport of the run."""

    payload = Word("payload bytes of a full packet")
    overhead = Word("bytes of headers of a data packet")
    control_header = Word("first header word of its control packets, without destination and entropy")
    sender_bitmaps = Word("bitmaps of a sender")
    receiver_bitmaps = Word("bitmaps of a receiver")
    probes_offset = Word("word of a sender's record that counts probes, 0 = none")
    sent_once_offset = Word("... and packets sent for the first time")
    delays_answers = Word("1: receivers set timers")


class ReleaseQueue(StateRecord, words=5):
    """A queue that releases messages by rank."""

    heap = Word("base of its heap, entries of two words (rank | order of readiness, base of the message's words)")
    count = Word("entries of the heap")
    offered = Word("messages it has had so far")
    credit = Word("bytes that may be in flight")
    under_way = Word("bytes in flight", "bytes")


class Process(StateRecord, words=13):
    """A process: a schedule of operations that it carries out."""

    operation = Word("base of its next operation")
    schedule_end = Word("end of its known schedule")
    next_schedule = Word("... and the following part, 0 = not known yet")
    next_schedule_end = Word("end of the following part")
    finished_parts = Word("parts of its schedule that it has finished")
    is_starved = Word("1 if it has reached the end of its known schedule")
    starved_at = Word("... and the time of that")
    slowness = Word("factor of compute times, times SLOW_UNIT")
    computed = Word("time spent computing since the last record", "ps")
    part_times = Array(4, "end times of the last four parts, in turn")


class LogRow(Record):
    """A row of the message log, which lies outside the state."""

    src = Word("source host")
    dst = Word("destination host")
    nbytes = Word("payload bytes", "bytes")
    packets = Word("packets of the message")
    transport = Word("number of the transport")
    flow = Word("number of its records, -1 = none")
    status = Word("STATE_DELIVERED and STATE_DONE")
    end = Word("time of delivery, -1 = not yet", "ps")
    received = Word("payload bytes that have arrived", "bytes")
    sent = Word("packets sent")
    retransmitted = Word("retransmissions")
    tags = Word("base of the bitmap of important packets, if it has one")
    marked = Word("packets that arrived marked")
    trimmed = Word("trimmed packets that arrived")
    timeouts = Word("retransmission time-outs")
