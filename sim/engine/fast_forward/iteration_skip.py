"""`IterationSkipper` hands over a recorded stretch of a run again, and moves counters, numbers and times past skipped
iterations.

A stretch lies between two quiet moments of the network (`gradwire.sim.engine.snapshot`): the steps handed over in
between, packets lost, and increments of counters. Its repetition comes later, with higher numbers. Behind it the
network is as quiet as before, so moving the state on means moving the times in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, LinkHead, Node, Port, PortExtra, Switch
from gradwire.jit.records.programs import TimerEntry
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
    Port.sent.offset,
    Port.spill_tail.offset,
    Port.bytes_sent.offset,
    Port.drops.offset,
    Port.drops.offset + 1,
    Port.drops.offset + 2,
    Port.marks.offset,
    Port.control_marks.offset,
)
BYTES_COLUMN = PORT_COUNTERS.index(Port.bytes_sent.offset)
SUMS = (Switch.summed.offset, Switch.unsummed.offset, Switch.copied.offset)
MORE_COUNTERS = (
    PortExtra.pauses.offset,
    PortExtra.trimmed.offset,
    *range(PortExtra.drops_by_cause.offset, PortExtra.drops_by_cause.offset + 3),
)


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


@dataclass(frozen=True, eq=False)
class Stretch:
    """The outcome between a quiet moment `begin` and a later one.

    by : by how much a repetition delays whatever follows.
    over, lost : steps and lost packets that were handed over.

    The other fields are increments.
    """

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
    def from_moments(cls, begin: QuietMoment, now: QuietMoment, recorder: StepRecorder) -> Stretch:
        """Return the stretch between two moments."""
        taken, dropped = recorder.before
        return cls(
            now.anchor - begin.anchor,
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
        first = int(view(PortExtra, memory.state, view(Port, memory.state, memory.port_base[0]).extra.base).delays.base)
        self._delays = slice(first, first + delays * len(memory.port_base) * at.DELAY_BINS)
        self._switches = memory.node_base[view(Node, memory.state, memory.node_base).kind == at.SWITCH]
        self._stopped = stopped
        self.hops = 0

    def counted(self) -> NetworkCounters:
        """Return the present counters."""
        state, ports, memory = self._memory.state, self._memory.port_base, self._memory
        port_records = view(Port, state, ports)
        more = port_records.extra.base
        delays = state[self._delays]
        return NetworkCounters(
            state[ports[:, None] + np.array(PORT_COUNTERS)],
            state[more[:, None] + np.array(MORE_COUNTERS)],
            delays.copy(),
            state[self._switches[:, None] + np.array(SUMS)],
            int(view(Node, state, memory.node_base).draws.sum()),
            port_records.red_draws,
            sum(int(view(Thread, state, thread).ties) for thread in memory.thread_base),
        )

    @property
    def lossy(self) -> Flags:
        """bool[links]: True if a link loses packets at random."""
        return view(Port, self._memory.state, self._memory.port_base).shape & at.SHAPE_LOSSY > 0

    def leave_out(self, jobs: list[Track], now: QuietMoment, stretch: Stretch, times: int) -> int:
        """Hand over the stretch, which has just ended, `times` times more, and move everything behind it.

        Returns the number of repetitions, fewer if the run is to end.
        """
        times = self._repeat(jobs, now, stretch, times)
        self._leap(jobs, stretch, times)
        state, memory, by = self._memory.state, self._memory, times * stretch.by
        hosts = memory.node_base[view(Node, state, memory.node_base).kind == at.HOST]
        timers = int(state[State.timers.offset])
        state[timers : timers + TimerEntry.WORDS * int(state[State.timer_count.offset]) : TimerEntry.WORDS] += by
        state[State.next_timer.offset] += by
        state[State.now.offset] += by
        host_records = view(Host, state, hosts)
        host_records.next_pull += by
        host_records.timer_count = 0  # only stale entries are left
        state[memory.next : memory.next + len(memory.node_base)] = at.FOREVER
        return times

    def _repeat(self, jobs: list[Track], now: QuietMoment, stretch: Stretch, times: int) -> int:
        taker = self._recorder.taker
        job_numbers = {id(track.part): number for number, track in enumerate(jobs)}
        for repetition in range(times):
            if self._stopped():
                return repetition
            messages, delay = (repetition + 1) * stretch.messages, (repetition + 1) * stretch.by
            for part, number, step, counts, missing in stretch.over:
                steps = (repetition + 1) * stretch.steps[job_numbers[id(part)]]
                taker.step(part, number + steps, *Shift(steps, messages, delay).step(step, counts, missing))
            for rows in stretch.lost:
                taker.drops(rows + np.array([delay, 0, 0, 0, messages]))
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
        state, ports = self._memory.state, self._memory.port_base
        port_records = view(Port, state, ports)
        more, heads = port_records.extra.base, port_records.consumer.base
        rise, extra_rise = times * stretch.ports, times * stretch.more
        self.hops += int(rise[:, [0, 1, 5]].sum() + extra_rise[:, -2].sum())
        state[ports[:, None] + np.array(PORT_COUNTERS)] += rise
        state[more[:, None] + np.array(MORE_COUNTERS)] += extra_rise
        state[self._delays] += times * stretch.delays
        state[self._switches[:, None] + np.array(SUMS)] += times * stretch.sums
        for words, column in (
            (heads, 0),
            (heads + LinkHead.ring_free.offset, 0),
            (ports + Port.consumed.offset, 0),
            (heads + LinkHead.spill_taken.offset, 1),
            (heads + LinkHead.spill_free.offset, 1),
        ):
            state[words] += rise[:, column]
