"""Layout of a network in the engine's array.

Three stages: `plan_regions` determines the positions, `reserve` makes the array (`gradwire.sim.engine.memory.regions`),
and one function for each kind of thing (nodes, threads, links, queues, the head of the array) writes its static words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit import layout as at
from gradwire.jit.counter_rng import FLOW_ENTROPY, LINK_DRAWS, NODE_DRAWS, RED_DRAWS, TIE_DRAWS, key_of, kind_key
from gradwire.jit.limits import ARENA_WORDS
from gradwire.scenarios.arrays import AnyInts, Ints
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
from gradwire.topology.routing import DETAILED, Routing

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.network import Switch

FIRST_HEAP = 32  # entries
NEAR_LINKS = 8000  # directed links whose state fits into the caches of processors (measured: 6,144 yes, 12,000 no)


@dataclass
class EngineMemory:
    """The state of one run, and the bases of the regions that Python uses."""

    M: Ints
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
        self.address = int(self.M.ctypes.data)


def split(order: AnyInts, weight: AnyInts, parts: int) -> list[AnyInts]:
    """Cut `order` into contiguous parts of about equal weight; a part may be empty."""
    total = np.cumsum(weight[order])
    cuts = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts, side="left") + 1
    return np.split(order, np.minimum(cuts, len(order)))


def build_memory(
    network: Network,
    routing: Routing,
    switch: Switch,
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
    M = reserve(regions.words)
    memory = EngineMemory(
        M=M,
        node_base=regions.nodes + at.NODE_WORDS * np.arange(shape.nodes, dtype=np.int64),
        port_base=regions.ports + at.PORT_WORDS * np.arange(shape.links, dtype=np.int64),
        thread_base=[regions.threads + i * at.THREAD_WORDS for i in range(wanted.threads)],
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
            at.H_HEAP_NEXT: regions.heap + shape.hosts * (2 * FIRST_HEAP + 8),
            at.H_FLOW_KEY: kind_key(seed, FLOW_ENTROPY),
            at.H_WINDOW: room.window,
            at.H_FAR: int(shape.links > NEAR_LINKS),
            at.H_HOST_LATENCY: host_latency,
            at.H_SEED: seed & 0x7FFFFFFF,
            at.H_THREADS: wanted.threads,
            at.H_POSITIONS: shape.nodes,
        },
    )
    _write_switch_settings(memory, switch, longest_frame)
    slots = memory.node_base[shape.hosts :]
    M[slots + at.N_SLOTS] = M[slots + at.N_SLOTS_LEAST] = switch.aggregation_slots
    write_routes(memory, routing, REROUTED_ENTRIES if wanted.reroutes else shape.group_entries)
    return memory


def _before(counts: Ints) -> Ints:
    """Return the exclusive prefix sums."""
    return np.concatenate(([0], np.cumsum(counts)[:-1]))


def _write_nodes(
    memory: EngineMemory, regions: Regions, network: Network, shape: NetworkShape, seed: int, balancer_words: int
) -> None:
    """Write the nodes, their ingress links, and the heaps of hosts."""
    M, nodes, ports, hosts = memory.M, memory.node_base, memory.port_base, shape.hosts
    by_destination, switches = shape.by_destination, np.arange(shape.switches)
    M[regions.ingress : regions.ingress + shape.links] = ports[by_destination]
    M[nodes + at.N_KIND] = np.arange(shape.nodes) >= hosts
    M[nodes + at.N_IN] = _before(shape.in_count)
    M[nodes + at.N_IN_COUNT] = shape.in_count
    M[nodes + at.N_ACTIVE] = regions.active + _before(shape.out_count)
    M[nodes + at.N_EDGE] = -1
    M[nodes[hosts:] + at.N_TABLE] = regions.table + balancer_words * switches
    M[nodes + at.N_KEY] = key_of(seed, NODE_DRAWS, np.arange(shape.nodes))
    M[nodes[network.link_src[::-1]] + at.N_PORT] = ports[::-1]  # a node's first link comes last
    M[regions.back : regions.back + shape.links] = ports[by_destination ^ 1]
    M[regions.ties : regions.ties + shape.links] = key_of(seed, TIE_DRAWS, by_destination)
    heaps = regions.heap + np.arange(hosts, dtype=np.int64) * (2 * FIRST_HEAP + 8)
    M[nodes[:hosts] + at.N_HEAP] = heaps + 1
    M[heaps] = FIRST_HEAP


def tighten_heaps(memory: EngineMemory, hosts: int) -> None:
    """Shrink the timer heaps to what the flows of their host require or what is in use."""
    M, nodes = memory.M, memory.node_base[:hosts]
    room = M[nodes + at.N_HEAP] - 1
    entitled = HEAP_FLOW * M[nodes + at.N_FLOWS] + HEAP_SPARE
    M[room] = np.minimum(M[room], np.maximum(entitled, M[nodes + at.N_HEAP_COUNT]))


def _write_threads(memory: EngineMemory, regions: Regions, network: Network, shape: NetworkShape) -> None:
    """Write the threads and their nodes."""
    M, nodes, scratch = memory.M, memory.node_base, regions.of_thread
    weight = shape.in_count + (np.arange(shape.nodes) < shape.hosts)
    first = 0
    for thread, part in enumerate(split(np.asarray(network.order), weight, len(memory.thread_base))):
        base = memory.thread_base[thread]
        memory.positions[part] = first + np.arange(len(part))
        M[regions.order + first : regions.order + first + len(part)] = nodes[part]
        M[base + at.T_FIRST] = first
        M[base + at.T_COUNT] = len(part)
        first += len(part)
        M[base + at.T_BUMP] = regions.pools[thread]
        M[base + at.T_BUMP_END] = regions.pools[thread] + POOL_ENTRIES * MAX_POOL_WORDS
        M[base + at.T_DONE_BASE] = scratch.done[thread]
        M[base + at.T_DROPS_BASE] = scratch.drops[thread]
        M[base + at.T_TRACE_BASE] = scratch.trace[thread]
        M[base + at.T_KEYS] = scratch.keys[thread]
        M[base + at.T_SPARE] = scratch.spare[thread]
        M[base + at.T_ADDRESS] = scratch.address[thread]
        M[base + at.T_BACK] = scratch.backs[thread]
        M[base + at.T_TIE_KEYS] = scratch.tie_keys[thread]
        M[base + at.T_PORTS] = scratch.chosen[thread]
        M[base + at.T_BUCKETS] = scratch.buckets[thread]
        M[base + at.T_LOG_LIMIT] = LOG_ENTRIES
    M[nodes + at.N_POSITION] = memory.positions
    M[regions.due : regions.due + shape.nodes] = at.FOREVER


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
    M, ports, links = memory.M, memory.port_base, np.arange(shape.links)
    M[ports + at.P_SPEED] = room.speed
    M[ports + at.P_LATENCY] = network.link_latency
    M[ports + at.P_RING] = regions.rings + at.RING_WORDS * _before(room.rings)
    M[ports + at.P_SPILL] = regions.spills + at.RING_WORDS * _before(room.spills)
    M[ports + at.P_SPILL_MASK] = room.spills - 1
    heads = regions.heads + at.HEAD_WORDS * links
    M[ports[shape.by_destination] + at.P_HEAD] = heads
    M[heads + at.HEAD_RING] = M[ports[shape.by_destination] + at.P_RING]
    M[heads + at.HEAD_MASK] = room.rings[shape.by_destination] - 1
    odds = np.ceil(network.link_loss * 2.0**32).astype(np.int64)
    shape_word = (room.rings - 1) | (memory.positions[network.link_dst] << 32)
    shape_word |= np.where(odds > 0, 1 << 24, 0) | (int(trace) << 25)
    M[ports + at.P_SHAPE] = shape_word
    M[ports + at.P_LOSS] = odds
    M[ports + at.P_KEY] = key_of(seed, LINK_DRAWS, links)
    M[ports + at.P_NODE] = memory.node_base[network.link_src]
    M[ports + at.P_ID] = links
    more = regions.more + at.MORE_WORDS * links
    M[ports + at.P_MORE] = more
    M[more + at.X_DELAYS] = regions.delays + at.DELAY_BINS * links


def _write_queues(
    memory: EngineMemory,
    regions: Regions,
    network: Network,
    shape: NetworkShape,
    switch: Switch,
    longest: Bytes,
    seed: int,
) -> None:
    """Write the queues of ports: buffers, thresholds, quanta, flow control."""
    M, ports, links = memory.M, memory.port_base, np.arange(shape.links)
    more = regions.more + at.MORE_WORDS * links
    for c, quantum in enumerate(switch.quanta() or ()):
        M[more + at.X_QUANTUM + c] = quantum
    if switch.pfc:
        M[more + at.X_LIMIT] = switch.pfc_threshold
        M[more + at.X_ROOM] = headroom(network, switch, longest)
    M[ports + at.P_RED_KEY] = key_of(seed, RED_DRAWS, links)
    from_switch = network.link_src >= shape.hosts
    M[ports + at.P_LIMIT] = np.where(from_switch, switch.buffer, at.FOREVER)
    flags = at.PORT_FLAG_STAMPS | (at.PORT_FLAG_SELECTIVE if switch.selective_drop else 0)
    M[ports + at.P_FLAGS] = (switch.queues - 1) << 8 | np.where(from_switch, flags, 0)
    thresholds: Sequence[int] = switch.thresholds() or [at.FOREVER] * switch.queues
    for c in range(switch.queues):
        M[ports + at.P_CLASSES + at.CLASS_WORDS * c + at.C_THRESHOLD] = thresholds[c]


def _write_header(memory: EngineMemory, regions: Regions, more: dict[int, int]) -> None:
    """Write the head of the array: the bases of regions, and `more`, value by word."""
    header = {
        at.H_NODES: regions.nodes,
        at.H_PORTS: regions.ports,
        at.H_HEADS: regions.heads,
        at.H_INGRESS: regions.ingress,
        at.H_WAKE: regions.wake,
        at.H_NEXT: regions.due,
        at.H_DEST: regions.dest,
        at.H_ROUTE: regions.route,
        at.H_GROUPS: regions.groups,
        at.H_SENDERS: regions.senders,
        at.H_RECEIVERS: regions.receivers,
        at.H_THREAD: regions.threads,
        at.H_PARAMS: regions.params,
        at.H_ORDER: regions.order,
        at.H_BACK: regions.back,
        at.H_TIES: regions.ties,
        at.H_TIMERS: regions.timers,
        at.H_TIMER_NEXT: at.FOREVER,
        at.H_SORT: regions.sort,
        at.H_DROPPED: regions.dropped,
        at.H_FREE: regions.free,
        at.H_CLOSING: regions.closing,
        at.H_TRANSPORTS: regions.transports,
        at.H_ARENA: regions.arena,
        at.H_ARENA_NEXT: regions.bits,
        at.H_ARENA_END: regions.bits + ARENA_WORDS,
        at.H_HEAP_END: regions.heap + HEAP_WORDS,
        **more,
    }
    for word, value in header.items():
        memory.M[word] = value


def _write_switch_settings(memory: EngineMemory, switch: Switch, longest: Bytes) -> None:
    """Write the settings that all switches share."""
    shared, ramp, M = switch.shared(), switch.ramp(), memory.M
    M[at.H_FLOWLET_GAP] = switch.flowlet_gap
    M[at.H_ENTROPIES] = switch.path_entropies or 0
    if shared:
        M[at.H_SHARED], M[at.H_ALPHA] = shared[0], round(shared[1] * at.ALPHA_UNIT)
    if ramp:
        M[at.H_RED_KMAX], M[at.H_RED_PMAX] = ramp[0], int(ramp[1] * 2**32)
    for c, limit in enumerate(switch.limits() or ()):
        M[at.H_LIMITS + c] = limit
    M[at.H_TRIM] = switch.trim_threshold or 0
    M[at.H_TRIM_SIZE] = switch.trim_size
    M[at.H_TRIM_CLASS] = switch.trim_priority
    M[at.H_HYSTERESIS] = switch.pfc_hysteresis or 2 * longest
    M[at.H_PAUSE_CLASSES] = sum(1 << c for c in switch.pfc_classes or range(switch.queues))


def write_routes(memory: EngineMemory, routing: Routing, room: int) -> None:
    """Write the routing tables. Every destination has the number of its edge switch and the port that leads down to it.
    Every switch and block of edge switches has a group of ports, or the position of one group per edge switch in the
    block; the entries of groups go to a region of `room` words. Raises GradwireError if the groups do not fit."""
    M, ports, blocks = memory.M, memory.port_base, routing.blocks
    switches = memory.node_base[routing.network.host_count :]
    down = ports[np.asarray(routing.down_link)]
    dest = int(M[at.H_DEST])
    M[dest : dest + len(down)] = blocks.number[routing.edge_of] | (down << 20)
    hop_counts = np.diff(routing.group_first)  # next hops of every group
    links, is_single = ports[routing.group_links], hop_counts == 1
    entries = links[np.repeat(~is_single, hop_counts)]
    words = np.zeros(len(hop_counts) + 1, dtype=np.int64)  # the last one is for "no group", number -1
    words[:-1] = np.cumsum(np.where(is_single, 0, hop_counts)) - hop_counts  # first entries of the groups
    words[:-1][is_single] = links[routing.group_first[:-1][is_single]]
    words[:-1] |= hop_counts << 40
    if len(entries) > max(1, room):
        raise GradwireError(f"{len(entries)} entries of routing groups", "fabric", f"at most {room}")
    groups, route = int(M[at.H_GROUPS]), int(M[at.H_ROUTE])
    M[groups : groups + len(entries)] = entries
    details = route + blocks.table.size
    table = words[np.maximum(blocks.table, -1)]
    is_detailed = blocks.table <= DETAILED
    table[is_detailed] = ~(details + (DETAILED - blocks.table[is_detailed].astype(np.int64) << blocks.shift))
    M[route:details] = table.ravel()
    M[details : details + blocks.details.size] = words[blocks.details].ravel()
    M[switches + at.N_EDGE] = blocks.number
    M[switches + at.N_ROUTE] = route + blocks.table.shape[1] * np.arange(len(switches))
    M[at.H_BLOCK_SHIFT] = blocks.shift


def headroom(network: Network, switch: Switch, longest: Bytes) -> Ints:
    """Return, by link, the bytes that may still arrive over its opposite after its switch has decided to pause it. The
    pause frame waits for a full packet at its own port, then for its own transmission and the cable; by then the far
    end has started one more packet, and the cable was full: rate times round trip, and three packets."""
    if switch.pfc_headroom is not None:
        return np.full(network.link_count, switch.pfc_headroom, dtype=np.int64)
    cable = -(-2 * network.link_latency.astype(object) * network.link_rate.astype(object) // (8 * 10**12))
    return (cable + 3 * longest + MIN_FRAME).astype(np.int64)
