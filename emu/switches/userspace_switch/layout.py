"""Declares the records of the userspace switch's memory, and makes that memory from a plan (`SwitchMemory`).

`SwitchMemory` has all arrays, whose rows are records (`gradwire.jit.records`). It is made from a plan (`state_of`) and
grows (`grown`) if packets or drops need more space.
"""

from __future__ import annotations

import socket
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.native.heap import HeapEntry
from gradwire.emu.planning.plan import TestbedPlan, host_address
from gradwire.emu.switches.backend_kind import BALANCERS
from gradwire.jit.counter_rng import LINK_DRAWS, NODE_DRAWS, TIE_DRAWS, key_of
from gradwire.jit.records import Record, Word
from gradwire.scenarios.wire import MIN_FRAME, serialisation_ps

CLASSES = 8
UNLIMITED = 1 << 62
CAUSES = ("tail", "selective", "link_loss", "no_route")
TAIL, SELECTIVE, LOSS, NO_ROUTE = range(4)

BEFORE_ARRIVALS = -(1 << 40)
"""Added to a port's number: order of a transmission's start among simultaneous events."""
LINK_BITS = 32
LINK = (1 << LINK_BITS) - 1
"""Low bits of the order of an arrival: the number of its link; the bits above break ties."""

AT_SOURCE, AT_END = 1, 2
"""Bits of `PortRow.taps`: packets are recorded when their transmission begins, or when they have arrived."""
COUNTED = ("packets", "bytes", "drops_tail", "drops_selective", "marks")
"""Counters of a class, as in `PortCounts`."""


class PortRow(Record):
    """A port: its parameters, then its state."""

    dst = Word("node at the far end")
    ends_at_host = Word("1: that node is a host")
    rate = Word("rate", "bit/s")
    latency = Word("latency of the link", "ps")
    loss_odds = Word("loss probability << 32")
    key = Word("key of the loss draws")
    last_class = Word("last class")
    limit = Word("buffer of all classes", "bytes")
    drops_selectively = Word("1: droppable packets are dropped from K on")
    tie_key = Word("key that breaks ties between arrivals")
    free_at = Word("end of the transmission in progress", "ps")
    class_mask = Word("classes with packets")
    queued = Word("queued bytes of all classes", "bytes")
    peak = Word("maximum of queued bytes", "bytes")
    sent = Word("packets sent with a loss probability: counter of the draws")
    lost = Word("packets lost on the wire")
    taps = Word("captures: AT_SOURCE | AT_END")


class ClassRow(Record):
    """A class of a port: parameters, queue and counters."""

    threshold = Word("K: from here on packets are marked or dropped", "bytes")
    limit = Word("its part of the buffer", "bytes")
    queued = Word("queued bytes", "bytes")
    first = Word("first packet of the queue")
    last = Word("last packet of the queue")
    packets = Word("packets sent")
    bytes = Word("bytes sent", "bytes")
    drops_tail = Word("packets dropped at a limit")
    drops_selective = Word("droppable packets dropped from K on")
    marks = Word("packets marked")


class PacketRow(Record):
    """A packet."""

    length = Word("bytes in memory", "bytes")
    size = Word("bytes on the link", "bytes")
    dst = Word("host that it is for")
    priority = Word("class")
    is_important = Word("1: important (ECN-capable)")
    entropy = Word("path entropy")
    is_marked = Word("1: marked (CE)")
    next = Word("the next one in its queue or in the free list, -1: none")


class NodeRow(Record):
    """A node."""

    key = Word("key of its draws")
    choices = Word("packets for which it had to choose a port")


class RouteRow(Record):
    """The ports of a node to a host."""

    first = Word("index of the first one in `SwitchMemory.next_hops`")
    count = Word("their number")


class ObservedRow(Record):
    """The observed packet of a host, which is delivered and not acknowledged yet."""

    message = Word("its message")
    number = Word("its number in the message")
    due = Word("when it was due at the host, 0: no packet is observed", "ps")


class DropRow(Record):
    """A lost packet."""

    time = Word("when", "ps")
    port = Word("where")
    cause = Word("index in CAUSES")
    is_important = Word("1: important")
    priority = Word("class")
    message = Word("message, -1: unknown")
    packet = Word("number in the message, -1: unknown")


class TransmissionRow(Record):
    """A recorded transmission."""

    start = Word("its beginning", "ps")
    port = Word("port")
    packet = Word("packet")
    is_marked = Word("1: marked")
    arrives = Word("0: it will be lost on the wire")


class TapRow(Record):
    """A captured packet."""

    time = Word("when", "ps")
    port = Word("port that sends it")
    is_incoming = Word("1: it has arrived; 0: its transmission begins")
    length = Word("its length", "bytes")


class EventEntry(HeapEntry):
    """An event at a switch."""

    time = Word("when", "ps", at=0)
    order = Word("order of simultaneous events", at=1)
    packet = Word("packet that arrives, -1: a transmission may start", at=2)


