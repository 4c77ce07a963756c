"""The rules of the network, packet by packet, on a given clock. Compiled; no input or output.

They equal the simulator's (sim/README.md, "Modelling choices"):

* store and forward: a packet's transmission starts when the port is free and no packet of a higher class waits; it
  takes the packet's bits over the rate; the packet is at the far end one latency after its last bit;
* a packet that finds its port idle is sent without tests. Otherwise the queue, without the packet on the wire, is
  tested: first the port's buffer and the class's part of it (tail drop), then K of the class: an important packet is
  marked, a droppable one dropped if selective drop is on;
* hosts' ports have the same strict classes, no limits and no marks;
* at one time and place, transmissions start before arrivals, and arrivals are ordered by a hash of time and link;
* losses on the wire are drawn by counter when a transmission starts and recorded when it ends.

Times are integer picoseconds. `W` are the words of the `State`; ports, nodes and packets are row numbers in it.
"""

from __future__ import annotations

from gradwire.emu.native.calls import bytes_at, words_at
from gradwire.emu.native.heap import pop, push
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.frames import mark, whose
from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw, tie_break

PS_PER_BYTE_AT_1_BPS = 8_000_000_000_000
"""Constant of `gradwire.scenarios.wire.serialisation_ps`, which is not compiled; a test compares them."""


# --- rows -------------------------------------------------------------------------------------------------------------


@njit
def packet_of(W, packet):
    """Return the row of a packet."""
    return words_at(W[at.A_PACKETS] + packet * (8 * at.PACKET_WORDS))


@njit
def frame_of(W, packet):
    """Return the bytes of a packet."""
    return bytes_at(W[at.A_FRAMES] + packet * W[at.FRAME_BYTES])


@njit
def _port_of(W, port):
    return words_at(W[at.A_PORTS] + port * (8 * at.PORT_WORDS))


@njit
def _class_of(W, port, c):
    return words_at(W[at.A_CLASSES] + (port * at.CLASSES + c) * (8 * at.CLASS_WORDS))


# --- events -----------------------------------------------------------------------------------------------------------


@njit
def _happens(W, time, order, packet):
    """Add an event at a switch: see `State.happenings`."""
    push(words_at(W[at.A_HAPPENINGS]), W[at.W_HAPPENING], time, order, packet)
    W[at.W_HAPPENING] += 1


@njit
def wake_time(W):
    """Return the latest time to continue for the next arrival at a host; -1: none. Events at switches may be processed
    late, since times are computed and not measured; but their consequences reach a host only after a shortest packet
    has crossed the last link."""
    wake = -1
    if W[at.W_HAPPENING]:
        wake = words_at(W[at.A_HAPPENINGS])[0] + W[at.W_LAST_LINK]
    if W[at.W_REACHING]:
        reached = words_at(W[at.A_REACHING])[0]
        if wake < 0 or reached < wake:
            wake = reached
    return wake


@njit
def next_reached(W, until):
    """Advance the time up to and including `until`, or until a packet has reached its host; return the packet, or -1.
    `W_REACHED_AT` is its time of arrival and `W_REACHED` the host; the caller must `release` it. It may be returned
    `W_EARLY` before that time, together with others."""
    happening, reaching = words_at(W[at.A_HAPPENINGS]), words_at(W[at.A_REACHING])
    while True:
        now = until + 1
        if W[at.W_HAPPENING]:
            now = min(now, happening[0])
        if W[at.W_REACHING] and reaching[0] - W[at.W_EARLY] < now:
            reached, port, packet = reaching[0], reaching[1], reaching[2]
            pop(reaching, W[at.W_REACHING])
            W[at.W_REACHING] -= 1
            if _port_of(W, port)[at.P_TAPS] & at.AT_END:
                _tap(W, port, packet, reached, 1)
            W[at.W_REACHED_AT] = reached
            W[at.W_REACHED] = _port_of(W, port)[at.P_DST]
            return packet
        if now > until:
            W[at.W_NOW] = until
            return -1
        order, packet = happening[1], happening[2]
        pop(happening, W[at.W_HAPPENING])
        W[at.W_HAPPENING] -= 1
        W[at.W_NOW] = now
        if packet < 0:
            _serve(W, order - at.BEFORE_ARRIVALS, now)
            continue
        link = order & at.LINK
        if _port_of(W, link)[at.P_TAPS] & at.AT_END:
            _tap(W, link, packet, now, 1)
        port = _way(W, _port_of(W, link)[at.P_DST], packet)
        if port < 0:
            _drop(W, link, packet, now, at.NO_ROUTE)
        else:
            _offer(W, port, packet, now)


