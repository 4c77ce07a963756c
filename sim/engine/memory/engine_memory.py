"""`build_memory` reserves the engine's array and writes a network's nodes, links, queues, routes and threads into it.

Three stages: `plan_regions` determines the positions, `reserve` makes the array (`gradwire.sim.engine.memory.regions`),
and one function for each kind of thing (nodes, threads, links, queues, the head of the array) writes its static words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit.counter_rng import FLOW_ENTROPY, LINK_DRAWS, NODE_DRAWS, RED_DRAWS, TIE_DRAWS, key_of, kind_key
from gradwire.jit.limits import ARENA_WORDS
from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, LinkHead, Node, Port, PortExtra, QueueClass, RingEntry, Switch
from gradwire.scenarios.arrays import AnyInts, Flags, Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.wire import MIN_FRAME
from gradwire.sim.engine.memory.link_capacity import LinkCapacity, link_capacity
from gradwire.sim.engine.memory.regions import (
    HEAP_WORDS,
    LOG_ENTRIES,
    MAX_POOL_WORDS,
    POOL_ENTRIES,
    REROUTED_ENTRIES,
    NetworkShape,
    Regions,
    RegionSizes,
    plan_regions,
    reserve,
)
from gradwire.sim.engine.memory.timer_heap import HEAP_FLOW, HEAP_SPARE
from gradwire.topology import Network
from gradwire.topology.port_settings import port_settings
from gradwire.topology.routing import DETAILED, Routing

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.network import Switch as SwitchTable

FIRST_HEAP = 32  # entries
NEAR_LINKS = 8000  # directed links whose state fits into the caches of processors (measured: 6,144 yes, 12,000 no)


@dataclass
class EngineMemory:
    """The state of one run, and the bases of the regions that Python uses."""

    state: Ints
    node_base: Ints
    port_base: Ints
    thread_base: list[int]
    senders: int
    receivers: int
    bits: int
    dropped: int
    transports: int
    params: int
    next: int
    lookahead: Ps
    window: Ps
    positions: Ints
    levels: int
    """of aggregating switches"""

    def __post_init__(self) -> None:
        self.address = int(self.state.ctypes.data)


def split(order: AnyInts, weight: AnyInts, parts: int) -> list[AnyInts]:
    """Cut `order` into contiguous parts of about equal weight; a part may be empty."""
    total = np.cumsum(weight[order])
    cuts = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts, side="left") + 1
    return np.split(order, np.minimum(cuts, len(order)))


def build_memory(
    network: Network,
    routing: Routing,
    switch: SwitchTable,
    wanted: RegionSizes,
    *,
    longest_frame: Bytes,
    host_latency: Ps,
    seed: int,
    window: Ps | None = None,
) -> EngineMemory:
    """Reserve the array and write every static word. `window` shortens the windows (results do not depend on it).
    Raises ScenarioError if a link or a node has more packets than the engine can count, or the system cannot reserve
    the memory."""
    shape, room = NetworkShape.of(network, routing), link_capacity(network, longest_frame, host_latency, window)
    regions = plan_regions(shape, room, wanted)
    state = reserve(regions.words)
    memory = EngineMemory(
        state=state,
        node_base=regions.nodes + Host.WORDS * np.arange(shape.nodes, dtype=np.int64),
        port_base=regions.ports + Port.WORDS * np.arange(shape.links, dtype=np.int64),
        thread_base=[regions.threads + i * Thread.WORDS for i in range(wanted.threads)],
        senders=regions.senders,
        receivers=regions.receivers,
        bits=regions.bits,
        dropped=regions.dropped,
        transports=regions.transports,
        params=regions.params,
        next=regions.due,
        lookahead=room.lookahead,
        window=room.window,
        positions=np.zeros(shape.nodes, dtype=np.int64),
        levels=switch.aggregation_levels,
    )
    _write_nodes(memory, regions, network, shape, seed, wanted.balancer_words)
    _write_threads(memory, regions, network, shape)
    _write_links(memory, regions, network, shape, room, seed, wanted.trace)
    _write_queues(memory, regions, network, shape, switch, longest_frame, seed)
    _write_header(
        memory,
        regions,
        {
            State.heap_next.offset: regions.heap + shape.hosts * (2 * FIRST_HEAP + 8),
            State.flow_key.offset: kind_key(seed, FLOW_ENTROPY),
            State.window.offset: room.window,
            State.exceeds_caches.offset: int(shape.links > NEAR_LINKS),
            State.host_latency.offset: host_latency,
            State.seed.offset: seed & 0x7FFFFFFF,
            State.threads.offset: wanted.threads,
            State.positions.offset: shape.nodes,
        },
    )
    _write_switch_settings(memory, switch, longest_frame)
    slots = memory.node_base[shape.hosts :]
    switches = view(Switch, state, slots)
    switches.free_slots = switches.min_free_slots = switch.aggregation_slots
    write_routes(memory, routing, REROUTED_ENTRIES if wanted.reroutes else shape.group_entries)
    return memory


def _before(counts: Ints) -> Ints:
    """Return the exclusive prefix sums."""
    return np.concatenate(([0], np.cumsum(counts)[:-1]))


def _write_nodes(
    memory: EngineMemory, regions: Regions, network: Network, shape: NetworkShape, seed: int, balancer_words: int
) -> None:
    """Write the nodes, their ingress links, and the heaps of hosts."""
    state, nodes, ports, hosts = memory.state, memory.node_base, memory.port_base, shape.hosts
    by_destination, switches = shape.by_destination, np.arange(shape.switches)
    state[regions.ingress : regions.ingress + shape.links] = ports[by_destination]
    node_records = view(Node, state, nodes)
    node_records.kind = np.arange(shape.nodes) >= hosts
    node_records.ingress = _before(shape.in_count)
    node_records.ingress_count = shape.in_count
    node_records.active_ports = regions.active + _before(shape.out_count)
    node_records.edge = -1
    view(Switch, state, nodes[hosts:]).balancer_table = regions.table + balancer_words * switches
    node_records.key = key_of(seed, NODE_DRAWS, np.arange(shape.nodes))
    state[nodes[network.link_src[::-1]] + Node.port.offset] = ports[::-1]  # a node's first link comes last
    state[regions.back : regions.back + shape.links] = ports[by_destination ^ 1]
    state[regions.ties : regions.ties + shape.links] = key_of(seed, TIE_DRAWS, by_destination)
    heaps = regions.heap + np.arange(hosts, dtype=np.int64) * (2 * FIRST_HEAP + 8)
    view(Host, state, nodes[:hosts]).timer_heap = heaps + 1
    state[heaps] = FIRST_HEAP


def tighten_heaps(memory: EngineMemory, hosts: int) -> None:
    """Shrink the timer heaps to what the flows of their host require or what is in use."""
    state, nodes = memory.state, memory.node_base[:hosts]
    host_records = view(Host, state, nodes)
    room = host_records.timer_heap - 1
    entitled = HEAP_FLOW * host_records.timer_flows + HEAP_SPARE
    state[room] = np.minimum(state[room], np.maximum(entitled, host_records.timer_count))


def _write_threads(memory: EngineMemory, regions: Regions, network: Network, shape: NetworkShape) -> None:
    """Write the threads and their nodes."""
    state, nodes, scratch = memory.state, memory.node_base, regions.of_thread
    weight = shape.in_count + (np.arange(shape.nodes) < shape.hosts)
    first = 0
    for thread, part in enumerate(split(np.asarray(network.order), weight, len(memory.thread_base))):
        base = memory.thread_base[thread]
        memory.positions[part] = first + np.arange(len(part))
        state[regions.order + first : regions.order + first + len(part)] = nodes[part]
        thread_record = view(Thread, state, base)
        thread_record.first_position = first
        thread_record.node_count = len(part)
        first += len(part)
        thread_record.next_entry = regions.pools[thread]
        thread_record.pool_end = regions.pools[thread] + POOL_ENTRIES * MAX_POOL_WORDS
        thread_record.deliveries = scratch.done[thread]
        thread_record.drops = scratch.drops[thread]
        thread_record.trace = scratch.trace[thread]
        thread_record.keys = scratch.keys[thread]
        thread_record.spare_keys = scratch.spare[thread]
        thread_record.addresses = scratch.address[thread]
        thread_record.opposite_ports = scratch.backs[thread]
        thread_record.tie_keys = scratch.tie_keys[thread]
        thread_record.egress_ports = scratch.chosen[thread]
        thread_record.buckets = scratch.buckets[thread]
        thread_record.log_limit = LOG_ENTRIES
    view(Node, state, nodes).position = memory.positions
    state[regions.due : regions.due + shape.nodes] = at.FOREVER


def _write_links(
    memory: EngineMemory,
    regions: Regions,
    network: Network,
    shape: NetworkShape,
    room: LinkCapacity,
    seed: int,
    trace: bool,
) -> None:
    """Write the directed links: speed, latency, rings, random loss."""
    state, ports, links = memory.state, memory.port_base, np.arange(shape.links)
    port_records = view(Port, state, ports)
    port_records.ps_per_byte = room.speed
    port_records.latency = network.link_latency
    port_records.ring = regions.rings + RingEntry.WORDS * _before(room.rings)
    port_records.spill = regions.spills + RingEntry.WORDS * _before(room.spills)
    port_records.spill_mask = room.spills - 1
    heads = regions.heads + LinkHead.WORDS * links
    port = view(Port, state, ports[shape.by_destination])
    port.consumer = heads
    link_heads = view(LinkHead, state, heads)
    link_heads.ring = port.ring
    link_heads.ring_mask = room.rings[shape.by_destination] - 1
    odds = np.ceil(network.link_loss * 2.0**32).astype(np.int64)
    shape_word = (room.rings - 1) | (memory.positions[network.link_dst] << 32)
    shape_word |= np.where(odds > 0, 1 << 24, 0) | (int(trace) << 25)
    port_records.shape = shape_word
    port_records.loss = odds
    port_records.loss_key = key_of(seed, LINK_DRAWS, links)
    port_records.node = memory.node_base[network.link_src]
    port_records.link = links
    more = regions.more + PortExtra.WORDS * links
    port_records.extra = more
    view(PortExtra, state, more).delays = regions.delays + at.DELAY_BINS * links


def _write_queues(
    memory: EngineMemory,
    regions: Regions,
    network: Network,
    shape: NetworkShape,
    switch: SwitchTable,
    longest: Bytes,
    seed: int,
) -> None:
    """Write the queues of ports: buffers, thresholds, quanta, flow control."""
    state, ports, links = memory.state, memory.port_base, np.arange(shape.links)
    more = regions.more + PortExtra.WORDS * links
    port_extra = view(PortExtra, state, more)
    for c, quantum in enumerate(switch.quanta() or ()):
        port_extra.quantum[c] = quantum
    if switch.pfc:
        port_extra.pause_limit = switch.pfc_threshold
        port_extra.headroom = headroom(network, switch, longest)
    port_records = view(Port, state, ports)
    port_records.red_key = key_of(seed, RED_DRAWS, links)
    from_switch = network.link_src >= shape.hosts
    port_records.flags = (switch.queues - 1) << 8
    port_records.buffer = at.FOREVER
    settings, which = port_settings(network, switch)
    for number, of_ports in enumerate(settings):
        _write_limits(state, ports[which == number], of_ports, from_switch[which == number])


def _write_limits(state: Ints, ports: Ints, switch: SwitchTable, from_switch: Flags) -> None:
    """Write buffer and thresholds of ports that have the same settings. Hosts' ports have thresholds without buffer."""
    view(Port, state, ports[from_switch]).buffer = switch.buffer
    flags = at.PORT_FLAG_STAMPS | (at.PORT_FLAG_SELECTIVE if switch.selective_drop else 0)
    view(Port, state, ports[from_switch]).flags = (switch.queues - 1) << 8 | flags
    thresholds: Sequence[int] = switch.thresholds() or [at.FOREVER] * switch.queues
    for c in range(switch.queues):
        view(QueueClass, state, ports + Port.classes.offset + QueueClass.WORDS * c).threshold = thresholds[c]
    port_records = view(Port, state, ports)
    port_records.red_kmax = switch.ecn_ceiling or 0
    port_records.trim_threshold = switch.trim_threshold or 0