class ArrivalEntry(HeapEntry):
    """An arrival at a host."""

    time = Word("when", "ps", at=0)
    port = Word("port whose link ends at the host", at=1)
    packet = Word("packet", at=2)


class SwitchedNetwork(Record):
    """The single words of the network: its state, addresses of the arrays of `SwitchMemory`, words of the loop."""

    now = Word("the rules have been applied up to this time", "ps")
    event_count = Word("entries of `events`")
    first_free = Word("first free packet, -1: none")
    free_count = Word("free packets")
    drop_count = Word("entries of `drops`")
    log_count = Word("entries of `log`")
    balancing = Word("index in BALANCERS")
    host_count = Word("hosts")
    reached_at = Word("time of arrival of the packet that `next_reached` returned", "ps")
    reached_host = Word("its host")
    origin_ns = Word("time of the machine's clock at time 0", "ns")
    timer_ns = Word("time of the machine's clock to which the timer is set, 0: none", "ns")
    refused = Word("packets that the kernel did not accept")
    worst_ns = Word("maximum lateness of a delivery", "ns")
    error = Word("errno of a failed system call")
    first_address = Word("IPv4 address of the first host")
    tap_count = Word("entries of `taps`")
    taps_per_packet = Word("maximum number of captures of one packet")
    arrival_count = Word("entries of `arrivals`")
    last_link = Word("time of the shortest packet on the last link, at least", "ps")
    early = Word("packets may be delivered this much early", "ps")
    watched_from = Word("deliveries due from this time on are counted", "ps")
    answers = Word("observed acknowledgements")
    answered_late_ns = Word("their total delay after the due times of their packets", "ns")
    stands_still = Word("1: time stands still while code runs (virtual time)")
    woken_ns = Word("reading of the machine's clock after the last wait", "ns")
    slice_ns = Word("time slice after which processes of the same priority run, 0: left to the kernel", "ns")
    slice_begin_ns = Word("beginning of this process's time slice", "ns")

    ports = Word("address of PortRow of every port")
    classes = Word("address of CLASSES ClassRow of every port")
    nodes = Word("address of NodeRow of every node")
    routes = Word("address of RouteRow of every host at every node")
    next_hops = Word("address of port numbers")
    packets = Word("address of PacketRow")
    frames = Word("address of the packets' bytes")
    events = Word("address of a heap of EventEntry")
    arrivals = Word("address of a heap of ArrivalEntry")
    drops = Word("address of DropRow")
    log = Word("address of TransmissionRow")
    taps = Word("address of TapRow")
    tap_frames = Word("address of the first bytes of captured packets")
    lateness = Word("address of counts of deliveries by lateness")
    observed = Word("address of ObservedRow of every host")

    packet_capacity = Word("packets that there is space for")
    drop_capacity = Word("drops that there is space for")
    log_capacity = Word("transmissions that there is space for")
    tap_capacity = Word("captures that there is space for")
    frame_bytes = Word("bytes of an entry of `frames`", "bytes")
    tap_bytes = Word("bytes of an entry of `tap_frames`", "bytes")

    epoll = Word("number of the epoll file")
    timer_file = Word("number of the timerfd")
    control_file = Word("number of the parent's socket")
    devices = Word("address of the file number of every host's device")
    host_of_file = Word("address of the host of every file")
    epoll_events = Word("address of the events of epoll_wait")
    scratch = Word("address of four words for system calls")


PACKETS = 4096
DROPS = 1 << 15
"""Initial capacities (our choice)."""
TAP_BYTES = 256
"""Bytes of an IPv4 packet recorded for a capture; a few more than `gradwire.emu.system.capture.SNAP` writes."""

Words = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)


class SwitchMemory(NamedTuple):
    """All state of the network; compiled code gets the address of `words`, which has those of the other arrays.

    ports : a row for every port. classes : (ports, CLASSES) rows. nodes : a row for every node.
    routes : a row for every host at every node, (node * hosts + host); `next_hops` : the port numbers.
    packets : rows. frames : their bytes, (capacity, bytes) of uint8.
    events, arrivals : heaps of events at switches, and of arrivals at hosts.
    drops : rows. log : rows of transmissions; nothing is logged without capacity.
    taps : rows of captured packets, and `tap_frames` their first bytes, uint8.
    lateness : 64 buckets, by bit length of nanoseconds. observed : a row for every host.
    words : those of `SwitchedNetwork`.
    """

    ports: Words
    classes: Words
    nodes: Words
    routes: Words
    next_hops: Words
    packets: Words
    frames: NDArray[np.uint8]
    events: Words
    arrivals: Words
    drops: Words
    log: Words
    taps: Words
    tap_frames: NDArray[np.uint8]
    lateness: Words
    observed: Words
    words: Words

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    @property
    def network(self) -> SwitchedNetwork:
        return SwitchedNetwork(self.words.data, 0)


