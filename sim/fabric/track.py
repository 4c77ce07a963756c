"""A track: one part of a program in the state of the engine, and how far it has come.

A step is laid into the state as records: events, the words of its messages, the courses of its processes. The engine
plays them (`core.play`); of a step of which nothing is left the records are freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.program import DRAWN, FIRE, NOTE, START, WAIT, Importance, Jump, Jumping, Part, Step
from gradwire.experiment.repeating import later
from gradwire.experiment.scheduling import LAYER
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.fans import lay_fans
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.laid import Laid
from gradwire.sim.fabric.over import NOTES, Handed, Over
from gradwire.sim.fabric.records import Begin

AHEAD = 2  # steps that are known when the first process begins: one is asked for at the end of every step of it

Post = Callable[[int, Ps, int], None]
"""(base of a host's node or 0, time, key): put something on its heap, or among the timers of programs."""
Take = Callable[["Track", Over], None]
"""Take a step that is over."""


class Track:
    """One part, and how far it has come.

    Attributes
    ----------
    steps : all steps so far, as `Over`, without those that were handed over.
    handed : how much that was.
    laid, events : steps so far, and how many events they have.
    begun : int64[processes]: how many stretches of its course (steps) every process has come to the end of.
    """

    def __init__(self, part: Part, number: int, flows: Flows, post: Post, logged: bool) -> None:
        """`logged`: its packets are noted, if any are."""
        self.part, self.number, self._flows, self._post, self.logged = part, number, flows, post, logged
        M, arena = flows.memory.M, flows.arena
        self._steps = part.steps()
        self._next: Step | None = next(self._steps, None)
        self.live: list[Laid] = []
        self.over: list[Over] = []
        self.handed = Handed()
        self.laid = 0
        self.events = 0
        count = len(part.hosts)
        self.processes = arena.allocate(at.PROCESS_WORDS * count) if count else 0
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(count)]
        self._started = np.zeros(count, dtype=np.bool_)
        if count:
            self._table(self.processes, count, at.PROCESS_WORDS)[:, at.W_SLOW] = at.SLOW_UNIT
        self.stations = arena.allocate(len(part.stations)) if len(part.stations) else 0
        self.queues: dict[int, int] = {}  # by `_keys`
        self._rooms: dict[int, int] = {}
        self._known: dict[int, int] = {}  # messages that every queue has, had, or will have, as far as is known
        self.done_ps, self.last_ps = -1, 0
        self._M = M

    def _table(self, base: int, rows: int, columns: int) -> Ints:
        return self._flows.memory.M[base : base + rows * columns].reshape(rows, columns)

    @property
    def more_to_come(self) -> bool:
        """Whether there are steps that have not been begun."""
        return self._next is not None

    @property
    def begun(self) -> Ints:
        return self._table(self.processes, len(self.part.hosts), at.PROCESS_WORDS)[:, at.W_BEGUN]

    @property
    def delivered(self) -> bool:
        """Whether every message of the steps so far has been."""
        return all(self._M[laid.left] == 0 for laid in self.live)

    @property
    def left(self) -> int:
        """Messages of the steps so far that have not been delivered."""
        return int(sum(self._M[laid.left] for laid in self.live))

    @property
    def steps(self) -> list[Over]:
        """What is known of every step so far that has not been handed over."""
        return [*self.over, *(self._seen(laid) for laid in self.live)]

    def jump(self, jump: Jump, messages: int, by: Ps) -> None:
        """Be so many steps further, `by` picoseconds later, with messages numbered so much higher: the steps in between
        are like those so many periods before them, and somebody else has told of them."""
        assert self._next is not None
        cast("Jumping", self._steps).jump(jump)
        self._next = later(self._next, jump)
        for laid in self.live:
            laid.jump(self._M, len(self.part.hosts), jump, messages, by)
        self.laid += jump.steps
        self.events += jump.events
        # when processes have begun steps (W_TIMES) is of no more use: the next step is asked for by who begins one next
        self._table(self.processes, len(self.part.hosts), at.PROCESS_WORDS)[:, at.W_BEGUN] += jump.steps
        self._M[self.stations : self.stations + len(self.part.stations)] += by
        self.last_ps += by

    @property
    def asks(self) -> bool:
        """Whether a process has begun as many steps as let the next one be asked for."""
        return bool(self.begun.max(initial=0) > self.laid - AHEAD)

    def slow(self, host: int, factor: float) -> None:
        """From now on computing takes `factor` times as long on a host."""
        for process in np.flatnonzero(self.part.hosts == host).tolist():
            base = self.processes + at.PROCESS_WORDS * process
            self._M[base + at.W_SLOW] = round(factor * at.SLOW_UNIT)

    # --- laying steps -------------------------------------------------------------------------------------------

    @property
    def due(self) -> Ps:
        """When the next step has to be laid: for processes, when the first of them had one step less before it than it
        is to know; else one software latency before the first of it begins by itself, as a process would. FOREVER
        if nothing asks for it."""
        if self._next is None:
            return Ps(at.FOREVER)
        if len(self.part.hosts):
            asked = self.laid - AHEAD  # the stretch whose end asked for it
            if asked < 0:
                return Ps(0)
            table = self._table(self.processes, len(self.part.hosts), at.PROCESS_WORDS)
            those = table[table[:, at.W_BEGUN] > asked]
            return Ps(int(those[:, at.W_TIMES + (asked & 3)].min()) if len(those) else at.FOREVER)
        begins = self._next.begins
        assert begins is not None
        own = begins[begins >= 0]
        return Ps(max(0, int(own.min()) - int(self._M[at.H_HOST_LATENCY])) if len(own) else 0)

    def more(self, now: Ps) -> None:
        """Lay the next step."""
        assert self._next is not None
        step, self._next = self._next, next(self._steps, None)
        self._lay(step, now)

    def _lay(self, step: Step, now: Ps) -> None:
        flows, arena, M = self._flows, self._flows.arena, self._M
        n, count = len(step.messages), len(step)
        laid = Laid(step, flows.book.enter(n), self.events, self.laid)
        self.events += count
        self.laid += 1

        def take(size: int) -> int:
            base = arena.allocate(size)
            laid.stretches.append((size, base))
            return base

        laid.left = take(at.LEFT_WORDS)
        M[laid.left] = n
        laid.messages = take(max(1, n * at.MESSAGE_WORDS))
        if len(self.part.hosts) or count > n:
            laid.events = take(count * at.EVENT_WORDS)
            self._lay_events(laid, take)
        if n:
            self._lay_messages(laid, take)
        if step.courses:
            laid.notes = take(NOTES * len(self.part.hosts))
            M[laid.notes : laid.notes + NOTES * len(self.part.hosts)] = -1
        self.live.append(laid)
        for course in step.courses:
            operations = self._operations(laid, course.process, course.operations)
            base = take(operations.size)
            M[base : base + operations.size] = operations.ravel()
            self.pending[course.process].append((base, base + operations.size))
        self.feed(now)

    def _lay_messages(self, laid: Laid, take: Callable[[int], int]) -> None:
        flows, rows, memory, transport = self._flows, laid.step.messages, self._flows.memory, self.part.table.transport
        n = len(rows)
        packets = np.maximum(1, -(-rows.nbytes // flows.transports[transport].payload))
        if int(packets.max()) > at.MAX_PACKETS:
            raise ValueError(f"a message of {packets.max()} packets")
        book = flows.book.rows(laid.first, n)
        for column, values in (
            (at.B_SRC, rows.src), (at.B_DST, rows.dst), (at.B_BYTES, rows.nbytes), (at.B_PACKETS, packets),
            (at.B_TRANSPORT, transport),
        ):  # fmt: skip
            book[:, column] = values
        tags, important = self._tag(laid, packets)
        begin = Begin(
            rows.src, rows.dst, rows.nbytes, packets, rows.priority, rows.share, rows.bound, rows.pool, tags,
            important,
        )  # fmt: skip
        variants, of = flows.variants(begin, transport)
        fans = 0
        if laid.step.fans is not None:
            fans = lay_fans(memory, take, laid.step.fans, rows.src, rows.dst, packets)
        for word, value in (
            (at.V_LOGGED, int(self.logged)), (at.V_LEFT, laid.left), (at.V_MESSAGES, laid.messages),
            (at.V_FIRST, laid.first), (at.V_EVENTS, laid.events), (at.V_IDLE, not len(self.part.hosts)),
            (at.V_FANS, fans),
        ):  # fmt: skip
            variants[:, word] = value
        base = take(variants.size)
        self._M[base : base + variants.size] = variants.ravel()
        table = self._table(laid.messages, n, at.MESSAGE_WORDS)
        table[:, at.G_NODE] = memory.node_base[rows.src]
        table[:, at.G_TO] = rows.dst | rows.turn << at.A_SIZE
        table[:, at.G_RANK] = rows.rank
        table[:, at.G_VARIANT] = base + at.VARIANT_WORDS * of
        table[:, at.G_READY] = -1
        table[:, at.G_RELEASED] = -1
        if laid.step.begins is not None:
            begins = laid.step.begins
            own = begins >= 0
            table[own, at.G_READY] = table[own, at.G_RELEASED] = begins[own]
            laid.soonest = np.minimum.accumulate(np.where(own, begins, at.FOREVER)[::-1])[::-1]
        if laid.step.settles is not None:
            settles = laid.step.settles
            table[:, at.G_DONE] = np.where(settles >= 0, laid.events + at.EVENT_WORDS * settles, 0)
        if self.part.table.order == LAYER:
            self._queue_up(laid, table)

    def _queue_up(self, laid: Laid, table: Ints) -> None:
        """Say which queue releases each message, and make room there. `table`: the words of the messages."""
        keys, which, counts = np.unique(self._keys(laid), return_inverse=True, return_counts=True)
        table[:, at.G_QUEUE] = np.array([self._queue(key) for key in keys.tolist()])[which.reshape(-1)]
        for key, more in zip(keys.tolist(), counts.tolist(), strict=True):
            self._widen(key, more)

    def _tag(self, laid: Laid, packets: Ints) -> tuple[Ints, Ints]:
        """Lay out which packets are important: where the bits of every message are, and how many are set."""
        important, flows = laid.step.messages.important, self._flows
        default = int(flows.transports[self.part.table.transport].important)
        assert isinstance(important, Importance)
        tags = np.select(
            [important.pattern == Importance.ALL, important.pattern == Importance.NONE], [1, 0], default
        ).astype(np.int64)
        wanted = tags * packets
        for which in np.unique(important.pattern[important.pattern >= 0]).tolist():
            flags = important.patterns[which]
            those = important.pattern == which
            if (packets[those] != len(flags)).any():
                raise ValueError("a pattern of importance does not have one flag per packet")
            tags[those], wanted[those] = flows.tags(flags, len(flags))
            laid.stretches.append((-(-len(flags) // 32), int(tags[those][0])))
        return tags, wanted

    def _lay_events(self, laid: Laid, take: Callable[[int], int]) -> None:
        step, M = laid.step, self._M
        table = self._table(laid.events, len(step), at.EVENT_WORDS)
        table[:, at.E_NEEDS] = step.needs
        table[:, at.E_EFFORT] = step.effort
        table[:, at.E_STATION] = np.where(step.station >= 0, self.stations + step.station, 0)
        for lists, base_word, count_word, first, size in (
            (step.after, at.E_AFTER, at.E_AFTER_COUNT, laid.events, at.EVENT_WORDS),
            (step.posts, at.E_POSTS, at.E_POSTS_COUNT, laid.messages, at.MESSAGE_WORDS),
        ):
            place, members = lists
            if len(members):
                base = take(len(members))
                M[base : base + len(members)] = first + members * size
                table[:, base_word] = base + place[:-1]
            table[:, count_word] = np.diff(place)

    def _operations(self, laid: Laid, process: int, rows: Ints) -> Ints:
        """The words of a course."""
        kind, value = rows[:, 0], rows[:, 1].copy()
        named = np.flatnonzero((kind == WAIT) | (kind == FIRE))
        value[named] = [self._event(number) for number in value[named].tolist()]
        assert not ((kind == FIRE) & (value == 0)).any(), "an event of the past is fired"
        noted = kind == NOTE
        notes = laid.notes + NOTES * process
        value[noted] += notes
        words = np.stack((kind, value), axis=1)
        ends = np.flatnonzero(noted & (value == notes + NOTES - 2))  # what was computed is noted with the end
        words = np.insert(words, ends + 1, (at.O_COMPUTED, notes + NOTES - 1), axis=0)
        if laid.number < DRAWN:
            return words
        begins = np.flatnonzero((words[:, 0] == at.O_NOTE) & (words[:, 1] == notes + START))
        return np.insert(words, begins + 1, (at.O_BEGIN, laid.left + at.LEFT_SINCE), axis=0)

    def _event(self, number: int) -> int:
        """The base of an event, counted through the part; 0 if it has long happened."""
        for laid in reversed(self.live):
            if number >= laid.event:
                return laid.events + at.EVENT_WORDS * (number - laid.event)
        return 0

    def _keys(self, laid: Laid) -> Ints:
        """Which queue releases each message: that of its host, or of its host for its destination."""
        rows = laid.step.messages
        return rows.src << 32 | rows.dst if self.part.table.apart else rows.src

    def _queue(self, key: int) -> int:
        """The queue of such a key."""
        if key not in self.queues:
            base = self.queues[key] = self._flows.arena.allocate(at.QUEUE_WORDS)
            self._M[base + at.Q_CREDIT] = self.part.table.credit
            self._rooms[key] = 0
        return self.queues[key]

    def _widen(self, key: int, more: int) -> None:
        """A queue gets more messages: it has room for all of those that are known and have not gone yet."""
        base, arena, M = self._queue(key), self._flows.arena, self._M
        self._known[key] = self._known.get(key, 0) + more
        used = int(M[base + at.Q_COUNT])
        if (need := 2 * (self._known[key] - int(M[base + at.Q_OFFERED]) + used)) <= self._rooms[key]:
            return
        heap, old = arena.allocate(2 * need), int(M[base + at.Q_HEAP])
        M[heap : heap + 2 * used] = M[old : old + 2 * used]
        if old:
            arena.free(self._rooms[key], old)
        M[base + at.Q_HEAP], self._rooms[key] = heap, 2 * need

    def _column(self, laid: Laid, word: int) -> Ints:
        return self._table(laid.messages, len(laid), at.MESSAGE_WORDS)[:, word]

    def _feed(self, process: int, now: Ps) -> None:
        """Give a process the next stretch of its course, if it has nowhere to go on."""
        M, base, pending = self._M, self.processes + at.PROCESS_WORDS * process, self.pending[process]
        if pending and not self._started[process]:
            self._started[process] = True
            M[base + at.W_AT], M[base + at.W_END] = pending.popleft()
            self._post(0, now, base << 1)
        if pending and M[base + at.W_STARVED]:
            M[base + at.W_STARVED] = 0
            M[base + at.W_AT], M[base + at.W_END] = pending.popleft()
        if pending and M[base + at.W_NEXT] == 0:
            M[base + at.W_NEXT], M[base + at.W_NEXT_END] = pending.popleft()

    # --- while it is played -------------------------------------------------------------------------------------

    def feed(self, now: Ps) -> None:
        """Give processes what is known of their courses."""
        for process in range(len(self.pending)):
            if self.pending[process]:
                self._feed(process, now)

    @property
    def finished(self) -> bool:
        """Whether everything has been played: the courses of all processes, and all messages delivered."""
        if self._next is not None or not self.delivered:
            return False
        table = self._table(self.processes, len(self.part.hosts), at.PROCESS_WORDS)
        return bool(table[:, at.W_STARVED].all()) and not any(self.pending)

    @property
    def ended_ps(self) -> Ps:
        """When the last thing happened."""
        table = self._table(self.processes, len(self.part.hosts), at.PROCESS_WORDS)
        last = max((int(self._M[laid.left + 1]) for laid in self.live), default=0)
        return Ps(max(last, self.last_ps, int(table[:, at.W_ENDED].max(initial=0))))

    def waiting(self) -> list[tuple[int, int]]:
        """(process, event) of those that wait; events are counted through the part."""
        found = []
        for process in range(len(self.part.hosts)):
            base = self.processes + at.PROCESS_WORDS * process
            last = int(self._M[base + at.W_AT]) - at.OPERATION_WORDS
            if not self._started[process] or self._M[base + at.W_STARVED] or self._M[last] != at.O_WAIT:
                continue
            event = int(self._M[last + 1])
            for laid in self.live:
                place = event - laid.events
                if 0 <= place < len(laid.step) * at.EVENT_WORDS and self._M[event + at.E_WAITER] == base:
                    found.append((process, laid.event + place // at.EVENT_WORDS))
        return found

    def _seen(self, laid: Laid) -> Over:
        notes = np.zeros((len(self.part.hosts), NOTES), dtype=np.int64)
        if laid.notes:
            notes = self._table(laid.notes, len(self.part.hosts), NOTES).copy()
        numbers = laid.first + np.arange(len(laid))
        ready, started = (self._column(laid, word).copy() for word in (at.G_READY, at.G_RELEASED))
        return Over(laid.step, numbers, ready, started, notes)

    def sweep(self, take: Take | None) -> None:
        """Free the first steps, as far as nothing is left of them: no message, no event that is to happen, no process
        that could ask for one; all of them when everything has been played. They go to `take`, or are kept."""
        while self.live:
            laid = self.live[0]
            if self._M[laid.left + 2] < len(laid) or self._M[laid.left]:
                return
            if len(self.part.hosts):
                needs = self._table(laid.events, len(laid.step), at.EVENT_WORDS)[:, at.E_NEEDS]
                asked = self.handed.steps + len(self.over) + self.part.reach  # the last step that can ask for one
                if (self.begun.min() <= asked or (needs != at.FIRED).any()) and not self.finished:
                    return
            if take is None:
                self.over.append(self._seen(laid))
            else:
                take(self, self._seen(laid))
                self.handed.steps += 1
                self.handed.messages += len(laid)
                self.handed.nbytes += int(laid.step.messages.nbytes.sum())
                self.handed.events += len(laid.step)
            self._flows.arena.free_many(laid.stretches)
            self.last_ps = max(self.last_ps, int(self._M[laid.left + 1]))
            del self.live[0]
