"""Fast-forward: iterations of jobs that repeat themselves exactly are not simulated again.

Between two iterations there often is a moment at which the network is quiet. What outlives it is little: what jobs are
in the middle of (`standing`), counters, and draws that go by counters, by times of the day or by numbers of messages.
If jobs stand at such a moment as they did at one before, a whole number of periods of what they replay ago, and if no
draw has decided anything in between, everything from the one moment to the other comes again and again, so much later
each time: the network has no memory, and knows times by their differences alone. So what came of these iterations is
handed over once more for each of those that follow, with later times and higher numbers, counters rise by as much, and
the state is moved on (`gradwire.sim.fabric.leaping`). The last iterations, what a fault or the end of the run comes
into, and whatever is not certain are simulated. So a Result is the same to the byte as without.

What outlives a moment and cannot be told, so that nothing is left out: what transports know of a pair of hosts or of a
connection, samples of queues, a log of packets; and what a scenario's own components may do. Where that does not matter
on average, and a scenario asks for it, iterations are left out all the same (`gradwire.sim.fabric.steady`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.components import layout as at
from gradwire.components.transports.base import shares
from gradwire.experiment.program import DRAWN
from gradwire.experiment.repeating import alike
from gradwire.scenarios.components import kind_of
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.agenda import Agenda
from gradwire.sim.fabric.deliveries import Deliveries
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.leaping import SENT, Leaper, Moment, Stretch
from gradwire.sim.fabric.logs import Logs
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.program import Programs
from gradwire.sim.fabric.recorder import Recorder
from gradwire.sim.fabric.standing import is_quiet, standing
from gradwire.sim.fabric.steady import Steady
from gradwire.sim.fabric.track import Track

if TYPE_CHECKING:
    from gradwire.sim.fabric.specialise import Combination

MOST_PERIOD = 64
"""Iterations after which jobs may replay the same ones again: of so many it is kept what came of them (our choice)."""

MOST_RHYTHM = 8
"""Jobs may go on by turns: so many iterations more it is kept what came of them, and how things stood (our choice)."""
MOST_TRIES = 12
"""So often it is looked whether the network is quiet, in every iteration (our choice)."""

TOO_FEW = "there are too few iterations"


class FastForward:
    """What looks for iterations that repeat themselves, and leaves them out.

    Attributes
    ----------
    soonest : when it wants to look again, at the latest.
    skipped : iterations that were left out because they repeat others exactly, of all jobs.
    why : in words, why none are.
    steady : what leaves some out that are alike on average, if that is asked for.
    """

    def __init__(
        self, memory: Memory, flows: Flows, programs: Programs, logs: Logs, deliveries: Deliveries, agenda: Agenda,
        recorder: Recorder, *, delays: bool, limit: Ps, why: str, approximate: float | None, lasting: str,
        stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`delays`: waiting times are counted. `limit`: where the run ends. `why`: why nothing repeats itself exactly
        in its network, if so. `approximate`: the error of mean iteration times that is tolerated, if any is; `lasting`:
        why it cannot be had, if so. `stopped`: whether somebody wants to end the run."""
        self._memory, self._flows, self._programs, self._agenda = memory, flows, programs, agenda
        self._logs, self._recorder, self._limit = logs, recorder, limit
        self._leaper = Leaper(memory, flows, deliveries, recorder, delays=delays, stopped=stopped)
        self.soonest, self.skipped = Ps(at.FOREVER), 0
        self._moments: list[Moment] = []
        self._jobs: list[Track] = []
        self._begun: list[int] = []
        self._looked: list[int] = []
        self._tries = 0
        self._remembers, self._lasts, self._never = why, lasting, why
        self.why = why or "there is no job"
        self.steady: Steady | None = None
        if approximate is not None:
            self.steady = Steady(approximate, self._leaper, recorder, self._most, lasting)
        self._follow([track for track in programs.tracks if len(track.part.hosts)])

    @property
    def hops(self) -> int:
        """Packet-hops that were left out."""
        return self._leaper.hops

    def _follow(self, jobs: list[Track]) -> None:
        """From now on these jobs are those that go on."""
        self._jobs, self._moments, self._begun, self._looked, self._tries = jobs, [], [], [], 0
        differ = self._inputs_differ()
        self._never = self._remembers or differ or next((each for job in jobs if (each := job.part.repeats.varies)), "")
        if jobs:
            self.why = self._never or "the network is never quiet between two iterations"
        if self.steady is not None:
            self.steady.follow(jobs, self._lasts or differ)
        looks_steady = self.steady is not None and not self.steady.never
        self._recorder.on = bool(jobs) and (looks_steady or not self._never)
        self._recorder.forget(*self._recorder.seen)
        self._memory.M[at.H_NOTES_TIES] = bool(jobs) and not self._never

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
                self._disturbed("there is traffic beside the jobs")
                return False
        if any(not track.more_to_come or track.asks for track in jobs) or anchor >= at.FOREVER:
            return False
        self._logs.hand_over()
        now = self._moment(jobs, anchor)
        if self._moments:
            self.why = TOO_FEW
        # it is one or none
        moved = not self._never and any(self._repeats(jobs, before, now) for before in self._before(jobs, now))
        if self.steady is not None:
            moved = self._looks_steady(self.steady, jobs, now, moved)
        periods = [track.part.repeats.period for track in jobs]
        self._moments = [] if moved or self._never else [*self._moments, now][-2 * max(periods) - MOST_RHYTHM :]
        return moved

    def _disturbed(self, why: str) -> None:
        """Something beside the jobs is under way."""
        self._moments, self.why = [], self._never or why
        if self.steady is not None:
            self.steady.disturbed(why)

    def _looks_steady(self, steady: Steady, jobs: list[Track], now: Moment, moved: bool) -> bool:
        """Leave out iterations that are alike on average, unless some were that are so exactly; whether any were."""
        if moved:
            steady.reset()
            return True
        if not steady.look(jobs, now):
            return False
        steady.begin(self._moment(jobs, self._programs.timer))
        return True

    def _forget(self) -> None:
        """Keep no moment that is long ago, as where the network is hardly ever quiet, and of what came of iterations
        only what came since the first one that is still of use."""
        most = 2 * (2 * max(track.part.repeats.period for track in self._jobs) + MOST_RHYTHM)
        self._moments = [
            each for each in self._moments
            if all(job.handed.steps - was.steps <= most for job, was in zip(self._jobs, each.handed, strict=True))
        ]  # fmt: skip
        wanted = [self._recorder.seen, *((each.taken, each.dropped) for each in self._moments[:1])]
        if self.steady is not None and self.steady.wants is not None:
            wanted.append(self.steady.wants)
        self._recorder.forget(*min(wanted))

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
            anchor, b"" if self._never else standing(self._memory, self._flows, jobs, anchor),
            [[replace(laid) for laid in track.live] for track in jobs],
            [replace(track.handed) for track in jobs], [track.events for track in jobs], self._flows.count,
            self._flows.delivered_bytes, self._leaper.counted(), taken, dropped, self._agenda.acted,
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
        stretch = Stretch.between(before, now, self._recorder)
        times = 0 if early else self._most(stretch.by, stretch.messages, stretch.steps, [0] * len(jobs))
        if times < 1:
            self.why = TOO_FEW
            return False
        self.skipped += sum(stretch.steps) * self._leaper.leave_out(jobs, now, [stretch], times)
        return True

    def _drawn(self, before: Moment, now: Moment) -> str:
        """What draws have decided from one moment to the other, in words; empty if nothing."""
        one, other = before.counted, now.counted
        if other.ways != one.ways:
            return "packets take one of several ways"
        if (other.tests != one.tests).any():
            return "queues draw what they mark or cut"
        if (other.ports[self._leaper.lossy, SENT] != one.ports[self._leaper.lossy, SENT]).any():
            return "links lose packets at random"
        if other.ties != one.ties:
            return "packets for one port arrive at the same picosecond, and draws say which is first"
        return ""

    def _most(self, by: int, messages: int, steps: list[int], spare: list[int]) -> int:
        """How many times so much time, so many messages and so many steps of each job can be left out before anything
        else comes: the last iterations and so many before them, an action from outside, the end of the run."""
        end = min(self._limit, self._agenda.next_action)
        most = [
            (end - int(self._memory.M[at.H_NOW])) // by,
            (at.MASK_KEY_NUMBER - self._flows.count) // max(1, messages),
        ]
        for more, rest, track in zip(steps, spare, self._jobs, strict=True):
            # the step that comes next is made already
            most.append((track.part.repeats.last - track.laid - rest) // more)
        return min(most)


def remembers(combination: Combination) -> str:
    """Why what comes of messages may follow from more than themselves, if so."""
    if combination.features.streams:
        return "connections outlive messages"
    if combination.features.aggregation:
        return "slots of switches that sum outlive messages"
    return next((why for owner in (*combination.transports, combination.queue) if (why := _untold(owner))), "")


def lasts(combination: Combination) -> str:
    """Why what outlives a quiet moment cannot be moved on in time, if so."""
    if combination.features.streams:
        return "connections outlive messages"
    if combination.features.aggregation:
        return "slots of switches that sum outlive messages"
    for owner in combination.transports:
        if shares(owner) and "pair_times" not in vars(owner):
            return f"nobody says what of pairs of hosts are times in {kind_of(owner) or owner.__name__} (pair_times)"
    return _untold(combination.queue)


def _untold(owner: type) -> str:
    """Why what comes of messages may follow from more than themselves with a component, if so."""
    if vars(owner).get("forgets", False):
        return ""
    return f"nobody says that nothing outlives the messages of {kind_of(owner) or owner.__name__}"


def _same_steps(before: Moment, now: Moment) -> bool:
    """Whether the steps that are laid are alike."""
    return all(
        len(those) == len(these)
        and all(alike(one.step, one.event, other.step, other.event) for one, other in zip(those, these, strict=True))
        for those, these in zip(before.steps, now.steps, strict=True)
    )
