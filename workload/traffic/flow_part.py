"""`traffic_part` converts batches of flows into steps that the engine plays; flows begin at their times, or after
others.

If hosts have several NICs, a flow leaves and enters by the NICs of one number: `Flows.rails`, modulo the NICs of each
host. A flow that waits for deliveries has to leave by the NIC by which they arrive, since only that NIC knows of them
(our choice; a host's memory would know as well). So flows that wait for each other, directly or indirectly, all take
the number of the first of them. An accelerator knows the arrivals at all of its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.topology import HostCards
from gradwire.workload.csr import csr_lists
from gradwire.workload.program import Ints, MessageColumns, Messages, PacketImportance, ProgramPart, Step
from gradwire.workload.scheduling import FIFO
from gradwire.workload.traffic.base import Flows

NO_NODES = np.zeros(0, dtype=np.int64)


def traffic_part(
    table: Any, number: int, transport: int, flows: Callable[[], Iterator[Flows]], cards: HostCards
) -> ProgramPart:
    """Return the part of a [[traffic]] table. `number`: of its table in the program; `flows`: callback that returns a
    new iterator over its batches."""
    return ProgramPart(
        MessageColumns(table.name, transport, FIFO, 0, is_job=False, element_bytes=1),
        hosts=NO_NODES,
        workers=NO_NODES,
        stations=NO_NODES,
        steps=lambda: (_step(table, number, batch, cards) for batch in flows()),
    )


def _step(table: Any, number: int, batch: Flows, cards: HostCards) -> Step:
    """Return the step of a batch. The event of a flow that waits for others needs their deliveries and posts it.

    If it waits for the end of flows at their sender, an event for each of these counts it, and is counted by the
    flow's.
    """
    n = len(batch)
    src, dst = flow_ends(batch, cards)
    done = np.unique(batch.settled[:, 0])
    waiting = n + len(np.unique(np.concatenate((batch.edges[:, 1], batch.settled[:, 1]))))
    before = np.concatenate((batch.edges[:, 0], waiting + np.searchsorted(done, batch.settled[:, 0])))
    after = np.concatenate((batch.edges[:, 1], batch.settled[:, 1]))
    followers, follower = np.unique(after, return_inverse=True)
    begins = batch.start_ps.copy()
    begins[followers] = -1
    count = waiting + len(done)
    needs = np.ones(count, dtype=np.int64)
    needs[n:waiting] = np.bincount(follower, minlength=len(followers))
    settles = None
    if len(done):
        settles = np.full(n, -1, dtype=np.int64)
        settles[done] = waiting + np.arange(len(done))

    def columns(value: Any) -> Any:
        return np.array(np.broadcast_to(value, n), dtype=np.int64)

    plain = PacketImportance.NONE if table.droppable else PacketImportance.AS_SENT
    messages = Messages(
        table=columns(number), kind=columns(KINDS.index("flow")), iteration=columns(batch.round), tensor=columns(-1),
        layer=columns(-1), part=columns(batch.flow), src=columns(src), dst=columns(dst), nbytes=columns(batch.nbytes),
        priority=columns(table.priority), bound=np.full(n, table.bound, dtype=np.float64), rank=columns(0),
        captured=columns(-1), first=columns(0), important=PacketImportance((), columns(plain)),
        turn=columns(batch.flow + batch.round),
    )  # fmt: skip
    posting = np.concatenate(
        (np.zeros(n + 1, dtype=np.int64), 1 + np.arange(len(followers)), np.full(len(done), len(followers)))
    )
    return Step(
        messages=messages,
        needs=needs,
        host=np.concatenate((messages.dst, messages.src[followers], messages.src[done])),
        after=csr_lists([(before, n + follower)], count),
        posts=(posting, followers),
        begins=begins,
        settles=settles,
    )


def flow_ends(flows: Flows, cards: HostCards) -> tuple[Ints, Ints]:
    """Return the nodes that flows go from and to: two int64[n]."""
    if cards.single:
        return flows.src, flows.dst
    rails = flows.rails[_firsts(len(flows), flows.edges)]
    return cards.cards(flows.src, flows.dst, rails)


def _firsts(n: int, edges: Ints) -> Ints:
    """Return for each of n flows the first flow of its component of `edges`."""
    first = list(range(n))

    def find(flow: int) -> int:
        while first[flow] != flow:
            first[flow] = first[first[flow]]
            flow = first[flow]
        return flow

    for a, b in edges.tolist():
        one, other = find(a), find(b)
        first[max(one, other)] = min(one, other)
    return np.array([find(flow) for flow in range(n)], dtype=np.int64)
