"""`plan_regions` computes the position of each region of the engine's array; `reserve` maps its memory without filling
it.

The array is reserved, not filled: an anonymous mapping far larger than a run needs, of which the system backs only the
pages that are touched. So regions never move and never have to grow while the engine runs.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from gradwire.jit.limits import ARENA_WORDS
from gradwire.jit.records import constants as at
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.jit.records.header import DeliveryEntry, State, Thread
from gradwire.jit.records.network import DropEntry, Host, LinkHead, Port, PortExtra, QueueEntry, RingEntry, TraceEntry
from gradwire.jit.records.programs import TimerEntry, TransportKind
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.engine.memory.link_capacity import LinkCapacity
from gradwire.topology import Network
from gradwire.topology.routing import Routing, max_entries

NO_RESERVE = 0x4000  # MAP_NORESERVE on Linux, in Python from 3.13 on
LOG_ENTRIES = 1 << 16
POOL_ENTRIES = 1 << 25
MAX_POOL_WORDS = QueueEntry.WORDS
REROUTED_ENTRIES = 1 << 24
HEAP_WORDS = 1 << 26
MAX_PARAMETER_SETS = 1 << 22  # parameter sets
MAX_TIMERS = 1 << 24  # timers of programs


@dataclass(frozen=True)
class RegionSizes:
    """Requirements of a run on the array, besides its network.

    delays : waiting times are counted.
    reroutes : routes may change, so their tables need room.
    streams : one packet may complete any number of messages.
    trace : packets are logged.
    balancer_words : words that the load balancer keeps at every switch.
    """

    threads: int
    trace: bool = False
    delays: bool = False
    reroutes: bool = False
    streams: bool = False
    balancer_words: int = 0


@dataclass(frozen=True)
class NetworkShape:
    """Sizes that follow from a network and its routes.

    in_count, out_count : int64[nodes]: links to and from a node.
    by_destination : int64[links]: the directed links in ingress order.
    route_entries : entries of the routing table.
    most_route_entries : the most there may be once links are down.
    group_entries : entries of routing groups of more than one link.
    """

    hosts: int
    links: int
    nodes: int
    in_count: Ints
    out_count: Ints
    by_destination: Ints
    route_entries: int
    most_route_entries: int
    group_entries: int

    @property
    def switches(self) -> int:
        return self.nodes - self.hosts

    @classmethod
    def of(cls, network: Network, routing: Routing) -> NetworkShape:
        hosts, links, nodes = network.host_count, len(network.link_src), len(network.names)
        ways = np.diff(routing.group_first)  # of every group
        return cls(
            hosts,
            links,
            nodes,
            np.bincount(network.link_dst, minlength=nodes),
            np.bincount(network.link_src, minlength=nodes),
            np.argsort(network.link_dst, kind="stable"),
            routing.blocks.word_count,
            max_entries(nodes - hosts, len(np.unique(routing.edge_of))),
            int(ways[ways > 1].sum()),
        )


class RegionPlan:
    """Assigns stretches of the array, each on its own cache line."""

    def __init__(self) -> None:
        self.words = State.WORDS

    def take(self, words: int) -> int:
        """Return the base of `words` new words."""
        base = self.words
        self.words += (words + 7) // 8 * 8
        return base


@dataclass(frozen=True)
class ThreadRegions:
    """Bases of each thread's own regions: scratch for the arrivals of one node, logs, a pool of entries."""

    keys: list[int]
    spare: list[int]
    chosen: list[int]
    backs: list[int]
    address: list[int]
    tie_keys: list[int]
    buckets: list[int]
    done: list[int]
    drops: list[int]
    trace: list[int]


@dataclass(frozen=True)
class Regions:
    """Bases of the parts of the array, and its total number of words."""

    threads: int
    nodes: int
    ports: int
    heads: int
    ingress: int
    wake: int
    due: int
    order: int
    dest: int
    route: int
    groups: int
    back: int
    ties: int
    delays: int
    active: int
    more: int
    table: int
    params: int
    of_thread: ThreadRegions
    timers: int
    sort: int
    rings: int
    spills: int
    pools: list[int]
    senders: int
    receivers: int
    heap: int
    dropped: int
    free: int
    closing: int
    transports: int
    arena: int
    bits: int
    words: int