@njit
def arrive(W, host, packet):
    """Put a packet sent by a host into the host's port, at the time reached by `next_reached`."""
    _offer(W, _way(W, host, packet), packet, W[at.W_NOW])


# --- packets ----------------------------------------------------------------------------------------------------------


@njit
def room(W):
    """Return True if there is space for one more packet, and for the drops and captures of all packets in flight."""
    under_way = W[at.ROOM_PACKETS] - W[at.W_FREE_COUNT]
    return (
        W[at.W_FREE_COUNT] > 0
        and W[at.ROOM_DROPS] - W[at.W_DROPPED] > under_way
        and W[at.ROOM_TAPS] - W[at.W_TAPPED] >= W[at.W_TAPS_PER_PACKET] * (under_way + 1)
    )


@njit
def take(W):
    """Return a free packet; requires `room`."""
    packet = W[at.W_FREE]
    W[at.W_FREE] = packet_of(W, packet)[at.K_NEXT]
    W[at.W_FREE_COUNT] -= 1
    return packet


@njit
def release(W, packet):
    """Free a packet."""
    packet_of(W, packet)[at.K_NEXT] = W[at.W_FREE]
    W[at.W_FREE] = packet
    W[at.W_FREE_COUNT] += 1


@njit
def _drop(W, port, packet, time, cause):
    row = words_at(W[at.A_DROPS] + W[at.W_DROPPED] * (8 * len(at.LOST)))
    W[at.W_DROPPED] += 1
    each = packet_of(W, packet)
    row[0] = time
    row[1] = port
    row[2] = cause
    row[3] = each[at.K_IMPORTANT]
    row[4] = each[at.K_PRIORITY]
    row[5], row[6] = whose(frame_of(W, packet), each[at.K_LENGTH])
    release(W, packet)


@njit
def _tap(W, port, packet, time, incoming):
    """Record a packet for a capture."""
    row = words_at(W[at.A_TAPS] + W[at.W_TAPPED] * (8 * len(at.TAPPED)))
    copy, frame = bytes_at(W[at.A_TAPPED] + W[at.W_TAPPED] * W[at.TAPPED_BYTES]), frame_of(W, packet)
    W[at.W_TAPPED] += 1
    row[0] = time
    row[1] = port
    row[2] = incoming
    row[3] = packet_of(W, packet)[at.K_LENGTH]
    for i in range(min(row[3], W[at.TAPPED_BYTES])):
        copy[i] = frame[i]


# --- next hops --------------------------------------------------------------------------------------------------------


@njit
def _way(W, node, packet):
    """Return the port by which a packet leaves a node; -1: no route."""
    each = packet_of(W, packet)
    some = words_at(W[at.A_WAY_OF] + (node * W[at.W_HOSTS] + each[at.K_DST]) * 16)
    ways, count = words_at(W[at.A_WAYS] + some[0] * 8), some[1]
    if count < 2:
        return ways[0] if count else -1
    here = words_at(W[at.A_NODES] + node * (8 * at.NODE_WORDS))
    choices = here[at.N_CHOICES]
    here[at.N_CHOICES] = choices + 1
    if W[at.W_BALANCING] == 2:
        return ways[((here[at.N_KEY] & 0xFFFF) + choices) % count]
    counter = choices if W[at.W_BALANCING] == 1 else each[at.K_ENTROPY]
    return ways[(draw(here[at.N_KEY], counter) * count) >> 32]


# --- ports ------------------------------------------------------------------------------------------------------------


