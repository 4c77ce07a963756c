"""A program played by SimPy: the same as the engine's player does (`gradwire.sim.fabric.core.play`), event by event, on
any network that a `Coupling` can have.

The oracle (`gradwire.testing`) plays its programs by this one, and so does an ideal network; both players are held
equal.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush

import numpy as np
import simpy

from gradwire.components.layout import SLOW_UNIT
from gradwire.experiment.program import COMPUTE, FIRE, NOTE, UNTIL, WAIT, Part, Step
from gradwire.experiment.scheduling import FIFO
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.result import KINDS
from gradwire.sim.coupling import Coupling
from gradwire.sim.fabric.over import NOTES, Handed, Over, since_of
from gradwire.sim.message import Message

Course = Generator[simpy.Event, object, None]
"""What SimPy plays: the events that a process waits for."""


class Last(simpy.Event):
    """An event at the present time, after all usual ones; of several that of the lowest rank comes first."""

    def __init__(self, env: simpy.Environment, rank: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=simpy.events.NORMAL + 1 + rank)  # type: ignore[arg-type]


class Event:
    """Something that happens when all has happened that it needs."""

    __slots__ = ("after", "effort", "fired", "needs", "number", "posts", "station", "waiter")

    def __init__(self, number: int, needs: int, effort: int, station: int) -> None:
        self.number, self.needs, self.effort, self.station = number, needs, effort, station
        self.after: list[Event] = []
        self.posts: list[tuple[Played, int]] = []
        self.fired = False
        self.waiter: simpy.Event | None = None


class Played:
    """A step that is being played."""

    def __init__(self, step: Step, number: int, first: int, processes: int) -> None:
        count, n = len(step), len(step.messages)
        self.step, self.number, self.left = step, number, n
        columns = (step.needs, step.effort, step.station)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.events = [Event(first + i, *row) for i, row in enumerate(rows)]
        for place, members, name in ((*step.after, "after"), (*step.posts, "posts")):
            for i in range(count):
                mine = members[place[i] : place[i + 1]].tolist()
                value = [self.events[e] for e in mine] if name == "after" else [(self, m) for m in mine]
                setattr(self.events[i], name, value)
        self.fans: dict[int, int] = {}  # by number, those of which a message was sent
        self.numbers = np.full(n, -1, dtype=np.int64)
        self.ready = np.full(n, -1, dtype=np.int64)
        self.started = np.full(n, -1, dtype=np.int64)
        self.notes = np.full((processes, NOTES), -1, dtype=np.int64)


class Queue:
    """Messages of one host that wait for their release, by rank and then by readiness."""

    def __init__(self, credit: int) -> None:
        self.credit, self.under_way, self.offered = credit, 0, 0
        self.heap: list[tuple[int, int, Message]] = []


class Player:
    """One part, played by processes of a coupling's environment. See `gradwire.sim.network_like.Track`."""

    def __init__(self, part: Part, coupling: Coupling, number: int) -> None:
        self.part, self._coupling, self._env, self._number = part, coupling, coupling.env, number
        self.handed = Handed()  # nothing ever is
        self._steps = part.steps()
        self._played: list[Played] = []
        self._events = [0]  # of the steps before each
        self._more = True
        self._next: Step | None = None
        self._ended = -1
        self._begun = np.zeros(len(part.hosts), dtype=np.int64)
        self._over = np.zeros(len(part.hosts), dtype=np.bool_)
        self._waits: dict[int, int] = {}
        self._slow = np.full(len(part.hosts), SLOW_UNIT, dtype=np.int64)
        self._busy = [0] * len(part.stations)
        self._queues: dict[tuple[int, int | None], Queue] = {}
        if len(part.hosts):
            self._step(1)
            for process in range(len(part.hosts)):
                self._env.process(self._run(process))
        else:
            flow = self._flow()
            first = next(flow, None)  # what begins at once is sent at once: the network would hear of it too late
            if first is not None:
                self._env.process(_rest(first, flow))

    # --- what others see of it ----------------------------------------------------------------------------------

    @property
    def more_to_come(self) -> bool:
        """Whether there are steps that have not been begun."""
        return self._more

    @property
    def begun(self) -> Ints:
        return self._begun

    @property
    def left(self) -> int:
        return sum(played.left for played in self._played)

    @property
    def finished(self) -> bool:
        return not self._more and self._next is None and bool(self._over.all()) and not self.left

    @property
    def ended_ps(self) -> Ps:
        return Ps(self._ended)

    @property
    def steps(self) -> list[Over]:
        return [Over(each.step, each.numbers, each.ready, each.started, each.notes) for each in self._played]

    def waiting(self) -> list[tuple[int, int]]:
        return sorted(self._waits.items())

    def slow(self, host: int, factor: float) -> None:
        self._slow[self.part.hosts == host] = round(factor * SLOW_UNIT)

    # --- steps --------------------------------------------------------------------------------------------------

    def _peek(self) -> Step | None:
        """The step after those that are played; None behind the last one."""
        if self._next is None and self._more:
            self._next = next(self._steps, None)
            self._more = self._next is not None
        return self._next

    def _step(self, number: int) -> Played | None:
        """A step, made when it is asked for first; None behind the last one."""
        while number >= len(self._played) and (step := self._peek()) is not None:
            self._next = None
            self._played.append(Played(step, len(self._played), self._events[-1], len(self.part.hosts)))
            if hasattr(self._coupling.fabric, "reserve"):
                self._played[-1].numbers[:] = self._coupling.fabric.reserve(len(step.messages))
                self._played[-1].numbers += np.arange(len(step.messages))
            self._events.append(self._events[-1] + len(step))
        return self._played[number] if number < len(self._played) else None

    def _event(self, number: int) -> Event:
        index = int(np.searchsorted(self._events, number, side="right")) - 1
        return self._played[index].events[number - self._events[index]]

    # --- processes ----------------------------------------------------------------------------------------------

    def _run(self, process: int) -> Course:
        number = 0
        while (played := self._step(number)) is not None:
            for course in played.step.courses:
                if course.process == process:
                    yield from self._course(process, played, course.operations.tolist())
            self._begun[process] += 1
            number += 1
            if number + 1 >= len(self._played):
                self._env.process(self._prepare(number + 1))
        self._over[process] = True
        self._ended = int(self._env.now)

    def _prepare(self, number: int) -> Course:
        """Make a step, one more than the first process is in.

        Messages are numbered as steps are made: of several parts that come to it at the same time in the parts' order.
        """
        yield Last(self._env, self._number)
        self._step(number)

    def _course(
        self, process: int, played: Played, operations: list[tuple[int, int, int]]
    ) -> Course:
        env, computed = self._env, 0
        for operation, value, _ in operations:
            if operation == COMPUTE:
                whole, rest = divmod(value, SLOW_UNIT)
                value = whole * int(self._slow[process]) + rest * int(self._slow[process]) // SLOW_UNIT
                computed += value
                yield env.timeout(value)
            elif operation == WAIT:
                event = self._event(value)
                if not event.fired:
                    event.waiter = env.event()
                    self._waits[process] = value
                    yield event.waiter
                    del self._waits[process]
            elif operation == FIRE:
                self._count(self._event(value))
            elif operation == UNTIL:
                if value > env.now:
                    yield env.timeout(value - int(env.now))
            elif operation == NOTE:
                played.notes[process, value] = int(env.now)
                if value == NOTES - 2:
                    played.notes[process, value + 1], computed = computed, 0

    def _flow(self) -> Course:
        """Messages that begin by themselves are sent one software latency before the first of their step does so."""
        env, latency = self._env, self._coupling.latency
        while (step := self._peek()) is not None:
            assert step.begins is not None
            own = np.flatnonzero(step.begins >= 0)
            if len(own) and (early := int(step.begins[own].min()) - latency - int(env.now)) > 0:
                yield env.timeout(early)
                yield Last(env, self._number)
            played = self._step(len(self._played))
            assert played is not None
            for message in own.tolist():
                played.ready[message] = step.begins[message]
                self._send(played, message, Ps(int(step.begins[message])))

    # --- events -------------------------------------------------------------------------------------------------

    def _count(self, event: Event) -> None:
        """One of the things that an event needs has happened."""
        event.needs -= 1
        if event.needs == 0 and not self._works(event):
            self._fire(event)

    def _works(self, event: Event) -> bool:
        if event.station < 0:
            return False
        end = max(int(self._env.now), self._busy[event.station]) + event.effort
        self._busy[event.station] = end
        done = self._env.timeout(end - int(self._env.now))
        assert done.callbacks is not None
        done.callbacks.append(lambda _: self._fire(event))
        return True

    def _fire(self, event: Event) -> None:
        """An event happens, with all that follows from it at once."""
        open_: list[tuple[Event, int]] = [(self._begin(event), 0)]
        while open_:
            current, place = open_.pop()
            if place == len(current.after):
                continue
            open_.append((current, place + 1))
            following = current.after[place]
            following.needs -= 1
            if following.needs == 0 and not self._works(following):
                open_.append((self._begin(following), 0))

    def _begin(self, event: Event) -> Event:
        event.fired = True
        for played, message in event.posts:
            self._ready(played, message)
        if event.waiter is not None:
            event.waiter.succeed()
        return event

    # --- messages -----------------------------------------------------------------------------------------------

    def _ready(self, played: Played, message: int) -> None:
        now = Ps(int(self._env.now))
        played.ready[message] = now
        if self.part.table.order == FIFO:
            self._send(played, message, now)
            return
        row = played.step.messages
        key = (int(row.src[message]), int(row.dst[message]) if self.part.table.apart else None)
        queue = self._queues.setdefault(key, Queue(self.part.table.credit))
        made = self._message(played, message, now)
        made.settled = lambda each: self._settled(queue, each)
        heappush(queue.heap, (int(row.rank[message]), queue.offered, made))
        queue.offered += 1
        self._fill(queue)

    def _settled(self, queue: Queue, message: Message) -> None:
        queue.under_way -= message.bytes
        self._fill(queue)

    def _fill(self, queue: Queue) -> None:
        """Release what the credit allows; a message larger than all of it goes when nothing else does."""
        while queue.heap and (not queue.under_way or queue.under_way + queue.heap[0][2].bytes <= queue.credit):
            message = heappop(queue.heap)[2]
            queue.under_way += message.bytes
            self._hand_over(message, Ps(int(self._env.now) + self._coupling.latency))

    def _send(self, played: Played, message: int, start: Ps) -> None:
        begins = played.step.begins
        timed = begins is not None and begins[message] >= 0
        at = start if timed else Ps(start + self._coupling.latency)
        self._hand_over(self._message(played, message, start), at)

    def _hand_over(self, message: Message, at: Ps) -> None:
        self._coupling.send(message, at)
        message.sent(message, at)

    def _message(self, played: Played, message: int, start: Ps) -> Message:
        rows, table = played.step.messages, self.part.table
        settles = -1 if played.step.settles is None else int(played.step.settles[message])

        def arrived(made: Message) -> None:
            played.left -= 1
            self._ended = int(self._env.now)
            self._count(played.events[message])

        def sent(made: Message, at: Ps) -> None:
            played.numbers[message], played.started[message] = made.number, at

        def value(name: str) -> int:
            return int(getattr(rows, name)[message])

        return Message(
            table.name, KINDS[rows.kind[message]], value("iteration"), value("tensor"), value("part"), value("src"),
            value("dst"), Bytes(value("nbytes")), value("priority"), float(rows.bound[message]),
            rows.important[message], arrived, start_ps=start, transport=table.transport, sent=sent,
            number=int(played.numbers[message]), share=float(rows.share[message]), pool=value("pool"),
            turn=value("turn"), fan=self._fan(played, message), since=since_of(played.notes, played.number),
            settled=None if settles < 0 else lambda made: self._count(played.events[settles]),
        )  # fmt: skip


    def _fan(self, played: Played, message: int) -> tuple[int, int] | None:
        """The fan of a message, and its place there; none on a network whose switches do not sum."""
        fans, rows, make = played.step.fans, played.step.messages, getattr(self._coupling.fabric, "fan", None)
        if fans is None or fans[message] < 0 or make is None:
            return None
        number, members = int(fans[message]), np.flatnonzero(fans == fans[message])
        if number not in played.fans:
            nbytes = Bytes(int(rows.nbytes[message]))
            played.fans[number] = make(
                rows.src[members].tolist(), rows.dst[members].tolist(), nbytes, self.part.table.transport
            )
        return played.fans[number], int(np.searchsorted(members, message))


def _rest(first: simpy.Event, flow: Course) -> Course:
    yield first
    yield from flow