def _write_header(memory: EngineMemory, regions: Regions, more: dict[int, int]) -> None:
    """Write the head of the array: the bases of regions, and `more`, value by word."""
    header = {
        State.nodes.offset: regions.nodes,
        State.ports.offset: regions.ports,
        State.heads.offset: regions.heads,
        State.ingress.offset: regions.ingress,
        State.wake.offset: regions.wake,
        State.next_events.offset: regions.due,
        State.destinations.offset: regions.dest,
        State.routes.offset: regions.route,
        State.groups.offset: regions.groups,
        State.senders.offset: regions.senders,
        State.receivers.offset: regions.receivers,
        State.thread_records.offset: regions.threads,
        State.parameter_sets.offset: regions.params,
        State.order.offset: regions.order,
        State.opposite_ports.offset: regions.back,
        State.tie_keys.offset: regions.ties,
        State.timers.offset: regions.timers,
        State.next_timer.offset: at.FOREVER,
        State.event_heap.offset: regions.sort,
        State.dropped.offset: regions.dropped,
        State.free_records.offset: regions.free,
        State.closing.offset: regions.closing,
        State.transports.offset: regions.transports,
        State.free_stretches.offset: regions.arena,
        State.arena_next.offset: regions.bits,
        State.arena_end.offset: regions.bits + ARENA_WORDS,
        State.heap_end.offset: regions.heap + HEAP_WORDS,
        **more,
    }
    for word, value in header.items():
        memory.state[word] = value


