"""Fast-forward: iterations of jobs that repeat themselves exactly are not simulated again.

Between two iterations there often is a moment at which the network is quiet. What outlives it is little: what jobs are
in the middle of (`standing`), counters, and draws that go by counters, by times of the day or by numbers of messages.
If jobs stand at such a moment as they did at one before, a whole number of periods of what they replay ago, and if no
draw has decided anything in between, everything from the one moment to the other comes again and again, so much later
each time: the network has no memory, and knows times by their differences alone. So what came of these iterations is
handed over once more for each of those that follow, with later times and higher numbers, counters rise by as much, and
the state is moved on (`_leap`). The last iterations, what a fault or the end of the run comes into, and whatever is not
certain are simulated. So a Result is the same to the byte as without.

What outlives a moment and cannot be told, so that nothing is left out: what transports know of a pair of hosts or of a
connection, samples of queues, a log of packets; and what a scenario's own components may do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.program import DRAWN, Jump
from gradwire.experiment.repeating import alike
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.components import kind_of
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.agenda import Agenda
from gradwire.sim.fabric.deliveries import Deliveries
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.laid import Laid
from gradwire.sim.fabric.logs import Logs
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.over import Handed
from gradwire.sim.fabric.program import Programs
from gradwire.sim.fabric.recorder import Recorder, Shift
from gradwire.sim.fabric.standing import is_quiet, standing
from gradwire.sim.fabric.track import Track

if TYPE_CHECKING:
    from gradwire.sim.fabric.specialise import Combination

PORT_COUNTERS = (
    at.P_TAIL, at.P_SPILL_TAIL, at.P_BYTES, at.P_DROP_TAIL, at.P_DROP_SELECTIVE, at.P_DROP_LINK, at.P_MARKS,
    at.P_CONTROL_MARKS,
)  # fmt: skip
MORE_COUNTERS = (at.X_PAUSES, at.X_TRIMMED, *range(at.X_CAUSES, at.X_CAUSES + 3))
MOST_PERIOD = 64
"""Iterations after which jobs may replay the same ones again: of so many it is kept what came of them (our choice)."""

MOST_RHYTHM = 8
"""Jobs may go on by turns: so many iterations more it is kept what came of them, and how things stood (our choice)."""
MOST_TRIES = 12
"""So often it is looked whether the network is quiet, in every iteration (our choice)."""

TOO_FEW = "there are too few iterations"


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
    """A quiet moment. `anchor`: when something happens next. `steps`: those that are laid, by part, with their first
    events; `handed`: how much of every part has been handed over; `taken`, `dropped`: how many entries of the
    recorder's lists came before; `acted`: see `Agenda`."""

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


