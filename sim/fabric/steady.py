"""Steady: iterations of jobs that others stand for, as they are alike on average, are not simulated.

Where draws decide something - paths, losses, marks, compute times, what a pair of hosts has learnt - no two iterations
are alike, but after a while they may well be on average. Wormhole (Long et al., NSDI '26) looks for steady rates of the
flows of a partition of the network, and skips from there to the next event; what a job's iterations take is steadier
than the rates in them, and is what is asked for. So here it is whole iterations that are left out, and how far off that
may be is measured (all of it our choice):

* Iterations are simulated until the 95 % confidence interval of the mean iteration time of every job is within half of
  what is tolerated, and no trend would lead beyond it (`gradwire.sim.fabric.spread`). A period of what is replayed
  counts as one value. First ones that are not like those behind them are dropped.
* Nor are any left out before what befalls iterations now and then has been seen often enough
  (`gradwire.sim.fabric.rare`).
* Then some follow that are not simulated, which repeat all of the simulated ones in their order: with later times and
  higher numbers, and counters that rise by as much. The network itself has not seen them: it goes on from where it was,
  with draws of its own.
* Behind them a *sample* is simulated, and compared with what those before had predicted. If it holds, it joins them,
  and up to twice as many times as many are left out as before; if not, all begins anew with the sample.
* What changes more slowly than that is not foreseen. So an early leap takes no more than a part (`EARLY`) of what is
  left of the job, until `SETTLED` iterations that stand for each other have been simulated.
* Whatever comes from outside - faults, traffic, the end of a run, the last iterations - is simulated, and what
  came before an action from outside stands for nothing after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import hypot, sqrt
from typing import Any

import numpy as np

from gradwire.experiment.program import DRAWN, END, START
from gradwire.scenarios.arrays import Flags, Floats
from gradwire.sim.fabric.leaping import SENT, Leaper, Moment, Stretch
from gradwire.sim.fabric.rare import seen, too_rare
from gradwire.sim.fabric.recorder import Recorder
from gradwire.sim.fabric.spread import USUAL, Spread, drifts, exceeds, trend
from gradwire.sim.fabric.track import Track

Most = Callable[[int, int, list[int], list[int]], int]
"""(picoseconds, messages, steps and steps to spare, by job) -> how many times as much may be left out."""

LEAST = 32
"""Iterations, and ..."""
LEAST_PERIODS = 8
"""... periods that are simulated before any is left out."""
SAMPLE = 8
"""Iterations that are simulated between two leaps, at least; whole periods."""
MOST_TIMES = 8
"""How many times as many are left out as others stand for them, at most."""
EARLY, SETTLED = 8, 64
"""The first leaps take an eighth of the iterations that are left, at most."""
MOST_ROWS = 1 << 20
"""Messages that are kept to be repeated."""
RHYTHM = 0.25
"""How much of what is tolerated the times of several jobs may differ by in one stretch."""


@dataclass
class Regime:
    """Iterations that stand for each other: stretches, and how often each was repeated; whether it was simulated when
    some had been left out; and how far those of each job lie apart."""

    stretches: list[Stretch] = field(default_factory=list)
    times: list[list[Floats]] = field(default_factory=list)
    """by stretch and job: float64[periods], mean picoseconds of an iteration"""
    rare: list[list[Flags]] = field(default_factory=list)
    """the same, as `seen`"""
    repeated: list[int] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)
    leaps: int = 0

    def of(self, job: int) -> Floats:
        return np.concatenate([each[job] for each in self.times])

    def uncertain(self, job: int, lossy: Flags) -> str:
        """Why too little of a job has been seen, whatever its times are. `lossy`: links that lose packets at random."""
        used = any(stretch.ports[lossy, SENT].any() for stretch in self.stretches)
        return too_rare(np.concatenate([each[job] for each in self.rare]), used)

    def since(self, first: int) -> Regime:
        """What is left without the first so many stretches, as if it had been all."""
        stretches = self.stretches[first:]
        return Regime(
            stretches, self.times[first:], self.rare[first:], [0] * len(stretches), [False] * len(stretches)
        )  # fmt: skip

    @property
    def steps(self) -> list[int]:
        """By job."""
        return [sum(each) for each in zip(*(stretch.steps for stretch in self.stretches), strict=True)]

    @property
    def rows(self) -> int:
        return sum(stretch.messages for stretch in self.stretches)


@dataclass
class Told:
    """What is known of a job. `period`: of what it replays. `approximated`: iterations that were left out. `errors`: of
    what was predicted of each sample, relative. `squares`: the variance of the sum of all iteration times over the
    square of their mean, as far as it comes from what was left out; `led`: by how much trends would have led that sum
    away, over their mean. `first`: the first iteration that was left out; `behind`: those behind it that were simulated
    and are in `squares`; `spread`: the largest deviation of a period's time, over the mean of an iteration."""

    period: int
    first: int
    approximated: int = 0
    behind: int = 0
    spread: float = 0.0
    errors: list[float] = field(default_factory=list)
    squares: float = 0.0
    led: float = 0.0

    def summary(self, iterations: int) -> dict[str, Any]:
        """`iterations`: of the job."""
        share = self.approximated / max(1, iterations)
        measured = float(np.mean(self.errors)) if self.errors else 0.0
        behind = max(0, iterations - self.first - self.approximated - self.behind) / self.period
        chance = USUAL * sqrt(self.squares + 2 * behind * self.spread**2) / max(1, iterations)
        return {
            "iterations": iterations,
            "approximated": self.approximated,
            "samples": len(self.errors),
            "error": measured,
            "error_largest": max(map(abs, self.errors), default=0.0),
            "uncertainty": hypot(chance, share * measured) + self.led / max(1, iterations),
        }


