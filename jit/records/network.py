"""Declares the engine's records of hosts, switches, egress ports, links, queues, and logs of drops and packets."""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.records.flows import Receiver
from gradwire.jit.records.header import StateRecord
from gradwire.jit.records.table import Array, Pointer, Reference, Word


class Node(StateRecord):
    """A host or a switch."""

    kind = Word("0 host, 1 switch")
    ingress = Word("first entry of its ingress list: ports in `State.ingress`, consumer counters in `State.heads`")
    ingress_count = Word("number of its ingress links")
    port = Reference(lambda: Port, "base of its (first) egress port")
    position = Word("index of its entries in `State.wake` and `State.next_events`")
    draws = Word("packets balanced so far: the counter of the random draws", "packets")
    active_ports = Pointer("ports with queued packets")
    active_count = Word("number of ports with queued packets")
    edge = Word("number among the destinations of the routing tables, -1 = none")
    key = Word("key of the random draws", at=10)


class Host(Node, words=48):
    """A host."""

    timer_flows = Word("flows that may set timers here", at=9)
    ps_per_byte = Word("inverse speed of its port, faults included", "ps/B << 16", at=11)
    timer_heap = Word("base of its timer heap, entries of two words (time, key)")
    timer_count = Word("entries of its timer heap")
    ready_mask = Word("classes with flows ready to send")
    ready_head = Array(8, "first ready flow of each class, -1 = none", at=16)
    ready_tail = Array(8, "last ready flow of each class, -1 = none")
    is_paused = Word("1 while it is paused: it neither sends nor processes arrivals", at=33)
    held_head = Reference(lambda: QueueEntry, "first packet that arrived while it is paused, an entry of the pool")
    held_tail = Reference(lambda: QueueEntry, "last packet that arrived while it is paused, an entry of the pool")
    held = Word("packets that arrived while it is paused", "packets")
    pull_head = Reference(lambda: Receiver, "first receiver with pulls to send, base of its record; 0 = none")
    pull_tail = Reference(lambda: Receiver, "last receiver with pulls to send, base of its record")
    next_pull = Word("earliest start of the next pull", "ps")


class Switch(Node, words=48):
    """A switch."""

    routes = Word("base of its row of the routing table, one word for each block of destinations", at=9)
    balancer_table = Word("base of the load balancer's record", at=11)
    pause_wanted = Word("classes that it wants paused, summed over its links")
    used_bytes = Word("queued bytes, if its ports share a buffer", "bytes", at=32)
    free_slots = Word("aggregation: free slots")
    min_free_slots = Word("aggregation: smallest number of free slots so far")
    summed = Word("aggregation: data packets added to a slot and not forwarded", "packets")
    unsummed = Word("aggregation: data packets of groups that were forwarded individually", "packets")
    copied = Word("aggregation: data packets that it made from one packet for a whole group", "packets")
    used_by_class = Array(8, "queued bytes of each class, if classes have limits", "bytes", at=40)


class Port(StateRecord, words=64):
    """An egress port and the link behind it. The words that every packet needs come first: two cache lines, with the
    first class in the second one."""

    sent = Word("packets ever put on the link: the producer's end of the ring", "packets")
    busy_until = Word("end of the transmission in progress", "ps")
    queue = Word("queued bytes << 8 | mask of the classes with packets")
    ps_per_byte = Word("inverse speed", "ps/B << 16")
    latency = Word("propagation delay of the link", "ps")
    ring = Word("base of the ring of packets on the link, entries of three words (time and two header words)")
    shape = Word("ring mask | SHAPE_ flags | position of the node at the far end << 32")
    consumed = Word("consumer's end of the ring when last read")
    bytes_sent = Word("bytes transmitted", "bytes")
    flags = Word("PORT_FLAG_ flags | last class << 8")
    buffer = Word("buffer limit over all classes", "bytes")
    peak = Word("largest number of queued bytes so far", "bytes")
    classes = Array(32, "records of up to eight classes")
    loss = Word("probability of random loss", "<< 32")
    link = Word("number of the directed link")
    loss_key = Word("key of the loss draws; their counter is the number of packets ever transmitted")
    drops = Array(3, "lost packets by cause: CAUSE_TAIL, CAUSE_SELECTIVE, CAUSE_LINK")
    marks = Word("packets marked", "packets")
    spill = Word("base of the spill ring, used while the ring is full")
    spill_mask = Word("mask of the spill ring")
    spill_tail = Word("producer's end of the spill ring")
    consumer = Reference(lambda: LinkHead, "base of the consumer's counters, in `State.heads`")
    red_key = Word("key of the marking draws")
    red_draws = Word("marking draws so far: their counter")
    node = Reference(lambda: Switch, "node that sends here")
    extra = Reference(lambda: PortExtra, "fields that most runs do not need")
    control_marks = Word("control packets among those marked", "packets")
    tied_at = Word("last time at which packets arrived together with others", "ps")
    red_kmax = Word("queue from which on every packet is marked", "bytes")
    trim_threshold = Word("queue from which on packets are trimmed to their headers", "bytes")


