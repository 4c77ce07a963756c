"""The builder of programs: events as objects while they are joined together, arrays when all is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.program import Messages, Operation, Process, Program, Table
from gradwire.scenarios.result import KINDS
from gradwire.sim.coupling import Message

Ints = NDArray[np.int64]

Course = tuple[int, Any] | tuple[int, Any, int]
"""A step of a process; what it is about may be an event."""


class Event:
    """Something that happens at a host when all has happened that it needs; see `gradwire.experiment.program`."""

    __slots__ = ("after", "effort", "host", "needs", "number", "posts", "station")

    def __init__(self, host: int) -> None:
        self.host = host
        self.needs = 0
        self.after: list[Event] = []
        self.posts: list[Post] = []
        self.station, self.effort = -1, 0
        self.number = -1

    def then(self, *events: Event) -> None:
        """They count this one."""
        for event in events:
            assert event.host == self.host, "hosts know of each other by messages only"
            event.needs += 1
            self.after.append(event)

    def post(self, *messages: Post) -> None:
        """They become ready when this happens."""
        for message in messages:
            assert message.message.src == self.host, "a host sends its own messages only"
            self.posts.append(message)


class Post(Event):
    """The delivery of a message, at its destination.

    turn : (iteration, the earliest time in it at which the message could be ready): messages are numbered by them.
    captured, first, sums, own : see `gradwire.experiment.program`.
    """

    __slots__ = ("captured", "first", "message", "own", "sums", "table", "turn")

    def __init__(
        self,
        table: int,
        message: Message,
        turn: tuple[int, int],
        *,
        captured: int = -1,
        first: int = 0,
        sums: Sequence[Post] | None = None,
        own: bool = False,
    ) -> None:
        super().__init__(message.dst)
        self.needs = 1
        self.table, self.message, self.turn = table, message, turn
        self.captured, self.first, self.sums, self.own = captured, first, sums, own


class Builder:
    """Collects tables, events and processes; `finish` makes the program of them."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._courses: list[tuple[int, int, int, Sequence[Course], tuple[int, ...]]] = []
        self._events: list[Event] = []
        self._posts: list[Post] = []
        self._stations: dict[int, int] = {}

    def table(self, table: Table) -> int:
        """Number of a new table."""
        self.tables.append(table)
        return len(self.tables) - 1

    def event(self, host: int) -> Event:
        """A new event."""
        self._events.append(Event(host))
        return self._events[-1]

    def message(self, *args: Any, **fields: Any) -> Post:
        """A new message: what `Post` is made of."""
        self._posts.append(Post(*args, **fields))
        return self._posts[-1]

    def station(self, host: int) -> int:
        """A new station of a host."""
        self._stations[host] = self._stations.get(host, -1) + 1
        return self._stations[host]

    def process(
        self, host: int, job: int, worker: int, steps: Sequence[Course], compute: tuple[int, ...] = ()
    ) -> None:
        """A new process: what `Process` is made of, with events in the place of their numbers."""
        self._courses.append((host, job, worker, steps, compute))

    def finish(self) -> Program:
        """The program. Messages are numbered by table, iteration and the earliest time at which they could be ready,
        then in the order in which they were made; other events follow."""
        self._posts.sort(key=lambda post: (post.table, *post.turn))
        for number, event in enumerate((*self._posts, *self._events)):
            event.number = number
        events: list[Event] = [*self._posts, *self._events]
        return Program(
            tables=tuple(self.tables),
            messages=self._messages(),
            needs=_ints(event.needs for event in events),
            host=_ints(event.host for event in events),
            after=_lists([event.after for event in events]),
            posts=_lists([event.posts for event in events]),
            station=_ints(event.station for event in events),
            effort=_ints(event.effort for event in events),
            processes=tuple(
                Process(host, job, worker, tuple(map(_step, steps)), compute)
                for host, job, worker, steps, compute in self._courses
            ),
            sums=[None if p.sums is None else tuple(each.number for each in p.sums) for p in self._posts],
            own=[post.own for post in self._posts],
        )

    def _messages(self) -> Messages:
        posts, messages = self._posts, [post.message for post in self._posts]
        return Messages(
            table=_ints(post.table for post in posts),
            kind=_ints(KINDS.index(each.kind) for each in messages),
            iteration=_ints(each.iteration for each in messages),
            tensor=_ints(each.tensor for each in messages),
            layer=_ints(each.rank if each.tensor >= 0 else -1 for each in messages),
            part=_ints(each.part for each in messages),
            src=_ints(each.src for each in messages),
            dst=_ints(each.dst for each in messages),
            nbytes=_ints(each.bytes for each in messages),
            priority=_ints(each.priority for each in messages),
            bound=np.array([each.bound for each in messages], dtype=np.float64),
            rank=_ints(each.rank for each in messages),
            captured=_ints(post.captured for post in posts),
            first=_ints(post.first for post in posts),
            important=[each.important for each in messages],
        )


def _step(course: Course) -> Operation:
    operation, what, *iteration = course
    return Operation(operation, what.number if isinstance(what, Event) else what, *iteration)


def _ints(values: Any) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _lists(lists: Sequence[Sequence[Event]]) -> tuple[Ints, Ints]:
    """(first, list) of `gradwire.experiment.program.Program`."""
    first = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in lists], out=first[1:])
    return first, _ints(event.number for each in lists for event in each)
