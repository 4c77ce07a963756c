"""Verdicts, computed: every expectation of a claim is looked at per seed, and the median decides.

shown : all hold. not shown : none does. shown under a condition : some hold; which is said. Beside the median stands
the range over the seeds (smallest to largest): of three seeds no interval says more. Where a baseline is slow because
its slowest messages met time-outs, that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gradwire.analysis.claims.claim import Claim, Expect
from gradwire.analysis.claims.plan import Run
from gradwire.analysis.claims.policies import POLICIES
from gradwire.analysis.tables import three_digits, time_text

SHOWN, CONDITION, NOT_SHOWN, OPEN = "shown", "shown under a condition", "not shown", "not run"
MOSTLY = 0.5
"""Of the slowest messages: from this share on the tail is one of time-outs."""

Figures = Mapping[tuple[str, str, int], Mapping[str, float]]
"""Measures by setting, policy and seed."""


@dataclass(frozen=True)
class Spread:
    """Median and range over the seeds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def text(self, unit: str) -> str:
        """Such as "-34 % (-36 to -31 %)"."""
        low, high = min(self.values), max(self.values)
        words = f"{value_text(self.median, unit)}"
        same = value_text(low, unit) == value_text(high, unit)
        return words if same else f"{words} ({value_text(low, unit)} to {value_text(high, unit)})"


@dataclass(frozen=True)
class Finding:
    """What has come of one expectation."""

    expect: Expect
    spread: Spread
    holds: bool
    because: str
    """The baseline whose slowest messages met time-outs, most of them; empty if it is none."""

    @property
    def wanted(self) -> str:
        """The range that was expected, in words."""
        low, high, unit = self.expect.low, self.expect.high, self.expect.unit
        parts = [f">= {value_text(low, unit)}"] if low is not None else []
        return " and ".join(parts + ([f"<= {value_text(high, unit)}"] if high is not None else []))


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict, the reason in a sentence, and the figures that both come from."""

    claim: Claim
    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    figures: Figures

    def spread(self, setting: str, policy: str, measure: str) -> Spread | None:
        """A measure over the seeds; None if it is not there."""
        found = tuple(
            each[measure]
            for (s, p, _), each in self.figures.items()
            if (s, p) == (setting, policy) and measure in each
        )
        return Spread(found) if found else None


def judge(claim: Claim, runs: Sequence[Run], figures: Mapping[str, Mapping[str, float]]) -> Judgement:
    """The verdict on a claim. `figures`: measures by key of the run; a run may be missing."""
    found = {(run.setting, run.policy, run.seed): figures[run.key] for run in runs if run.key in figures}
    seeds = sorted({run.seed for run in runs})
    ran = {run.setting for run in runs}
    findings = []
    for expect in claim.expects:
        if not set(expect.settings) <= ran:
            continue
        try:
            values = tuple(_value(expect, found, seed) for seed in seeds)
        except KeyError:
            return Judgement(claim, OPEN, "not all of its runs are there", (), found)
        findings.append(_finding(expect, Spread(values), found))
    verdict, reason = _verdict(findings)
    return Judgement(claim, verdict, reason, tuple(findings), found)


def _value(expect: Expect, figures: Figures, seed: int) -> float:
    return float(expect.value(lambda setting, policy, measure: figures[setting, policy, seed][measure]))


def _finding(expect: Expect, spread: Spread, figures: Figures) -> Finding:
    middle = spread.median
    above = expect.low is None or middle >= expect.low
    holds = above and (expect.high is None or middle <= expect.high)
    because = ""
    if expect.blame is not None:
        shares = [
            each.get("tail_timed_out", 0.0) for (s, p, _), each in figures.items() if (s, p) == expect.blame
        ]
        if shares and median(shares) >= MOSTLY:
            because = POLICIES[expect.blame[1]].label
    return Finding(expect, spread, holds, because)


def _verdict(findings: Sequence[Finding]) -> tuple[str, str]:
    if not findings:
        return OPEN, "nothing of it was run"
    good, bad = [each for each in findings if each.holds], [each for each in findings if not each.holds]
    if not bad:
        words = f"all {len(good)} figures are as expected" if len(good) > 1 else "it is as expected"
        return SHOWN, _sentence(words, _blame(good))
    failed = "; ".join(
        f"{_place(each)} ({each.spread.text(each.expect.unit)}, not {each.wanted})" for each in bad
    )
    if not good:
        return NOT_SHOWN, _sentence(failed, _blame(bad))
    holds = "; ".join(dict.fromkeys(_place(each) for each in good))
    return CONDITION, _sentence(f"it holds for: {holds}. Not for: {failed}", _blame(good))


def _blame(findings: Sequence[Finding]) -> str:
    """Whose time-outs are the reason, in words."""
    labels = ", ".join(dict.fromkeys(each.because for each in findings if each.because))
    return f"Time-outs, not volume: most of the slowest messages of {labels} met one" if labels else ""


def _place(finding: Finding) -> str:
    return finding.expect.condition or finding.expect.text


def _sentence(*parts: str) -> str:
    text = ". ".join(part for part in parts if part)
    return text[:1].upper() + text[1:] + "."


def value_text(value: float, unit: str) -> str:
    """A figure in its unit."""
    if unit == "share":
        return f"{three_digits(100 * value)} %"
    if unit == "time":
        return time_text(value)
    return f"{value:g}" if unit == "count" else f"{value:.3f}" if abs(value) < 1 else three_digits(value)
