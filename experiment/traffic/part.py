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
    """A batch. The event of a flow that follows others needs their deliveries and posts it.

    Where it waits for senders to be done, an event of each of these is counted by that, and counts the flow's.
    """
    n = len(batch)
    src, dst = ends(batch, cards)
    done = np.unique(batch.settled[:, 0])
    waiting = n + len(np.unique(np.concatenate((batch.edges[:, 1], batch.settled[:, 1]))))
    before = np.concatenate((batch.edges[:, 0], waiting + np.searchsorted(done, batch.settled[:, 0])))
    after = np.concatenate((batch.edges[:, 1], batch.settled[:, 1]))
    followers, place = np.unique(after, return_inverse=True)
    begins = batch.start_ps.copy()
    begins[followers] = -1
    count = waiting + len(done)
    needs = np.ones(count, dtype=np.int64)
    needs[n:waiting] = np.bincount(place, minlength=len(followers))
    settles = None
    if len(done):
        settles = np.full(n, -1, dtype=np.int64)
        settles[done] = waiting + np.arange(len(done))

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
    posting = np.concatenate((
        np.zeros(n + 1, dtype=np.int64), 1 + np.arange(len(followers)), np.full(len(done), len(followers)),
    ))
    return Step(
        messages=messages, needs=needs,
        host=np.concatenate((messages.dst, messages.src[followers], messages.src[done])),
        station=np.full(count, -1, dtype=np.int64), effort=np.zeros(count, dtype=np.int64),
        after=(first, n + place[order]), posts=(posting, followers), begins=begins, settles=settles,
    )  # fmt: skip
