"""Judges claims by their expectations' median over seeds, and computes the effects of arms against their baseline.

A figure with a published number is compared with that (`gradwire.studies.reproduce.published`), and a claim with such
figures has their verdict. The others are judged by limits of this project [ours]. shown : all hold. not shown : none
does. shown under a condition : some hold, which are named. Beside the median is the range over the seeds: three seeds
allow no better interval. If a baseline is slow because its slowest messages had
time-outs, the reason says so.

Measures that vary over seeds as much as the effect (accuracy) are judged by the 95 % interval of the mean of the seeds'
figures, which are differences between runs of the same seed. An expectation holds if the whole interval is in its
range, fails if none of it is, and is unresolved otherwise. A claim is unresolved if none of it is resolved.

A run may lack a measure, such as the magnitude of losses if nothing was lost. Then the other seeds decide; an
expectation without measures in any seed is unresolved, and the reason names measure and cause.

Effects are differences of the arms of a setting from its baseline, over paired seeds. An effect is resolved if its 95 %
interval excludes zero; otherwise it may be chance, and is called unresolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf
from statistics import fmean, median

from gradwire.analysis.confidence_intervals import confidence_interval, half_width
from gradwire.scenarios.readable import three_digits, time_text
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.measures import MEASURE_LABELS, WHY_ABSENT
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.published import REACHED, SAME_DIRECTION, UNRESOLVED, Comparison, Word, overall
from gradwire.studies.reproduce.run_plan import PlannedRun

SHOWN, CONDITION, NOT_SHOWN, OPEN = "shown", "shown under a condition", "not shown", "not run"
MOSTLY = 0.5
"""Share of the slowest messages from which the tail counts as due to time-outs."""

Figures = Mapping[tuple[str, str, int], Mapping[str, float]]
"""Measures by setting, policy and seed."""


@dataclass(frozen=True)
class SeedRange:
    """Values over the seeds, with their median and mean."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def interval_text(self, unit: str) -> str:
        """Return the mean and half of its 95 % interval, such as "-1.2 ± 0.4 points"."""
        half = half_width(self.values)
        if isinf(half):
            return f"{value_text(self.mean, unit)} (one seed)"
        number, _, words = value_text(self.mean, unit).partition(" ")
        return f"{number} ± {value_text(half, unit).partition(' ')[0].lstrip('+')}{f' {words}' if words else ''}"

    def text(self, unit: str) -> str:
        """Return the median and range, such as "-34 % (-36 to -31 %)"."""
        low, high = min(self.values), max(self.values)
        words = f"{value_text(self.median, unit)}"
        same = value_text(low, unit) == value_text(high, unit)
        return words if same else f"{words} ({value_text(low, unit)} to {value_text(high, unit)})"


