"""Parts of programs made by hand, for tests of those who play them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.workload.csr import csr_lists
from gradwire.workload.program import (
    FIRE,
    MessageColumns,
    Messages,
    PacketImportance,
    ProcessOperations,
    ProgramPart,
    Step,
)
from gradwire.workload.scheduling import FIFO, LAYER


def ints(values: Any) -> Any:
    return np.array(values, dtype=np.int64)


def messages(
    ends: Sequence[tuple[int, int]], nbytes: Sequence[int], rank: Sequence[int] | None = None, **more: Any
) -> Messages:
    """Messages of table 0 from and to nodes."""
    n = len(ends)
    plain = {"table": 0, "kind": KINDS.index("push"), "iteration": 0, "tensor": 0, "layer": 0, "priority": 0,
             "captured": -1, "first": 0, "rank": 0 if rank is None else ints(rank), "part": np.arange(n)}  # fmt: skip
    columns = {
        name: ints(np.broadcast_to(value, n))
        for name, value in (plain | more).items()
        if name not in ("bound", "important")
    }
    return Messages(
        **columns, src=ints([a for a, _ in ends]), dst=ints([b for _, b in ends]), nbytes=ints(nbytes),
        bound=np.array(np.broadcast_to(more.get("bound", 0.0), n), dtype=np.float64),
        important=more.get("important", PacketImportance((), np.full(n, PacketImportance.AS_SENT))),
    )  # fmt: skip


def step(
    rows: Messages, others: Sequence[int] = (), needs: Any = None, after: Sequence[tuple[int, int]] = (),
    posts: Sequence[tuple[int, int]] = (), courses: Sequence[ProcessOperations] = (), begins: Any = None, station: Any = None,
    effort: Any = None,
) -> Step:  # fmt: skip
    """A step; `others`: hosts of the events that are no deliveries; `after` and `posts`: pairs."""
    count = len(rows) + len(others)
    pairs = [ints(each).reshape(-1, 2).T for each in (after, posts)]
    return Step(
        messages=rows, needs=np.ones(count, dtype=np.int64) if needs is None else ints(needs),
        host=np.concatenate((rows.dst, ints(others))), after=csr_lists([tuple(pairs[0])], count),
        posts=csr_lists([tuple(pairs[1])], count), courses=tuple(courses),
        station=np.full(count, -1) if station is None else ints(station),
        effort=np.zeros(count, dtype=np.int64) if effort is None else ints(effort),
        begins=None if begins is None else ints(begins),
    )  # fmt: skip


def part(
    steps: Sequence[Step],
    hosts: Sequence[int] = (),
    *,
    credit: int = 0,
    stations: Sequence[int] = (),
    transport: int = 0,
    apart: bool = False,
) -> ProgramPart:
    """One part of these steps, released by rank with a credit, if there is one."""
    table = MessageColumns("j", transport, LAYER if credit else FIFO, credit, True, 4, apart=apart)
    return ProgramPart(table, ints(hosts), np.arange(len(hosts)), ints(stations), lambda: iter(steps))


def burst(
    sizes: Sequence[int], ranks: Sequence[int], credit: int, to: Sequence[int] | None = None, apart: bool = False
) -> ProgramPart:
    """Messages from node 0 to node 1 (or `to`) that all become ready at once, at the beginning, in this order."""
    n = len(sizes)
    fire = ProcessOperations(0, ints([(FIRE, n, -1)]))
    rows = messages([(0, each) for each in to or [1] * n], sizes, ranks)
    return part([step(rows, [0], posts=[(n, i) for i in range(n)], courses=[fire])], [0], credit=credit, apart=apart)
