"""`search` finds the best combination of discrete values within a budget of runs, by successive halving.

A trial is a setting (one value per knob) at a rung (a share of the iterations) with a seed. The first rung explores: it
measures the user's setting, a design in which every value of a knob occurs equally often, and then batches of the
settings with the greatest expected improvement by a Gaussian process of all knobs together, which represents
interactions. Successive halving (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016; the bracket of Hyperband that begins with the shortest runs: Li et al., JMLR 18, 2018)
promotes the best to longer runs, and the best of those to all seeds. Each knob of the winner then returns alone to the
user's value (an ablation), which shows what it is worth; a knob worth nothing is given back.

Equal values give equal searches: batches do not depend on the number of processes, and nothing on time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import inf, log, prod
from statistics import median
from typing import NamedTuple

import numpy as np

from gradwire.analysis.verdict.difference import Samples, difference_of
from gradwire.studies.tune.gaussian_process import Floats, improvement, likeliest_lengths, posterior

Setting = tuple[int, ...]
"""Index of every knob's value; 0 is the user's own."""

BATCH = 4
"""Settings that the process suggests at a time (our choice: few, as each batch learns from those before)."""
MOST_CANDIDATES = 800
"""Settings that a suggestion is chosen from (our choice: a suggestion takes a fraction of a second)."""
LENGTHS = (0.5, 1.0, 2.0, 6.0)
"""Candidate lengths of the kernel; two values of an unordered knob are 1 apart, and so are the ends of an ordered one.
The last stands for a knob without effect (our choice)."""
NOISE = 1e-4
"""Variance of a short run relative to that of all settings (our choice)."""
CUT = 3.0
"""Settings slower than this many medians count as that slow: the process then resolves the fast ones (our choice)."""
SAME = 0.01
"""Gain that a setting with more changes has to exceed (our choice: the floor of verdicts on single runs)."""


class Trial(NamedTuple):
    """One run: a setting at a rung, 0 being the shortest, with the seed of that index."""

    setting: Setting
    rung: int
    seed: int


Run = Callable[[Sequence[Trial]], Mapping[Trial, float | None]]
"""Runs trials and returns their values, smaller being better; None if a trial failed."""


@dataclass(frozen=True)
class Space:
    """The knobs of a search.

    sizes : number of values of each knob. is_ordered : true for knobs whose values are in the order of their size.
    canonical : returns the setting that stands for all that run alike; None for an invalid one, which costs nothing.
    """

    sizes: tuple[int, ...]
    is_ordered: tuple[bool, ...]
    ranks: tuple[tuple[int, ...], ...] = ()
    """Rank of every value of the knobs, for ordered ones; absent: the index."""
    canonical: Callable[[Setting], Setting | None] = lambda setting: setting

    @property
    def user(self) -> Setting:
        """The user's own setting."""
        return (0,) * len(self.sizes)

    @property
    def count(self) -> int:
        """Number of combinations."""
        return prod(self.sizes)

    def encoded(self, settings: Sequence[Setting]) -> tuple[Floats, list[int]]:
        """Return float64[n, d] coordinates of settings, and the knob of each coordinate."""
        columns, owners = [], []
        chosen = np.array(settings, dtype=np.int64)
        for knob, size in enumerate(self.sizes):
            if self.is_ordered[knob]:
                ranks = np.array(self.ranks[knob] if self.ranks else range(size))
                columns.append(ranks[chosen[:, knob]] / max(1, size - 1))
                owners.append(knob)
            else:
                columns += [(chosen[:, knob] == value) / np.sqrt(2) for value in range(size)]
                owners += [knob] * size
        return np.stack(columns, axis=1).astype(np.float64), owners


