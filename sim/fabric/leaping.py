"""Leaps: stretches of a run that come again are handed over once more, and the state moves on behind them.

A stretch is what came from one quiet moment of the network to a later one (`gradwire.sim.fabric.standing`): steps that
were handed over meanwhile, packets lost, and by how much counters rose. Handed over once more it comes later, with
higher numbers. Behind it the network is as quiet as before, so that moving it on means moving what it knows of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.program import Jump, Part
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.deliveries import Deliveries
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.laid import Laid
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.over import Handed, Over
from gradwire.sim.fabric.recorder import Recorder, Shift
from gradwire.sim.fabric.track import Track

PORT_COUNTERS = (
    at.P_TAIL, at.P_SPILL_TAIL, at.P_BYTES, at.P_DROP_TAIL, at.P_DROP_SELECTIVE, at.P_DROP_LINK, at.P_MARKS,
    at.P_CONTROL_MARKS,
)  # fmt: skip
SENT = PORT_COUNTERS.index(at.P_BYTES)
MORE_COUNTERS = (at.X_PAUSES, at.X_TRIMMED, *range(at.X_CAUSES, at.X_CAUSES + 3))


class Counted(NamedTuple):
    """Counters of the whole network: of ports (by link), how long packets waited there, packets for which a way was
    chosen, draws of queues, and ties."""

    ports: Ints
    more: Ints
    delays: Ints
    ways: int
    tests: Ints
    ties: int


@dataclass(frozen=True, eq=False)
class Moment:
    """A quiet moment. `anchor`: when something happens next. `state`: how jobs stand, where anybody wants to know.
    `steps`: those that are laid, by part, with their first events; `handed`: how much of every part has been handed
    over; `taken`, `dropped`: how many entries of the recorder's lists came before; `acted`: see `Agenda`."""

    anchor: int
    state: bytes
    steps: list[list[Laid]]
    handed: list[Handed]
    events: list[int]
    messages: int
    nbytes: int
    counted: Counted
    taken: int
    dropped: int
    acted: int

    @property
    def held(self) -> list[list[int]]:
        """By part, which messages belong to steps that are laid: the first of every step, from the next message that
        will be. Between moments at which that is alike so many messages are handed over as are laid."""
        return [[each for laid in steps for each in (laid.first - self.messages, len(laid))] for steps in self.steps]


@dataclass(frozen=True, eq=False)
class Stretch:
    """What came from a quiet moment `begin` to a later one. `origin`, `by`: when it is taken to have begun, and how
    much later whatever comes behind it comes, if it comes once more. `over`, `lost`: what was handed over. The rest:
    how much more there was of it."""

    begin: Moment
    origin: int
    by: int
    over: list[tuple[Part, int, Over, Counts, Ints]]
    lost: list[Ints]
    messages: int
    nbytes: int
    handed: list[Handed]
    events: list[int]
    ports: Ints
    more: Ints
    delays: Ints

    @classmethod
    def between(
        cls, begin: Moment, now: Moment, recorder: Recorder, span: tuple[int, int] | None = None
    ) -> Stretch:  # fmt: skip
        """`span`: `origin` and `by`; unless given, those of the moments."""
        taken, dropped = recorder.before
        return cls(
            begin, *(span or (begin.anchor, now.anchor - begin.anchor)),
            recorder.taken[begin.taken - taken : now.taken - taken],
            recorder.dropped[begin.dropped - dropped : now.dropped - dropped],
            now.messages - begin.messages, now.nbytes - begin.nbytes,
            [
                Handed(**{name: value - vars(one)[name] for name, value in vars(other).items()})
                for one, other in zip(begin.handed, now.handed, strict=True)
            ],
            [other - one for one, other in zip(begin.events, now.events, strict=True)],
            now.counted.ports - begin.counted.ports, now.counted.more - begin.counted.more,
            now.counted.delays - begin.counted.delays,
        )  # fmt: skip

    @property
    def steps(self) -> list[int]:
        return [handed.steps for handed in self.handed]