@njit
def _offer(W, number, packet, time):
    """Send, queue or drop a packet that reaches a port."""
    port, each = _port_of(W, number), packet_of(W, packet)
    c = min(each[at.K_PRIORITY], port[at.P_LAST])
    if port[at.P_FREE_AT] <= time and not port[at.P_MASK]:
        _transmit(W, number, packet, c, time)
        return
    queue, size = _class_of(W, number, c), each[at.K_SIZE]
    waiting = port[at.P_WAITING] + size
    if waiting > port[at.P_LIMIT] or queue[at.C_HELD] + size > queue[at.C_LIMIT]:
        queue[at.C_DROPS_TAIL] += 1
        _drop(W, number, packet, time, at.TAIL)
        return
    if queue[at.C_HELD] >= queue[at.C_THRESHOLD]:
        if each[at.K_IMPORTANT]:
            each[at.K_MARKED] = 1
            mark(frame_of(W, packet))
            queue[at.C_MARKS] += 1
        elif port[at.P_SELECTIVE]:
            queue[at.C_DROPS_SELECTIVE] += 1
            _drop(W, number, packet, time, at.SELECTIVE)
            return
    each[at.K_NEXT] = -1
    if port[at.P_MASK] >> c & 1:
        packet_of(W, queue[at.C_FINAL])[at.K_NEXT] = packet
    else:
        queue[at.C_FIRST] = packet
    queue[at.C_FINAL] = packet
    queue[at.C_HELD] += size
    port[at.P_WAITING] = waiting
    port[at.P_PEAK] = max(port[at.P_PEAK], waiting)
    if not port[at.P_MASK]:
        _happens(W, port[at.P_FREE_AT], at.BEFORE_ARRIVALS + number, -1)
    port[at.P_MASK] |= 1 << c


@njit
def _serve(W, number, time):
    """Start the first packet of the highest nonempty class on a free port."""
    port = _port_of(W, number)
    c = 0
    while not port[at.P_MASK] >> c & 1:
        c += 1
    queue = _class_of(W, number, c)
    packet = queue[at.C_FIRST]
    each = packet_of(W, packet)
    queue[at.C_HELD] -= each[at.K_SIZE]
    port[at.P_WAITING] -= each[at.K_SIZE]
    queue[at.C_FIRST] = each[at.K_NEXT]
    if each[at.K_NEXT] < 0:
        port[at.P_MASK] ^= 1 << c
    _transmit(W, number, packet, c, time)
    if port[at.P_MASK]:
        _happens(W, port[at.P_FREE_AT], at.BEFORE_ARRIVALS + number, -1)


@njit
def _transmit(W, number, packet, c, start):
    """Put a packet on the wire; its first bit leaves at `start`."""
    port, size = _port_of(W, number), packet_of(W, packet)[at.K_SIZE]
    end = start - (-size * PS_PER_BYTE_AT_1_BPS // port[at.P_RATE])
    port[at.P_FREE_AT] = end
    queue = _class_of(W, number, c)
    queue[at.C_PACKETS] += 1
    queue[at.C_BYTES] += size
    if port[at.P_TAPS] & at.AT_SOURCE:
        _tap(W, number, packet, start, 0)
    arrives = True
    if port[at.P_ODDS]:
        count = port[at.P_SENT]
        port[at.P_SENT] = count + 1
        arrives = draw(port[at.P_KEY], count) >= port[at.P_ODDS]
    if W[at.W_LOGGED] < W[at.ROOM_LOG]:
        row = words_at(W[at.A_LOG] + W[at.W_LOGGED] * (8 * len(at.TRANSMITTED)))
        W[at.W_LOGGED] += 1
        row[0] = start
        row[1] = number
        row[2] = packet
        row[3] = packet_of(W, packet)[at.K_MARKED]
        row[4] = arrives
    if arrives and port[at.P_ENDS_AT_HOST]:
        push(words_at(W[at.A_REACHING]), W[at.W_REACHING], end + port[at.P_LATENCY], number, packet)
        W[at.W_REACHING] += 1
    elif arrives:
        arrival = end + port[at.P_LATENCY]
        _happens(W, arrival, tie_break(port[at.P_TIES], arrival) << at.LINK_BITS | number, packet)
    else:
        port[at.P_LOST] += 1
        _drop(W, number, packet, end, at.LOSS)
