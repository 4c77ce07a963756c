"""Applies the network's rules (route, queue, mark, drop, transmit) to the userspace switch's packets on a given clock.
Compiled; no input or output.

They equal the simulator's (sim/README.md, "Modelling choices"):

* store and forward: a packet's transmission starts when the port is free and no packet of a higher class waits; it
  takes the packet's bits over the rate; the packet is at the far end one latency after its last bit;
* a packet that finds its port idle is sent without tests. Otherwise the queue, without the packet on the wire, is
  tested: first the port's buffer and the class's part of it (tail drop), then K of the class: an important packet is
  marked, a droppable one dropped if selective drop is on;
* hosts' ports have the same strict classes, no limits and no marks;
* at one time and place, transmissions start before arrivals, and arrivals are ordered by a hash of time and link;
* losses on the wire are drawn by counter when a transmission starts and recorded when it ends.

Times are integer picoseconds. `network` are the single words of the `SwitchMemory`; ports, nodes and packets are
row numbers in it.
"""

from __future__ import annotations

from typing import Any

from gradwire.emu.native.calls import bytes_at, words_at
from gradwire.emu.native.heap import pop, push
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.frames import mark, whose
from gradwire.emu.switches.userspace_switch.layout import (
    ArrivalEntry,
    ClassRow,
    DropRow,
    EventEntry,
    NodeRow,
    PacketRow,
    PortRow,
    RouteRow,
    SwitchedNetwork,
    TapRow,
    TransmissionRow,
)
from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw, tie_break

PS_PER_BYTE_AT_1_BPS = 8_000_000_000_000
"""Constant of `gradwire.scenarios.wire.serialisation_ps`, which is not compiled; a test compares them."""


# --- rows -------------------------------------------------------------------------------------------------------------


@njit
def packet_of(network: SwitchedNetwork, packet: int) -> PacketRow:
    return PacketRow(words_at(network.packets), packet * PacketRow.WORDS)


@njit
def frame_of(network: SwitchedNetwork, packet: int) -> Any:
    return bytes_at(network.frames + packet * network.frame_bytes)


@njit
def _port_of(network: SwitchedNetwork, port: int) -> PortRow:
    return PortRow(words_at(network.ports), port * PortRow.WORDS)


@njit
def _class_of(network: SwitchedNetwork, port: int, c: int) -> ClassRow:
    return ClassRow(words_at(network.classes), (port * at.CLASSES + c) * ClassRow.WORDS)


@njit
def _first_event(network: SwitchedNetwork) -> EventEntry:
    return EventEntry(words_at(network.events), 0)


@njit
def _first_arrival(network: SwitchedNetwork) -> ArrivalEntry:
    return ArrivalEntry(words_at(network.arrivals), 0)


# --- events -----------------------------------------------------------------------------------------------------------


@njit
def _add_event(network: SwitchedNetwork, time: int, order: int, packet: int) -> None:
    push(_first_event(network), network.event_count, time, order, packet)
    network.event_count += 1


@njit
def wake_time(network: SwitchedNetwork) -> int:
    """Return the latest time to continue for the next arrival at a host; -1: none. Events at switches may be processed
    late, since times are computed and not measured; but their consequences reach a host only after a shortest packet
    has crossed the last link."""
    wake = -1
    if network.event_count:
        wake = _first_event(network).time + network.last_link
    if network.arrival_count:
        arrival = _first_arrival(network).time
        if wake < 0 or arrival < wake:
            wake = arrival
    return wake