@dataclass(frozen=True)
class Plan:
    """Limits of a search.

    budget : in full runs. rungs : as shares of a full run; the last is 1. seeds : of the final comparison.
    """

    budget: float
    rungs: tuple[float, ...] = (1.0,)
    seeds: int = 3

    @property
    def last(self) -> int:
        return len(self.rungs) - 1

    @property
    def least(self) -> float:
        """Least budget: the user's setting and two others with all seeds, each with its short runs."""
        return 3 * (sum(self.rungs) + self.seeds - 1)


@dataclass
class Search:
    """A search in progress, or its outcome. `values` : by trial, in the order of the runs."""

    space: Space
    plan: Plan
    run: Run
    seed: int = 1
    values: dict[Trial, float | None] = field(default_factory=dict)
    aliases: dict[Setting, Setting | None] = field(default_factory=dict)
    """The setting that stands for each one considered; None for invalid ones."""
    chosen: Setting = ()

    @property
    def spent(self) -> float:
        """Cost so far, in full runs."""
        return sum(self.plan.rungs[trial.rung] for trial in self.values)

    @property
    def settings(self) -> list[Setting]:
        """All settings that were run, in order."""
        return list(dict.fromkeys(trial.setting for trial in self.values))

    def value(self, setting: Setting, rung: int) -> float | None:
        """Return a setting's value at a rung with the first seed; None if it failed or was not run."""
        return self.values.get(Trial(setting, rung, 0))

    def samples(self, setting: Setting) -> Samples | None:
        """Return the values of full runs with all seeds; None unless all are there."""
        values = [self.values.get(Trial(setting, self.plan.last, seed)) for seed in range(self.plan.seeds)]
        if any(value is None for value in values):
            return None
        return Samples({(seed, 0): value for seed, value in enumerate(values) if value is not None})

    @property
    def finalists(self) -> dict[Setting, Samples]:
        """Settings with all seeds, best first."""
        known = {setting: samples for setting in self.settings if (samples := self.samples(setting)) is not None}
        return dict(sorted(known.items(), key=lambda item: item[1].mean_ps))

    def measure(self, trials: Iterable[Trial], limit: float = inf) -> None:
        """Run those trials that are new, as far as a limit of the cost and the budget allow."""
        left = min(limit, self.plan.budget) - self.spent + 1e-9
        batch: list[Trial] = []
        for trial in dict.fromkeys(trials):
            cost = self.plan.rungs[trial.rung]
            if trial not in self.values and cost <= left:
                batch.append(trial)
                left -= cost
        if batch:
            values = self.run(batch)
            self.values |= {trial: values[trial] for trial in batch}

    def finish(self) -> None:
        """Run the whole search, and choose."""
        plan, space = self.plan, self.space
        self.measure(Trial(space.user, rung, 0) for rung in range(plan.last + 1))
        self._measure_seeds([space.user])
        if self.samples(space.user) is None:
            return
        count = -1
        while count < len(self.values):  # what a round leaves of the budget, the next one spends
            count = len(self.values)
            self._halve()
            self._ablate()

    def _halve(self) -> None:
        """Explore with half of the budget that is left, and promote the best with the rest.

        A reserve remains for ablations.
        """
        plan = self.plan
        left = plan.budget - self.spent
        most = plan.budget - min(min(len(self.space.sizes), 3) * plan.seeds, left / 4)
        stages = plan.last + (plan.seeds > 1)
        self._explore(self.spent + (most - self.spent) * (0.5 if stages else 1.0))
        self._simplify(most)
        for rung in range(1, plan.last + 1):
            limit = self.spent + (most - self.spent) / (stages + 1 - rung)
            self.measure([Trial(setting, rung, 0) for setting in self._best(rung - 1)], limit)
        self._measure_seeds(self._best(plan.last), most)

    def _measure_seeds(self, settings: Iterable[Setting], limit: float = inf) -> None:
        """Run settings fully with all seeds, each only if the limit and the budget allow all of its runs."""
        left = min(limit, self.plan.budget) - self.spent + 1e-9
        trials: list[Trial] = []
        for setting in settings:
            wanted = [Trial(setting, self.plan.last, seed) for seed in range(self.plan.seeds)]
            new = [trial for trial in wanted if trial not in self.values]
            if len(new) <= left:
                trials += new
                left -= len(new)
        self.measure(trials)

    def _explore(self, limit: float) -> None:
        """Measure a design, then what promises most, at the first rung."""
        most = int((limit - self.spent + 1e-9) / self.plan.rungs[0])
        if self.space.count <= 4 * most:
            everything = self._canonical(product(*map(range, self.space.sizes)))
            if len(everything) <= most:
                self.measure(Trial(setting, 0, 0) for setting in everything)
                return
        rng = random.Random(f"recommend {self.seed}")
        design = islice(self._canonical(self._design(rng)), max(len(self.space.sizes) + 2, most // 3))
        self.measure((Trial(setting, 0, 0) for setting in design), limit)  # the same in every round
        while self.spent + self.plan.rungs[0] <= limit + 1e-9:
            batch = self._suggested(rng)
            if not batch:
                return
            self.measure((Trial(setting, 0, 0) for setting in batch), limit)

    def _canonical(self, settings: Iterable[Setting]) -> list[Setting]:
        """Return the valid settings that stand for these, each once, and note the invalid ones."""
        return list(dict.fromkeys(valid for setting in settings if (valid := self._alias(setting)) is not None))

    def _alias(self, setting: Setting) -> Setting | None:
        if setting not in self.aliases:
            self.aliases[setting] = self.space.canonical(setting)
        return self.aliases[setting]

    def _design(self, rng: random.Random) -> Iterator[Setting]:
        """Yield settings in which every value of a knob occurs equally often (a Latin hypercube of the values)."""
        rounds = 8
        columns = []
        for size in self.space.sizes:
            column = [value for _ in range(rounds) for value in range(size)]
            rng.shuffle(column)
            columns.append(column)
        longest = max(map(len, columns))
        return zip(*([column[at % len(column)] for at in range(longest)] for column in columns), strict=True)

    def _suggested(self, rng: random.Random) -> list[Setting]:
        """Return a batch of new settings with the greatest expected improvement.

        Each is chosen as if those before it had turned out as predicted.
        """
        values = {setting: self._explored_value(alias) for setting, alias in self.aliases.items()}
        values = {setting: value for setting, value in values.items() if value is not None}
        batch: list[Setting] = []
        candidates = [setting for setting in self._candidates(rng) if setting not in values]
        lengths: list[float] = []
        while candidates and len(batch) < BATCH:
            known = list(values)
            points, owners = self.space.encoded([*known, *candidates])
            measured = np.array([values[setting] for setting in known], dtype=np.float64)
            lengths = lengths or likeliest_lengths(points[: len(known)], measured, owners, LENGTHS, NOISE)
            predicted = posterior(points[: len(known)], measured, points[len(known) :], lengths, NOISE)
            at = int(improvement(predicted, float(measured.min())).argmax())
            setting = candidates.pop(at)
            alias = self._alias(setting)
            value = self._explored_value(alias)
            values[setting] = float(predicted.mean[at]) if value is None else value
            if alias is not None and value is None and alias not in batch:
                batch.append(alias)
        return batch

    def _explored_value(self, alias: Setting | None) -> float | None:
        """Return the logarithm of a setting's value at the first rung; None if it was not measured.

        It is at most that of `CUT` medians, which also stands for invalid and failed settings.
        """
        known = [value for trial, value in self.values.items() if trial.rung == 0 and not trial.seed and value]
        worst = log(CUT * median(known))
        if alias is None:
            return worst
        if Trial(alias, 0, 0) not in self.values:
            return None
        value = self.value(alias, 0)
        return worst if value is None else min(worst, log(max(value, 1e-300)))

    def _candidates(self, rng: random.Random) -> list[Setting]:
        """Return all settings of a small space; of a large one random ones and the neighbours of the best."""
        sizes = self.space.sizes
        if self.space.count <= MOST_CANDIDATES:
            return list(product(*map(range, sizes)))
        near = [
            (*setting[:knob], value, *setting[knob + 1 :])
            for setting in self._best(0)[:5]
            for knob, size in enumerate(sizes)
            for value in range(size)
        ]
        drawn = [tuple(rng.randrange(size) for size in sizes) for _ in range(MOST_CANDIDATES)]
        return list(dict.fromkeys([*near, *drawn]))

    def _simplify(self, limit: float) -> None:
        """Measure the best explored setting without those changes that alone are worth nothing."""
        best = next(iter(self._best(0)), self.space.user)
        value = self.value(best, 0)
        if value is None:
            return
        without = {
            knob: alias for knob in _changes(best) if (alias := self._alias(_reverted(best, [knob]))) is not None
        }
        self.measure((Trial(setting, 0, 0) for setting in without.values()), limit)
        costs = {knob: self.value(setting, 0) or inf for knob, setting in without.items()}
        most = value * (1 + SAME / 5)
        idle = sorted((knob for knob, cost in costs.items() if cost <= most), key=lambda knob: costs[knob])
        while len(idle) > 1:
            setting = self._alias(_reverted(best, idle))
            if setting is not None:
                self.measure([Trial(setting, 0, 0)], limit)
                if (self.value(setting, 0) or inf) <= most:
                    return
            idle.pop()

    def _best(self, rung: int) -> list[Setting]:
        """Return the settings measured at a rung, best first.

        It leaves out those that reach, to three digits, what a part of their changes reaches as well.
        """
        values = {
            trial.setting: float(f"{value:.3g}")
            for trial, value in self.values.items()
            if trial.rung == rung and not trial.seed and value is not None
        }
        ordered = sorted(values, key=lambda setting: (values[setting], len(_changes(setting)), setting))
        return [
            setting
            for number, setting in enumerate(ordered)
            if not any(values[other] == values[setting] and _is_part(other, setting) for other in ordered[:number])
        ]

    def _choose(self) -> Setting:
        """Return the finalist with the fewest changes among those at most `SAME` slower than the best.

        Only those that gain more than chance and `SAME` count; if there are none, it is the user's own.
        """
        user = self.finalists[self.space.user]
        gains = {setting: difference_of(samples, user) for setting, samples in self.finalists.items()}
        better = [setting for setting, gain in gains.items() if gain.is_significant and gain.change <= -SAME]
        means = {setting: self.finalists[setting].mean_ps for setting in better}
        alike = [setting for setting in better if means[setting] <= (1 + SAME) * means[better[0]]]
        return min(alike, key=lambda setting: (len(_changes(setting)), means[setting]), default=self.space.user)

    def _ablate(self) -> None:
        """Measure the chosen setting without each of its changes, and choose again."""
        while True:
            self.chosen, before = self._choose(), len(self.values)
            self._measure_seeds(dict.fromkeys(self.ablations(self.chosen).values()))
            if len(self.values) == before or self._choose() == self.chosen:
                return

    def ablations(self, setting: Setting) -> dict[int, Setting]:
        """Return the valid settings with one change less, by knob."""
        without = {knob: self._alias(_reverted(setting, [knob])) for knob in _changes(setting)}
        return {knob: alias for knob, alias in without.items() if alias not in (None, setting)}  # type: ignore[misc]


def _changes(setting: Setting) -> list[int]:
    """Return the knobs that differ from the user's."""
    return [knob for knob, value in enumerate(setting) if value]


def _reverted(setting: Setting, knobs: Sequence[int]) -> Setting:
    """Return a setting with some knobs back at the user's values."""
    return tuple(0 if knob in knobs else value for knob, value in enumerate(setting))


def _is_part(part: Setting, whole: Setting) -> bool:
    """Return True if a setting has some of the changes of another one, and no others."""
    return all(value in (0, other) for value, other in zip(part, whole, strict=True))
