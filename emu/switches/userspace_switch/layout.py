"""Memory layout of the userspace switch: arrays of 64-bit words for compiled code.

`State` has all arrays. It is made from a plan (`state_of`) and grows (`grown`) if packets or drops need more space.
"""

from __future__ import annotations

import socket
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.planning.plan import TestbedPlan, host_address
from gradwire.emu.switches.backend_kind import BALANCERS
from gradwire.jit.counter_rng import LINK_DRAWS, NODE_DRAWS, TIE_DRAWS, key_of
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

# of a port: its parameters, then its state
(
    P_DST, P_ENDS_AT_HOST, P_RATE, P_LATENCY, P_ODDS, P_KEY, P_LAST, P_LIMIT, P_SELECTIVE,
    P_TIES, P_FREE_AT, P_MASK, P_WAITING, P_PEAK, P_SENT, P_LOST, P_TAPS, PORT_WORDS,
) = range(18)  # fmt: skip
AT_SOURCE, AT_END = 1, 2
"""Bits of P_TAPS: packets are recorded when their transmission begins, or when they have arrived."""

# of a class of a port: parameters; queue: bytes, first and last packet; counters as in `PortCounts`
C_THRESHOLD, C_LIMIT, C_HELD, C_FIRST, C_FINAL = range(5)
C_PACKETS, C_BYTES, C_DROPS_TAIL, C_DROPS_SELECTIVE, C_MARKS, CLASS_WORDS = range(5, 11)
COUNTED = ("packets", "bytes", "drops_tail", "drops_selective", "marks")

# of a packet: bytes in memory and on the link; NEXT: the next one in its queue or in the free list
(K_LENGTH, K_SIZE, K_DST, K_PRIORITY, K_IMPORTANT, K_ENTROPY, K_MARKED, K_NEXT, PACKET_WORDS) = range(9)

N_KEY, N_CHOICES, NODE_WORDS = range(3)

# of a host: the delivered packet that is not acknowledged yet, and its due time; 0: none
H_MESSAGE, H_NUMBER, H_DUE, HOST_WORDS = range(4)

LOST = ("time", "port", "cause", "important", "priority", "message", "packet")
TRANSMITTED = ("start", "port", "packet", "marked", "arrives")
TAPPED = ("time", "port", "incoming", "length")

# single words; the address of every array of `State`, and sizes that compiled code needs; file numbers and addresses
# of arrays for `gradwire.emu.switches.userspace_switch.loop`
(
    W_NOW, W_HAPPENING, W_FREE, W_FREE_COUNT, W_DROPPED, W_LOGGED, W_BALANCING, W_HOSTS, W_REACHED_AT, W_REACHED,
    W_ORIGIN_NS, W_TIMER_NS, W_REFUSED, W_WORST_NS, W_ERRNO, W_FIRST_ADDRESS, W_TAPPED,
    W_TAPS_PER_PACKET, W_REACHING, W_LAST_LINK, W_EARLY, W_WATCHED, W_ANSWERS, W_ANSWERED_LATE_NS,
    W_STILL, W_WOKEN_NS, W_SHARE_NS, W_TURN_NS,
    A_PORTS, A_CLASSES, A_NODES, A_WAY_OF, A_WAYS, A_PACKETS, A_FRAMES, A_HAPPENINGS, A_REACHING, A_DROPS, A_LOG,
    A_TAPS, A_TAPPED, A_LATE, A_ASKED,
    ROOM_PACKETS, ROOM_DROPS, ROOM_LOG, ROOM_TAPS, FRAME_BYTES, TAPPED_BYTES,
    F_EPOLL, F_TIMER, F_CONTROL, A_DEVICES, A_HOST_OF, A_EVENTS, A_SPEC, WORDS,
) = range(57)  # fmt: skip

PACKETS = 4096
DROPS = 1 << 15
"""Initial capacities (our choice)."""
TAPPED_ROOM = 256
"""Bytes of an IPv4 packet recorded for a capture; a few more than `gradwire.emu.system.capture.SNAP` writes."""

Words = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)


class State(NamedTuple):
    """All state of the network; compiled code gets the address of `words`, which has those of the other arrays.

    ports : (ports, PORT_WORDS). classes : (ports, CLASSES, CLASS_WORDS). nodes : (nodes, NODE_WORDS).
    way_of : (nodes * hosts, 2): first index and number of a node's ports to a host in `ways`, an array of port numbers.
    packets : (capacity, PACKET_WORDS). frames : (capacity, bytes), uint8.
    happenings : (capacity, 3): heap of events: time, order and packet (-1: a transmission may start).
    reaching : (capacity, 3): heap of arrivals at hosts: time, port and packet.
    drops : (capacity, 7), `LOST`. log : (capacity, 5), `TRANSMITTED`; nothing is logged without capacity.
    taps : (capacity, 4), `TAPPED`, of captured packets, and `tapped` their first bytes, uint8.
    late : 64 buckets, by bit length of nanoseconds. asked : (hosts, HOST_WORDS). words : single words.
    """

    ports: Words
    classes: Words
    nodes: Words
    way_of: Words
    ways: Words
    packets: Words
    frames: NDArray[np.uint8]
    happenings: Words
    reaching: Words
    drops: Words
    log: Words
    taps: Words
    tapped: NDArray[np.uint8]
    late: Words
    asked: Words
    words: Words

    @property
    def address(self) -> int:
        """Return the argument of compiled functions."""
        return int(self.words.ctypes.data)