@njit
def next_reached(network: SwitchedNetwork, until: int) -> int:
    """Advance the time up to and including `until`, or until a packet has reached its host; return the packet, or -1.
    `reached_at` is its time of arrival and `reached_host` the host; the caller must `release` it. It may be returned
    `early` before that time, together with others."""
    event, arrival = _first_event(network), _first_arrival(network)
    while True:
        now = until + 1
        if network.event_count:
            now = min(now, event.time)
        if network.arrival_count and arrival.time - network.early < now:
            time, number, packet = arrival.time, arrival.port, arrival.packet
            pop(arrival, network.arrival_count)
            network.arrival_count -= 1
            if _port_of(network, number).taps & at.AT_END:
                _tap(network, number, packet, time, 1)
            network.reached_at = time
            network.reached_host = _port_of(network, number).dst
            return packet
        if now > until:
            network.now = until
            return -1
        order, packet = event.order, event.packet
        pop(event, network.event_count)
        network.event_count -= 1
        network.now = now
        if packet < 0:
            _serve(network, order - at.BEFORE_ARRIVALS, now)
            continue
        link = order & at.LINK
        if _port_of(network, link).taps & at.AT_END:
            _tap(network, link, packet, now, 1)
        port = _next_hop(network, _port_of(network, link).dst, packet)
        if port < 0:
            _drop(network, link, packet, now, at.NO_ROUTE)
        else:
            _offer(network, port, packet, now)


@njit
def arrive(network: SwitchedNetwork, host: int, packet: int) -> None:
    """Put a packet sent by a host into the host's port, at the time reached by `next_reached`."""
    _offer(network, _next_hop(network, host, packet), packet, network.now)


# --- packets ----------------------------------------------------------------------------------------------------------


@njit
def has_space(network: SwitchedNetwork) -> bool:
    """Return True if there is space for one more packet, and for the drops and captures of all packets in flight."""
    in_flight = network.packet_capacity - network.free_count
    return (
        network.free_count > 0
        and network.drop_capacity - network.drop_count > in_flight
        and network.tap_capacity - network.tap_count >= network.taps_per_packet * (in_flight + 1)
    )


@njit
def take(network: SwitchedNetwork) -> int:
    """Return a free packet; requires `has_space`."""
    packet = network.first_free
    network.first_free = packet_of(network, packet).next
    network.free_count -= 1
    return packet


@njit
def release(network: SwitchedNetwork, packet: int) -> None:
    packet_of(network, packet).next = network.first_free
    network.first_free = packet
    network.free_count += 1


@njit
def _drop(network: SwitchedNetwork, port: int, packet: int, time: int, cause: int) -> None:
    drop = DropRow(words_at(network.drops), network.drop_count * DropRow.WORDS)
    network.drop_count += 1
    row = packet_of(network, packet)
    drop.time = time
    drop.port = port
    drop.cause = cause
    drop.is_important = row.is_important
    drop.priority = row.priority
    message, number = whose(frame_of(network, packet), row.length)
    drop.message = message
    drop.packet = number
    release(network, packet)


@njit
def _tap(network: SwitchedNetwork, port: int, packet: int, time: int, is_incoming: int) -> None:
    tap = TapRow(words_at(network.taps), network.tap_count * TapRow.WORDS)
    copy = bytes_at(network.tap_frames + network.tap_count * network.tap_bytes)
    frame = frame_of(network, packet)
    network.tap_count += 1
    tap.time = time
    tap.port = port
    tap.is_incoming = is_incoming
    tap.length = packet_of(network, packet).length
    for i in range(min(tap.length, network.tap_bytes)):
        copy[i] = frame[i]


# --- next hops --------------------------------------------------------------------------------------------------------


@njit
def _next_hop(network: SwitchedNetwork, node: int, packet: int) -> int:
    """Return the port by which a packet leaves a node; -1: no route."""
    row = packet_of(network, packet)
    route = RouteRow(words_at(network.routes), (node * network.host_count + row.dst) * RouteRow.WORDS)
    ports, count = words_at(network.next_hops + route.first * 8), route.count
    if count < 2:
        return ports[0] if count else -1
    here = NodeRow(words_at(network.nodes), node * NodeRow.WORDS)
    choices = here.choices
    here.choices = choices + 1
    if network.balancing == 2:
        return ports[((here.key & 0xFFFF) + choices) % count]
    counter = choices if network.balancing == 1 else row.entropy
    return ports[(draw(here.key, counter) * count) >> 32]


