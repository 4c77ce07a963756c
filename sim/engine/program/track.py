"""`Track` writes the steps of one job or traffic into the engine's state, follows their progress, and frees them.

A step is loaded as records: events, words of messages, operations of processes. The engine plays them
(`core.program_steps`); when nothing of a step is left its records are freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import State
from gradwire.jit.records.programs import (
    Event,
    LogRow,
    Operation,
    Process,
    ProgramMessage,
    ReleaseQueue,
    StepCount,
    Variant,
)
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.memory.aggregation_groups import write_groups
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.memory.records import InitialRecords
from gradwire.sim.engine.program.completed_step import NOTE_COLUMNS, CompletedStep, HandedOver
from gradwire.sim.engine.program.loaded_step import LoadedStep
from gradwire.workload.program import (
    FIRE,
    NOTE,
    START,
    TIE_DRAW_STEPS,
    WAIT,
    PacketImportance,
    ProgramPart,
    SkippingIterator,
    Step,
    StepSkip,
)
from gradwire.workload.scheduling import LAYER
from gradwire.workload.steps import shift_step

STEPS_AHEAD = 2  # steps loaded when the first process begins; it requests one at the end of every step

PostTimer = Callable[[int, Ps, int], None]
"""(base of a host's node or 0, time, key): put an entry on its heap, or among the timers of programs."""
TakeStep = Callable[["Track", CompletedStep], None]
"""Takes a completed step."""


class Track:
    """One part, and its progress (`gradwire.sim.processes.network_interface.Track`).

    Attributes
    ----------
    laid, events : numbers of steps so far, and of their events.
    """

    def __init__(self, part: ProgramPart, number: int, flows: Flows, post: PostTimer, logged: bool) -> None:
        """`logged`: log its packets, if packets are logged."""
        self.part, self.number, self._flows, self._post, self.logged = part, number, flows, post, logged
        state, arena = flows.memory.state, flows.arena
        self._steps = part.steps()
        self._next: Step | None = next(self._steps, None)
        self.live: list[LoadedStep] = []
        self.over: list[CompletedStep] = []
        self.handed = HandedOver()
        self.laid = 0
        self.events = 0
        count = len(part.hosts)
        self.processes = arena.allocate(Process.WORDS * count) if count else 0
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(count)]
        self._started = np.zeros(count, dtype=np.bool_)
        if count:
            self._table(self.processes, count, Process.WORDS)[:, Process.slowness.offset] = at.SLOW_UNIT
        self.stations = arena.allocate(len(part.stations)) if len(part.stations) else 0
        self.queues: dict[int, int] = {}  # by `_keys`
        self._rooms: dict[int, int] = {}
        self._known: dict[int, int] = {}  # all known messages of every queue: past, present and future
        self.done_ps, self.last_ps = -1, 0
        self._state = state

    def _table(self, base: int, rows: int, columns: int) -> Ints:
        return self._flows.memory.state[base : base + rows * columns].reshape(rows, columns)

    @property
    def has_more_steps(self) -> bool:
        return self._next is not None

    @property
    def begun(self) -> Ints:
        return self._table(self.processes, len(self.part.hosts), Process.WORDS)[:, Process.finished_parts.offset]

    @property
    def delivered(self) -> bool:
        """True if every message of the steps so far has been delivered."""
        return all(self._state[step.left] == 0 for step in self.live)

    @property
    def undelivered(self) -> int:
        return int(sum(self._state[step.left] for step in self.live))

    @property
    def steps(self) -> list[CompletedStep]:
        return [*self.over, *(self._outcome(step) for step in self.live)]

    def jump(self, jump: StepSkip, messages: int, by: Ps) -> None:
        """Move on by whole periods of steps, `by` picoseconds later, with higher message numbers. The skipped steps are
        like earlier ones and have been handed over by the caller."""
        assert self._next is not None
        cast("SkippingIterator", self._steps).jump(jump)
        self._next = shift_step(self._next, jump)
        for step in self.live:
            step.jump(self._state, len(self.part.hosts), jump, messages, by)
        self.laid += jump.steps
        self.events += jump.events
        # the times of completed steps (W_TIMES) are obsolete: the next step completed requests the next one
        self._table(self.processes, len(self.part.hosts), Process.WORDS)[:, Process.finished_parts.offset] += jump.steps
        self._state[self.stations : self.stations + len(self.part.stations)] += by
        self.last_ps += by

    @property
    def is_requesting(self) -> bool:
        """True if a process has completed enough steps to request the next one."""
        return bool(self.begun.max(initial=0) > self.laid - STEPS_AHEAD)

    def slow_host(self, host: int, factor: float) -> None:
        for process in np.flatnonzero(self.part.hosts == host).tolist():
            base = self.processes + Process.WORDS * process
            view(Process, self._state, base).slowness = round(factor * at.SLOW_UNIT)

    # --- loading steps ------------------------------------------------------------------------------------------

    @property
    def due(self) -> Ps:
        """Time at which the next step has to be loaded; FOREVER if nothing requests it. With processes, when the first
        of them had one loaded step fewer ahead than it needs; else one software latency before the first message begins
        by itself, as a process would."""
        if self._next is None:
            return Ps(at.FOREVER)
        if len(self.part.hosts):
            requesting_step = self.laid - STEPS_AHEAD  # the step whose end requested it
            if requesting_step < 0:
                return Ps(0)
            table = self._table(self.processes, len(self.part.hosts), Process.WORDS)
            rows = table[table[:, Process.finished_parts.offset] > requesting_step]
            return Ps(
                int(rows[:, Process.part_times.offset + (requesting_step & 3)].min()) if len(rows) else at.FOREVER
            )
        begins = self._next.begins
        assert begins is not None
        starts = begins[begins >= 0]
        return Ps(max(0, int(starts.min()) - int(self._state[State.host_latency.offset])) if len(starts) else 0)

    def load_next_step(self, now: Ps) -> None:
        """Load the next step."""
        assert self._next is not None
        step, self._next = self._next, next(self._steps, None)
        self._load(step, now)

    def _load(self, step: Step, now: Ps) -> None:
        flows, arena, state = self._flows, self._flows.arena, self._state
        n, count = len(step.messages), len(step)
        loaded = LoadedStep(step, flows.book.enter(n), self.events, self.laid)
        self.events += count
        self.laid += 1

        def take(size: int) -> int:
            base = arena.allocate(size)
            loaded.stretches.append((size, base))
            return base

        loaded.left = take(StepCount.WORDS)
        state[loaded.left] = n
        loaded.messages = take(max(1, n * ProgramMessage.WORDS))
        if len(self.part.hosts) or count > n:
            loaded.events = take(count * Event.WORDS)
            self._load_events(loaded, take)
        if n:
            self._load_messages(loaded, take)
        if step.courses:
            loaded.notes = take(NOTE_COLUMNS * len(self.part.hosts))
            state[loaded.notes : loaded.notes + NOTE_COLUMNS * len(self.part.hosts)] = -1
        self.live.append(loaded)
        for course in step.courses:
            operations = self._operations(loaded, course.process, course.operations)
            base = take(operations.size)
            state[base : base + operations.size] = operations.ravel()
            self.pending[course.process].append((base, base + operations.size))
        self.feed(now)

    def _load_messages(self, loaded: LoadedStep, take: Callable[[int], int]) -> None:
        flows, rows, memory, transport = (
            self._flows,
            loaded.step.messages,
            self._flows.memory,
            self.part.table.transport,
        )
        n = len(rows)
        packets = np.maximum(1, -(-rows.nbytes // flows.transports[transport].payload))
        if int(packets.max()) > at.MAX_PACKETS:
            raise ValueError(f"a message has {packets.max()} packets; expected at most {at.MAX_PACKETS}")
        book = flows.book.rows(loaded.first, n)
        for column, values in (
            (LogRow.src.offset, rows.src),
            (LogRow.dst.offset, rows.dst),
            (LogRow.nbytes.offset, rows.nbytes),
            (LogRow.packets.offset, packets),
            (LogRow.transport.offset, transport),
        ):
            book[:, column] = values
        tags, important = self._tag(loaded, packets)
        begin = InitialRecords(
            rows.src, rows.dst, rows.nbytes, packets, rows.priority, rows.share, rows.bound, rows.pool, tags, important
        )
        variants, of = flows.variants(begin, transport)
        fans = 0
        if loaded.step.fans is not None:
            fans = write_groups(memory, take, loaded.step.fans, rows.src, rows.dst, packets)
        for word, value in (
            (Variant.is_logged.offset, int(self.logged)),
            (Variant.step_count.offset, loaded.left),
            (Variant.messages.offset, loaded.messages),
            (Variant.first_message.offset, loaded.first),
            (Variant.events.offset, loaded.events),
            (Variant.has_no_events.offset, not len(self.part.hosts)),
            (Variant.aggregations.offset, fans),
        ):
            variants[:, word] = value
        base = take(variants.size)
        self._state[base : base + variants.size] = variants.ravel()
        table = self._table(loaded.messages, n, ProgramMessage.WORDS)
        table[:, ProgramMessage.host.offset] = memory.node_base[rows.src]
        table[:, ProgramMessage.destination.offset] = rows.dst | rows.turn << at.TURN_SHIFT
        table[:, ProgramMessage.rank.offset] = rows.rank
        table[:, ProgramMessage.variant.offset] = base + Variant.WORDS * of
        table[:, ProgramMessage.ready_at.offset] = -1
        table[:, ProgramMessage.released_at.offset] = -1
        if loaded.step.begins is not None:
            begins = loaded.step.begins
            timed = begins >= 0
            table[timed, ProgramMessage.ready_at.offset] = table[timed, ProgramMessage.released_at.offset] = begins[
                timed
            ]
            loaded.soonest = np.minimum.accumulate(np.where(timed, begins, at.FOREVER)[::-1])[::-1]
        if loaded.step.settles is not None:
            settles = loaded.step.settles
            table[:, ProgramMessage.done_event.offset] = np.where(
                settles >= 0, loaded.events + Event.WORDS * settles, 0
            )
        if self.part.table.order == LAYER:
            self._assign_queues(loaded, table)

    def _assign_queues(self, loaded: LoadedStep, table: Ints) -> None:
        """Assign messages to release queues, and make room there. `table`: the words of the messages."""
        keys, which, counts = np.unique(self._keys(loaded), return_inverse=True, return_counts=True)
        table[:, ProgramMessage.queue.offset] = np.array([self._queue(key) for key in keys.tolist()])[which.reshape(-1)]
        for key, more in zip(keys.tolist(), counts.tolist(), strict=True):
            self._grow_queue(key, more)

    def _tag(self, loaded: LoadedStep, packets: Ints) -> tuple[Ints, Ints]:
        """Store the important packets: return where the bits of every message are, and how many are set."""
        important, flows = loaded.step.messages.important, self._flows
        default = int(flows.transports[self.part.table.transport].important)
        assert isinstance(important, PacketImportance)
        tags = np.select(
            [important.pattern == PacketImportance.ALL, important.pattern == PacketImportance.NONE], [1, 0], default
        ).astype(np.int64)
        counts = tags * packets
        for pattern in np.unique(important.pattern[important.pattern >= 0]).tolist():
            flags = important.patterns[pattern]
            members = important.pattern == pattern
            if (packets[members] != len(flags)).any():
                raise ValueError("an importance pattern does not have one flag per packet")
            tags[members], counts[members] = flows.tags(flags, len(flags))
            loaded.stretches.append((-(-len(flags) // 32), int(tags[members][0])))
        return tags, counts

    def _load_events(self, loaded: LoadedStep, take: Callable[[int], int]) -> None:
        step, state = loaded.step, self._state
        table = self._table(loaded.events, len(step), Event.WORDS)
        table[:, Event.needs.offset] = step.needs
        table[:, Event.effort.offset] = step.effort
        table[:, Event.resource.offset] = np.where(step.station >= 0, self.stations + step.station, 0)
        for lists, base_word, count_word, first, size in (
            (step.after, Event.dependents.offset, Event.dependent_count.offset, loaded.events, Event.WORDS),
            (step.posts, Event.posts.offset, Event.post_count.offset, loaded.messages, ProgramMessage.WORDS),
        ):
            starts, members = lists
            if len(members):
                base = take(len(members))
                state[base : base + len(members)] = first + members * size
                table[:, base_word] = base + starts[:-1]
            table[:, count_word] = np.diff(starts)

    def _operations(self, loaded: LoadedStep, process: int, rows: Ints) -> Ints:
        """Return the words of a process's operations."""
        kind, value = rows[:, 0], rows[:, 1].copy()
        event_rows = np.flatnonzero((kind == WAIT) | (kind == FIRE))
        value[event_rows] = [self._event(number) for number in value[event_rows].tolist()]
        assert not ((kind == FIRE) & (value == 0)).any(), "a past event is fired"
        note_rows = kind == NOTE
        notes = loaded.notes + NOTE_COLUMNS * process
        value[note_rows] += notes
        words = np.stack((kind, value), axis=1)
        ends = np.flatnonzero(
            note_rows & (value == notes + NOTE_COLUMNS - 2)
        )  # the computing time is recorded with the end
        words = np.insert(words, ends + 1, (at.O_COMPUTED, notes + NOTE_COLUMNS - 1), axis=0)
        if loaded.number < TIE_DRAW_STEPS:
            return words
        begins = np.flatnonzero((words[:, 0] == at.O_NOTE) & (words[:, 1] == notes + START))
        return np.insert(words, begins + 1, (at.O_BEGIN, loaded.left + StepCount.since.offset), axis=0)

    def _event(self, number: int) -> int:
        """Return the base of an event, counted through the part; 0 if it happened long ago."""
        for loaded in reversed(self.live):
            if number >= loaded.event:
                return loaded.events + Event.WORDS * (number - loaded.event)
        return 0

    def _keys(self, loaded: LoadedStep) -> Ints:
        """Return the release queue of each message: its host, or its host and destination."""
        rows = loaded.step.messages
        return rows.src << 32 | rows.dst if self.part.table.apart else rows.src

    def _queue(self, key: int) -> int:
        """Return the base of a release queue."""
        if key not in self.queues:
            base = self.queues[key] = self._flows.arena.allocate(ReleaseQueue.WORDS)
            view(ReleaseQueue, self._state, base).credit = self.part.table.credit
            self._rooms[key] = 0
        return self.queues[key]

    def _grow_queue(self, key: int, more: int) -> None:
        """Make room in a queue for more messages: it holds all known messages that have not left yet."""
        base, arena, state = self._queue(key), self._flows.arena, self._state
        self._known[key] = self._known.get(key, 0) + more
        release_queue = view(ReleaseQueue, state, base)
        used = int(release_queue.count)
        if (need := 2 * (self._known[key] - int(release_queue.offered) + used)) <= self._rooms[key]:
            return
        heap, old = arena.allocate(2 * need), int(release_queue.heap)
        state[heap : heap + 2 * used] = state[old : old + 2 * used]
        if old:
            arena.free(self._rooms[key], old)
        release_queue.heap, self._rooms[key] = heap, 2 * need

    def _column(self, loaded: LoadedStep, word: int) -> Ints:
        return self._table(loaded.messages, len(loaded), ProgramMessage.WORDS)[:, word]

    def _load_next_step(self, process: int, now: Ps) -> None:
        """Give a process the operations of its next step, if it has none left."""
        state, base, pending = self._state, self.processes + Process.WORDS * process, self.pending[process]
        process_record = view(Process, state, base)
        if pending and not self._started[process]:
            self._started[process] = True
            process_record.operation, process_record.schedule_end = pending.popleft()
            self._post(0, now, base << 1)
        if pending and process_record.is_starved:
            process_record.is_starved = 0
            process_record.operation, process_record.schedule_end = pending.popleft()
        if pending and process_record.next_schedule == 0:
            process_record.next_schedule, process_record.next_schedule_end = pending.popleft()

    # --- progress -----------------------------------------------------------------------------------------------

    def feed(self, now: Ps) -> None:
        """Give processes the operations that are known."""
        for process in range(len(self.pending)):
            if self.pending[process]:
                self._load_next_step(process, now)

    @property
    def finished(self) -> bool:
        if self._next is not None or not self.delivered:
            return False
        table = self._table(self.processes, len(self.part.hosts), Process.WORDS)
        return bool(table[:, Process.is_starved.offset].all()) and not any(self.pending)

    @property
    def ended_ps(self) -> Ps:
        table = self._table(self.processes, len(self.part.hosts), Process.WORDS)
        last = max((int(self._state[step.left + 1]) for step in self.live), default=0)
        return Ps(max(last, self.last_ps, int(table[:, Process.starved_at.offset].max(initial=0))))

    def waiting(self) -> list[tuple[int, int]]:
        waiting = []
        for process in range(len(self.part.hosts)):
            base = self.processes + Process.WORDS * process
            process_record = view(Process, self._state, base)
            last = int(process_record.operation) - Operation.WORDS
            if not self._started[process] or process_record.is_starved or self._state[last] != at.O_WAIT:
                continue
            event = int(self._state[last + 1])
            for step in self.live:
                offset = event - step.events
                if 0 <= offset < len(step.step) * Event.WORDS and view(Event, self._state, event).waiter.base == base:
                    waiting.append((process, step.event + offset // Event.WORDS))
        return waiting

    def _outcome(self, loaded: LoadedStep) -> CompletedStep:
        notes = np.zeros((len(self.part.hosts), NOTE_COLUMNS), dtype=np.int64)
        if loaded.notes:
            notes = self._table(loaded.notes, len(self.part.hosts), NOTE_COLUMNS).copy()
        numbers = loaded.first + np.arange(len(loaded))
        ready, started = (
            self._column(loaded, word).copy()
            for word in (ProgramMessage.ready_at.offset, ProgramMessage.released_at.offset)
        )
        return CompletedStep(loaded.step, numbers, ready, started, notes)

    def sweep(self, take: TakeStep | None) -> None:
        """Free the first steps of which nothing is left, or all of them when everything has been played. Nothing is
        left if all messages are closed, all events have happened and no process can refer to one. The steps go to
        `take`, or are kept."""
        while self.live:
            loaded = self.live[0]
            if self._state[loaded.left + 2] < len(loaded) or self._state[loaded.left]:
                return
            if len(self.part.hosts):
                needs = self._table(loaded.events, len(loaded.step), Event.WORDS)[:, Event.needs.offset]
                last_step = self.handed.steps + len(self.over) + self.part.reach  # the last step that can refer to one
                if (self.begun.min() <= last_step or (needs != at.FIRED).any()) and not self.finished:
                    return
            if take is None:
                self.over.append(self._outcome(loaded))
            else:
                take(self, self._outcome(loaded))
                self.handed.steps += 1
                self.handed.messages += len(loaded)
                self.handed.nbytes += int(loaded.step.messages.nbytes.sum())
                self.handed.events += len(loaded.step)
            self._flows.arena.free_many(loaded.stretches)
            self.last_ps = max(self.last_ps, int(self._state[loaded.left + 1]))
            del self.live[0]
