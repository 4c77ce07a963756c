"""Traffic as a program: every host knows which flows it starts when, and which follow from which deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradwire.experiment.program import FIRE, UNTIL
from gradwire.experiment.traffic.base import Flows
from gradwire.sim.coupling import Message
from gradwire.sim.programs.builder import Builder, Event, Post


def add_traffic(builder: Builder, table: Any, number: int, batches: Iterator[Flows]) -> None:
    """Add all flows of a `[[traffic]]` table, whose table in the program is `number`."""
    begins: dict[int, list[tuple[int, Event]]] = {}  # by source: what it starts when
    for batch in batches:
        posts = _posts(builder, table, number, batch)
        waiting: dict[int, Event] = {}
        for before, after in batch.edges.tolist():
            if after not in waiting:
                waiting[after] = builder.event(posts[after].message.src)
                waiting[after].post(posts[after])
            posts[before].then(waiting[after])
        for place, post in enumerate(posts):
            if place not in waiting:
                _begin(builder, begins.setdefault(post.message.src, []), post)
    for source, events in begins.items():
        steps = (step for start, event in events for step in ((UNTIL, start), (FIRE, event)))
        builder.process(source, number, -1, list(steps))


def _posts(builder: Builder, table: Any, number: int, batch: Flows) -> list[Post]:
    columns = (batch.src, batch.dst, batch.nbytes, batch.start_ps, batch.round, batch.flow)
    important = False if table.droppable else None
    earliest = batch.start_ps.tolist()
    for before, after in batch.edges.tolist():
        earliest[after] = max(earliest[after], earliest[before])
    return [
        builder.message(
            number,
            Message(
                table.name, "flow", round_, -1, flow, src, dst, nbytes, table.priority, table.bound, important, 0,
                _nobody,
            ),
            (0, start),
        )
        for start, (src, dst, nbytes, _, round_, flow) in zip(
            earliest, zip(*(column.tolist() for column in columns), strict=True), strict=True
        )
    ]  # fmt: skip


def _begin(builder: Builder, events: list[tuple[int, Event]], post: Post) -> None:
    """A flow that waits for its time only."""
    start = post.turn[1]
    if not events or events[-1][0] != start:
        events.append((start, builder.event(post.message.src)))
        events[-1][1].needs = 1  # its time
    events[-1][1].post(post)


def _nobody(message: object) -> None:
    """Nobody is told of deliveries."""
