"""Lay a network out in the engine's array.

The array is reserved, not filled: an anonymous mapping far larger than a run needs, of which the system backs only the
pages that are touched. So regions never move and never have to be grown while the engine runs.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.components import layout as at
from gradwire.components.draws import key_of
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.sim.fabric.room import link_room

NO_RESERVE = 0x4000  # MAP_NORESERVE on Linux: Python names it from 3.13 on
LOG_ENTRIES = 1 << 16
BITMAP_WORDS = 1 << 30
POOL_ENTRIES = 1 << 25
MOST_POOL_WORDS = at.POOL_WORDS + 2
REROUTED_ENTRIES = 1 << 24
PAUSE_FRAME = 60
HEAP_WORDS = 1 << 26
FIRST_HEAP = 32  # entries
MOST_SETS = 1 << 22  # parameter sets
MOST_TIMERS = 1 << 24  # of programs

NODE_DRAWS, LINK_DRAWS, RED_DRAWS, TIE_DRAWS = 1, 2, 4, 5


@dataclass
class Memory:
    """The state of one run, and where the parts that Python deals with begin."""

    M: NDArray[np.int64]
    node_base: NDArray[np.int64]
    port_base: NDArray[np.int64]
    thread_base: list[int]
    senders: int
    receivers: int
    bits: int
    params: int
    next: int
    lookahead: int
    window: int
    heap_free: int
    heap_end: int
    bits_end: int
    positions: NDArray[np.int64]
    edge_index: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.address = int(self.M.ctypes.data)


class Plan:
    """Hands out stretches of the array, each on a cache line of its own."""

    def __init__(self) -> None:
        self.words = at.HEADER_WORDS

    def take(self, words: int) -> int:
        """The base of `words` fresh words."""
        base = self.words
        self.words += (words + 7) // 8 * 8
        return base


def reserve(words: int) -> NDArray[np.int64]:
    """An array of zeros of which only touched pages take memory.

    Raises
    ------
    ScenarioError
        The system does not even reserve the addresses (a limit on virtual memory).
    """
    try:
        block = mmap.mmap(-1, 8 * words, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except (OSError, ValueError) as error:
        raise ScenarioError(
            f"the system does not reserve {8 * words / 1e9:.0f} GB of addresses: {error}",
            "memory",
            "no limit on virtual memory (ulimit -v)",
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype=np.int64)


def split(order: NDArray[Any], weight: NDArray[Any], parts: int) -> list[NDArray[Any]]:
    """Cut `order` into contiguous parts of about equal weight; a part may be empty."""
    total = np.cumsum(weight[order])
    cuts = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts, side="left") + 1
    return np.split(order, np.minimum(cuts, len(order)))


def build(
    network: Any,
    routing: Any,
    switch: Any,
    *,
    longest_frame: int,
    host_latency: int,
    seed: int,
    threads: int,
    trace: bool,
    delays: bool = False,
    reroutes: bool = False,
    streams: bool = False,
    balancer_words: int = 0,
    window: int | None = None,
) -> Memory:
    """Reserve the array and write every static word.

    `switch`: the scenario's `Switch`. `delays`: waiting times are counted. `reroutes`: routes may change, so that their
    tables need room. `streams`: one packet may end any number of messages. `balancer_words`: words that the load
    balancer keeps at every switch. `window` shortens the windows (results do not depend on it). Sizes in bytes, times
    in picoseconds.
    """
    queues, thresholds, shared, ramp = switch.queues, switch.thresholds(), switch.shared(), switch.ramp()
    hosts, links = network.host_count, len(network.link_src)
    nodes = len(network.names)
    room = link_room(network, longest_frame, host_latency, window)
    speed, length = room.speed, room.window
    ring_sizes, spill_sizes = room.rings, room.spills
    ingress_count = np.bincount(network.link_dst, minlength=nodes)
    egress_count = np.bincount(network.link_src, minlength=nodes)
    edges = np.unique(routing.edge_of)  # switch indices
    edge_index = np.full(nodes - hosts, -1, dtype=np.int64)
    edge_index[edges] = np.arange(len(edges))

    plan = Plan()
    thread_base = plan.take(at.THREAD_WORDS * threads)
    node_base = plan.take(at.NODE_WORDS * nodes)
    port_base = plan.take(at.PORT_WORDS * links)
    heads = plan.take(at.HEAD_WORDS * links)
    ingress = plan.take(links)
    wake = plan.take(2 * nodes)
    due = plan.take(nodes)
    order_base = plan.take(nodes)
    dest = plan.take(hosts)
    route = plan.take((nodes - hosts) * len(edges))
    ways = np.diff(routing.group_first)  # of every group
    group_entries = int(ways[ways > 1].sum())
    groups = plan.take(REROUTED_ENTRIES if reroutes else max(1, group_entries))
    back = plan.take(links)
    ties = plan.take(links)
    delay_bins = plan.take(links * at.DELAY_BINS if delays else 8)
    active = plan.take(links)
    more = plan.take(links * at.MORE_WORDS)
    table = plan.take((nodes - hosts) * balancer_words)
    params = plan.take(at.PARAM_WORDS * MOST_SETS)
    keys = [plan.take(room.arrivals + 8) for _ in range(threads)]
    spare = [plan.take(room.arrivals + 8) for _ in range(threads)]
    chosen = [plan.take(room.arrivals + 8) for _ in range(threads)]
    backs = [plan.take(room.arrivals + 8) for _ in range(threads)]
    address = [plan.take(room.arrivals + 8) for _ in range(threads)]
    buckets = [plan.take(128) for _ in range(threads)]
    burst = links * room.per_window
    held = POOL_ENTRIES if reroutes else 0  # what has waited for a still host arrives all at once
    ends = 2 * at.MAX_FLOWS if streams else 0
    done_base = [plan.take((LOG_ENTRIES + burst + held + ends) * at.DONE_WORDS) for _ in range(threads)]
    drop_base = [plan.take((LOG_ENTRIES + 2 * burst) * at.DROP_WORDS) for _ in range(threads)]
    trace_base = [plan.take((LOG_ENTRIES + burst) * at.TRACE_WORDS if trace else 8) for _ in range(threads)]
    timers = plan.take(at.TIMER_WORDS * MOST_TIMERS)
    sort = plan.take(at.TIMER_WORDS * threads * (LOG_ENTRIES + burst + held + ends))
    rings = plan.take(int(ring_sizes.sum()) * at.RING_WORDS)
    spills = plan.take(int(spill_sizes.sum()) * at.RING_WORDS)
    pools = [plan.take(POOL_ENTRIES * MOST_POOL_WORDS) for _ in range(threads)]
    senders = plan.take(at.MAX_FLOWS * at.SENDER_WORDS)
    receivers = plan.take(at.MAX_FLOWS * at.RECEIVER_WORDS)
    heap = plan.take(HEAP_WORDS)
    bits = plan.take(BITMAP_WORDS)
    M = reserve(plan.words)

    # nodes and ports
    node_bases = node_base + at.NODE_WORDS * np.arange(nodes, dtype=np.int64)
    port_bases = port_base + at.PORT_WORDS * np.arange(links, dtype=np.int64)
    in_first = np.concatenate(([0], np.cumsum(ingress_count)))[:nodes]
    by_destination = np.argsort(network.link_dst, kind="stable")  # ingress order: by directed link index
    M[ingress : ingress + links] = port_bases[by_destination]
    out_first = np.concatenate(([0], np.cumsum(egress_count)))[:nodes]
    M[node_bases + at.N_KIND] = np.arange(nodes) >= hosts
    M[node_bases + at.N_IN] = in_first
    M[node_bases + at.N_IN_COUNT] = ingress_count
    M[node_bases + at.N_ACTIVE] = active + out_first
    M[node_bases + at.N_EDGE] = -1
    M[node_bases[hosts:] + at.N_EDGE] = edge_index
    M[node_bases[hosts:] + at.N_ROUTE] = route + len(edges) * np.arange(nodes - hosts)
    M[node_bases[hosts:] + at.N_TABLE] = table + balancer_words * np.arange(nodes - hosts)
    M[node_bases + at.N_KEY] = [key_of(seed, NODE_DRAWS, node) for node in range(nodes)]
    M[node_bases[network.link_src[::-1]] + at.N_PORT] = port_bases[::-1]  # a node's first link comes last
    M[back : back + links] = port_bases[by_destination ^ 1]
    M[ties : ties + links] = key_of(seed, TIE_DRAWS, by_destination)

    weight = ingress_count + (np.arange(nodes) < hosts)
    parts = split(np.asarray(network.order), weight, threads)
    positions = np.zeros(nodes, dtype=np.int64)
    first = 0
    for thread, part in enumerate(parts):
        base = thread_base + thread * at.THREAD_WORDS
        positions[part] = first + np.arange(len(part))
        M[order_base + first : order_base + first + len(part)] = node_bases[part]
        M[base + at.T_FIRST] = first
        M[base + at.T_COUNT] = len(part)
        first += len(part)
        M[base + at.T_BUMP] = pools[thread]
        M[base + at.T_BUMP_END] = pools[thread] + POOL_ENTRIES * MOST_POOL_WORDS
        M[base + at.T_DONE_BASE] = done_base[thread]
        M[base + at.T_DROPS_BASE] = drop_base[thread]
        M[base + at.T_TRACE_BASE] = trace_base[thread]
        M[base + at.T_KEYS] = keys[thread]
        M[base + at.T_SPARE] = spare[thread]
        M[base + at.T_ADDRESS] = address[thread]
        M[base + at.T_BACK] = backs[thread]
        M[base + at.T_PORTS] = chosen[thread]
        M[base + at.T_BUCKETS] = buckets[thread]
        M[base + at.T_LOG_LIMIT] = LOG_ENTRIES
    M[node_bases + at.N_POSITION] = positions
    M[due : due + nodes] = at.FOREVER

    M[port_bases + at.P_SPEED] = speed
    M[port_bases + at.P_LATENCY] = network.link_latency
    M[port_bases + at.P_RING] = rings + at.RING_WORDS * np.concatenate(([0], np.cumsum(ring_sizes)[:-1]))
    M[port_bases + at.P_SPILL] = spills + at.RING_WORDS * np.concatenate(([0], np.cumsum(spill_sizes)[:-1]))
    M[port_bases + at.P_SPILL_MASK] = spill_sizes - 1
    M[port_bases[by_destination] + at.P_HEAD] = heads + at.HEAD_WORDS * np.arange(links)
    odds = np.ceil(network.link_loss * 2.0**32).astype(np.int64)
    shape = (ring_sizes - 1) | (positions[network.link_dst] << 32)
    shape |= np.where(odds > 0, 1 << 24, 0) | (int(trace) << 25)
    M[port_bases + at.P_SHAPE] = shape
    M[port_bases + at.P_LOSS] = odds
    M[port_bases + at.P_KEY] = key_of(seed, LINK_DRAWS, np.arange(links))
    more_bases = more + at.MORE_WORDS * np.arange(links)
    M[port_bases + at.P_MORE] = more_bases
    for c, quantum in enumerate(switch.quanta() or ()):
        M[more_bases + at.X_QUANTUM + c] = quantum
    M[more_bases + at.X_DELAYS] = delay_bins + at.DELAY_BINS * np.arange(links)
    if switch.pfc:
        M[more_bases + at.X_LIMIT] = switch.pfc_threshold
        M[more_bases + at.X_ROOM] = headroom(network, switch, longest_frame)
    M[port_bases + at.P_NODE] = node_bases[network.link_src]
    M[port_bases + at.P_RED_KEY] = key_of(seed, RED_DRAWS, np.arange(links))
    M[port_bases + at.P_ID] = np.arange(links)
    from_switch = network.link_src >= hosts
    M[port_bases + at.P_LIMIT] = np.where(from_switch, switch.buffer, at.FOREVER)
    flags = at.PORT_FLAG_STAMPS | (at.PORT_FLAG_SELECTIVE if switch.selective_drop else 0)
    M[port_bases + at.P_FLAGS] = (queues - 1) << 8 | np.where(from_switch, flags, 0)
    for c in range(queues):
        threshold = at.FOREVER if thresholds is None else thresholds[c]
        M[port_bases + at.P_CLASSES + at.CLASS_WORDS * c + at.C_THRESHOLD] = threshold

    for host in range(hosts):
        M[node_bases[host] + at.N_HEAP] = heap + 1 + host * (2 * FIRST_HEAP + 8)
        M[heap + host * (2 * FIRST_HEAP + 8)] = FIRST_HEAP
    header = {
        at.H_WINDOW: length,
        at.H_HOST_LATENCY: host_latency,
        at.H_SEED: seed & 0x7FFFFFFF,
        at.H_THREADS: threads,
        at.H_NODES: node_base,
        at.H_PORTS: port_base,
        at.H_HEADS: heads,
        at.H_INGRESS: ingress,
        at.H_WAKE: wake,
        at.H_NEXT: due,
        at.H_DEST: dest,
        at.H_ROUTE: route,
        at.H_GROUPS: groups,
        at.H_SENDERS: senders,
        at.H_RECEIVERS: receivers,
        at.H_THREAD: thread_base,
        at.H_PARAMS: params,
        at.H_EDGES: len(edges),
        at.H_POSITIONS: nodes,
        at.H_ORDER: order_base,
        at.H_FLOWLET_GAP: switch.flowlet_gap,
        at.H_ENTROPIES: switch.path_entropies or 0,
        at.H_SHARED: shared[0] if shared else 0,
        at.H_ALPHA: round(shared[1] * at.ALPHA_UNIT) if shared else 0,
        at.H_RED_KMAX: ramp[0] if ramp else 0,
        at.H_RED_PMAX: int(ramp[1] * 2**32) if ramp else 0,
        at.H_TRIM: switch.trim_threshold or 0,
        at.H_TRIM_SIZE: switch.trim_size,
        at.H_TRIM_CLASS: switch.trim_priority,
        at.H_HYSTERESIS: switch.pfc_hysteresis or 2 * longest_frame,
        at.H_PAUSE_CLASSES: sum(1 << c for c in switch.pfc_classes or range(queues)),
        at.H_BACK: back,
        at.H_TIES: ties,
        at.H_TIMERS: timers,
        at.H_TIMER_NEXT: at.FOREVER,
        at.H_SORT: sort,
    }
    header |= {at.H_LIMITS + c: limit for c, limit in enumerate(switch.limits() or ())}
    for word, value in header.items():
        M[word] = value
    memory = Memory(
        M=M,
        node_base=node_bases,
        port_base=port_bases,
        thread_base=[thread_base + i * at.THREAD_WORDS for i in range(threads)],
        senders=senders,
        receivers=receivers,
        bits=bits,
        params=params,
        next=due,
        lookahead=room.lookahead,
        window=length,
        heap_free=heap + hosts * (2 * FIRST_HEAP + 8),
        heap_end=heap + HEAP_WORDS,
        bits_end=bits + BITMAP_WORDS,
        positions=positions,
        edge_index=edge_index,
    )
    lay_routes(memory, routing, REROUTED_ENTRIES if reroutes else group_entries)
    return memory


def lay_routes(memory: Memory, routing: Any, room: int) -> None:
    """Write the routing tables: for every destination its edge switch and the port that leads down to it, and for every
    switch and edge switch a group of ports, of which the entries go to a region of `room` words.

    Raises
    ------
    GradwireError
        The groups do not fit.
    """
    M, ports = memory.M, memory.port_base
    edges = np.flatnonzero(memory.edge_index >= 0)
    down = ports[np.asarray(routing.down_link)]
    dest = int(M[at.H_DEST])
    M[dest : dest + len(down)] = memory.edge_index[routing.edge_of] | (down << 20)
    ways = np.diff(routing.group_first)  # of every group
    links, alone = ports[routing.group_links], ways == 1
    entries = links[np.repeat(~alone, ways)]
    words = np.zeros(len(ways) + 1, dtype=np.int64)  # the last one stands for "none", which is number -1
    words[:-1] = np.cumsum(np.where(alone, 0, ways)) - ways  # where the entries of a group begin
    words[:-1][alone] = links[routing.group_first[:-1][alone]]
    words[:-1] |= ways << 40
    if len(entries) > max(1, room):
        raise GradwireError(f"{len(entries)} entries of routing groups", "fabric", f"at most {room}")
    groups, route = int(M[at.H_GROUPS]), int(M[at.H_ROUTE])
    M[groups : groups + len(entries)] = entries
    group_of = routing.group_of if len(edges) == len(memory.edge_index) else routing.group_of[:, edges]
    np.take(words, group_of, out=M[route : route + group_of.size].reshape(group_of.shape), mode="wrap")


def headroom(network: Any, switch: Any, longest: int) -> NDArray[np.int64]:
    """Bytes that may still arrive over every link's opposite one after its switch has decided to stop it.

    The pause frame waits for a full packet at its own port, takes its time and the cable's; by then the far end has
    started one more packet, and the cable was full: rate times round trip, and three packets.
    """
    if switch.pfc_headroom is not None:
        return np.full(network.link_count, switch.pfc_headroom, dtype=np.int64)
    cable = -(-2 * network.link_latency.astype(object) * network.link_rate.astype(object) // (8 * 10**12))
    return (cable + 3 * longest + PAUSE_FRAME).astype(np.int64)