def state_of(plan: TestbedPlan, *, packets: int | None = None, drops: int = DROPS, log: int = 0) -> SwitchMemory:
    """Return the empty network of a plan; `log`: capacity for recorded transmissions, for tests."""

    def zeros(*shape: int) -> Words:
        return np.zeros(shape, dtype=np.int64)

    queues, hosts = plan.queues, plan.host_count
    routes: dict[tuple[int, int], tuple[int, ...]] = {
        (port.src, host): (port.number,) for port in plan.ports if port.src < hosts for host in range(hosts)
    }
    routes |= plan.routes
    S = SwitchMemory(
        ports=zeros(len(plan.ports), PortRow.WORDS),
        classes=zeros(len(plan.ports), CLASSES, ClassRow.WORDS),
        nodes=zeros(plan.node_count, NodeRow.WORDS),
        routes=zeros(plan.node_count * hosts, RouteRow.WORDS),
        next_hops=zeros(sum(len(numbers) for numbers in routes.values())),
        packets=zeros(0, PacketRow.WORDS),
        frames=np.zeros((0, plan.largest_frame() + 256), dtype=np.uint8),
        events=zeros(0, EventEntry.WORDS),
        arrivals=zeros(0, ArrivalEntry.WORDS),
        drops=zeros(0, DropRow.WORDS),
        log=zeros(log, TransmissionRow.WORDS),
        taps=zeros(0, TapRow.WORDS),
        tap_frames=np.zeros((0, TAP_BYTES), dtype=np.uint8),
        lateness=zeros(64),
        observed=zeros(hosts, ObservedRow.WORDS),
        words=zeros(SwitchedNetwork.WORDS),
    )
    S.classes[:, :, [ClassRow.threshold.offset, ClassRow.limit.offset]] = UNLIMITED
    for port in plan.ports:
        limited = port.src >= hosts
        row = PortRow(S.ports[port.number], 0)
        row.dst, row.ends_at_host = port.dst, port.dst < hosts
        row.rate, row.latency = port.rate, port.latency_ps
        row.loss_odds = -int(-port.loss * 2**32 // 1)
        row.key = key_of(plan.seed, LINK_DRAWS, port.number)
        row.last_class = queues.count - 1
        row.limit = queues.buffer if limited else UNLIMITED
        row.drops_selectively = queues.selective_drop
        row.tie_key = key_of(plan.seed, TIE_DRAWS, port.number)
        if limited and queues.thresholds is not None:
            S.classes[port.number, : len(queues.thresholds), ClassRow.threshold.offset] = queues.thresholds
        if limited and queues.limits is not None:
            S.classes[port.number, : len(queues.limits), ClassRow.limit.offset] = queues.limits
    S.nodes[:, NodeRow.key.offset] = [key_of(plan.seed, NODE_DRAWS, node) for node in range(plan.node_count)]
    first = 0
    for (node, host), numbers in sorted(routes.items()):
        S.routes[node * hosts + host] = first, len(numbers)
        S.next_hops[first : first + len(numbers)] = numbers
        first += len(numbers)
    network = S.network
    network.balancing, network.host_count, network.first_free = BALANCERS.index(plan.balancing), hosts, -1
    last_links = [port for port in plan.ports if port.dst < hosts]
    network.last_link = min(port.latency_ps + serialisation_ps(MIN_FRAME, port.rate) for port in last_links)
    network.first_address = int.from_bytes(socket.inet_aton(host_address(0)), "big")
    return grown(S, PACKETS if packets is None else packets, drops)


def grown(state: SwitchMemory, packets: int, drops: int) -> SwitchMemory:
    """Return the state with space for that many packets and drops, and for captures of twice as many packets."""
    old_count, network = len(state.packets), state.network
    packets, drops = max(packets, old_count), max(drops, len(state.drops))
    taps = 2 * network.taps_per_packet * (packets + 1)
    S = state._replace(
        packets=_longer(state.packets, packets),
        frames=_longer(state.frames, packets),
        events=_longer(state.events, packets + len(state.ports)),
        arrivals=_longer(state.arrivals, packets),
        drops=_longer(state.drops, drops),
        taps=_longer(state.taps, taps),
        tap_frames=_longer(state.tap_frames, taps),
    )
    fresh = np.arange(old_count, packets)
    if len(fresh):
        S.packets[fresh, PacketRow.next.offset] = np.append(fresh[1:], network.first_free)
        network.first_free = old_count
        network.free_count += len(fresh)
    for name in SwitchMemory._fields[:-1]:  # all but `words` itself
        setattr(network, name, getattr(S, name).ctypes.data)
    network.packet_capacity, network.drop_capacity = packets, drops
    network.log_capacity, network.tap_capacity = len(S.log), len(S.taps)
    network.frame_bytes, network.tap_bytes = S.frames.shape[1], S.tap_frames.shape[1]
    return S


def _longer(array: NDArray[T], length: int) -> NDArray[T]:
    if length <= len(array):
        return array
    longer = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