@dataclass(frozen=True)
class Finding:
    """Outcome of one expectation."""

    expect: Expect
    spread: SeedRange
    holds: bool | None
    """True if it is within our limits; None if unresolved, or without limits."""
    because: str
    """Label of the baseline if most of its slowest messages had time-outs, else empty."""
    absent: str = ""
    """The measure that some seeds lack, and the reason; empty if none does."""
    comparison: Comparison | None = None
    """The verdict beside the published number, if there is one."""

    @property
    def measured(self) -> str:
        """The measured value as text, or the reason for its absence."""
        if not self.spread.values:
            return self.absent
        unit = self.expect.unit
        words = self.spread.interval_text(unit) if self.expect.interval else self.spread.text(unit)
        return f"{words}, {self.absent}" if self.absent else words

    @property
    def published_text(self) -> str:
        """The published number with its mark; empty without one."""
        number = self.expect.published
        if number is None:
            return ""
        return f"{number.limit_text}{value_text(number.value, self.expect.unit)} {number.mark}"

    @property
    def has_limits(self) -> bool:
        """True if the figure has a limit of ours."""
        return self.expect.low is not None or self.expect.high is not None

    @property
    def expected_text(self) -> str:
        """Our limits as text."""
        low, high, unit = self.expect.low, self.expect.high, self.expect.unit
        parts = [f">= {value_text(low, unit)}"] if low is not None else []
        return " and ".join(parts + ([f"<= {value_text(high, unit)}"] if high is not None else []))


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict, the reason in a sentence, and the figures that both come from.

    simulated : of figures from the testbed, the judgement by the simulations beside them.
    """

    claim: Claim
    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    figures: Figures
    simulated: Judgement | None = None

    def over_seeds(self, setting: str, policy: str, measure: str) -> SeedRange | None:
        """Return a measure over the seeds; None if absent."""
        values = tuple(
            figures[measure]
            for (s, p, _), figures in self.figures.items()
            if (s, p) == (setting, policy) and measure in figures
        )
        return SeedRange(values) if values else None


def judge_testbed(claim: Claim, runs: Sequence[PlannedRun], figures: Mapping[str, Mapping[str, float]]) -> Judgement:
    """Return the verdict on a claim by the runs on the testbed, with the one by the simulations beside them."""
    emulated, simulated = (
        judge(claim, [run for run in runs if run.is_emulated == world], figures) for world in (True, False)
    )
    return replace(emulated, simulated=simulated)


def judge(claim: Claim, runs: Sequence[PlannedRun], figures: Mapping[str, Mapping[str, float]]) -> Judgement:
    """Return the verdict on a claim. `figures` : measures by run key; a run may be missing."""
    run_figures = {(run.setting, run.policy, run.seed): figures[run.key] for run in runs if run.key in figures}
    seeds = sorted({run.seed for run in runs})
    run_settings = {run.setting for run in runs}
    findings = []
    for expect in claim.expects:
        if not set(expect.settings) <= run_settings:
            continue
        values, absent = [], dict[int, str]()
        for seed in seeds:
            try:
                values.append(_value(expect, run_figures, seed))
            except MeasureAbsentError as error:
                absent[seed] = str(error)
            except KeyError:
                return Judgement(claim, OPEN, "some of its runs are missing", (), run_figures)
        findings.append(_finding(expect, SeedRange(tuple(values)), run_figures, _absent_in_words(absent, len(seeds))))
    verdict, reason = _verdict(findings)
    return Judgement(claim, verdict, reason, tuple(findings), run_figures)


class MeasureAbsentError(Exception):
    """A run lacks a measure; the message names it and the reason."""


def _value(expect: Expect, figures: Figures, seed: int) -> float:
    """Return the number of an expectation for one seed. Raises `KeyError` if a run is missing, `MeasureAbsentError` if
    a run lacks the measure."""

    def at(setting: str, policy: str, measure: str) -> float:
        run = figures[setting, policy, seed]
        if measure not in run:
            name = measure.partition("@")[0]
            why = f": {WHY_ABSENT[name]}" if name in WHY_ABSENT else ""
            raise MeasureAbsentError(
                f"measure absent{why} ({MEASURE_LABELS.get(name, measure)}; {label_of(policy)}, {setting})"
            )
        return run[measure]

    return float(expect.value(at))


def _absent_in_words(absent: Mapping[int, str], seeds: int) -> str:
    """Describe absent measures and reasons, with the seeds if others have them; empty if none is absent."""
    if not absent:
        return ""
    words = "; ".join(dict.fromkeys(absent.values()))
    return words if len(absent) == seeds else f"{words}, of seed {', '.join(map(str, absent))}"


def _finding(expect: Expect, spread: SeedRange, figures: Figures, absent: str) -> Finding:
    has_limits = expect.low is not None or expect.high is not None
    holds = _holds(expect, spread) if spread.values and has_limits else None
    comparison = None
    if expect.published is not None:
        comparison = Comparison(UNRESOLVED, None)
        if spread.values:
            ends = confidence_interval(spread.values) if expect.interval else (min(spread.values), max(spread.values))
            comparison = expect.published.compare(spread.mean if expect.interval else spread.median, *ends)
    because = ""
    if expect.blame is not None:
        shares = [run.get("tail_timed_out", 0.0) for (s, p, _), run in figures.items() if (s, p) == expect.blame]
        if shares and median(shares) >= MOSTLY:
            because = label_of(expect.blame[1])
    return Finding(expect, spread, holds, because, absent, comparison)


def _holds(expect: Expect, spread: SeedRange) -> bool | None:
    least = -inf if expect.low is None else expect.low
    most = inf if expect.high is None else expect.high
    low, high = confidence_interval(spread.values) if expect.interval else (spread.median, spread.median)
    if least <= low and high <= most:
        return True
    return None if high >= least and low <= most else False


def _verdict(findings: Sequence[Finding]) -> tuple[str, str]:
    if not findings:
        return OPEN, "none of its runs exist"
    compared = [finding for finding in findings if finding.comparison is not None]
    verdict, reason = _verdict_by_limits([finding for finding in findings if finding.has_limits])
    if not compared:
        return verdict, reason
    words = [finding.comparison.word for finding in compared if finding.comparison is not None]
    ours = f"Our limits [ours]: {verdict}. {reason}" if reason else ""
    return overall(words), " ".join(
        filter(None, [_sentence(_beside_published(words, compared), _blame(compared)), ours])
    )


def _beside_published(words: Sequence[Word], findings: Sequence[Finding]) -> str:
    """Count the verdicts beside published numbers, with the range of shares of those in the same direction."""
    counts = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
    shares = [
        100 * finding.comparison.share
        for finding in findings
        if finding.comparison is not None
        and finding.comparison.word == SAME_DIRECTION
        and finding.comparison.share is not None
    ]
    share_text = ""
    if shares:
        few, many = f"{min(shares):.0f}", f"{max(shares):.0f}"
        share_text = f", with {few if few == many else f'{few} to {many}'} % of the published effect"
    if len(words) == words.count(REACHED):
        return (
            f"all {len(words)} published figures are reached" if len(words) > 1 else "the published figure is reached"
        )
    return f"beside the published figures: {', '.join(counts)}{share_text}"


def _verdict_by_limits(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return the verdict by our limits, and its reason; empty without any figure."""
    if not findings:
        return "", ""
    good = [finding for finding in findings if finding.holds]
    bad = [finding for finding in findings if finding.holds is False]
    unknown = [finding for finding in findings if finding.holds is None]
    if not bad and not unknown:
        words = f"all {len(good)} figures are as expected" if len(good) > 1 else "it is as expected"
        return SHOWN, _sentence(words, _blame(good))
    failed = "; ".join(f"{_label(finding)} ({finding.measured}, not {finding.expected_text})" for finding in bad)
    open_items = "; ".join(
        f"{_label(finding)} ({finding.measured}; expected {finding.expected_text})" for finding in unknown
    )
    open_ = f"unresolved: {open_items}" if open_items else ""
    if not good:
        return NOT_SHOWN if bad else UNRESOLVED, _sentence(failed, _blame(bad), open_)
    holds = "; ".join(dict.fromkeys(_label(finding) for finding in good))
    not_for = f". Not for: {failed}" if failed else ""
    return CONDITION, _sentence(f"it holds for: {holds}{not_for}", open_, _blame(good))


