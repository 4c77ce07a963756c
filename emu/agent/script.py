"""Script: one host's part of a program, run on a clock.

It computes (by letting time pass), waits, and says when a message may go; it is told what has arrived and what is
settled. It knows nothing of sockets. What happens at one moment happens in the order that `gradwire.experiment.program`
lays down.

Computing is timed from where it should have begun, not from where a late timer let it begin, so that the agent's own
delays do not add up over the steps of an iteration; times of an iteration are exact for that reason too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from gradwire.components.layout import SLOW_UNIT
from gradwire.emu.agent.base import Loop
from gradwire.emu.agent.host_part import Part
from gradwire.experiment.program import COMPUTE, FIRE, NOTE, UNTIL, WAIT, Operation, Process
from gradwire.experiment.scheduling import LAYER

PS_PER_NS = 1000
FAR = 1 << 62


class IterationRow(NamedTuple):
    """One row of the Result's table of iterations; `job` is an index into the program's tables, times are picoseconds
    since the beginning."""

    job: int
    worker: int
    iteration: int
    start_ps: int
    forward_end_ps: int
    backward_end_ps: int
    end_ps: int
    compute_ps: int
    exposed_ps: int


class Script:
    """A host's part of a program, running.

    Attributes
    ----------
    starts : message -> ticks of the loop when it became ready (traffic: when it entered the network).
    iterations : rows of iterations that are over.
    """

    def __init__(
        self,
        part: Part,
        loop: Loop,
        send: Callable[[int], None],
        latency_ps: int = 0,
        tick_ps: int = PS_PER_NS,
        slowness: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Nothing happens before `start`.

        Parameters
        ----------
        send : called with a message that may go now.
        latency_ps : between a job's decision to send and `send`: the software latency of the plan where the clock is
            virtual; 0 on the wall clock, where it passes by itself.
        tick_ps : picoseconds of a tick of the loop, which counts nanoseconds as a rule.
        slowness : (from which picosecond on, how many times longer computing takes, times `SLOW_UNIT`), rising from 0;
            nothing: it never does. It counts what begins to be computed then.
        """
        self.part, self._loop, self._send = part, loop, send
        self._latency, self._tick = latency_ps, tick_ps
        self._slowness = list(slowness)
        self.starts: dict[int, int] = {}
        self.iterations: list[IterationRow] = []
        self._left = dict(part.needs)
        self._fired: set[int] = set()
        self._busy: dict[int, int] = {}  # station -> ps until which it is
        self._waiting: dict[int, list[_Course]] = {}  # by the event that they wait for
        self._courses = [_Course(process) for process in part.processes]
        self._running = len(self._courses)
        self._workers = sum(process.worker >= 0 for process in part.processes)
        self._queues: dict[tuple[int, int | None], _Queue] = {}
        self._unsettled = {number for number, row in part.rows.items() if row.src == part.node}
        self._missing = {number for number, row in part.rows.items() if row.dst == part.node}

    @property
    def done(self) -> bool:
        """Whether all processes are over, all messages from here are settled and all to here delivered."""
        return not (self._running or self._unsettled or self._missing)

    @property
    def workers_done(self) -> bool:
        """Whether the workers on this host, if there are any, have finished their iterations."""
        return not self._workers

    def start(self, those: Iterable[int] | None = None) -> None:
        """Let processes (all, or those places in `Part.processes`) begin at the loop's zero."""
        for place in range(len(self._courses)) if those is None else those:
            self._at(0, self._run, self._courses[place])

    def delivered(self, message: int) -> None:
        """A message has arrived at this host. Call `settled` of its sender first where both are called at once."""
        self._missing.remove(message)
        self._count(message, own=False)

    def settled(self, message: int) -> None:
        """A message from this host is done with, as far as its sender knows."""
        self._unsettled.remove(message)
        row = self.part.rows[message]
        queue = self._queues.get((row.table, row.dst if self.part.tables[row.table].apart else None))
        if queue is not None:
            queue.settled(row.nbytes)

    def waiting(self) -> list[str]:
        """Who waits for what, for the report of a stall."""
        lines = []
        for event, courses in self._waiting.items():
            lacks = [number for number in sorted(self._missing) if event in self.part.after.get(number, ())]
            what = f"message {lacks[0]}" if lacks else f"event {event}"
            more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
            for course in courses:
                name = self.part.tables[course.process.job].name
                step = course.process.steps[course.place]
                number = course.process.worker
                who = f"worker {number}" if number >= 0 else f"a process of host {self.part.node}"
                lines.append(
                    f"job {name}: {who} waits for {what}{more}, of iteration {step.iteration}"
                )
        ready = [number for number in sorted(self._unsettled) if number in self.starts]
        if ready:
            lines.append(f"host {self.part.node}: {len(ready)} messages under way, first {ready[0]}")
        return lines

    # --- time

    def _now(self) -> int:
        return self._loop.now() * self._tick

    def _at(self, time_ps: int, call: Callable[..., None], *args: object) -> None:
        self._loop.at(-(-time_ps // self._tick), lambda: call(*args))

    # --- events

    def _count(self, event: int, own: bool) -> None:
        """One of the things that an event needs has happened; `own`: by the doing of a process."""
        self._settle([event], own)

    def _settle(self, counted: list[int], own: bool) -> None:
        """Count events, the last of the list first, and all that follows from each before the next."""
        while counted:
            event = counted.pop()
            left = self._left.get(event, 1) - 1
            self._left[event] = left
            if left:
                continue
            work = self.part.work.get(event)
            if work is None:
                counted += self._fire(event, own)
            else:
                station, effort = work
                end = max(self._now(), self._busy.get(station, 0)) + effort
                self._busy[station] = end
                self._at(end, self._worked, event)

    def _worked(self, event: int) -> None:
        self._settle(self._fire(event, False), False)

    def _fire(self, event: int, own: bool) -> list[int]:
        """An event happens; returns those that count it, last first."""
        self._fired.add(event)
        for message in self.part.posts.get(event, ()):
            self._post(message, own)
        for course in self._waiting.pop(event, ()):
            course.clock = max(course.clock, self._now())
            self._at(self._now(), self._run, course)
        return list(self.part.after.get(event, ())[::-1])

    def _post(self, message: int, own: bool) -> None:
        """A message is ready."""
        row = self.part.rows[message]
        table = self.part.tables[row.table]
        # Traffic that waits for its time only is meant to enter the network at that time.
        latency = self._latency if table.is_job or not own else 0
        self.starts[message] = self._loop.now() + (0 if table.is_job else -(-latency // self._tick))
        if table.order != LAYER:
            self._release(message, latency)
            return
        key = row.table, row.dst if table.apart else None
        queue = self._queues.get(key)
        if queue is None:
            queue = _Queue(table.credit, lambda number: self._release(number, self._latency))
            self._queues[key] = queue
        queue.offer(self.part.rank[message], message, row.nbytes)

    def _release(self, message: int, latency: int) -> None:
        if latency:
            self._at(self._now() + latency, self._send, message)
        else:
            self._send(message)

    # --- processes

    def _run(self, course: _Course) -> None:
        """Go on with a process, up to where it has to wait."""
        steps = course.process.steps
        while course.place < len(steps):
            operation, value, iteration = steps[course.place]
            if operation == WAIT:
                if value not in self._fired:
                    self._waiting.setdefault(value, []).append(course)
                    return
                course.place += 1
            elif operation == FIRE:
                course.place += 1
                self._count(value, own=True)
            elif operation == NOTE:
                course.place += 1
                self._note(course, value, iteration)
            else:
                if operation == COMPUTE:
                    passed, course.place = self._stretch(steps, course.place, course.clock)
                    course.clock += passed
                    course.computed += passed
                elif operation == UNTIL:
                    course.clock = max(course.clock, value)
                    course.place += 1
                if course.clock > self._now():
                    self._at(course.clock, self._run, course)
                    return
        self._running -= 1
        self._workers -= course.process.worker >= 0

    def _stretch(self, steps: Sequence[Operation], place: int, begin: int) -> tuple[int, int]:
        """(Computing from step `place` on without a stop, from picosecond `begin` on; the step after it): over all that
        is waited for in between if it is there already."""
        passed, at = 0, place
        while at < len(steps) and steps[at].operation in (COMPUTE, WAIT):
            if steps[at].operation == COMPUTE:
                passed += self._takes(steps[at].value, begin + passed)
            elif steps[at].value not in self._fired:
                return self._takes(steps[place].value, begin), place + 1
            at += 1
        return passed, at

    def _takes(self, effort: int, begin: int) -> int:
        """How long computing takes that begins at a time: longer while the host is slow."""
        if not self._slowness:
            return effort
        factor = self._slowness[bisect_right(self._slowness, (begin, FAR)) - 1][1]
        return effort // SLOW_UNIT * factor + effort % SLOW_UNIT * factor // SLOW_UNIT

    def _note(self, course: _Course, what: int, iteration: int) -> None:
        course.noted[what] = course.clock
        if what < len(course.noted) - 1:
            return
        process, (start, forward, backward, end) = course.process, course.noted
        compute, course.computed = course.computed, 0
        self.iterations.append(
            IterationRow(
                process.job,
                process.worker,
                iteration,
                start,
                forward,
                backward,
                end,
                compute,
                end - start - compute,
            )
        )


class _Course:
    """A process under way. `clock` : picoseconds up to which it has come; who is late has yet to reach them."""

    __slots__ = ("clock", "computed", "noted", "place", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.place = self.clock = self.computed = 0
        self.noted = [0] * 4


class _Queue:
    """Ready messages of one job by rank, released while fewer than `credit` bytes are under way."""

    def __init__(self, credit: int, release: Callable[[int], None]) -> None:
        self._credit, self._release = credit, release
        self._waiting: list[tuple[int, int, int, int]] = []
        self._offered = self._under_way = 0

    def offer(self, rank: int, message: int, nbytes: int) -> None:
        heappush(self._waiting, (rank, self._offered, message, nbytes))
        self._offered += 1
        self._fill()

    def settled(self, nbytes: int) -> None:
        self._under_way -= nbytes
        self._fill()

    def _fill(self) -> None:
        waiting = self._waiting
        while waiting and (not self._under_way or self._under_way + waiting[0][3] <= self._credit):
            _, _, message, nbytes = heappop(waiting)
            self._under_way += nbytes
            self._release(message)
