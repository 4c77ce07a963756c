"""Steady state: iterations of jobs that are alike on average are represented by simulated ones.

Where draws decide something (paths, losses, marks, compute times, the transports' state of pairs), no two iterations
are equal, but after a while they may be alike on average. Wormhole (Long et al., NSDI '26) looks for steady rates of
the flows of a partition of the network, and skips from there to the next event. A job's iteration times are steadier
than those rates, and are the quantity of interest. So whole iterations are skipped here, and the possible error is
measured (all of it our choice):

* Iterations are simulated until the 95 % confidence interval of the mean iteration time of every job is within half the
  tolerance, and no trend would lead beyond it (`gradwire.sim.engine.fast_forward.mean_uncertainty`). A period of
  replayed iterations counts as one value. First ones that differ from later ones are dropped.
* None are skipped before rare events have been seen often enough (`gradwire.sim.engine.fast_forward.rare_events`).
* Then some are skipped: they repeat all simulated ones in order, with later times, higher numbers and rising counters.
  The network itself does not see them: it continues from its state, with its own draws.
* Behind them a *sample* is simulated, and compared with the prediction. If it agrees, it joins the simulated ones, and
  up to twice as many are skipped the next time; if not, all restarts with the sample.
* Slower changes are not foreseen. So early skips take only a part (`EARLY`) of the rest of the job, until `SETTLED`
  iterations that represent each other have been simulated.
* Whatever involves the outside (faults, traffic, the end of a run, the last iterations) is simulated, and iterations
  before an action from outside do not represent later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import hypot, sqrt
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Flags, Floats
from gradwire.sim.engine.fast_forward.iteration_skip import BYTES_COLUMN, IterationSkipper, QuietMoment, Stretch
from gradwire.sim.engine.fast_forward.mean_uncertainty import USUAL, MeanUncertainty, drifts, exceeds, trend
from gradwire.sim.engine.fast_forward.rare_events import rare_event_flags, too_rare
from gradwire.sim.engine.fast_forward.step_recorder import StepRecorder
from gradwire.sim.engine.program.track import Track
from gradwire.workload.program import END, START, TIE_DRAW_STEPS

SkipLimit = Callable[[int, int, list[int], list[int]], int]
"""(picoseconds, messages, steps and spare steps, by job) -> how many times as much may be skipped"""

MIN_ITERATIONS = 32
"""Least iterations that are simulated before any is skipped."""
MIN_PERIODS = 8
"""Least periods that are simulated before any is skipped."""
SAMPLE_ITERATIONS = 8
"""Least iterations of a sample, in whole periods."""
MAX_REPETITIONS = 8
"""Largest ratio of skipped iterations to those that represent them."""
EARLY, SETTLED = 8, 64
"""Early skips take at most an eighth of the iterations that are left."""
MAX_KEPT_MESSAGES = 1 << 20
"""Messages that are kept to be repeated."""
STEP_TOLERANCE = 0.25
"""Share of the tolerance by which the times of several jobs may differ in one stretch."""


@dataclass
class Regime:
    """Iterations that represent each other.

    stretches : simulated stretches.
    repeated, late : by stretch, how often it was repeated, and whether it came after the first skip.
    leaps : number of skips.
    """

    stretches: list[Stretch] = field(default_factory=list)
    times: list[list[Floats]] = field(default_factory=list)
    """by stretch and job: float64[periods], mean iteration time in picoseconds"""
    rare: list[list[Flags]] = field(default_factory=list)
    """by stretch and job, as `rare_event_flags`"""
    repeated: list[int] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)
    leaps: int = 0

    def of(self, job: int) -> Floats:
        return np.concatenate([times_by_job[job] for times_by_job in self.times])

    def uncertainty(self, job: int, lossy: Flags) -> str:
        """Return why too little of a job has been seen, apart from its times; empty if enough. `lossy`: lossy links."""
        used = any(stretch.ports[lossy, BYTES_COLUMN].any() for stretch in self.stretches)
        return too_rare(np.concatenate([flags_by_job[job] for flags_by_job in self.rare]), used)

    def without_first(self, first: int) -> Regime:
        """Return the regime without its first stretches, and without repetitions."""
        stretches = self.stretches[first:]
        return Regime(stretches, self.times[first:], self.rare[first:], [0] * len(stretches), [False] * len(stretches))

    @property
    def steps(self) -> list[int]:
        """Iterations by job."""
        return [sum(counts) for counts in zip(*(stretch.steps for stretch in self.stretches), strict=True)]

    @property
    def rows(self) -> int:
        return sum(stretch.messages for stretch in self.stretches)


@dataclass
class SteadyReport:
    """Statistics of a job.

    period : of its replayed iterations.
    first : the first skipped iteration.
    approximated : number of skipped iterations.
    behind : simulated iterations after the first skip that are in `squares`.
    spread : largest deviation of a period's time, over the mean iteration time.
    errors : relative errors of the predictions of samples.
    squares : variance of the sum of all iteration times over the square of their mean, as far as skipping causes it.
    led : change of that sum by trends, over the mean.
    """

    period: int
    first: int
    approximated: int = 0
    behind: int = 0
    spread: float = 0.0
    errors: list[float] = field(default_factory=list)
    squares: float = 0.0
    led: float = 0.0

    def summary(self, iterations: int) -> dict[str, Any]:
        """Return the statistics for a Result, of a job with this number of iterations."""
        share = self.approximated / max(1, iterations)
        mean_error = float(np.mean(self.errors)) if self.errors else 0.0
        later_periods = max(0, iterations - self.first - self.approximated - self.behind) / self.period
        chance = USUAL * sqrt(self.squares + 2 * later_periods * self.spread**2) / max(1, iterations)
        return {
            "iterations": iterations,
            "approximated": self.approximated,
            "samples": len(self.errors),
            "error": mean_error,
            "error_largest": max(map(abs, self.errors), default=0.0),
            "uncertainty": hypot(chance, share * mean_error) + self.led / max(1, iterations),
        }


class SteadyState:
    """Finds jobs whose iterations are steady, and skips some.

    Attributes
    ----------
    why : reason why none are skipped.
    jobs : statistics by job name.
    left : what was skipped: job, first iteration, number of iterations, and the repeated ones as (first, number).
    missed : samples that disagreed with the prediction.
    """

    def __init__(
        self, tolerance: float, leaper: IterationSkipper, recorder: StepRecorder, most: SkipLimit, why: str
    ) -> None:
        """`why`: reason why nothing can be skipped in the network, if there is one."""
        self.tolerance, self.never = tolerance, why
        self.why = why or "there is no job"
        self.jobs: dict[str, SteadyReport] = {}
        self.left: list[dict[str, Any]] = []
        self.missed = 0
        self._leaper, self._recorder, self._most = leaper, recorder, most
        self._regime = Regime()
        self._begin: QuietMoment | None = None
        self._times, self._sample = 1, False

    # --- finding steady iterations ------------------------------------------------------------------------------

    def begin(self, now: QuietMoment | None) -> None:
        """Begin a simulated stretch at a moment, or at the next one (None)."""
        self._begin = now

    def reset(self) -> None:
        """Drop everything simulated so far: it does not represent what follows."""
        self._end_regime()
        self._begin = None

    def follow(self, jobs: list[Track], why: str) -> None:
        """Restart with these jobs. `why`: reason why none of their iterations can be skipped, if there is one."""
        self.reset()
        self.never = why
        if jobs:
            self.why = why or "the network is never quiet between two iterations"

    def restart(self, why: str) -> None:
        """Restart because something else is under way."""
        self.reset()
        self.why = self.never or why

    @property
    def entries_needed(self) -> tuple[int, int] | None:
        """First needed entries of the recorder's lists; None if none are needed."""
        return None if self._begin is None else (self._begin.taken, self._begin.dropped)

    def skip_if_steady(self, jobs: list[Track], now: QuietMoment) -> bool:
        """Skip iterations at a quiet moment if they are steady; return True if any were skipped."""
        if self.never:
            return False
        begin = self._begin
        if begin is not None and begin.acted != now.acted:
            self.reset()
            begin = None
        if begin is None:
            if all(
                handed.steps >= max(track.part.repeats.first, TIE_DRAW_STEPS)
                for handed, track in zip(now.handed, jobs, strict=True)
            ):
                self._begin = now
            return False
        return self._is_complete(jobs, begin, now) and self._judge(jobs, begin, now)

    def _is_complete(self, jobs: list[Track], begin: QuietMoment, now: QuietMoment) -> bool:
        """Return True if the stretch is long enough and its two moments match."""
        for track, one, other in zip(jobs, begin.handed, now.handed, strict=True):
            steps, period = other.steps - one.steps, track.part.repeats.period
            if steps < self._iterations_needed(track) or steps % period:
                return False
        return begin.held == now.held

    def _iterations_needed(self, track: Track) -> int:
        """Return the least iterations of a job in the present stretch."""
        period = track.part.repeats.period
        return -(-SAMPLE_ITERATIONS // period) * period if self._regime.stretches else _least(track)

    def _judge(self, jobs: list[Track], begin: QuietMoment, now: QuietMoment) -> bool:
        fits, span, times = self._measured(jobs, begin, now)
        if not fits:
            self.why = "jobs do not keep step"
            return False
        regime = self._regime
        if self._sample and not self._matches_prediction(jobs, times):
            self.missed += 1
            self._end_regime()
            self.why = "iteration times change"
            return False  # the stretch continues as the first of the next regime
        regime.stretches.append(Stretch.from_moments(begin, now, self._recorder, span))
        regime.times.append(times)
        regime.rare.append(
            [rare_event_flags(track.part, regime.stretches[-1].over, regime.stretches[-1].lost) for track in jobs]
        )
        regime.repeated.append(0)
        regime.late.append(regime.leaps > 0)
        self._begin, self._sample = now, False
        return self._skip_iterations(jobs, now)

    def _measured(
        self, jobs: list[Track], begin: QuietMoment, now: QuietMoment
    ) -> tuple[bool, tuple[int, int], list[Floats]]:
        """Return whether a stretch can be repeated, its start and length, and mean iteration times by job. It can be if
        all jobs have spent the same time in it. Start and length are averages over workers; times are
        float64[periods]."""
        first = self._recorder.before[0]
        entries = self._recorder.taken[begin.taken - first : now.taken - first]
        starts, sums, times = [], [], []
        for track in jobs:
            workers = track.part.workers >= 0
            notes = np.stack([step.notes[workers] for part, _, step, _, _ in entries if part is track.part])
            spent = notes[:, :, END] - notes[:, :, START]  # by step and worker
            starts.append(float(notes[0, :, START].mean()))
            sums.append(float(spent.sum(axis=0).mean()))
            times.append(spent.mean(axis=1).reshape(-1, track.part.repeats.period).mean(axis=1))
        by = round(float(np.mean(sums)))
        fits = max(abs(each - by) for each in sums) <= STEP_TOLERANCE * self.tolerance * by
        return fits, (round(float(np.mean(starts))), by), times

    # --- deciding and skipping ----------------------------------------------------------------------------------

    def _matches_prediction(self, jobs: list[Track], times: list[Floats]) -> bool:
        """Compare a sample with the prediction: the mean of the iterations that represent those skipped before it."""
        agrees = True
        for number, track in enumerate(jobs):
            before, sample = self._regime.of(number), times[number]
            self._statistics(track).errors.append(float(before.mean() / sample.mean() - 1))
            agrees &= not exceeds(before, sample, self.tolerance * float(before.mean()))
        return agrees

    def _skip_iterations(self, jobs: list[Track], now: QuietMoment) -> bool:
        """Skip iterations if the stretches so far, or the later ones of them, are steady."""
        self.why = self._unsteadiness(jobs, self._regime)
        for first in range(1, len(self._regime.stretches) if self.why else 0):
            later = self._regime.without_first(first)
            if all(map(int.__ge__, later.steps, map(_least, jobs))) and not self._unsteadiness(jobs, later):
                self._end_regime()
                self._regime, self.why = later, ""
                break
        if self.why:
            if self._regime.rows > MAX_KEPT_MESSAGES:
                self.reset()
            return False
        return self._leap(jobs, now)

    def _unsteadiness(self, jobs: list[Track], regime: Regime) -> str:
        """Return why mean iteration times are too uncertain; empty if they are not."""
        for number, track in enumerate(jobs):
            if why := regime.uncertainty(number, self._leaper.lossy):
                return why
            values = regime.of(number)
            if MeanUncertainty.of(values).half_width > self.tolerance / 2 * float(values.mean()):
                return f"iteration times of job {track.part.table.name} vary too much"
        return ""

    def _leap(self, jobs: list[Track], now: QuietMoment) -> bool:
        """Skip as many iterations as possible; they repeat all stretches or, if these are too many, the later ones."""
        regime = self._regime
        for number, track in enumerate(jobs):
            values = regime.of(number)
            if drifts(values, self._times * len(values), self.tolerance * float(values.mean())):
                self.why = f"iteration times of job {track.part.table.name} change"
                self.reset()
                return False
        for first in range(len(regime.stretches)):
            times = min(self._times, self._fits(jobs, regime.without_first(first)))
            if times > 0:
                repetitions = self._leaper.leave_out(jobs, now, regime.stretches[first:], times)
                if repetitions:
                    self._note(jobs, now, first, repetitions)
                return repetitions > 0
        self.why = "" if self.left else "there are too few iterations"
        return False

    def _fits(self, jobs: list[Track], regime: Regime) -> int:
        """Return how many times the stretches of a regime may be repeated now."""
        by, messages = (sum(getattr(stretch, name) for stretch in regime.stretches) for name in ("by", "messages"))
        # a sample must follow, and then another quiet moment
        most = self._most(by, messages, regime.steps, [self._iterations_needed(track) + 1 for track in jobs])
        if min(self._regime.steps) < SETTLED:
            ahead = [track.part.repeats.last - track.laid for track in jobs]
            most = min(most, *(left // (EARLY * steps) for left, steps in zip(ahead, regime.steps, strict=True)))
        return most

    def _note(self, jobs: list[Track], now: QuietMoment, first: int, times: int) -> None:
        """Record that the stretches from `first` on were repeated `times` times."""
        regime, repeats = self._regime, self._regime.without_first(first)
        regime.leaps += 1
        regime.repeated = [count + times * (index >= first) for index, count in enumerate(regime.repeated)]
        for number, (track, steps) in enumerate(zip(jobs, repeats.steps, strict=True)):
            self._statistics(track, now.handed[number].steps).approximated += times * steps
            self.left.append(
                {
                    "job": track.part.table.name,
                    "first": now.handed[number].steps,
                    "iterations": times * steps,
                    "repeats": [
                        [stretch.begin.handed[number].steps, stretch.steps[number]] for stretch in repeats.stretches
                    ],
                }
            )
        self._times, self._sample, self.why = min(2 * self._times, MAX_REPETITIONS), True, ""

    def _statistics(self, track: Track, first: int = 0) -> SteadyReport:
        """Return the statistics of a job, whose iterations from `first` on are skipped."""
        return self.jobs.setdefault(track.part.table.name, SteadyReport(track.part.repeats.period, first))

    # --- error estimates ----------------------------------------------------------------------------------------

    def _end_regime(self) -> None:
        """Add the possible error of the mean iteration time because of skipping to the jobs' statistics.

        Had the skipped iterations been simulated, they and all later ones would have been others. So repeated
        iterations weigh as often as they were repeated, those behind the first skip once more, and the hypothetical
        ones once each (those in no regime are added by the statistics' `summary`). A trend would have continued.
        """
        regime, self._regime = self._regime, Regime()
        self._times, self._sample = 1, False
        for number, statistics in enumerate(self.jobs.values() if regime.leaps else ()):
            counts = [len(times_by_job[number]) for times_by_job in regime.times]
            weights = [late + repeated for late, repeated in zip(regime.late, regime.repeated, strict=True)]
            periods = sum(
                count * (weight**2 + repeated + late)
                for count, weight, repeated, late in zip(counts, weights, regime.repeated, regime.late, strict=True)
            )
            values = regime.of(number)
            spread, ahead = MeanUncertainty.of(values), int(np.dot(counts, regime.repeated))
            deviation = statistics.period * spread.deviation / spread.mean
            statistics.squares += periods * deviation**2
            statistics.spread = max(statistics.spread, deviation)
            statistics.behind += statistics.period * int(np.dot(counts, regime.late))
            statistics.led += statistics.period * ahead * trend(values) * ahead / 2 / spread.mean

    def summary(self, iterations: dict[str, int]) -> dict[str, Any]:
        """Return the summary for a Result. `iterations`: completed ones of every job."""
        self._end_regime()
        return {
            "tolerance": self.tolerance,
            "declined": "" if self.left else self.why,
            "jobs": {
                name: statistics.summary(iterations.get(name, 0))
                for name, statistics in self.jobs.items()
                if statistics.approximated
            },
            "left_out": self.left,
            "missed": self.missed,
        }


def _least(track: Track) -> int:
    """Return the iterations of a job that are simulated before any is skipped."""
    return max(MIN_ITERATIONS, MIN_PERIODS * track.part.repeats.period)