def plan_regions(shape: NetworkShape, room: LinkCapacity, wanted: RegionSizes) -> Regions:
    """Return the positions of all regions: small and much used ones first."""
    plan, threads, links, nodes = RegionPlan(), wanted.threads, shape.links, shape.nodes
    take = plan.take
    return Regions(
        threads=take(Thread.WORDS * threads),
        nodes=take(Host.WORDS * nodes),
        ports=take(Port.WORDS * links),
        heads=take(LinkHead.WORDS * links),
        ingress=take(links),
        wake=take(2 * nodes),
        due=take(nodes),
        order=take(nodes),
        dest=take(shape.hosts),
        route=take(shape.most_route_entries if wanted.reroutes else shape.route_entries),
        groups=take(REROUTED_ENTRIES if wanted.reroutes else max(1, shape.group_entries)),
        back=take(links),
        ties=take(links),
        delays=take(links * at.DELAY_BINS if wanted.delays else 8),
        active=take(links),
        more=take(links * PortExtra.WORDS),
        table=take(shape.switches * wanted.balancer_words),
        params=take(Parameters.WORDS * MAX_PARAMETER_SETS),
        of_thread=_plan_threads(plan, room, wanted),
        timers=take(TimerEntry.WORDS * MAX_TIMERS),
        sort=take(TimerEntry.WORDS * threads * _deliveries(room, wanted)),
        rings=take(int(room.rings.sum()) * RingEntry.WORDS),
        spills=take(int(room.spills.sum()) * RingEntry.WORDS),
        pools=[take(POOL_ENTRIES * MAX_POOL_WORDS) for _ in range(threads)],
        senders=take(at.MAX_FLOWS * Sender.WORDS),
        receivers=take(at.MAX_FLOWS * Receiver.WORDS),
        heap=take(HEAP_WORDS),
        dropped=take(at.MAX_FLOWS),
        free=take(at.MAX_FLOWS),
        closing=take(at.MAX_FLOWS),
        transports=take(TransportKind.WORDS << at.SET_SHIFT),
        arena=take(at.ARENA_CLASSES),
        bits=take(ARENA_WORDS),
        words=plan.words,
    )


def _plan_threads(plan: RegionPlan, room: LinkCapacity, requirements: RegionSizes) -> ThreadRegions:
    threads, burst = range(requirements.threads), room.per_window
    scratch = [[plan.take(room.arrivals + 8) for _ in threads] for _ in range(6)]
    keys, spare, chosen, backs, address, tie_keys = scratch
    return ThreadRegions(
        keys,
        spare,
        chosen,
        backs,
        address,
        tie_keys,
        buckets=[plan.take(128) for _ in threads],
        done=[plan.take(_deliveries(room, requirements) * DeliveryEntry.WORDS) for _ in threads],
        drops=[plan.take((LOG_ENTRIES + 2 * burst) * DropEntry.WORDS) for _ in threads],
        trace=[plan.take((LOG_ENTRIES + burst) * TraceEntry.WORDS if requirements.trace else 8) for _ in threads],
    )


def _deliveries(room: LinkCapacity, requirements: RegionSizes) -> int:
    """Return the most deliveries that a thread may log before the engine returns."""
    held = POOL_ENTRIES if requirements.reroutes else 0  # packets held for a stopped host arrive all at once
    ends = 2 * at.MAX_FLOWS if requirements.streams else 0
    return LOG_ENTRIES + room.per_window + held + ends


def reserve_block(words: int) -> mmap.mmap:
    """Reserve zeroed words, of which only touched pages take memory. Raises ScenarioError if the system cannot reserve
    the addresses (a limit on virtual memory)."""
    try:
        return mmap.mmap(-1, 8 * words, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except (OSError, ValueError) as error:
        reason = str(error)
    # outside the handler, where a GradwireError would say that memory, not addresses, is short
    what = f"the system cannot reserve {8 * words / 1e9:.0f} GB of addresses: {reason}"
    raise ScenarioError(what, "memory", "no limit on virtual memory (ulimit -v)")


def reserve(words: int) -> Ints:
    """Return an array of zeros of which only touched pages take memory (`reserve_block`)."""
    block = reserve_block(words)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype=np.int64)
