"""Declares the traffic `tree_chunks`, the chunks of an all-reduce that follow each other along the two trees of NCCL.

Both trees are those of the exchange `double_tree`, among the hosts in their order. Each carries `chunks` chunks up to
its root and down again. A host passes a chunk on to its parent when it has it from all its children, and to its
children when it has it from its parent, in both cases once its chunk `window` places earlier has arrived. So a slow
edge slows all others, as in NCCL, whose slots are the window. With several NICs every rail has both trees.

Hosts add nothing up and take no time but the software latency. On an idle network of depth D, where a chunk of c bytes
takes a + c b, one chunk takes 2 D (a + c b) plus the software latencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.units import Size
from gradwire.workload.collectives.allreduce.double_tree import parents_of_workers, second_parents, tree_depths
from gradwire.workload.traffic.base import Flows, TrafficSetting


class TreeChunks(TrafficTable):
    """Chunks of an all-reduce along the two trees of NCCL, each sent when those that it depends on have arrived."""

    kind: Literal["tree_chunks"]
    size: Size
    """Bytes of a chunk."""
    chunks: Count
    """Chunks of each tree, on each rail."""
    window: Annotated[
        int,
        Field(ge=1, le=1024, strict=True),
        Precondition(lambda at: at.table.chunks > at.table.window, "all chunks fit into it", "traffic.chunks above it"),
    ] = 8
    """Chunks in flight between two hosts; NCCL has eight slots [code: NCCL_STEPS]."""
    rails: Count = 1
    """Copies of both trees, each on NICs of one number."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        return "size", self.size

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        plan = chunk_plan(len(setting.hosts), self.chunks, self.window, self.rails)
        zero = np.zeros(len(plan.src), dtype=np.int64)
        ends = setting.hosts[plan.src], setting.hosts[plan.dst]
        flow = np.arange(len(zero))
        start = zero + self.start
        yield Flows(*ends, zero + self.size, start, zero, flow, plan.arrivals, plan.rail, plan.slots)


class ChunkPlan(NamedTuple):
    """Chunks in an order in which each comes after those that it waits for.

    src, dst, rail : int64[n], positions of hosts, and the rail. arrivals, slots : int64[m, 2], pairs of a chunk and one
    that waits for its arrival, or for its end at its sender.
    """

    src: Ints
    dst: Ints
    rail: Ints
    arrivals: Ints
    slots: Ints


def chunk_plan(hosts: int, chunks: int, window: int, rails: int) -> ChunkPlan:
    """Return the chunks of both trees on all rails, and their dependencies."""
    first = parents_of_workers(hosts)
    edges: list[tuple[int, int]] = []
    waits: list[tuple[int, int]] = []
    for parent_of in (first, second_parents(first)):
        _add_tree(parent_of, edges, waits)
    src, dst = (np.tile(np.repeat(ends, rails), chunks) for ends in np.array(edges, dtype=np.int64).T)
    lane, per_chunk = np.arange(rails), len(edges) * rails
    one = np.array(waits, dtype=np.int64).reshape(-1, 1, 2) * rails + lane[:, None]  # of one chunk, on every rail
    arrivals = one.reshape(1, -1, 2) + per_chunk * np.arange(chunks)[:, None, None]
    held_back = np.arange(per_chunk * max(0, chunks - window))
    slots = np.stack((held_back, held_back + window * per_chunk), axis=1)
    return ChunkPlan(src, dst, np.tile(lane, len(edges) * chunks), arrivals.reshape(-1, 2), slots)


def _add_tree(parent_of: list[int], edges: list[tuple[int, int]], waits: list[tuple[int, int]]) -> None:
    """Append the edges of a tree, up and then down, in the order of a chunk, and the pairs (edge, edge that waits)."""
    depth = tree_depths(parent_of)
    children = sorted((host for host, parent in enumerate(parent_of) if parent >= 0), key=lambda host: -depth[host])
    going_up: dict[int, int] = {}
    for host in children:  # the deepest first, so that those below a host come before it
        going_up[host] = len(edges)
        edges.append((host, parent_of[host]))
    waits += [(edge, going_up[parent_of[host]]) for host, edge in going_up.items() if parent_of[host] in going_up]
    going_down: dict[int, int] = {}
    for host in reversed(children):
        parent = parent_of[host]
        going_down[host] = len(edges)
        if parent in going_down:
            waits.append((going_down[parent], going_down[host]))
        else:  # the root has the sum when all its children have sent
            waits += [(edge, len(edges)) for child, edge in going_up.items() if parent_of[child] == parent]
        edges.append((parent, host))