def _blame(findings: Sequence[Finding]) -> str:
    """Name the baselines whose time-outs are the reason."""
    labels = ", ".join(dict.fromkeys(finding.because for finding in findings if finding.because))
    return f"Time-outs, not volume: most of the slowest messages of {labels} had one" if labels else ""


def _label(finding: Finding) -> str:
    return finding.expect.condition or finding.expect.text


def _sentence(*parts: str) -> str:
    return "".join(f"{part[:1].upper()}{part[1:]}. " for part in parts if part).strip()


@dataclass(frozen=True)
class Agreement:
    """A time in one setting under one policy, on the testbed and simulated: medians over the seeds (ps)."""

    setting: str
    policy: str
    measure: str
    emulated: float
    simulated: float

    @property
    def difference(self) -> float:
        """The emulated time over the simulated one, less one."""
        return self.emulated / self.simulated - 1


AGREEMENT_MEASURES = ("iteration", "mean", "p99")


def agreements(judgement: Judgement) -> list[Agreement]:
    """Return the times of a judgement that was made on the testbed, beside those of the simulations."""
    if judgement.simulated is None:
        return []
    found = []
    for setting, policy in dict.fromkeys((s, p) for s, p, _ in judgement.figures):
        for measure in AGREEMENT_MEASURES:
            pair = [each.over_seeds(setting, policy, measure) for each in (judgement, judgement.simulated)]
            if pair[0] is not None and pair[1] is not None:
                found.append(Agreement(setting, policy, measure, pair[0].median, pair[1].median))
    return found


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


def value_text(value: float, unit: str) -> str:
    """Return a figure with its unit; "never" for an infinite one."""
    if isinf(value):
        return "never"
    if unit == "share":
        return f"{three_digits(100 * value)} %"
    if unit == "points":
        return f"{100 * value:+.2f} points"
    if unit == "time":
        return time_text(value)
    return f"{value:g}" if unit == "count" else f"{value:.3f}" if abs(value) < 1 else three_digits(value)