def state_of(plan: TestbedPlan, *, packets: int | None = None, drops: int = DROPS, log: int = 0) -> State:
    """Return the empty network of a plan; `log`: capacity for recorded transmissions, for tests."""

    def zeros(*shape: int) -> Words:
        return np.zeros(shape, dtype=np.int64)

    queues, hosts = plan.queues, plan.host_count
    ways: dict[tuple[int, int], tuple[int, ...]] = {
        (port.src, host): (port.number,) for port in plan.ports if port.src < hosts for host in range(hosts)
    }
    ways |= plan.routes
    S = State(
        ports=zeros(len(plan.ports), PORT_WORDS),
        classes=zeros(len(plan.ports), CLASSES, CLASS_WORDS),
        nodes=zeros(plan.node_count, NODE_WORDS),
        way_of=zeros(plan.node_count * hosts, 2),
        ways=zeros(sum(len(numbers) for numbers in ways.values())),
        packets=zeros(0, PACKET_WORDS),
        frames=np.zeros((0, plan.largest_frame() + 256), dtype=np.uint8),
        happenings=zeros(0, 3),
        reaching=zeros(0, 3),
        drops=zeros(0, len(LOST)),
        log=zeros(log, len(TRANSMITTED)),
        taps=zeros(0, len(TAPPED)),
        tapped=np.zeros((0, TAPPED_ROOM), dtype=np.uint8),
        late=zeros(64),
        asked=zeros(hosts, HOST_WORDS),
        words=zeros(WORDS),
    )
    S.classes[:, :, [C_THRESHOLD, C_LIMIT]] = UNLIMITED
    for port in plan.ports:
        limited = port.src >= hosts
        S.ports[port.number, : P_TIES + 1] = (
            port.dst,
            port.dst < hosts,
            port.rate,
            port.latency_ps,
            -int(-port.loss * 2**32 // 1),
            key_of(plan.seed, LINK_DRAWS, port.number),
            queues.count - 1,
            queues.buffer if limited else UNLIMITED,
            queues.selective_drop,
            key_of(plan.seed, TIE_DRAWS, port.number),
        )
        if limited and queues.thresholds is not None:
            S.classes[port.number, : len(queues.thresholds), C_THRESHOLD] = queues.thresholds
        if limited and queues.limits is not None:
            S.classes[port.number, : len(queues.limits), C_LIMIT] = queues.limits
    S.nodes[:, N_KEY] = [key_of(plan.seed, NODE_DRAWS, node) for node in range(plan.node_count)]
    first = 0
    for (node, host), numbers in sorted(ways.items()):
        S.way_of[node * hosts + host] = first, len(numbers)
        S.ways[first : first + len(numbers)] = numbers
        first += len(numbers)
    S.words[[W_BALANCING, W_HOSTS, W_FREE]] = BALANCERS.index(plan.balancing), hosts, -1
    last_links = [port for port in plan.ports if port.dst < hosts]
    S.words[W_LAST_LINK] = min(port.latency_ps + serialisation_ps(MIN_FRAME, port.rate) for port in last_links)
    S.words[W_FIRST_ADDRESS] = int.from_bytes(socket.inet_aton(host_address(0)), "big")
    return grown(S, PACKETS if packets is None else packets, drops)


def grown(state: State, packets: int, drops: int) -> State:
    """Return the state with space for that many packets and drops, and for captures of twice as many packets."""
    old_count, words = len(state.packets), state.words
    packets, drops = max(packets, old_count), max(drops, len(state.drops))
    taps = 2 * int(words[W_TAPS_PER_PACKET]) * (packets + 1)
    S = state._replace(
        packets=_longer(state.packets, packets),
        frames=_longer(state.frames, packets),
        happenings=_longer(state.happenings, packets + len(state.ports)),
        reaching=_longer(state.reaching, packets),
        drops=_longer(state.drops, drops),
        taps=_longer(state.taps, taps),
        tapped=_longer(state.tapped, taps),
    )
    fresh = np.arange(old_count, packets)
    if len(fresh):
        S.packets[fresh, K_NEXT] = np.append(fresh[1:], words[W_FREE])
        words[W_FREE] = old_count
        words[W_FREE_COUNT] += len(fresh)
    words[A_PORTS : A_ASKED + 1] = [array.ctypes.data for array in S[:-1]]
    words[[ROOM_PACKETS, ROOM_DROPS, ROOM_LOG, ROOM_TAPS]] = packets, drops, len(S.log), len(S.taps)
    words[[FRAME_BYTES, TAPPED_BYTES]] = S.frames.shape[1], S.tapped.shape[1]
    return S


def _longer(array: NDArray[T], length: int) -> NDArray[T]:
    if length <= len(array):
        return array
    longer = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
