"""Verdicts, computed: every expectation of a claim is looked at per seed, and the median decides.

shown : all hold. not shown : none does. shown under a condition : some hold; which is said. Beside the median stands
the range over the seeds (smallest to largest): of three seeds no interval says more. Where a baseline is slow because
its slowest messages met time-outs, that is said.

What seeds change as much as what is looked at (accuracy) is judged by the 95 % interval of the mean of the seeds'
figures, which are differences between runs of the same seed. It holds if the whole interval is where it should be, it
does not if none of it is, and is unresolved otherwise. A claim is unresolved if nothing of it is resolved.

A run need not have every measure: the magnitude of what was lost is none where nothing was. The other seeds decide
then; an expectation for which no seed has its measures is unresolved, and the reason names measure and cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import fmean, median

from gradwire.analysis.claims.arms import label_of
from gradwire.analysis.claims.claim import Claim, Expect
from gradwire.analysis.claims.intervals import half_width, interval
from gradwire.analysis.claims.measures import WHY_ABSENT, WORDS
from gradwire.analysis.claims.plan import Run
from gradwire.scenarios.readable import three_digits, time_text

SHOWN, CONDITION, NOT_SHOWN, OPEN = "shown", "shown under a condition", "not shown", "not run"
UNRESOLVED = "unresolved"
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

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def interval_text(self, unit: str) -> str:
        """Mean and half of its 95 % interval, such as "-1.2 ± 0.4 points"."""
        half = half_width(self.values)
        if isinf(half):
            return f"{value_text(self.mean, unit)} (one seed)"
        number, _, words = value_text(self.mean, unit).partition(" ")
        return f"{number} ± {value_text(half, unit).partition(' ')[0].lstrip('+')}{f' {words}' if words else ''}"

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
    holds: bool | None
    """None if it is unresolved."""
    because: str
    """The baseline whose slowest messages met time-outs, most of them; empty if it is none."""
    absent: str = ""
    """The measure that runs of some seeds do not have, and why, in words; empty if all have what is needed."""

    @property
    def measured(self) -> str:
        """The measured value in words, or the reason why there is none."""
        if not self.spread.values:
            return self.absent
        unit = self.expect.unit
        words = self.spread.interval_text(unit) if self.expect.interval else self.spread.text(unit)
        return f"{words}, {self.absent}" if self.absent else words

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
        values, absent = [], dict[int, str]()
        for seed in seeds:
            try:
                values.append(_value(expect, found, seed))
            except MeasureAbsentError as error:
                absent[seed] = str(error)
            except KeyError:
                return Judgement(claim, OPEN, "not all of its runs are there", (), found)
        findings.append(_finding(expect, Spread(tuple(values)), found, _absent_in_words(absent, len(seeds))))
    verdict, reason = _verdict(findings)
    return Judgement(claim, verdict, reason, tuple(findings), found)


class MeasureAbsentError(Exception):
    """A run is there and does not have the measure; the message names it and says why."""


def _value(expect: Expect, figures: Figures, seed: int) -> float:
    """Return the number of an expectation for one seed.

    Raises
    ------
    KeyError
        A run is not there.
    MeasureAbsentError
        All runs are there, and one has not the measure.
    """

    def at(setting: str, policy: str, measure: str) -> float:
        run = figures[setting, policy, seed]
        if measure not in run:
            name = measure.partition("@")[0]
            why = f": {WHY_ABSENT[name]}" if name in WHY_ABSENT else ""
            raise MeasureAbsentError(f"measure absent{why} ({WORDS.get(name, measure)}; {label_of(policy)}, {setting})")
        return run[measure]

    return float(expect.value(at))


def _absent_in_words(absent: Mapping[int, str], seeds: int) -> str:
    """Return which measure is absent and why, with the seeds if others have it; empty if none is absent."""
    if not absent:
        return ""
    words = "; ".join(dict.fromkeys(absent.values()))
    return words if len(absent) == seeds else f"{words}, of seed {', '.join(map(str, absent))}"


def _finding(expect: Expect, spread: Spread, figures: Figures, absent: str) -> Finding:
    holds = _holds(expect, spread) if spread.values else None
    because = ""
    if expect.blame is not None:
        shares = [
            each.get("tail_timed_out", 0.0) for (s, p, _), each in figures.items() if (s, p) == expect.blame
        ]
        if shares and median(shares) >= MOSTLY:
            because = label_of(expect.blame[1])
    return Finding(expect, spread, holds, because, absent)


def _holds(expect: Expect, spread: Spread) -> bool | None:
    least = -inf if expect.low is None else expect.low
    most = inf if expect.high is None else expect.high
    low, high = interval(spread.values) if expect.interval else (spread.median, spread.median)
    if least <= low and high <= most:
        return True
    return None if high >= least and low <= most else False


def _verdict(findings: Sequence[Finding]) -> tuple[str, str]:
    if not findings:
        return OPEN, "nothing of it was run"
    good = [each for each in findings if each.holds]
    bad = [each for each in findings if each.holds is False]
    unknown = [each for each in findings if each.holds is None]
    if not bad and not unknown:
        words = f"all {len(good)} figures are as expected" if len(good) > 1 else "it is as expected"
        return SHOWN, _sentence(words, _blame(good))
    failed = "; ".join(f"{_place(each)} ({each.measured}, not {each.wanted})" for each in bad)
    beside = "; ".join(f"{_place(each)} ({each.measured}, {each.wanted} wanted)" for each in unknown)
    open_ = f"unresolved: {beside}" if beside else ""
    if not good:
        return NOT_SHOWN if bad else UNRESOLVED, _sentence(failed, _blame(bad), open_)
    holds = "; ".join(dict.fromkeys(_place(each) for each in good))
    not_for = f". Not for: {failed}" if failed else ""
    return CONDITION, _sentence(f"it holds for: {holds}{not_for}", open_, _blame(good))


def _blame(findings: Sequence[Finding]) -> str:
    """Whose time-outs are the reason, in words."""
    labels = ", ".join(dict.fromkeys(each.because for each in findings if each.because))
    return f"Time-outs, not volume: most of the slowest messages of {labels} met one" if labels else ""


def _place(finding: Finding) -> str:
    return finding.expect.condition or finding.expect.text


def _sentence(*parts: str) -> str:
    return "".join(f"{part[:1].upper()}{part[1:]}. " for part in parts if part).strip()


def value_text(value: float, unit: str) -> str:
    """A figure in its unit; what is infinite is never reached."""
    if isinf(value):
        return "never"
    if unit == "share":
        return f"{three_digits(100 * value)} %"
    if unit == "points":
        return f"{100 * value:+.2f} points"
    if unit == "time":
        return time_text(value)
    return f"{value:g}" if unit == "count" else f"{value:.3f}" if abs(value) < 1 else three_digits(value)