class FastForward:
    """What looks for iterations that repeat themselves, and leaves them out.

    Attributes
    ----------
    soonest : when it wants to look again, at the latest.
    skipped, hops : iterations that were left out, of all jobs, and their packet-hops.
    why : in words, why none are.
    """

    def __init__(
        self, memory: Memory, flows: Flows, programs: Programs, logs: Logs, deliveries: Deliveries, agenda: Agenda,
        recorder: Recorder, *, delays: bool, limit: Ps, why: str, stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`delays`: waiting times are counted. `limit`: where the run ends. `why`: why nothing can be left out in its
        network, if so. `stopped`: whether somebody wants to end the run."""
        self._memory, self._flows, self._programs, self._agenda = memory, flows, programs, agenda
        self._logs, self._deliveries, self._recorder = logs, deliveries, recorder
        self._limit, self._stopped = limit, stopped
        first = int(memory.M[memory.M[memory.port_base[0] + at.P_MORE] + at.X_DELAYS])
        self._delays = slice(first, first + delays * len(memory.port_base) * at.DELAY_BINS)
        self.soonest, self.skipped, self.hops = Ps(at.FOREVER), 0, 0
        self._moments: list[Moment] = []
        self._jobs: list[Track] = []
        self._begun: list[int] = []
        self._looked: list[int] = []
        self._tries = 0
        self._never = why
        self.why = why or "there is no job"
        if not why:
            self._follow([track for track in programs.tracks if len(track.part.hosts)])

    def _follow(self, jobs: list[Track]) -> None:
        """From now on these jobs are those that go on."""
        self._jobs, self._moments, self._begun, self._looked, self._tries = jobs, [], [], [], 0
        differ = self._inputs_differ()
        if jobs:
            self.why = differ or "the network is never quiet between two iterations"
        self._recorder.on = bool(jobs) and not differ
        self._recorder.forget(*self._recorder.seen)
        self._memory.M[at.H_NOTES_TIES] = self._recorder.on

    def _inputs_differ(self) -> str:
        """Why what jobs do does not repeat itself, if so."""
        for track in self._jobs:
            repeats = track.part.repeats
            if not repeats.period:
                return repeats.why
            if repeats.period > MOST_PERIOD:
                return f"what is replayed repeats itself after {repeats.period} iterations only"
            if repeats.last - repeats.first < 2 * repeats.period:
                return TOO_FEW
        return ""

    @property
    def said(self) -> str:
        """How many iterations were left out, or why none were."""
        return f"{self.skipped} iterations not simulated again" if self.skipped else f"declined: {self.why}"

    # --- looking ------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look whether this is a moment at which things stand as before, once per iteration of all jobs; whether time
        has moved on because of that."""
        if any(track.finished for track in self._jobs):
            self._follow([track for track in self._jobs if not track.finished])
        begun = [int(track.begun.min()) for track in self._jobs] if self._recorder.on else []
        if begun == self._looked:
            self.soonest = Ps(at.FOREVER)
            return False
        if begun != self._begun:
            self._begun = begun
            self._forget()
        M, flows, records = self._memory.M, self._flows, self._flows.records
        if M[at.H_CLOSING_COUNT]:
            self._programs.closed(flows.close())
        if records.open > records.lasting or not is_quiet(self._memory, flows):
            self._wait(begun)
            return False
        self._looked, self._tries, self.soonest = begun, 0, Ps(at.FOREVER)
        return self._compare()

    def _wait(self, begun: list[int]) -> None:
        """Look again when the network may be quiet: soon after all messages of the last iteration have been delivered,
        and then less and less soon."""
        M = self._memory.M
        self.soonest = Ps(at.FOREVER)
        for number, track in zip(begun, self._jobs, strict=True):
            if any(M[laid.left] for laid in track.live[: max(0, number - track.handed.steps)]):
                return
        self._tries += 1
        if self._tries > MOST_TRIES:
            self._looked, self._tries = begun, 0
        else:
            self.soonest = Ps(int(M[at.H_NOW]) + (int(M[at.H_HOST_LATENCY]) << self._tries))

    def _compare(self) -> bool:
        jobs, anchor = self._jobs, self._programs.timer
        for track in self._programs.tracks:
            track.sweep(self._programs.take)
            if track not in jobs and not track.finished:
                self._moments, self.why = [], "there is traffic beside the jobs"
                return False
        if any(not track.more_to_come or track.asks for track in jobs) or anchor >= at.FOREVER:
            return False
        self._logs.hand_over()
        now = self._moment(jobs, anchor)
        if self._moments:
            self.why = TOO_FEW
        moved = any(self._repeats(jobs, before, now) for before in self._before(jobs, now))  # it is one or none
        periods = [track.part.repeats.period for track in jobs]
        self._moments = [] if moved else [*self._moments, now][-2 * max(periods) - MOST_RHYTHM :]
        return moved

    def _forget(self) -> None:
        """Keep no moment that is long ago, as where the network is hardly ever quiet, and of what came of iterations
        only what came since the first one that is kept."""
        most = 2 * (2 * max(track.part.repeats.period for track in self._jobs) + MOST_RHYTHM)
        self._moments = [
            each for each in self._moments
            if all(job.handed.steps - was.steps <= most for job, was in zip(self._jobs, each.handed, strict=True))
        ]  # fmt: skip
        first = self._moments[0] if self._moments else None
        self._recorder.forget(*((first.taken, first.dropped) if first else self._recorder.seen))

    def _before(self, jobs: list[Track], now: Moment) -> list[Moment]:
        """The moments, the last one first, since which all jobs have come whole periods further: the last one at which
        they stood as they do now, or, if they never did, the last one."""
        found = []
        for before in reversed(self._moments):
            steps = [other.steps - one.steps for one, other in zip(before.handed, now.handed, strict=True)]
            if all(more and more % track.part.repeats.period == 0 for more, track in zip(steps, jobs, strict=True)):
                found.append(before)
        return [before for before in found if before.state == now.state][:1] or found[:1]

    def _moment(self, jobs: list[Track], anchor: Ps) -> Moment:
        taken, dropped = self._recorder.seen
        return Moment(
            anchor, standing(self._memory, self._flows, jobs, anchor),
            [[replace(laid) for laid in track.live] for track in jobs],
            [replace(track.handed) for track in jobs], [track.events for track in jobs], self._flows.count,
            self._flows.delivered_bytes, self._counted(), taken, dropped, self._agenda.acted,
        )  # fmt: skip

    def _counted(self) -> Counted:
        M, ports, memory = self._memory.M, self._memory.port_base, self._memory
        more = M[ports + at.P_MORE]
        delays = M[self._delays]
        return Counted(
            M[ports[:, None] + np.array(PORT_COUNTERS)], M[more[:, None] + np.array(MORE_COUNTERS)],
            delays.copy(), int(M[memory.node_base + at.N_DRAWS].sum()), M[ports + at.P_TESTS],
            sum(int(M[thread + at.T_TIES]) for thread in memory.thread_base),
        )  # fmt: skip

    # --- deciding -----------------------------------------------------------------------------------------------

    def _repeats(self, jobs: list[Track], before: Moment, now: Moment) -> bool:
        """Leave out what can be, if things stand now as they did before; whether any was."""
        self.why = self._drawn(before, now)
        if self.why:
            return False
        if before.acted != now.acted or before.state != now.state or not _same_steps(before, now):
            self.why = "no two iterations go alike"
            return False
        early = any(
            handed.steps < max(track.part.repeats.first, DRAWN)
            for handed, track in zip(before.handed, jobs, strict=True)
        )
        times = 0 if early else self._times(jobs, before, now)
        if times < 1:
            self.why = TOO_FEW
            return False
        self._leap(jobs, before, now, self._tell(jobs, before, now, times))
        return True

    def _drawn(self, before: Moment, now: Moment) -> str:
        """What draws have decided from one moment to the other, in words; empty if nothing."""
        M, ports = self._memory.M, self._memory.port_base
        one, other = before.counted, now.counted
        if other.ways != one.ways:
            return "packets take one of several ways"
        if (other.tests != one.tests).any():
            return "queues draw what they mark or cut"
        sent = (other.ports[:, 2] != one.ports[:, 2]) & (M[ports + at.P_SHAPE] & at.SHAPE_LOSSY > 0)
        if sent.any():
            return "links lose packets at random"
        if other.ties != one.ties:
            return "packets for one port arrive at the same picosecond, and draws say which is first"
        return ""

    def _times(self, jobs: list[Track], before: Moment, now: Moment) -> int:
        """How many times what came from one moment to the other comes again before anything else does: the last
        iterations, an action from outside, the end of the run."""
        end = min(self._limit, self._agenda.next_action)
        most = [
            (end - int(self._memory.M[at.H_NOW])) // (now.anchor - before.anchor),
            (at.MASK_KEY_NUMBER - now.messages) // max(1, now.messages - before.messages),
        ]
        for one, other, track in zip(before.handed, now.handed, jobs, strict=True):
            # the step that comes next is made already
            most.append((track.part.repeats.last - track.laid) // (other.steps - one.steps))
        return min(most)

    # --- leaving out --------------------------------------------------------------------------------------------

    def _tell(self, jobs: list[Track], before: Moment, now: Moment, times: int) -> int:
        """Hand over what came from one moment to the other so many times more. Returns how often it was, if somebody
        wants to end the run."""
        recorder, taker = self._recorder, self._recorder.taker
        (taken, dropped), by = recorder.before, now.anchor - before.anchor
        over = recorder.taken[before.taken - taken : now.taken - taken]
        lost = recorder.dropped[before.dropped - dropped : now.dropped - dropped]
        messages = now.messages - before.messages
        steps = {
            id(track.part): other.steps - one.steps
            for one, other, track in zip(before.handed, now.handed, jobs, strict=True)
        }
        for time in range(1, times + 1):
            if self._stopped():
                return time - 1
            for part, number, each, counts, missing in over:
                later = Shift(time * steps[id(part)], time * messages, time * by)
                taker.step(part, number + later.steps, *later.step(each, counts, missing))
            for rows in lost:
                taker.drops(rows + np.array([time * by, 0, 0, 0, time * messages]))
        return times

    def _leap(self, jobs: list[Track], before: Moment, now: Moment, times: int) -> None:
        """Be where everything is after what came from one moment to the other has come so many times more."""
        M, memory, by = self._memory.M, self._memory, times * (now.anchor - before.anchor)
        messages = times * (now.messages - before.messages)
        hosts = memory.node_base[M[memory.node_base + at.N_KIND] == at.HOST]
        timers = int(M[at.H_TIMERS])
        M[timers : timers + at.TIMER_WORDS * int(M[at.H_TIMER_COUNT]) : at.TIMER_WORDS] += by
        M[at.H_TIMER_NEXT] += by
        M[at.H_NOW] += by
        M[hosts + at.N_PULL_AT] += by
        M[hosts + at.N_HEAP_COUNT] = 0  # nobody waits for what is there
        M[memory.next : memory.next + len(memory.node_base)] = at.FOREVER
        self._count_on(before.counted, now.counted, times)
        self._flows.jump(messages, times * (now.nbytes - before.nbytes), by)
        self._deliveries.jump(messages)
        for number, track in enumerate(jobs):
            one, other = before.handed[number], now.handed[number]
            jump = Jump(times * (other.steps - one.steps), times * (now.events[number] - before.events[number]))
            track.jump(jump, messages, Ps(by))
            for name, value in vars(other).items():
                setattr(track.handed, name, value + times * (value - getattr(one, name)))
            self.skipped += jump.steps

    def _count_on(self, one: Counted, other: Counted, times: int) -> None:
        """Let counters rise so many times as much more; links are empty, so both ends of their rings move alike."""
        M, ports = self._memory.M, self._memory.port_base
        more, heads = M[ports + at.P_MORE], M[ports + at.P_HEAD]
        rise = times * (other.ports - one.ports)
        self.hops += int(rise[:, [0, 1, 5]].sum() + times * (other.more - one.more)[:, -2].sum())
        M[ports[:, None] + np.array(PORT_COUNTERS)] += rise
        M[more[:, None] + np.array(MORE_COUNTERS)] += times * (other.more - one.more)
        M[self._delays] += times * (other.delays - one.delays)
        for places, column in (
            (heads, 0), (heads + at.HEAD_RING_FREE, 0), (ports + at.P_SEEN, 0),
            (heads + at.HEAD_SPILL, 1), (heads + at.HEAD_SPILL_FREE, 1),
        ):  # fmt: skip
            M[places] += rise[:, column]


def remembers(combination: Combination) -> str:
    """Why what comes of messages may follow from more than themselves, if so."""
    if combination.features.streams:
        return "connections outlive messages"
    if combination.features.aggregation:
        return "slots of switches that sum outlive messages"
    for owner in (*combination.transports, combination.queue):
        if not vars(owner).get("forgets", False):
            return f"nobody says that nothing outlives the messages of {kind_of(owner) or owner.__name__}"
    return ""


def _same_steps(before: Moment, now: Moment) -> bool:
    """Whether the steps that are laid are alike."""
    return all(
        len(those) == len(these)
        and all(alike(one.step, one.event, other.step, other.event) for one, other in zip(those, these, strict=True))
        for those, these in zip(before.steps, now.steps, strict=True)
    )