class Leaper:
    """What leaves iterations out, and counts them.

    Attributes
    ----------
    hops : packet-hops that were left out.
    """

    def __init__(
        self, memory: Memory, flows: Flows, deliveries: Deliveries, recorder: Recorder, *, delays: bool,
        stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`delays`: waiting times are counted. `stopped`: whether somebody wants to end the run."""
        self._memory, self._flows, self._deliveries, self._recorder = memory, flows, deliveries, recorder
        first = int(memory.M[memory.M[memory.port_base[0] + at.P_MORE] + at.X_DELAYS])
        self._delays = slice(first, first + delays * len(memory.port_base) * at.DELAY_BINS)
        self._stopped = stopped
        self.hops = 0

    def counted(self) -> Counted:
        """The counters now."""
        M, ports, memory = self._memory.M, self._memory.port_base, self._memory
        more = M[ports + at.P_MORE]
        delays = M[self._delays]
        return Counted(
            M[ports[:, None] + np.array(PORT_COUNTERS)], M[more[:, None] + np.array(MORE_COUNTERS)],
            delays.copy(), int(M[memory.node_base + at.N_DRAWS].sum()), M[ports + at.P_TESTS],
            sum(int(M[thread + at.T_TIES]) for thread in memory.thread_base),
        )  # fmt: skip

    @property
    def lossy(self) -> Flags:
        """bool[links]: whether a link loses packets at random."""
        return self._memory.M[self._memory.port_base + at.P_SHAPE] & at.SHAPE_LOSSY > 0

    def leave_out(self, jobs: list[Track], now: Moment, stretches: Sequence[Stretch], times: int) -> int:
        """Hand over what came in the stretches, one after the other, so many times more, and be where everything is
        after that. The last one has come right before. Returns how often it was: less often if somebody wants to end
        the run."""
        times = self._tell(jobs, now, stretches, times)
        for stretch in stretches:
            self._leap(jobs, stretch, times)
        M, memory, by = self._memory.M, self._memory, times * sum(stretch.by for stretch in stretches)
        hosts = memory.node_base[M[memory.node_base + at.N_KIND] == at.HOST]
        timers = int(M[at.H_TIMERS])
        M[timers : timers + at.TIMER_WORDS * int(M[at.H_TIMER_COUNT]) : at.TIMER_WORDS] += by
        M[at.H_TIMER_NEXT] += by
        M[at.H_NOW] += by
        M[hosts + at.N_PULL_AT] += by
        M[hosts + at.N_HEAP_COUNT] = 0  # nobody waits for what is there
        M[memory.next : memory.next + len(memory.node_base)] = at.FOREVER
        return times

    def _tell(self, jobs: list[Track], now: Moment, stretches: Sequence[Stretch], times: int) -> int:
        taker = self._recorder.taker
        place = {id(track.part): number for number, track in enumerate(jobs)}
        steps, messages = [handed.steps for handed in now.handed], now.messages
        origin = stretches[-1].origin + stretches[-1].by
        for time in range(times):
            if self._stopped():
                return time
            for stretch in stretches:
                begin = stretch.begin
                more, by = messages - begin.messages, origin - stretch.origin
                for part, number, each, counts, missing in stretch.over:
                    job = place[id(part)]
                    later = Shift(steps[job] - begin.handed[job].steps, more, by)
                    taker.step(part, number + later.steps, *later.step(each, counts, missing))
                for rows in stretch.lost:
                    taker.drops(rows + np.array([by, 0, 0, 0, more]))
                steps = [one + other for one, other in zip(steps, stretch.steps, strict=True)]
                messages, origin = messages + stretch.messages, origin + stretch.by
        return times

    def _leap(self, jobs: list[Track], stretch: Stretch, times: int) -> None:
        """Let jobs, messages and counters be so many stretches further."""
        messages, by = times * stretch.messages, times * stretch.by
        self._count_on(stretch, times)
        self._flows.jump(messages, times * stretch.nbytes, by)
        self._deliveries.jump(messages)
        for track, handed, events in zip(jobs, stretch.handed, stretch.events, strict=True):
            track.jump(Jump(times * handed.steps, times * events), messages, Ps(by))
            for name, value in vars(handed).items():
                setattr(track.handed, name, getattr(track.handed, name) + times * value)

    def _count_on(self, stretch: Stretch, times: int) -> None:
        """Let counters rise so many times as much more; links are empty, so both ends of their rings move alike."""
        M, ports = self._memory.M, self._memory.port_base
        more, heads = M[ports + at.P_MORE], M[ports + at.P_HEAD]
        rise, higher = times * stretch.ports, times * stretch.more
        self.hops += int(rise[:, [0, 1, 5]].sum() + higher[:, -2].sum())
        M[ports[:, None] + np.array(PORT_COUNTERS)] += rise
        M[more[:, None] + np.array(MORE_COUNTERS)] += higher
        M[self._delays] += times * stretch.delays
        for places, column in (
            (heads, 0), (heads + at.HEAD_RING_FREE, 0), (ports + at.P_SEEN, 0),
            (heads + at.HEAD_SPILL, 1), (heads + at.HEAD_SPILL_FREE, 1),
        ):  # fmt: skip
            M[places] += rise[:, column]
