"""`SimpyPlayer` plays the program of one job or traffic with SimPy processes on any network, like the compiled player.

Does the same, event by event, as the engine's player (`gradwire.sim.engine.core.program_steps`). The oracle
(`gradwire.testing`) and ideal networks use it; tests hold both players equal.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import simpy

from gradwire.jit.records.constants import SLOW_UNIT
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.sim.engine.program.completed_step import NOTE_COLUMNS, CompletedStep, HandedOver, tie_origin
from gradwire.sim.processes.message import Message
from gradwire.workload.program import COMPUTE, FIRE, NOTE, UNTIL, WAIT, ProgramPart, Step
from gradwire.workload.scheduling import FIFO

if TYPE_CHECKING:
    from gradwire.sim.processes.coupling import Coupling

SimpyEvents = Generator[simpy.Event, object, None]
"""The events that a process waits for, as SimPy wants them."""


class LowPriorityEvent(simpy.Event):
    """An event at the present time, after all usual ones; among several the lowest rank comes first."""

    def __init__(self, env: simpy.Environment, rank: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=simpy.events.NORMAL + 1 + rank)  # type: ignore[arg-type]


class ProgramEvent:
    """An event that happens when all that it needs has happened."""

    __slots__ = ("after", "effort", "fired", "needs", "number", "posts", "station", "waiter")

    def __init__(self, number: int, needs: int, effort: int, station: int) -> None:
        self.number, self.needs, self.effort, self.station = number, needs, effort, station
        self.after: list[ProgramEvent] = []
        self.posts: list[tuple[SimpyTrack, int]] = []
        self.fired = False
        self.waiter: simpy.Event | None = None


class SimpyTrack:
    """A step that is being played."""

    def __init__(self, step: Step, number: int, first: int, processes: int) -> None:
        count, n = len(step), len(step.messages)
        self.step, self.number, self.left = step, number, n
        columns = (step.needs, step.effort, step.station)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.events = [ProgramEvent(first + i, *row) for i, row in enumerate(rows)]
        for starts, members, name in ((*step.after, "after"), (*step.posts, "posts")):
            for i in range(count):
                selected = members[starts[i] : starts[i + 1]].tolist()
                value = [self.events[e] for e in selected] if name == "after" else [(self, m) for m in selected]
                setattr(self.events[i], name, value)
        self.fans: dict[int, int] = {}  # base by number, once a message was sent
        self.numbers = np.full(n, -1, dtype=np.int64)
        self.ready = np.full(n, -1, dtype=np.int64)
        self.started = np.full(n, -1, dtype=np.int64)
        self.notes = np.full((processes, NOTE_COLUMNS), -1, dtype=np.int64)


class ReleaseQueue:
    """Messages of one host that wait for release, by rank and then by readiness."""

    def __init__(self, credit: int) -> None:
        self.credit, self.under_way, self.offered = credit, 0, 0
        self.heap: list[tuple[int, int, Message]] = []


class SimpyPlayer:
    """One part, played by SimPy processes (`gradwire.sim.processes.network_interface.Track`)."""

    def __init__(self, part: ProgramPart, coupling: Coupling, number: int) -> None:
        self.part, self._coupling, self._env, self._number = part, coupling, coupling.env, number
        self.handed = HandedOver()  # stays zero: nothing is handed over
        self._steps = part.steps()
        self._played: list[SimpyTrack] = []
        self._events = [0]  # number of the first event of each step
        self._more = True
        self._next: Step | None = None
        self._ended = -1
        self._begun = np.zeros(len(part.hosts), dtype=np.int64)
        self._over = np.zeros(len(part.hosts), dtype=np.bool_)
        self._waits: dict[int, int] = {}
        self._slow = np.full(len(part.hosts), SLOW_UNIT, dtype=np.int64)
        self._busy = [0] * len(part.stations)
        self._queues: dict[tuple[int, int | None], ReleaseQueue] = {}
        if len(part.hosts):
            self._step(1)
            for process in range(len(part.hosts)):
                self._env.process(self._run(process))
        else:
            flow = self._flow()
            first = next(flow, None)  # messages that begin at once are sent now, before the network advances
            if first is not None:
                self._env.process(_rest(first, flow))

    # --- progress -----------------------------------------------------------------------------------------------

    @property
    def has_more_steps(self) -> bool:
        return self._more

    @property
    def begun(self) -> Ints:
        return self._begun

    @property
    def undelivered(self) -> int:
        return sum(played.left for played in self._played)

    @property
    def finished(self) -> bool:
        return not self._more and self._next is None and bool(self._over.all()) and not self.undelivered

    @property
    def ended_ps(self) -> Ps:
        return Ps(self._ended)

    @property
    def steps(self) -> list[CompletedStep]:
        return [
            CompletedStep(played.step, played.numbers, played.ready, played.started, played.notes)
            for played in self._played
        ]

    def waiting(self) -> list[tuple[int, int]]:
        return sorted(self._waits.items())

    def slow_host(self, host: int, factor: float) -> None:
        self._slow[self.part.hosts == host] = round(factor * SLOW_UNIT)

    # --- steps --------------------------------------------------------------------------------------------------

    def _peek(self) -> Step | None:
        """Return the step after those played so far; None after the last."""
        if self._next is None and self._more:
            self._next = next(self._steps, None)
            self._more = self._next is not None
        return self._next

    def _step(self, number: int) -> SimpyTrack | None:
        """Return a step, creating it at the first request; None after the last."""
        while number >= len(self._played) and (step := self._peek()) is not None:
            self._next = None
            self._played.append(SimpyTrack(step, len(self._played), self._events[-1], len(self.part.hosts)))
            if hasattr(self._coupling.fabric, "reserve"):
                self._played[-1].numbers[:] = self._coupling.fabric.reserve(len(step.messages))
                self._played[-1].numbers += np.arange(len(step.messages))
            self._events.append(self._events[-1] + len(step))
        return self._played[number] if number < len(self._played) else None

    def _event(self, number: int) -> ProgramEvent:
        index = int(np.searchsorted(self._events, number, side="right")) - 1
        return self._played[index].events[number - self._events[index]]

    # --- processes ----------------------------------------------------------------------------------------------

    def _run(self, process: int) -> SimpyEvents:
        number = 0
        while (played := self._step(number)) is not None:
            for course in played.step.courses:
                if course.process == process:
                    yield from self._run_process(process, played, course.operations.tolist())
            self._begun[process] += 1
            number += 1
            if number + 1 >= len(self._played):
                self._env.process(self._prepare(number + 1))
        self._over[process] = True
        self._ended = int(self._env.now)

    def _prepare(self, number: int) -> SimpyEvents:
        """Create the step after the one that the first process is in. Messages are numbered as steps are created:
        simultaneous ones of several parts in the order of the parts."""
        yield LowPriorityEvent(self._env, self._number)
        self._step(number)

    def _run_process(self, process: int, played: SimpyTrack, operations: list[tuple[int, int, int]]) -> SimpyEvents:
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
                if value == NOTE_COLUMNS - 2:
                    played.notes[process, value + 1], computed = computed, 0

    def _flow(self) -> SimpyEvents:
        """Send each message that begins by itself one software latency before the first of its step starts."""
        env, latency = self._env, self._coupling.latency
        while (step := self._peek()) is not None:
            assert step.begins is not None
            starting = np.flatnonzero(step.begins >= 0)
            if len(starting) and (early := int(step.begins[starting].min()) - latency - int(env.now)) > 0:
                yield env.timeout(early)
                yield LowPriorityEvent(env, self._number)
            played = self._step(len(self._played))
            assert played is not None
            for message in starting.tolist():
                played.ready[message] = step.begins[message]
                self._send(played, message, Ps(int(step.begins[message])))

    # --- events -------------------------------------------------------------------------------------------------

    def _count(self, event: ProgramEvent) -> None:
        """Count one of the things that an event needs."""
        event.needs -= 1
        if event.needs == 0 and not self._compute(event):
            self._fire(event)

    def _compute(self, event: ProgramEvent) -> bool:
        if event.station < 0:
            return False
        end = max(int(self._env.now), self._busy[event.station]) + event.effort
        self._busy[event.station] = end
        done = self._env.timeout(end - int(self._env.now))
        assert done.callbacks is not None
        done.callbacks.append(lambda _: self._fire(event))
        return True

    def _fire(self, event: ProgramEvent) -> None:
        """Let an event happen, with all that follows from it at once."""
        stack: list[tuple[ProgramEvent, int]] = [(self._begin(event), 0)]
        while stack:
            current, index = stack.pop()
            if index == len(current.after):
                continue
            stack.append((current, index + 1))
            following = current.after[index]
            following.needs -= 1
            if following.needs == 0 and not self._compute(following):
                stack.append((self._begin(following), 0))

    def _begin(self, event: ProgramEvent) -> ProgramEvent:
        event.fired = True
        for played, message in event.posts:
            self._ready(played, message)
        if event.waiter is not None:
            event.waiter.succeed()
        return event

    # --- messages -----------------------------------------------------------------------------------------------

    def _ready(self, played: SimpyTrack, message: int) -> None:
        now = Ps(int(self._env.now))
        played.ready[message] = now
        if self.part.table.order == FIFO:
            self._send(played, message, now)
            return
        row = played.step.messages
        key = (int(row.src[message]), int(row.dst[message]) if self.part.table.apart else None)
        queue = self._queues.setdefault(key, ReleaseQueue(self.part.table.credit))
        waiting = self._message(played, message, now)
        waiting.settled = lambda settled: self._finished(queue, settled)
        heappush(queue.heap, (int(row.rank[message]), queue.offered, waiting))
        queue.offered += 1
        self._fill(queue)

    def _finished(self, queue: ReleaseQueue, message: Message) -> None:
        queue.under_way -= message.bytes
        self._fill(queue)

    def _fill(self, queue: ReleaseQueue) -> None:
        """Release what the credit allows; a message larger than the credit goes when nothing else is under way."""
        while queue.heap and (not queue.under_way or queue.under_way + queue.heap[0][2].bytes <= queue.credit):
            message = heappop(queue.heap)[2]
            queue.under_way += message.bytes
            self._deliver(message, Ps(int(self._env.now) + self._coupling.latency))

    def _send(self, played: SimpyTrack, message: int, start: Ps) -> None:
        begins = played.step.begins
        timed = begins is not None and begins[message] >= 0
        at = start if timed else Ps(start + self._coupling.latency)
        self._deliver(self._message(played, message, start), at)

    def _deliver(self, message: Message, at: Ps) -> None:
        self._coupling.send(message, at)
        message.sent(message, at)

    def _message(self, played: SimpyTrack, message: int, start: Ps) -> Message:
        rows, table = played.step.messages, self.part.table
        settles = -1 if played.step.settles is None else int(played.step.settles[message])

        def arrived(delivered: Message) -> None:
            played.left -= 1
            self._ended = int(self._env.now)
            self._count(played.events[message])

        def sent(started: Message, at: Ps) -> None:
            played.numbers[message], played.started[message] = started.number, at

        def value(name: str) -> int:
            return int(getattr(rows, name)[message])

        return Message(
            table.name, KINDS[rows.kind[message]], value("iteration"), value("tensor"), value("part"), value("src"),
            value("dst"), Bytes(value("nbytes")), value("priority"), float(rows.bound[message]),
            rows.important[message], arrived, start_ps=start, transport=table.transport, sent=sent,
            number=int(played.numbers[message]), share=float(rows.share[message]), pool=value("pool"),
            turn=value("turn"), fan=self._fan(played, message), since=tie_origin(played.notes, played.number),
            settled=None if settles < 0 else lambda _: self._count(played.events[settles]),
        )  # fmt: skip

    def _fan(self, played: SimpyTrack, message: int) -> tuple[int, int] | None:
        """Return the aggregation group of a message and its position there; None if the switches do not aggregate."""
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


def _rest(first: simpy.Event, flow: SimpyEvents) -> SimpyEvents:
    yield first
    yield from flow
