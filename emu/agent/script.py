"""`Script` advances one host's processes on a clock, letting compute times pass, waiting for deliveries and releasing
ready messages.

It is notified when messages are delivered or settled, and has no sockets. Simultaneous events occur in the order
defined by `gradwire.workload.program`.

Compute times start from the scheduled time, not from that of a late timer, so that the agent's delays do not add up
over the steps of an iteration; iteration times are exact for the same reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from gradwire.emu.agent.host_part import HostProgram
from gradwire.jit.records.constants import SLOW_UNIT
from gradwire.workload.program import COMPUTE, FIRE, NOTE, UNTIL, WAIT, Operation, Process
from gradwire.workload.scheduling import LAYER

if TYPE_CHECKING:
    from gradwire.emu.agent.loop import EpollLoop

PS_PER_NS = 1000
FAR = 1 << 62


class IterationRow(NamedTuple):
    """One row of the Result's table of iterations.

    job : an index into the program's tables. Times are picoseconds since the beginning.
    """

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

    starts : message -> ticks of the loop when it became ready (traffic: when it entered the network).
    iterations : rows of finished iterations.
    """

    def __init__(
        self,
        part: HostProgram,
        loop: EpollLoop,
        send: Callable[[int], None],
        latency_ps: int = 0,
        tick_ps: int = PS_PER_NS,
        slowness: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Make the script; nothing happens before `start`.

        send : called with a message that may be sent now.
        latency_ps : time between a job's decision to send and `send`: the plan's software latency if the clock is
            virtual; 0 on the wall clock, where it passes by itself.
        tick_ps : picoseconds of a tick of the loop, by default a nanosecond.
        slowness : (start in picoseconds, factor of compute times, times `SLOW_UNIT`), ascending from 0; empty: never
            slow. The factor at the start of a computation applies.
        """
        self.part, self._loop, self._send = part, loop, send
        self._latency, self._tick = latency_ps, tick_ps
        self._slowness = list(slowness)
        self.starts: dict[int, int] = {}
        self.iterations: list[IterationRow] = []
        self._left = dict(part.needs)
        self._fired: set[int] = set()
        self._busy: dict[int, int] = {}  # station -> ps of the end
        self._waiting: dict[int, list[_RunningProcess]] = {}  # by event
        self._courses = [_RunningProcess(process) for process in part.processes]
        self._running = len(self._courses)
        self._workers = sum(process.worker >= 0 for process in part.processes)
        self._queues: dict[tuple[int, int | None], _CreditQueue] = {}
        self._unsettled = {number for number, row in part.rows.items() if row.src == part.node}
        self._missing = {number for number, row in part.rows.items() if row.dst == part.node}

    @property
    def done(self) -> bool:
        """Return True if all processes have ended, and all messages are settled or delivered."""
        return not (self._running or self._unsettled or self._missing)

    @property
    def workers_done(self) -> bool:
        return not self._workers

    def start(self, those: Iterable[int] | None = None) -> None:
        """Start processes (all, or those with indices `those` in `HostProgram.processes`) at the loop's zero."""
        for index in range(len(self._courses)) if those is None else those:
            self._at(0, self._run, self._courses[index])

    def delivered(self, message: int) -> None:
        """Record the delivery of a message to this host; at equal times call its sender's `settled` first."""
        self._missing.remove(message)
        self._count_all([message], by_process=False)

    def message_finished(self, message: int) -> None:
        self._unsettled.remove(message)
        row = self.part.rows[message]
        queue = self._queues.get((row.table, row.dst if self.part.tables[row.table].apart else None))
        if queue is not None:
            queue.settled(row.nbytes)

    def waiting(self) -> list[str]:
        """Return lines about what each process waits for, for the report of a stall."""
        lines = []
        for event, courses in self._waiting.items():
            missing = [number for number in sorted(self._missing) if event in self.part.after.get(number, ())]
            awaited = f"message {missing[0]}" if missing else f"event {event}"
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            for course in courses:
                name = self.part.tables[course.process.job].name
                step = course.process.steps[course.place]
                number = course.process.worker
                waiter = f"worker {number}" if number >= 0 else f"a process of host {self.part.node}"
                lines.append(f"job {name}: {waiter} waits for {awaited}{others}, of iteration {step.iteration}")
        ready = [number for number in sorted(self._unsettled) if number in self.starts]
        if ready:
            lines.append(f"host {self.part.node}: {len(ready)} messages in flight, first {ready[0]}")
        return lines

    # --- time

    def _now_ps(self) -> int:
        return self._loop.now() * self._tick

    def _at(self, time_ps: int, call: Callable[..., None], *args: object) -> None:
        self._loop.at(-(-time_ps // self._tick), lambda: call(*args))

    # --- events

    def _count_all(self, counted: list[int], by_process: bool) -> None:
        """Count events, the last of the list first, and all consequences of each before the next; `by_process`: caused
        by a process."""
        while counted:
            event = counted.pop()
            remaining = self._left.get(event, 1) - 1
            self._left[event] = remaining
            if remaining:
                continue
            work = self.part.work.get(event)
            if work is None:
                counted += self._fire(event, by_process)
            else:
                station, effort = work
                end = max(self._now_ps(), self._busy.get(station, 0)) + effort
                self._busy[station] = end
                self._at(end, self._computed, event)

    def _computed(self, event: int) -> None:
        self._count_all(self._fire(event, False), False)

    def _fire(self, event: int, by_process: bool) -> list[int]:
        """Fire an event; return the events that it counts for, last first."""
        self._fired.add(event)
        for message in self.part.posts.get(event, ()):
            self._post(message, by_process)
        for course in self._waiting.pop(event, ()):
            course.clock = max(course.clock, self._now_ps())
            self._at(self._now_ps(), self._run, course)
        return list(self.part.after.get(event, ())[::-1])

    def _post(self, message: int, by_process: bool) -> None:
        row = self.part.rows[message]
        table = self.part.tables[row.table]
        # Traffic that waits only for its start time enters the network at that time.
        latency = self._latency if table.is_job or not by_process else 0
        self.starts[message] = self._loop.now() + (0 if table.is_job else -(-latency // self._tick))
        if table.order != LAYER:
            self._release(message, latency)
            return
        key = row.table, row.dst if table.apart else None
        queue = self._queues.get(key)
        if queue is None:
            queue = _CreditQueue(table.credit, lambda number: self._release(number, self._latency))
            self._queues[key] = queue
        queue.offer(self.part.rank[message], message, row.nbytes)

    def _release(self, message: int, latency: int) -> None:
        if latency:
            self._at(self._now_ps() + latency, self._send, message)
        else:
            self._send(message)

    # --- processes

    def _run(self, course: _RunningProcess) -> None:
        """Continue a process up to its next wait."""
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
                self._count_all([value], by_process=True)
            elif operation == NOTE:
                course.place += 1
                self._note(course, value, iteration)
            else:
                if operation == COMPUTE:
                    passed, course.place = self._compute_stretch(steps, course.place, course.clock)
                    course.clock += passed
                    course.computed += passed
                elif operation == UNTIL:
                    course.clock = max(course.clock, value)
                    course.place += 1
                if course.clock > self._now_ps():
                    self._at(course.clock, self._run, course)
                    return
        self._running -= 1
        self._workers -= course.process.worker >= 0

    def _compute_stretch(self, steps: Sequence[Operation], first: int, begin: int) -> tuple[int, int]:
        """Return the uninterrupted compute time from step `place` at picosecond `begin`, and the step after it. Waits
        for events that have already fired do not interrupt it."""
        passed, index = 0, first
        while index < len(steps) and steps[index].operation in (COMPUTE, WAIT):
            if steps[index].operation == COMPUTE:
                passed += self._compute_time(steps[index].value, begin + passed)
            elif steps[index].value not in self._fired:
                return self._compute_time(steps[first].value, begin), first + 1
            index += 1
        return passed, index

    def _compute_time(self, effort: int, begin: int) -> int:
        """Return the time of a computation that begins at `begin`, longer while the host is slow."""
        if not self._slowness:
            return effort
        factor = self._slowness[bisect_right(self._slowness, (begin, FAR)) - 1][1]
        return effort // SLOW_UNIT * factor + effort % SLOW_UNIT * factor // SLOW_UNIT

    def _note(self, course: _RunningProcess, index: int, iteration: int) -> None:
        course.noted[index] = course.clock
        if index < len(course.noted) - 1:
            return
        process, (start, forward, backward, end) = course.process, course.noted
        compute, course.computed = course.computed, 0
        self.iterations.append(
            IterationRow(
                process.job, process.worker, iteration, start, forward, backward, end, compute, end - start - compute
            )
        )


class _RunningProcess:
    """A running process. `clock` : picoseconds it has reached; a late process lags behind the loop's clock."""

    __slots__ = ("clock", "computed", "noted", "place", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.place = self.clock = self.computed = 0
        self.noted = [0] * 4


class _CreditQueue:
    """Ready messages of one job by rank, released while fewer than `credit` bytes are in flight."""

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