class QueueClass(StateRecord, words=4):
    """The packets of one class that wait at a port."""

    head = Reference(lambda: QueueEntry, "first packet, an entry of the pool")
    tail = Reference(lambda: QueueEntry, "last packet, an entry of the pool")
    nbytes = Word("queued bytes", "bytes")
    threshold = Word("queue from which on important packets are marked and droppable ones dropped, -1 = never", "bytes")


class PortExtra(StateRecord, words=56):
    """Words of a port that most runs do not need."""

    turn = Word("round robin: current class | granted << 3")
    pause_due = Word("1: this port is to send a pause frame")
    pause_wanted = Word("classes that the far end is to pause")
    pause_limit = Word("pause: the far end stops above this many bytes of a class", "bytes")
    paused = Word("classes that the far end has paused")
    pauses = Word("pause frames that arrived for this port and had an effect")
    trimmed = Word("packets trimmed to their headers", "packets")
    ignores_pauses = Word("1 while the opposite link is cut: pause frames from it are void, late ones too")
    drops_by_cause = Array(8, "drops by cause, from CAUSE_EVICTED on", "packets")
    deficit = Array(8, "round robin: bytes that each class may still send", "bytes")
    quantum = Array(8, "round robin: bytes of each class per turn, 0 = strict priority", "bytes")
    held = Array(8, "bytes of each class that came in by the opposite link and are queued in the switch", "bytes")
    headroom = Word("bytes of a class that are accepted beyond `pause_limit` until the far end has stopped", "bytes")
    delays = Pointer("histogram of queueing delays")


class LinkHead(StateRecord, words=8):
    """The consumer's end of a link."""

    taken = Word("packets taken from the ring")
    spill_taken = Word("packets taken from the spill ring")
    ring_free = Word("the same, published only after the packets were read: the producer may reuse these entries")
    spill_free = Word("the same of the spill ring")
    ring = Word("base of the ring: allows prefetching entries before the port's record")
    ring_mask = Word("mask of the ring")


class RingEntry(StateRecord):
    """A packet on a link."""

    time = Word("when it arrives", "ps")
    header = Word("word A of the packet")
    body = Word("word B of the packet")


class DropEntry(StateRecord):
    """An entry of a thread's log of lost packets."""

    time = Word("when it was lost", "ps")
    link_and_cause = Word("number of the directed link | CAUSE_ << 32")
    header = Word("word A of the packet")
    body = Word("word B of the packet")


class TraceEntry(StateRecord):
    """An entry of a thread's packet log."""

    start = Word("when its transmission began", "ps")
    link = Word("number of the directed link")
    header = Word("word A of the packet")
    body = Word("word B of the packet")
    event = Word("1 if it was lost on the link")


class QueueEntry(StateRecord):
    """A packet that waits: an entry of a thread's pool. Runs without flow control or counts of waiting times lay their
    entries closer together, without the words at the end."""

    next = Reference(lambda: QueueEntry, "the entry behind it")
    header = Word("word A of the packet")
    body = Word("word B of the packet")
    back = Reference(lambda: Port, "the port opposite to the link that it came over, none at hosts")
    since = Word("arrival time", "ps")


CLASSES = Port.classes.offset


@njit
def queue_of(port: Port, number: int) -> QueueClass:
    return QueueClass(port, port.base + CLASSES + QueueClass.WORDS * number)
