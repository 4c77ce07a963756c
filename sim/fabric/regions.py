"""Where everything lies in the engine's array: the plan of its regions.

The array is reserved, not filled: an anonymous mapping far larger than a run needs, of which the system backs only the
pages that are touched. So regions never move and never have to be grown while the engine runs.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from gradwire.components import layout as at
from gradwire.components.limits import ARENA_WORDS
from gradwire.experiment.routing import Routing, most_words
from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.fabric.room import LinkRoom

NO_RESERVE = 0x4000  # MAP_NORESERVE on Linux: Python names it from 3.13 on
LOG_ENTRIES = 1 << 16
POOL_ENTRIES = 1 << 25
MOST_POOL_WORDS = at.POOL_WORDS + 2
REROUTED_ENTRIES = 1 << 24
HEAP_WORDS = 1 << 26
MOST_SETS = 1 << 22  # parameter sets
MOST_TIMERS = 1 << 24  # of programs


@dataclass(frozen=True)
class Wanted:
    """What a run asks of the array, besides its network.

    `delays`: waiting times are counted. `reroutes`: routes may change, so that their tables need room. `streams`: one
    packet may end any number of messages. `trace`: packets are noted. `balancer_words`: words that the load balancer
    keeps at every switch.
    """

    threads: int
    trace: bool = False
    delays: bool = False
    reroutes: bool = False
    streams: bool = False
    balancer_words: int = 0


@dataclass(frozen=True)
class Shape:
    """What follows from a network and its routes.

    in_count, out_count : int64[nodes]: links that lead to a node, and away from it.
    by_destination : int64[links]: the directed links in ingress order.
    route_entries : entries of the table of routes; `most_route_entries`: of any that there may be once links are down.
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
    def of(cls, network: Network, routing: Routing) -> Shape:
        hosts, links, nodes = network.host_count, len(network.link_src), len(network.names)
        ways = np.diff(routing.group_first)  # of every group
        return cls(
            hosts, links, nodes,
            np.bincount(network.link_dst, minlength=nodes), np.bincount(network.link_src, minlength=nodes),
            np.argsort(network.link_dst, kind="stable"),
            routing.blocks.words, most_words(nodes - hosts, len(np.unique(routing.edge_of))), int(ways[ways > 1].sum()),
        )  # fmt: skip


class Plan:
    """Hands out stretches of the array, each on a cache line of its own."""

    def __init__(self) -> None:
        self.words = at.HEADER_WORDS

    def take(self, words: int) -> int:
        """The base of `words` fresh words."""
        base = self.words
        self.words += (words + 7) // 8 * 8
        return base


@dataclass(frozen=True)
class ThreadRegions:
    """Bases of what each thread has for itself: scratch for the arrivals of one node, logs, a pool of entries."""

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
    """Bases of the parts of the array, and how many words there are in all."""

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


def plan_regions(shape: Shape, room: LinkRoom, wanted: Wanted) -> Regions:
    """Where everything lies: small and much used first."""
    plan, threads, links, nodes = Plan(), wanted.threads, shape.links, shape.nodes
    take = plan.take
    return Regions(
        threads=take(at.THREAD_WORDS * threads),
        nodes=take(at.NODE_WORDS * nodes),
        ports=take(at.PORT_WORDS * links),
        heads=take(at.HEAD_WORDS * links),
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
        more=take(links * at.MORE_WORDS),
        table=take(shape.switches * wanted.balancer_words),
        params=take(at.PARAM_WORDS * MOST_SETS),
        of_thread=_plan_threads(plan, room, wanted),
        timers=take(at.TIMER_WORDS * MOST_TIMERS),
        sort=take(at.TIMER_WORDS * threads * _deliveries(room, wanted)),
        rings=take(int(room.rings.sum()) * at.RING_WORDS),
        spills=take(int(room.spills.sum()) * at.RING_WORDS),
        pools=[take(POOL_ENTRIES * MOST_POOL_WORDS) for _ in range(threads)],
        senders=take(at.MAX_FLOWS * at.SENDER_WORDS),
        receivers=take(at.MAX_FLOWS * at.RECEIVER_WORDS),
        heap=take(HEAP_WORDS),
        dropped=take(at.MAX_FLOWS),
        free=take(at.MAX_FLOWS),
        closing=take(at.MAX_FLOWS),
        transports=take(at.KIND_WORDS << at.SET_SHIFT),
        arena=take(at.ARENA_CLASSES),
        bits=take(ARENA_WORDS),
        words=plan.words,
    )


def _plan_threads(plan: Plan, room: LinkRoom, wanted: Wanted) -> ThreadRegions:
    threads, burst = range(wanted.threads), room.per_window
    scratch = [[plan.take(room.arrivals + 8) for _ in threads] for _ in range(6)]
    keys, spare, chosen, backs, address, tie_keys = scratch
    return ThreadRegions(
        keys, spare, chosen, backs, address, tie_keys,
        buckets=[plan.take(128) for _ in threads],
        done=[plan.take(_deliveries(room, wanted) * at.DONE_WORDS) for _ in threads],
        drops=[plan.take((LOG_ENTRIES + 2 * burst) * at.DROP_WORDS) for _ in threads],
        trace=[plan.take((LOG_ENTRIES + burst) * at.TRACE_WORDS if wanted.trace else 8) for _ in threads],
    )


def _deliveries(room: LinkRoom, wanted: Wanted) -> int:
    """Messages that a thread may have to note before the engine returns."""
    held = POOL_ENTRIES if wanted.reroutes else 0  # what has waited for a still host arrives all at once
    ends = 2 * at.MAX_FLOWS if wanted.streams else 0
    return LOG_ENTRIES + room.per_window + held + ends


def reserve_block(words: int) -> mmap.mmap:
    """So many words that are zeros, of which only touched pages take memory.

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
    return block


def reserve(words: int) -> Ints:
    """An array of zeros of which only touched pages take memory, as `reserve_block` reserves it."""
    block = reserve_block(words)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype=np.int64)
