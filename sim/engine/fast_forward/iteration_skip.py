"""Skipping of iterations: hand over a stretch of a run again, and move the state behind it.

A stretch lies between two quiet moments of the network (`gradwire.sim.engine.snapshot`): the steps handed over in
between, packets lost, and increments of counters. Its repetition comes later, with higher numbers. Behind it the
network is as quiet as before, so moving the state on means moving the times in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.jit import layout as at
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.deliveries import Deliveries
from gradwire.sim.engine.fast_forward.step_recorder import Shift, StepRecorder
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.sim.engine.program.completed_step import CompletedStep, HandedOver
from gradwire.sim.engine.program.loaded_step import LoadedStep
from gradwire.sim.engine.program.track import Track
from gradwire.workload.program import ProgramPart, StepSkip

PORT_COUNTERS = (
    at.P_TAIL,
    at.P_SPILL_TAIL,
    at.P_BYTES,
    at.P_DROP_TAIL,
    at.P_DROP_SELECTIVE,
    at.P_DROP_LINK,
    at.P_MARKS,
    at.P_CONTROL_MARKS,
)
BYTES_COLUMN = PORT_COUNTERS.index(at.P_BYTES)
SUMS = (at.N_SUMMED, at.N_UNSUMMED, at.N_COPIED)
MORE_COUNTERS = (at.X_PAUSES, at.X_TRIMMED, *range(at.X_CAUSES, at.X_CAUSES + 3))


class NetworkCounters(NamedTuple):
    """Counters of the whole network. By port (link): packets, bytes, drops, marks and waiting times; by switch: packets
    summed and copied; in all: packets for which a next hop was chosen, draws of queues, and ties."""

    ports: Ints
    more: Ints
    delays: Ints
    sums: Ints
    ways: int
    tests: Ints
    ties: int


@dataclass(frozen=True, eq=False)
class QuietMoment:
    """A quiet moment.

    anchor : time of the next event.
    state : state of the jobs, if needed.
    steps, events : loaded steps and number of events, by part.
    handed : totals handed over, by part.
    taken, dropped : entries of the recorder's lists before this moment.
    acted : see `Agenda`.
    """

    anchor: int
    state: bytes
    steps: list[list[LoadedStep]]
    handed: list[HandedOver]
    events: list[int]
    messages: int
    nbytes: int
    counted: NetworkCounters
    taken: int
    dropped: int
    acted: int

    @property
    def held(self) -> list[list[int]]:
        """By part, the first message of every loaded step, relative to the next message, and their number. Between
        moments where that is equal, as many messages are handed over as are loaded."""
        return [
            [number for step in steps for number in (step.first - self.messages, len(step))] for steps in self.steps
        ]


@dataclass(frozen=True, eq=False)
class Stretch:
    """The outcome between a quiet moment `begin` and a later one.

    origin, by : nominal start, and by how much a repetition delays whatever follows.
    over, lost : steps and lost packets that were handed over.

    The other fields are increments.
    """

    begin: QuietMoment
    origin: int
    by: int
    over: list[tuple[ProgramPart, int, CompletedStep, MessageCounts, Ints]]
    lost: list[Ints]
    messages: int
    nbytes: int
    handed: list[HandedOver]
    events: list[int]
    ports: Ints
    more: Ints
    delays: Ints
    sums: Ints

    @classmethod
    def from_moments(
        cls, begin: QuietMoment, now: QuietMoment, recorder: StepRecorder, span: tuple[int, int] | None = None
    ) -> Stretch:
        """Return the stretch between two moments. `span`: `origin` and `by`; by default those of the moments."""
        taken, dropped = recorder.before
        return cls(
            begin,
            *(span or (begin.anchor, now.anchor - begin.anchor)),
            recorder.taken[begin.taken - taken : now.taken - taken],
            recorder.dropped[begin.dropped - dropped : now.dropped - dropped],
            now.messages - begin.messages,
            now.nbytes - begin.nbytes,
            [
                HandedOver(**{name: value - vars(one)[name] for name, value in vars(other).items()})
                for one, other in zip(begin.handed, now.handed, strict=True)
            ],
            [other - one for one, other in zip(begin.events, now.events, strict=True)],
            now.counted.ports - begin.counted.ports,
            now.counted.more - begin.counted.more,
            now.counted.delays - begin.counted.delays,
            now.counted.sums - begin.counted.sums,
        )

    @property
    def steps(self) -> list[int]:
        return [handed.steps for handed in self.handed]


class IterationSkipper:
    """Skips iterations, and counts them.

    Attributes
    ----------
    hops : packet-hops that were skipped.
    """

    def __init__(
        self,
        memory: EngineMemory,
        flows: Flows,
        deliveries: Deliveries,
        recorder: StepRecorder,
        *,
        delays: bool,
        stopped: Callable[[], bool],
    ) -> None:
        """`delays`: waiting times are counted. `stopped`: returns True if the run is to end."""
        self._memory, self._flows, self._deliveries, self._recorder = memory, flows, deliveries, recorder
        first = int(memory.M[memory.M[memory.port_base[0] + at.P_MORE] + at.X_DELAYS])
        self._delays = slice(first, first + delays * len(memory.port_base) * at.DELAY_BINS)
        self._switches = memory.node_base[memory.M[memory.node_base + at.N_KIND] == at.SWITCH]
        self._stopped = stopped
        self.hops = 0

    def counted(self) -> NetworkCounters:
        """Return the present counters."""
        M, ports, memory = self._memory.M, self._memory.port_base, self._memory
        more = M[ports + at.P_MORE]
        delays = M[self._delays]
        return NetworkCounters(
            M[ports[:, None] + np.array(PORT_COUNTERS)],
            M[more[:, None] + np.array(MORE_COUNTERS)],
            delays.copy(),
            M[self._switches[:, None] + np.array(SUMS)],
            int(M[memory.node_base + at.N_DRAWS].sum()),
            M[ports + at.P_TESTS],
            sum(int(M[thread + at.T_TIES]) for thread in memory.thread_base),
        )

    @property
    def lossy(self) -> Flags:
        """bool[links]: True if a link loses packets at random."""
        return self._memory.M[self._memory.port_base + at.P_SHAPE] & at.SHAPE_LOSSY > 0

    def leave_out(self, jobs: list[Track], now: QuietMoment, stretches: Sequence[Stretch], times: int) -> int:
        """Hand over the stretches, in order, `times` times more, and move everything behind them. The last stretch has
        just ended. Returns the number of repetitions, fewer if the run is to end."""
        times = self._repeat(jobs, now, stretches, times)
        for stretch in stretches:
            self._leap(jobs, stretch, times)
        M, memory, by = self._memory.M, self._memory, times * sum(stretch.by for stretch in stretches)
        hosts = memory.node_base[M[memory.node_base + at.N_KIND] == at.HOST]
        timers = int(M[at.H_TIMERS])
        M[timers : timers + at.TIMER_WORDS * int(M[at.H_TIMER_COUNT]) : at.TIMER_WORDS] += by
        M[at.H_TIMER_NEXT] += by
        M[at.H_NOW] += by
        M[hosts + at.N_PULL_AT] += by
        M[hosts + at.N_HEAP_COUNT] = 0  # only stale entries are left
        M[memory.next : memory.next + len(memory.node_base)] = at.FOREVER
        return times

    def _repeat(self, jobs: list[Track], now: QuietMoment, stretches: Sequence[Stretch], times: int) -> int:
        taker = self._recorder.taker
        job_numbers = {id(track.part): number for number, track in enumerate(jobs)}
        steps, messages = [handed.steps for handed in now.handed], now.messages
        origin = stretches[-1].origin + stretches[-1].by
        for repetition in range(times):
            if self._stopped():
                return repetition
            for stretch in stretches:
                begin = stretch.begin
                message_shift, delay = messages - begin.messages, origin - stretch.origin
                for part, number, step, counts, missing in stretch.over:
                    job = job_numbers[id(part)]
                    later = Shift(steps[job] - begin.handed[job].steps, message_shift, delay)
                    taker.step(part, number + later.steps, *later.step(step, counts, missing))
                for rows in stretch.lost:
                    taker.drops(rows + np.array([delay, 0, 0, 0, message_shift]))
                steps = [one + other for one, other in zip(steps, stretch.steps, strict=True)]
                messages, origin = messages + stretch.messages, origin + stretch.by
        return times

    def _leap(self, jobs: list[Track], stretch: Stretch, times: int) -> None:
        """Move jobs, messages and counters by `times` stretches."""
        messages, by = times * stretch.messages, times * stretch.by
        self._count_on(stretch, times)
        self._flows.jump(messages, times * stretch.nbytes, by)
        self._deliveries.jump(messages)
        for track, handed, events in zip(jobs, stretch.handed, stretch.events, strict=True):
            track.jump(StepSkip(times * handed.steps, times * events), messages, Ps(by))
            for name, value in vars(handed).items():
                setattr(track.handed, name, getattr(track.handed, name) + times * value)

    def _count_on(self, stretch: Stretch, times: int) -> None:
        """Raise counters by `times` stretches. Links are empty, so both ends of their rings move alike."""
        M, ports = self._memory.M, self._memory.port_base
        more, heads = M[ports + at.P_MORE], M[ports + at.P_HEAD]
        rise, extra_rise = times * stretch.ports, times * stretch.more
        self.hops += int(rise[:, [0, 1, 5]].sum() + extra_rise[:, -2].sum())
        M[ports[:, None] + np.array(PORT_COUNTERS)] += rise
        M[more[:, None] + np.array(MORE_COUNTERS)] += extra_rise
        M[self._delays] += times * stretch.delays
        M[self._switches[:, None] + np.array(SUMS)] += times * stretch.sums
        for words, column in (
            (heads, 0),
            (heads + at.HEAD_RING_FREE, 0),
            (ports + at.P_SEEN, 0),
            (heads + at.HEAD_SPILL, 1),
            (heads + at.HEAD_SPILL_FREE, 1),
        ):
            M[words] += rise[:, column]
