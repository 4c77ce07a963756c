"""Fast-forward: iterations of jobs that repeat themselves exactly are not simulated again.

Between two iterations there often is a moment at which the network is quiet. What outlives it is little: what jobs are
in the middle of (`standing`), counters, and draws that go by counters, by times of the day or by numbers of messages.
If jobs stand at such a moment as they did at one before, a whole number of periods of what they replay ago, and if no
draw has decided anything in between, everything from the one moment to the other comes again and again, so much later
each time: the network has no memory, and knows times by their differences alone. So what came of these iterations is
handed over once more for each of those that follow, with later times and higher numbers, counters rise by as much, and
the state is moved on (`gradwire.sim.fabric.leaping`). The last iterations, what a fault or the end of the run comes
into, and whatever is not certain are simulated. So a Result is the same to the byte as without.

What transports know of a connection, or of a pair of hosts, stands as it did as well where it has settled: windows that
are as large as they get, round trips that are measured over and over (`gradwire.components.transports.at_rest`). So do
the slots of switches that sum.

What outlives a moment and cannot be told, so that nothing is left out: samples of queues, a log of packets; rules that
go by a clock or by how many iterations there were; and what a scenario's own components may do. Where that does not
matter on average, and a scenario asks for it, iterations are left out all the same (`gradwire.sim.fabric.steady`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from gradwire.components import layout as at
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
    from gradwire.scenarios.json_data import Json
    from gradwire.sim.fabric.parameters import Bound
    from gradwire.sim.fabric.specialise import Combination

MOST_PERIOD = 64
"""Iterations after which jobs may replay the same ones again: of so many it is kept what came of them (our choice)."""

MOST_RHYTHM = 8
"""Jobs may go on by turns: so many iterations more it is kept what came of them, and how things stood (our choice)."""
LASTING_RHYTHM = 24
"""The same where connections last: a window that is halved in every silence, and grows again by whole packets, comes
back after 17 times, as it has 16 binary places to lose."""
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
        recorder: Recorder, *, combination: Combination, limit: Ps, why: str, approximate: float | None,
        stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`limit`: where the run ends. `why`: why nothing is to be taken as repeating itself exactly, if so.
        `approximate`: the error of mean iteration times that is tolerated, if any is. `stopped`: whether somebody wants
        to end the run."""
        self._memory, self._flows, self._programs, self._agenda = memory, flows, programs, agenda
        self._logs, self._recorder, self._limit = logs, recorder, limit
        delays = combination.features.delays
        self._leaper = Leaper(memory, flows, deliveries, recorder, delays=delays, stopped=stopped)
        self.soonest, self.skipped = Ps(at.FOREVER), 0
        self._moments: list[Moment] = []
        self._jobs: list[Track] = []
        self._begun: list[int] = []
        self._looked: list[int] = []
        self._tries = 0
        self._remembers = self._never = why = why or remembers(combination, flows.transports)
        self._lasts = lasting = lasts(combination, flows.transports)
        lasting_ones = any(bound.persistent for bound in flows.transports)
        self._rhythm = LASTING_RHYTHM if lasting_ones else MOST_RHYTHM
        self._keeps_ways = keeps_ways(combination, flows.transports)
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
        self._moments = [] if moved or self._never else [*self._moments, now][-2 * max(periods) - self._rhythm :]
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
        most = 2 * (2 * max(track.part.repeats.period for track in self._jobs) + self._rhythm)
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
            [replace(track.handed) for track in jobs], [track.events for track in jobs], self._flows.book.count,
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
        if other.ways != one.ways and not self._keeps_ways:
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
        left = at.MASK_KEY_NUMBER - self._flows.book.count
        if self._flows.shares:
            # the oldest messages of groups are told apart by the last digits of their numbers (KEY_CLASS)
            left = min(left, -self._flows.book.count % (1 << at.KEY_CLASS))
        most = [(end - int(self._memory.M[at.H_NOW])) // by, left // max(1, messages)]
        for more, rest, track in zip(steps, spare, self._jobs, strict=True):
            # the step that comes next is made already
            most.append((track.part.repeats.last - track.laid - rest) // more)
        return min(most)


def remembers(combination: Combination, transports: Sequence[Bound]) -> str:
    """Why what comes of messages may follow from more than themselves and what is told of lasting records, if so."""
    for bound in transports:
        why = _not_at_rest(bound) or _untold(bound.owner, bound.settings)
        if why:
            return why
    return _untold(combination.queue)


def lasts(combination: Combination, transports: Sequence[Bound]) -> str:
    """Why what outlives a quiet moment cannot be moved on in time, if so."""
    return next((why for bound in transports if (why := _not_at_rest(bound))), "") or _untold(combination.queue)


def keeps_ways(combination: Combination, transports: Sequence[Bound]) -> bool:
    """Whether packets of later messages take the same ways as those of earlier ones: all connections last, and ways
    follow from what they are."""
    return vars(combination.balancer).get("by_entropy", False) and all(bound.persistent for bound in transports)


def _not_at_rest(bound: Bound) -> str:
    """Why it is not known of a transport how what outlives its messages stands while there are none, if so."""
    for there, what, name in (
        (bound.pairs, "pairs of hosts", "pair_at_rest"), (bound.persistent, "connections", "sender_at_rest"),
    ):  # fmt: skip
        if there and name not in vars(bound.owner):
            return f"nobody says what of {what} lasts in {_name(bound.owner)} ({name})"
    return ""


def _untold(owner: type, settings: Json | None = None) -> str:
    """Why what comes of messages may follow from more than itself with a component, if so. `settings`: a transport's
    table."""
    own = vars(owner)
    if settings is not None and "goes_by" in own:
        return cast("str", cast("Any", owner).goes_by(settings))
    return "" if own.get("forgets", False) else f"nobody says that nothing outlives the messages of {_name(owner)}"


def _name(owner: type) -> str:
    return kind_of(owner) or owner.__name__


def _same_steps(before: Moment, now: Moment) -> bool:
    """Whether the steps that are laid are alike."""
    return all(
        len(those) == len(these)
        and all(alike(one.step, one.event, other.step, other.event) for one, other in zip(those, these, strict=True))
        for those, these in zip(before.steps, now.steps, strict=True)
    )
