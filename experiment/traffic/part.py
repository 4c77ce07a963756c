"""Traffic as a part of a program: batches of flows that begin at their times, or after others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradwire.experiment.program import Importance, Messages, Part, Step, Table
from gradwire.experiment.scheduling import FIFO
from gradwire.experiment.topology import Cards
from gradwire.experiment.traffic.base import Flows
from gradwire.experiment.traffic.rails import ends
from gradwire.scenarios.result import KINDS

NOBODY = np.zeros(0, dtype=np.int64)


def traffic_part(table: Any, number: int, transport: int, flows: Callable[[], Iterator[Flows]], cards: Cards) -> Part:
    """What a [[traffic]] table does. `number`: of its table in the program; `flows`: a new iterator over its
    batches."""
    return Part(
        Table(table.name, transport, FIFO, 0, is_job=False, element_bytes=1),
        hosts=NOBODY,
        workers=NOBODY,
        stations=NOBODY,
        steps=lambda: (_step(table, number, batch, cards) for batch in flows()),
    )


def _step(table: Any, number: int, batch: Flows, cards: Cards) -> Step:
    """A batch. The event of a flow that follows others needs their deliveries and posts it."""
    n = len(batch)
    src, dst = ends(batch, cards)
    before, after = batch.edges.T
    followers, place = np.unique(after, return_inverse=True)
    begins = batch.start_ps.copy()
    begins[followers] = -1
    count = n + len(followers)
    needs = np.ones(count, dtype=np.int64)
    needs[n:] = np.bincount(place, minlength=len(followers))

    def columns(value: Any) -> Any:
        return np.array(np.broadcast_to(value, n), dtype=np.int64)

    plain = Importance.NONE if table.droppable else Importance.AS_SENT
    messages = Messages(
        table=columns(number), kind=columns(KINDS.index("flow")), iteration=columns(batch.round), tensor=columns(-1),
        layer=columns(-1), part=columns(batch.flow), src=columns(src), dst=columns(dst), nbytes=columns(batch.nbytes),
        priority=columns(table.priority), bound=np.full(n, table.bound, dtype=np.float64), rank=columns(0),
        captured=columns(-1), first=columns(0), important=Importance((), columns(plain)),
        turn=columns(batch.flow + batch.round),
    )  # fmt: skip
    order = np.argsort(before, kind="stable")
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=count), out=first[1:])
    posting = np.concatenate((np.zeros(n + 1, dtype=np.int64), 1 + np.arange(len(followers))))
    return Step(
        messages=messages, needs=needs, host=np.concatenate((messages.dst, messages.src[followers])),
        station=np.full(count, -1, dtype=np.int64), effort=np.zeros(count, dtype=np.int64),
        after=(first, n + place[order]), posts=(posting, followers), begins=begins,
    )  # fmt: skip
