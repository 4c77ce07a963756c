"""Effects: what each arm of a setting changes against its baseline, over paired seeds, with 95 % intervals.

An effect is resolved if its interval does not hold zero; else it may as well be chance, and is called unresolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire.analysis.claims.claim import Claim, Setting
from gradwire.analysis.claims.intervals import interval
from gradwire.analysis.claims.judge import Judgement, Spread


@dataclass(frozen=True)
class Effect:
    """One arm beside the baseline of its setting.

    Attributes
    ----------
    figure : the measure itself, over the seeds.
    change : by how much it is above that of the baseline, seed by seed.
    """

    setting: str
    policy: str
    figure: Spread
    change: Spread

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean change."""
        return interval(self.change.values)

    @property
    def resolved(self) -> bool:
        """Whether it is no chance, by the interval."""
        low, high = self.interval
        return low > 0 or high < 0


def shown_of(claim: Claim) -> str:
    """The measure whose changes a claim's table of effects has: that of its settings with baselines, or its own."""
    return next((each.shown for each in claim.settings if each.baseline and each.shown), claim.shown)


def effects_of(judgement: Judgement) -> list[Effect]:
    """Those of all arms for which the measure that the claim shows is there for at least one seed of the baseline."""
    return [each for setting in judgement.claim.settings for each in _of(judgement, setting)]


def _of(judgement: Judgement, setting: Setting) -> Iterator[Effect]:
    measure = setting.shown or judgement.claim.shown
    seeds = sorted({seed for _, _, seed in judgement.figures})

    def value(policy: str, seed: int) -> float | None:
        return judgement.figures.get((setting.name, policy, seed), {}).get(measure)

    for policy in setting.policies if setting.baseline else ():
        if policy == setting.baseline:
            continue
        pairs = [(value(policy, seed), value(setting.baseline, seed)) for seed in seeds]
        there = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
        if there:
            figure, change = tuple(mine for mine, _ in there), tuple(mine - other for mine, other in there)
            yield Effect(setting.name, policy, Spread(figure), Spread(change))
