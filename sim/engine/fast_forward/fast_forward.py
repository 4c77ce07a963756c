"""`FastForward` detects iterations of jobs that repeat exactly, and has `iteration_skip` repeat their outcome instead
of simulating them.

Between two iterations there often is a moment at which the network is quiet. Little outlives it: the state of jobs
(`snapshot.job_snapshot`), counters, and draws that depend on counters, times or message numbers. Suppose that the jobs
are in the same state as at an earlier quiet moment, whole periods of their replayed iterations ago, and that no draw
has decided anything in between. Then everything between the two moments repeats, later each time, since the network
knows times only by their differences. So the outcome of these iterations is handed over again for each following
repetition, with later times and higher numbers, counters rise by as much, and the state is moved on
(`gradwire.sim.engine.fast_forward.iteration_skip`). The last iterations, those affected by a fault or the end of the
run, and whatever is uncertain are simulated. So a Result is the same to the byte.

The transports' state of connections and pairs of hosts repeats, too, once it has settled: windows at their limit, round
trips measured over and over (`gradwire.protocols.transports.common.persistent_state`). So do slots of aggregating
switches.

Nothing is skipped if something outlives a quiet moment that cannot be compared: queue samples, a packet log, rules that
depend on a clock or on the number of iterations, and user-defined components that do not declare their state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from gradwire.jit.records import constants as at
from gradwire.jit.records.header import State
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.loading.registry import kind_of
from gradwire.sim.engine.deliveries import Deliveries
from gradwire.sim.engine.fast_forward.iteration_skip import BYTES_COLUMN, IterationSkipper, QuietMoment, Stretch
from gradwire.sim.engine.fast_forward.step_recorder import StepRecorder
from gradwire.sim.engine.logs import Logs
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.program.program import Programs
from gradwire.sim.engine.program.track import Track
from gradwire.sim.engine.scheduled_actions import Schedule
from gradwire.sim.engine.snapshot import is_quiet, job_snapshot
from gradwire.workload.program import TIE_DRAW_STEPS
from gradwire.workload.steps import are_equal_steps

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import Json
    from gradwire.sim.engine.memory.parameters import BoundTransport
    from gradwire.sim.engine.specialization import Combination

MAX_PERIOD = 64
"""Longest period, in iterations, after which jobs replay the same ones; their outcomes are kept (our choice)."""

MAX_CYCLE = 8
"""Further iterations whose outcomes and states are kept, since the state of jobs may alternate (our choice)."""
MAX_PERSISTENT_CYCLE = 24
"""The same for persistent connections: a window that is halved in every silence, and grows again by whole packets,
returns to its value after 17 iterations, as it has 16 binary places to lose."""
MAX_CHECKS = 12
"""Number of checks per iteration for a quiet network (our choice)."""

TOO_FEW = "there are too few iterations"


class FastForward:
    """Finds iterations that repeat, and skips them.

    Attributes
    ----------
    soonest : latest time of the next check.
    skipped : skipped iterations that repeat others exactly, of all jobs.
    why : reason why none are skipped.
    """

    def __init__(
        self, memory: EngineMemory, flows: Flows, programs: Programs, logs: Logs, deliveries: Deliveries,
        agenda: Schedule,
        recorder: StepRecorder, *, combination: Combination, limit: Ps, why: str, stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Prepare to skip iterations.

        limit : the end of the run.
        why : reason why no iteration repeats exactly, if known.
        stopped : returns True if the run is to end.
        """
        self._memory, self._flows, self._programs, self._agenda = memory, flows, programs, agenda
        self._logs, self._recorder, self._limit = logs, recorder, limit
        delays = combination.features.delays
        self._leaper = IterationSkipper(memory, flows, deliveries, recorder, delays=delays, stopped=stopped)
        self.soonest, self.skipped = Ps(at.FOREVER), 0
        self._moments: list[QuietMoment] = []
        self._jobs: list[Track] = []
        self._begun: list[int] = []
        self._looked: list[int] = []
        self._tries = 0
        self._remembers = self._never = why = why or why_not_repeatable(combination, flows.transports)
        has_persistent = any(bound.persistent for bound in flows.transports)
        self._rhythm = MAX_PERSISTENT_CYCLE if has_persistent else MAX_CYCLE
        self._keeps_ways = keeps_paths(combination, flows.transports)
        self.why = why or "there is no job"
        self._restart([track for track in programs.tracks if len(track.part.hosts)])

    @property
    def hops(self) -> int:
        """Packet-hops that were skipped."""
        return self._leaper.hops

    def _restart(self, jobs: list[Track]) -> None:
        """Restart with these jobs, those that have not ended."""
        self._jobs, self._moments, self._begun, self._looked, self._tries = jobs, [], [], [], 0
        differ = self._inputs_differ()
        self._never = (
            self._remembers or differ or next((reason for job in jobs if (reason := job.part.repeats.varies)), "")
        )
        if jobs:
            self.why = self._never or "the network is never quiet between two iterations"
        self._recorder.on = bool(jobs) and not self._never
        self._recorder.forget(*self._recorder.seen)
        self._memory.state[State.counts_ties.offset] = bool(jobs) and not self._never

    def _inputs_differ(self) -> str:
        """Return why the jobs' inputs do not repeat; empty if they do."""
        for track in self._jobs:
            repeats = track.part.repeats
            if not repeats.period:
                return repeats.why
            if repeats.period > MAX_PERIOD:
                return f"the replayed iterations repeat only after {repeats.period}"
            if repeats.last - repeats.first < 2 * repeats.period:
                return TOO_FEW
        return ""

    @property
    def outcome(self) -> str:
        """The number of skipped iterations, or the reason why there are none."""
        return f"{self.skipped} iterations not simulated again" if self.skipped else f"declined: {self.why}"

    # --- finding repetitions ------------------------------------------------------------------------------------

    def skip_if_repeated(self) -> bool:
        """Check, once per iteration of all jobs, for a repetition; return True if time has moved on because of one."""
        if any(track.finished for track in self._jobs):
            self._restart([track for track in self._jobs if not track.finished])
        begun = [int(track.begun.min()) for track in self._jobs] if self._recorder.on else []
        if begun == self._looked:
            self.soonest = Ps(at.FOREVER)
            return False
        if begun != self._begun:
            self._begun = begun
            self._forget()
        state, flows, records = self._memory.state, self._flows, self._flows.records
        if state[State.closing_count.offset]:
            self._programs.closed(flows.close())
        if records.open > records.lasting or not is_quiet(self._memory, flows):
            self._wait(begun)
            return False
        self._looked, self._tries, self.soonest = begun, 0, Ps(at.FOREVER)
        return self._compare()

    def _wait(self, begun: list[int]) -> None:
        """Schedule the next check: soon after all messages of the last iteration are delivered, then ever later."""
        state = self._memory.state
        self.soonest = Ps(at.FOREVER)
        for number, track in zip(begun, self._jobs, strict=True):
            if any(state[step.left] for step in track.live[: max(0, number - track.handed.steps)]):
                return
        self._tries += 1
        if self._tries > MAX_CHECKS:
            self._looked, self._tries = begun, 0
        else:
            self.soonest = Ps(int(state[State.now.offset]) + (int(state[State.host_latency.offset]) << self._tries))

    def _compare(self) -> bool:
        jobs, anchor = self._jobs, self._programs.timer
        for track in self._programs.tracks:
            track.sweep(self._programs.take)
            if track not in jobs and not track.finished:
                self._record_disturbance("there is traffic beside the jobs")
                return False
        if any(not track.has_more_steps or track.is_requesting for track in jobs) or anchor >= at.FOREVER:
            return False
        self._logs.hand_over()
        now = self._moment(jobs, anchor)
        if self._moments:
            self.why = TOO_FEW
        moved = not self._never and any(self._skip_if_repeated(jobs, before, now) for before in self._before(jobs, now))
        periods = [track.part.repeats.period for track in jobs]
        self._moments = [] if moved or self._never else [*self._moments, now][-2 * max(periods) - self._rhythm :]
        return moved

    def _record_disturbance(self, why: str) -> None:
        """Record that something beside the jobs is under way."""
        self._moments, self.why = [], self._never or why

    def _forget(self) -> None:
        """Forget moments of long ago, and outcomes of iterations before the first useful moment. Old moments accumulate
        where the network is hardly ever quiet."""
        max_age = 2 * (2 * max(track.part.repeats.period for track in self._jobs) + self._rhythm)
        self._moments = [
            moment
            for moment in self._moments
            if all(
                job.handed.steps - handed.steps <= max_age
                for job, handed in zip(self._jobs, moment.handed, strict=True)
            )
        ]
        oldest = [self._recorder.seen, *((moment.taken, moment.dropped) for moment in self._moments[:1])]
        self._recorder.forget(*min(oldest))

    def _before(self, jobs: list[Track], now: QuietMoment) -> list[QuietMoment]:
        """Return the last earlier moment, whole periods of all jobs ago, with the same state, or else the last of any
        state. The list is empty if there is none."""
        moments = []
        for before in reversed(self._moments):
            steps = [other.steps - one.steps for one, other in zip(before.handed, now.handed, strict=True)]
            if all(more and more % track.part.repeats.period == 0 for more, track in zip(steps, jobs, strict=True)):
                moments.append(before)
        return [before for before in moments if before.state == now.state][:1] or moments[:1]

    def _moment(self, jobs: list[Track], anchor: Ps) -> QuietMoment:
        taken, dropped = self._recorder.seen
        return QuietMoment(
            anchor,
            b"" if self._never else job_snapshot(self._memory, self._flows, jobs, anchor),
            [[replace(step) for step in track.live] for track in jobs],
            [replace(track.handed) for track in jobs],
            [track.events for track in jobs],
            self._flows.book.count,
            self._flows.delivered_bytes,
            self._leaper.counted(),
            taken,
            dropped,
            self._agenda.acted,
        )

    # --- deciding and skipping ----------------------------------------------------------------------------------

    def _skip_if_repeated(self, jobs: list[Track], before: QuietMoment, now: QuietMoment) -> bool:
        """Skip what is possible if the state is as before; return True if something was skipped."""
        self.why = self._drawn(before, now)
        if self.why:
            return False
        if before.acted != now.acted or before.state != now.state or not _same_steps(before, now):
            self.why = "no two iterations are alike"
            return False
        early = any(
            handed.steps < max(track.part.repeats.first, TIE_DRAW_STEPS)
            for handed, track in zip(before.handed, jobs, strict=True)
        )
        stretch = Stretch.from_moments(before, now, self._recorder)
        times = 0 if early else self._most(stretch)
        if times < 1:
            self.why = TOO_FEW
            return False
        self.skipped += sum(stretch.steps) * self._leaper.leave_out(jobs, now, stretch, times)
        return True

    def _drawn(self, before: QuietMoment, now: QuietMoment) -> str:
        """Return what draws have decided between two moments; empty if nothing."""
        earlier, later = before.counted, now.counted
        if later.ways != earlier.ways and not self._keeps_ways:
            return "packets take one of several paths"
        if (later.tests != earlier.tests).any():
            return "queues mark or trim packets at random"
        if (later.ports[self._leaper.lossy, BYTES_COLUMN] != earlier.ports[self._leaper.lossy, BYTES_COLUMN]).any():
            return "links lose packets at random"
        if later.ties != earlier.ties:
            return "packets for one port arrive at the same picosecond, in an order drawn at random"
        return ""

    def _most(self, stretch: Stretch) -> int:
        """Return how many times a stretch can be skipped before something else comes. That is one of the last
        iterations, an action from outside, or the end of the run."""
        end = min(self._limit, self._agenda.next_action)
        left = at.MASK_KEY_NUMBER - self._flows.book.count
        if self._flows.shares:
            # groups identify their oldest message by the last digits of its number (KEY_CLASS)
            left = min(left, -self._flows.book.count % (1 << at.KEY_CLASS))
        limits = [(end - int(self._memory.state[State.now.offset])) // stretch.by, left // max(1, stretch.messages)]
        for more, track in zip(stretch.steps, self._jobs, strict=True):
            # the next step exists already
            limits.append((track.part.repeats.last - track.laid) // more)
        return min(limits)


def why_not_repeatable(combination: Combination, transports: Sequence[BoundTransport]) -> str:
    """Return why later messages may depend on more than declared persistent state; empty if they do not."""
    for bound in transports:
        why = _undeclared_state(bound) or _undeclared_memory(bound.owner, bound.settings)
        if why:
            return why
    return _undeclared_memory(combination.queue)


def keeps_paths(combination: Combination, transports: Sequence[BoundTransport]) -> bool:
    """Return True if later messages take the same paths as earlier ones. All connections last, and paths follow from
    their addresses."""
    return vars(combination.balancer).get("by_entropy", False) and all(bound.persistent for bound in transports)


def _undeclared_state(bound: BoundTransport) -> str:
    """Return which persistent state a transport does not declare; empty if it declares all."""
    for is_used, state, name in (
        (bound.pairs, "pairs of hosts", "pair_at_rest"),
        (bound.persistent, "connections", "sender_at_rest"),
    ):
        if is_used and name not in vars(bound.owner):
            return f"{_name(bound.owner)} does not declare what outlives its messages in {state} ({name})"
    return ""


def _undeclared_memory(owner: type, settings: Json | None = None) -> str:
    """Return why a component's behaviour may depend on earlier messages; empty if it does not. `settings`: a
    transport's table."""
    attributes = vars(owner)
    if settings is not None and "further_dependence" in attributes:
        return cast("str", cast("Any", owner).further_dependence(settings))
    return (
        ""
        if attributes.get("forgets", False)
        else f"{_name(owner)} does not declare that nothing outlives its messages"
    )


def _name(owner: type) -> str:
    return kind_of(owner) or owner.__name__


def _same_steps(before: QuietMoment, now: QuietMoment) -> bool:
    """Return True if the loaded steps of two moments are alike."""
    return all(
        len(earlier) == len(later)
        and all(
            are_equal_steps(one.step, one.event, other.step, other.event)
            for one, other in zip(earlier, later, strict=True)
        )
        for earlier, later in zip(before.steps, now.steps, strict=True)
    )
