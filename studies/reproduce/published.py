"""`PublishedNumber` holds a number that a paper reports, and compares a measured figure with it into a verdict.

reached : the effect is at least as large as the published one, or within the published limit. Where a figure predicts
    the number itself (`within`), it differs by at most that share.
same direction : an effect of the same sign, but smaller, or too large a prediction; its share of the published one is
    given.
opposite : no effect or one of the other sign, or above the published limit.
unresolved : the seeds, or the 95 % interval, include both an effect of either sign or both sides of the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import Literal

Word = Literal["reached", "same direction", "opposite", "unresolved"]
REACHED: Word = "reached"
SAME_DIRECTION: Word = "same direction"
OPPOSITE: Word = "opposite"
UNRESOLVED: Word = "unresolved"
ROUNDING = 1e-9
"""Relative difference up to which two numbers count as equal."""
NO_EFFECT = 0.005
"""Share of the published effect up to which there is none: it is printed as 0 %."""
MIXED = "mixed"
"""Verdict on a claim whose figures have different ones."""


@dataclass(frozen=True)
class PublishedNumber:
    """A number that a paper reports for a figure.

    value : in the unit of the figure.
    mark : its source, such as "[abstract]" or "[notes]".
    neutral : the figure without any effect: 0 for gains and shares saved, 1 for ratios.
    at_most : the paper reports an upper limit, not an effect.
    within : largest difference of a prediction from the number, as a share of the published effect; None if a larger
        effect is as good.
    """

    value: float
    mark: str
    neutral: float = 0.0
    at_most: bool = False
    within: float | None = None

    @property
    def limit_text(self) -> str:
        """The words before the number: "at most ", "within 15 % of ", or none."""
        if self.within is not None:
            return f"within {100 * self.within:g} % of "
        return "at most " if self.at_most else ""

    def share_of(self, figure: float) -> float:
        """Return the measured effect over the published one."""
        return (figure - self.neutral) / (self.value - self.neutral)

    def compare(self, center: float, low: float, high: float) -> Comparison:
        """Return the verdict on a figure with this median or mean, and this range or interval."""
        if self.at_most:
            if low <= self.value < high and not low == high:
                return Comparison(UNRESOLVED, None)
            return Comparison(REACHED if center <= self.value else OPPOSITE, None)
        share = self.share_of(center)
        ends = sorted((self.share_of(low), self.share_of(high)))
        if isinf(share):
            return Comparison(REACHED if share > 0 else OPPOSITE, None)
        if ends[0] <= 0 < ends[1]:
            return Comparison(UNRESOLVED, share)
        is_reached = share >= 1 - ROUNDING if self.within is None else abs(share - 1) <= self.within + ROUNDING
        word = REACHED if is_reached else SAME_DIRECTION if share > NO_EFFECT else OPPOSITE
        return Comparison(word, share)


@dataclass(frozen=True)
class Comparison:
    """The verdict on one figure. `share`: the measured effect over the published one, if that makes sense."""

    word: Word
    share: float | None

    @property
    def text(self) -> str:
        """The verdict, with the share of the published effect if it is in the same direction."""
        if self.word == SAME_DIRECTION and self.share is not None:
            return f"{self.word} ({100 * self.share:.0f} % of the published effect)"
        return self.word


def overall(words: list[Word]) -> str:
    """Return the verdict on a claim: that of all its figures, or `MIXED`."""
    return words[0] if len(set(words)) == 1 else MIXED