def _write_switch_settings(memory: EngineMemory, switch: SwitchTable, longest: Bytes) -> None:
    """Write the settings that all switches share."""
    shared, ramp, state = switch.shared(), switch.ramp(), memory.state
    state[State.flowlet_gap.offset] = switch.flowlet_gap
    state[State.path_entropies.offset] = switch.path_entropies or 0
    if shared:
        state[State.shared_buffer.offset], state[State.shared_alpha.offset] = (
            shared[0],
            round(shared[1] * at.ALPHA_UNIT),
        )
    if ramp:
        state[State.red_pmax.offset] = int(ramp[1] * 2**32)
    for c, limit in enumerate(switch.limits() or ()):
        state[State.class_limits.offset + c] = limit
    state[State.trim_size.offset] = switch.trim_size
    state[State.trim_class.offset] = switch.trim_priority
    state[State.pause_hysteresis.offset] = switch.pfc_hysteresis or 2 * longest
    state[State.pause_classes.offset] = sum(1 << c for c in switch.pfc_classes or range(switch.queues))


def write_routes(memory: EngineMemory, routing: Routing, room: int) -> None:
    """Write the routing tables. Every destination has the number of its edge switch and the port that leads down to it.
    Every switch and block of edge switches has a group of ports, or the position of one group per edge switch in the
    block; the entries of groups go to a region of `room` words. Raises GradwireError if the groups do not fit."""
    state, ports, blocks = memory.state, memory.port_base, routing.blocks
    switches = memory.node_base[routing.network.host_count :]
    down = ports[np.asarray(routing.down_link)]
    dest = int(state[State.destinations.offset])
    state[dest : dest + len(down)] = blocks.number[routing.edge_of] | (down << 20)
    hop_counts = np.diff(routing.group_first)  # next hops of every group
    links, is_single = ports[routing.group_links], hop_counts == 1
    entries = links[np.repeat(~is_single, hop_counts)]
    words = np.zeros(len(hop_counts) + 1, dtype=np.int64)  # the last one is for "no group", number -1
    words[:-1] = np.cumsum(np.where(is_single, 0, hop_counts)) - hop_counts  # first entries of the groups
    words[:-1][is_single] = links[routing.group_first[:-1][is_single]]
    words[:-1] |= hop_counts << 40
    if len(entries) > max(1, room):
        raise GradwireError(f"{len(entries)} entries of routing groups", "fabric", f"at most {room}")
    groups, route = int(state[State.groups.offset]), int(state[State.routes.offset])
    state[groups : groups + len(entries)] = entries
    details = route + blocks.table.size
    table = words[np.maximum(blocks.table, -1)]
    is_detailed = blocks.table <= DETAILED
    table[is_detailed] = ~(details + (DETAILED - blocks.table[is_detailed].astype(np.int64) << blocks.shift))
    state[route:details] = table.ravel()
    state[details : details + blocks.details.size] = words[blocks.details].ravel()
    view(Node, state, switches).edge = blocks.number
    view(Switch, state, switches).routes = route + blocks.table.shape[1] * np.arange(len(switches))
    state[State.block_shift.offset] = blocks.shift


def headroom(network: Network, switch: SwitchTable, longest: Bytes) -> Ints:
    """Return, by link, the bytes that may still arrive over its opposite after its switch has decided to pause it. The
    pause frame waits for a full packet at its own port, then for its own transmission and the cable; by then the far
    end has started one more packet, and the cable was full: rate times round trip, and three packets."""
    if switch.pfc_headroom is not None:
        return np.full(network.link_count, switch.pfc_headroom, dtype=np.int64)
    cable = -(-2 * network.link_latency.astype(object) * network.link_rate.astype(object) // (8 * 10**12))
    return (cable + 3 * longest + MIN_FRAME).astype(np.int64)
