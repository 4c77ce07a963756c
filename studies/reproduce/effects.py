"""Effects of each arm of a setting relative to its baseline, over paired seeds, with 95 % intervals.

An effect is resolved if its interval excludes zero; otherwise it may be chance, and is called unresolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire.analysis.confidence_intervals import confidence_interval
from gradwire.studies.reproduce.claim import Claim, Setting
from gradwire.studies.reproduce.verdicts import Judgement, SeedRange


@dataclass(frozen=True)
class Effect:
    """One arm compared with the baseline of its setting.

    figure : the measure, over the seeds.
    change : its difference from the baseline's, seed by seed.
    """

    setting: str
    policy: str
    figure: SeedRange
    change: SeedRange

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean change."""
        return confidence_interval(self.change.values)

    @property
    def resolved(self) -> bool:
        """True if the interval excludes zero."""
        low, high = self.interval
        return low > 0 or high < 0


def shown_of(claim: Claim) -> str:
    """Return the measure in a claim's table of effects: that of its settings with baselines, or the claim's own."""
    return next((setting.shown for setting in claim.settings if setting.baseline and setting.shown), claim.shown)


def effects_of(judgement: Judgement) -> list[Effect]:
    """Return the effects of all arms whose measure exists for at least one seed together with the baseline."""
    return [effect for setting in judgement.claim.settings for effect in _of(judgement, setting)]


def _of(judgement: Judgement, setting: Setting) -> Iterator[Effect]:
    measure = setting.shown or judgement.claim.shown
    seeds = sorted({seed for _, _, seed in judgement.figures})

    def value(policy: str, seed: int) -> float | None:
        return judgement.figures.get((setting.name, policy, seed), {}).get(measure)

    for policy in setting.policies if setting.baseline else ():
        if policy == setting.baseline:
            continue
        pairs = [(value(policy, seed), value(setting.baseline, seed)) for seed in seeds]
        known = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
        if known:
            figure, change = tuple(mine for mine, _ in known), tuple(mine - other for mine, other in known)
            yield Effect(setting.name, policy, SeedRange(figure), SeedRange(change))