# --- ports ------------------------------------------------------------------------------------------------------------


@njit
def _offer(network: SwitchedNetwork, number: int, packet: int, time: int) -> None:
    """Send, queue or drop a packet that reaches a port."""
    port, row = _port_of(network, number), packet_of(network, packet)
    c = min(row.priority, port.last_class)
    if port.free_at <= time and not port.class_mask:
        _transmit(network, number, packet, c, time)
        return
    queue, size = _class_of(network, number, c), row.size
    queued = port.queued + size
    if queued > port.limit or queue.queued + size > queue.limit:
        queue.drops_tail += 1
        _drop(network, number, packet, time, at.TAIL)
        return
    if queue.queued >= queue.threshold:
        if row.is_important:
            row.is_marked = 1
            mark(frame_of(network, packet))
            queue.marks += 1
        elif port.drops_selectively:
            queue.drops_selective += 1
            _drop(network, number, packet, time, at.SELECTIVE)
            return
    row.next = -1
    if port.class_mask >> c & 1:
        packet_of(network, queue.last).next = packet
    else:
        queue.first = packet
    queue.last = packet
    queue.queued += size
    port.queued = queued
    port.peak = max(port.peak, queued)
    if not port.class_mask:
        _add_event(network, port.free_at, at.BEFORE_ARRIVALS + number, -1)
    port.class_mask |= 1 << c


@njit
def _serve(network: SwitchedNetwork, number: int, time: int) -> None:
    """Start the first packet of the highest nonempty class on a free port."""
    port = _port_of(network, number)
    c = 0
    while not port.class_mask >> c & 1:
        c += 1
    queue = _class_of(network, number, c)
    packet = queue.first
    row = packet_of(network, packet)
    queue.queued -= row.size
    port.queued -= row.size
    queue.first = row.next
    if row.next < 0:
        port.class_mask ^= 1 << c
    _transmit(network, number, packet, c, time)
    if port.class_mask:
        _add_event(network, port.free_at, at.BEFORE_ARRIVALS + number, -1)


@njit
def _log_transmission(network: SwitchedNetwork, start: int, number: int, packet: int, arrives: bool) -> None:
    """Record a transmission if there is space."""
    if network.log_count < network.log_capacity:
        entry = TransmissionRow(words_at(network.log), network.log_count * TransmissionRow.WORDS)
        network.log_count += 1
        entry.start = start
        entry.port = number
        entry.packet = packet
        entry.is_marked = packet_of(network, packet).is_marked
        entry.arrives = arrives


@njit
def _transmit(network: SwitchedNetwork, number: int, packet: int, c: int, start: int) -> None:
    """Put a packet on the wire; its first bit leaves at `start`."""
    port, size = _port_of(network, number), packet_of(network, packet).size
    end = start - (-size * PS_PER_BYTE_AT_1_BPS // port.rate)
    port.free_at = end
    queue = _class_of(network, number, c)
    queue.packets += 1
    queue.bytes += size
    if port.taps & at.AT_SOURCE:
        _tap(network, number, packet, start, 0)
    arrives = True
    if port.loss_odds:
        count = port.sent
        port.sent = count + 1
        arrives = draw(port.key, count) >= port.loss_odds
    _log_transmission(network, start, number, packet, arrives)
    arrival = end + port.latency
    if arrives and port.ends_at_host:
        push(_first_arrival(network), network.arrival_count, arrival, number, packet)
        network.arrival_count += 1
    elif arrives:
        _add_event(network, arrival, tie_break(port.tie_key, arrival) << at.LINK_BITS | number, packet)
    else:
        port.lost += 1
        _drop(network, number, packet, end, at.LOSS)