class Steady:
    """What looks for jobs whose iterations are steady, and leaves some out.

    Attributes
    ----------
    why : in words, why none are.
    jobs : by name.
    left : what was left out: job, first iteration, how many in all, and which ones they repeat, (first, how many) each.
    missed : samples that did not hold.
    """

    def __init__(
        self, tolerance: float, leaper: Leaper, recorder: Recorder, most: Most, why: str
    ) -> None:  # fmt: skip
        """`why`: why nothing can be left out in its network, if so."""
        self.tolerance, self.never = tolerance, why
        self.why = why or "there is no job"
        self.jobs: dict[str, Told] = {}
        self.left: list[dict[str, Any]] = []
        self.missed = 0
        self._leaper, self._recorder, self._most = leaper, recorder, most
        self._regime = Regime()
        self._begin: Moment | None = None
        self._times, self._sample = 1, False

    # --- looking ------------------------------------------------------------------------------------------------

    def begin(self, now: Moment | None) -> None:
        """The stretch that is simulated begins at a moment, or at one that is still to come."""
        self._begin = now

    def reset(self) -> None:
        """What was simulated so far stands for nothing that comes."""
        self._end_regime()
        self._begin = None

    def follow(self, jobs: list[Track], why: str) -> None:
        """These jobs go on from now on. `why`: why none of their iterations can be left out, if so."""
        self.reset()
        self.never = why
        if jobs:
            self.why = why or "the network is never quiet between two iterations"

    def disturbed(self, why: str) -> None:
        """Something else is under way, so that it has to be looked at anew behind it."""
        self.reset()
        self.why = self.never or why

    @property
    def wants(self) -> tuple[int, int] | None:
        """From which entries of the recorder's lists on they are still wanted."""
        return None if self._begin is None else (self._begin.taken, self._begin.dropped)

    def look(self, jobs: list[Track], now: Moment) -> bool:
        """A quiet moment: leave out iterations if they are steady. Returns whether any were."""
        if self.never:
            return False
        begin = self._begin
        if begin is not None and begin.acted != now.acted:
            self.reset()
            begin = None
        if begin is None:
            if all(
                handed.steps >= max(track.part.repeats.first, DRAWN)
                for handed, track in zip(now.handed, jobs, strict=True)
            ):
                self._begin = now
            return False
        return self._ripe(jobs, begin, now) and self._judge(jobs, begin, now)

    def _ripe(self, jobs: list[Track], begin: Moment, now: Moment) -> bool:
        """Whether enough has come since the beginning of the stretch, and the two moments fit."""
        for track, one, other in zip(jobs, begin.handed, now.handed, strict=True):
            steps, period = other.steps - one.steps, track.part.repeats.period
            if steps < self._need(track) or steps % period:
                return False
        return begin.held == now.held

    def _need(self, track: Track) -> int:
        """Iterations of a job in the stretch that is simulated now."""
        period = track.part.repeats.period
        return -(-SAMPLE // period) * period if self._regime.stretches else _least(track)

    def _judge(self, jobs: list[Track], begin: Moment, now: Moment) -> bool:
        fits, span, times = self._measured(jobs, begin, now)
        if not fits:
            self.why = "jobs have rhythms of their own"
            return False
        regime = self._regime
        if self._sample and not self._holds(jobs, times):
            self.missed += 1
            self._end_regime()
            self.why = "iteration times change"
            return False  # the stretch goes on, as the first one of what comes
        regime.stretches.append(Stretch.between(begin, now, self._recorder, span))
        regime.times.append(times)
        regime.rare.append([seen(track.part, regime.stretches[-1].over, regime.stretches[-1].lost) for track in jobs])
        regime.repeated.append(0)
        regime.late.append(regime.leaps > 0)
        self._begin, self._sample = now, False
        return self._leave_out(jobs, now)

    def _measured(
        self, jobs: list[Track], begin: Moment, now: Moment
    ) -> tuple[bool, tuple[int, int], list[Floats]]:
        """Whether a stretch can come again: all jobs have spent the same time in it; when it began and how long it is,
        from worker to worker on average; and mean iteration times by job, float64[periods]."""
        first = self._recorder.before[0]
        entries = self._recorder.taken[begin.taken - first : now.taken - first]
        starts, sums, times = [], [], []
        for track in jobs:
            workers = track.part.workers >= 0
            notes = np.stack([over.notes[workers] for part, _, over, _, _ in entries if part is track.part])
            spent = notes[:, :, END] - notes[:, :, START]  # by step and worker
            starts.append(float(notes[0, :, START].mean()))
            sums.append(float(spent.sum(axis=0).mean()))
            times.append(spent.mean(axis=1).reshape(-1, track.part.repeats.period).mean(axis=1))
        by = round(float(np.mean(sums)))
        fits = max(abs(each - by) for each in sums) <= RHYTHM * self.tolerance * by
        return fits, (round(float(np.mean(starts))), by), times

    # --- deciding -----------------------------------------------------------------------------------------------

    def _holds(self, jobs: list[Track], times: list[Floats]) -> bool:
        """Compare a sample with what was predicted: the mean of those that stand for what was left out before it."""
        good = True
        for number, track in enumerate(jobs):
            before, sample = self._regime.of(number), times[number]
            self._told(track).errors.append(float(before.mean() / sample.mean() - 1))
            good &= not exceeds(before, sample, self.tolerance * float(before.mean()))
        return good

    def _leave_out(self, jobs: list[Track], now: Moment) -> bool:
        """Leave out what the stretches so far, or the later ones of them, stand for, if they are steady."""
        self.why = self._unsteady(jobs, self._regime)
        for first in range(1, len(self._regime.stretches) if self.why else 0):
            later = self._regime.since(first)
            if all(map(int.__ge__, later.steps, map(_least, jobs))) and not self._unsteady(jobs, later):
                self._end_regime()
                self._regime, self.why = later, ""
                break
        if self.why:
            if self._regime.rows > MOST_ROWS:
                self.reset()
            return False
        return self._leap(jobs, now)

    def _unsteady(self, jobs: list[Track], regime: Regime) -> str:
        """Why mean iteration times are not known well enough, in words; empty if they are."""
        for number, track in enumerate(jobs):
            if why := regime.uncertain(number, self._leaper.lossy):
                return why
            values = regime.of(number)
            if Spread.of(values).half_width > self.tolerance / 2 * float(values.mean()):
                return f"iteration times of job {track.part.table.name} vary too much"
        return ""

    def _leap(self, jobs: list[Track], now: Moment) -> bool:
        """Leave out as many as may be, which repeat all stretches or, where these are too many, the later ones."""
        regime = self._regime
        for number, track in enumerate(jobs):
            values = regime.of(number)
            if drifts(values, self._times * len(values), self.tolerance * float(values.mean())):
                self.why = f"iteration times of job {track.part.table.name} change"
                self.reset()
                return False
        for first in range(len(regime.stretches)):
            times = min(self._times, self._fits(jobs, regime.since(first)))
            if times > 0:
                told = self._leaper.leave_out(jobs, now, regime.stretches[first:], times)
                if told:
                    self._note(jobs, now, first, told)
                return told > 0
        self.why = "" if self.left else "there are too few iterations"
        return False

    def _fits(self, jobs: list[Track], regime: Regime) -> int:
        """How many times as many iterations may be left out now."""
        by, messages = (sum(getattr(each, name) for each in regime.stretches) for name in ("by", "messages"))
        # a sample is to come behind it, and then another moment to look at it
        most = self._most(by, messages, regime.steps, [self._need(track) + 1 for track in jobs])
        if min(self._regime.steps) < SETTLED:
            ahead = [track.part.repeats.last - track.laid for track in jobs]
            most = min(most, *(some // (EARLY * many) for some, many in zip(ahead, regime.steps, strict=True)))
        return most

    def _note(self, jobs: list[Track], now: Moment, first: int, times: int) -> None:
        """Remember what was left out: stretches from `first` on, so many times."""
        regime, repeats = self._regime, self._regime.since(first)
        regime.leaps += 1
        regime.repeated = [each + times * (place >= first) for place, each in enumerate(regime.repeated)]
        for number, (track, steps) in enumerate(zip(jobs, repeats.steps, strict=True)):
            self._told(track, now.handed[number].steps).approximated += times * steps
            self.left.append({
                "job": track.part.table.name, "first": now.handed[number].steps, "iterations": times * steps,
                "repeats": [
                    [stretch.begin.handed[number].steps, stretch.steps[number]] for stretch in repeats.stretches
                ],
            })  # fmt: skip
        self._times, self._sample, self.why = min(2 * self._times, MOST_TIMES), True, ""

    def _told(self, track: Track, first: int = 0) -> Told:
        """What is known of a job, of which iterations from `first` on are left out."""
        return self.jobs.setdefault(track.part.table.name, Told(track.part.repeats.period, first))

    # --- telling ------------------------------------------------------------------------------------------------

    def _end_regime(self) -> None:
        """Work out how far off the mean iteration time may be because of what was left out: had they been simulated,
        these and all later iterations would have been others. So iterations that were repeated weigh as often as they
        were, those behind the first leap once more, and those that would have been as often as there are (where they
        stand for nothing, `Told.summary` adds them). A trend would have gone on meanwhile."""
        regime, self._regime = self._regime, Regime()
        self._times, self._sample = 1, False
        for number, told in enumerate(self.jobs.values() if regime.leaps else ()):
            counts = [len(each[number]) for each in regime.times]
            weights = [late + repeated for late, repeated in zip(regime.late, regime.repeated, strict=True)]
            periods = sum(
                count * (weight**2 + repeated + late)
                for count, weight, repeated, late in zip(counts, weights, regime.repeated, regime.late, strict=True)
            )
            values = regime.of(number)
            spread, ahead = Spread.of(values), int(np.dot(counts, regime.repeated))
            wide = told.period * spread.deviation / spread.mean
            told.squares += periods * wide**2
            told.spread = max(told.spread, wide)
            told.behind += told.period * int(np.dot(counts, regime.late))
            told.led += told.period * ahead * trend(values) * ahead / 2 / spread.mean

    def summary(self, iterations: dict[str, int]) -> dict[str, Any]:
        """What a Result says of it. `iterations`: of every job, those that are over."""
        self._end_regime()
        return {
            "tolerance": self.tolerance,
            "declined": "" if self.left else self.why,
            "jobs": {
                name: told.summary(iterations.get(name, 0)) for name, told in self.jobs.items() if told.approximated
            },
            "left_out": self.left,
            "missed": self.missed,
        }


def _least(track: Track) -> int:
    """Iterations of a job that are simulated before any is left out."""
    return max(LEAST, LEAST_PERIODS * track.part.repeats.period)
