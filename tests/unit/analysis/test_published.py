"""Verdicts beside published numbers, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from gradwire.studies.report.other_sections import claims_page
from gradwire.studies.reproduce import SETS, claims_of
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claim_values import gain, gain_over_best
from gradwire.studies.reproduce.claims_page import as_dict, finding_line
from gradwire.studies.reproduce.published import PublishedNumber
from gradwire.studies.reproduce.run_plan import runs_of_claim
from gradwire.studies.reproduce.verdicts import Judgement, judge

GAIN = PublishedNumber(0.8, "[abstract]")
RATIO = PublishedNumber(0.1, "[notes]", neutral=1.0)
LIMIT = PublishedNumber(0.11, "[notes]", at_most=True)
PREDICTED = PublishedNumber(200.0, "[abstract]", within=0.15)


@pytest.mark.parametrize(
    ("number", "center", "low", "high", "word", "share"),
    [
        (GAIN, 0.8, 0.7, 1.0, "reached", 1.0),
        (GAIN, 0.4, 0.3, 0.5, "same direction", 0.5),
        (GAIN, -0.2, -0.3, -0.1, "opposite", -0.25),
        (GAIN, 0.1, -0.1, 0.2, "unresolved", 0.125),
        (GAIN, 0.0, 0.0, 0.0, "opposite", 0.0),
        (GAIN, 0.003, 0.002, 0.005, "opposite", 0.00375),
        (GAIN, 0.005, 0.004, 0.006, "same direction", 0.00625),
        (GAIN, inf, inf, inf, "reached", None),
        (RATIO, 0.1, 0.05, 0.2, "reached", 1.0),
        (RATIO, 0.55, 0.5, 0.6, "same direction", 0.5),
        (RATIO, 1.9, 1.2, 2.4, "opposite", -1.0),
        (PREDICTED, 230.0, 228.0, 231.0, "reached", 1.15),
        (PREDICTED, 170.0, 169.0, 171.0, "reached", 0.85),
        (PREDICTED, 232.0, 231.0, 233.0, "same direction", 1.16),
        (PREDICTED, 168.0, 167.0, 169.0, "same direction", 0.84),
        (PREDICTED, -10.0, -11.0, -9.0, "opposite", -0.05),
        (LIMIT, 0.1, 0.05, 0.11, "reached", None),
        (LIMIT, 0.2, 0.2, 0.2, "opposite", None),
        (LIMIT, 0.1, 0.05, 0.2, "unresolved", None),
    ],
)
def test_comparison_with_a_published_number(
    number: PublishedNumber, center: float, low: float, high: float, word: str, share: float | None
) -> None:
    comparison = number.compare(center, low, high)
    assert comparison.word == word
    assert comparison.share == (pytest.approx(share) if share is not None else None)


def test_gain_over_the_best_rival_is_chosen_seed_by_seed() -> None:
    times = {"a": 8.0, "b": 10.0, "c": 9.0}
    at: Callable[[str, str, str], float] = lambda setting, policy, measure: times[policy]
    assert gain_over_best("x", "a", ["b", "c"])(at) == gain("x", "a", "c")(at) == 0.125


def _judged(*expects: Expect) -> Judgement:
    """Return a claim in which DLCP takes 5 us and its rival 6, 7 and 8 us by seed: gains of 0.2, 0.4 and 0.6."""
    claim = Claim(
        "T1", "[abstract]", "It is fast.", "", (Setting("s", "incast-mix", ("dlcp", "ndp")),), expects, "mean"
    )
    runs = runs_of_claim(claim, 3, False)
    return judge(
        claim, runs, {run.key: {"mean": 5e6 if run.policy == "dlcp" else (5 + run.seed) * 1e6} for run in runs}
    )


def _gain(value: float | None, low: float | None = None) -> Expect:
    published = None if value is None else PublishedNumber(value, "[abstract]")
    return Expect("gain", gain("s", "dlcp", "ndp", "mean"), ("s",), low=low, unit="share", published=published)


def test_a_claim_has_the_verdict_of_its_published_figures() -> None:
    """Our limits stand beside it and change nothing."""
    assert _judged(_gain(0.4)).verdict == "reached"
    half = _judged(_gain(0.8, low=0.5))
    assert half.verdict == "same direction"
    assert half.reason == (
        "Beside the published figures: 1 same direction, with 50 % of the published effect. "
        "Our limits [ours]: not shown. Gain (40.0 % (20.0 % to 60.0 %), not >= 50.0 %)."
    )
    mixed = _judged(_gain(0.4), _gain(0.8), _gain(-0.1))
    assert mixed.verdict == "mixed"
    assert "1 reached, 1 same direction, 1 opposite" in mixed.reason
    assert _judged(_gain(None, low=0.3)).verdict == "shown"


def test_a_prediction_far_above_the_published_number_is_not_reached() -> None:
    """Gains of 0.2 to 0.6 beside a published 0.2: twice the effect."""
    number = PublishedNumber(0.2, "[code]", within=0.15)
    judged = _judged(replace(_gain(None), published=number))
    assert judged.verdict == "same direction"
    assert finding_line(judged.findings[0]).endswith(
        "published within 15 % of 20.0 % [code]: same direction (200 % of the published effect)"
    )
    assert as_dict([judged])["claims"][0]["expectations"][0]["published"]["within"] == 0.15  # type: ignore[index]


def test_terminal_and_page_show_published_number_verdict_and_limit() -> None:
    judged = _judged(_gain(0.8, low=0.5), _gain(None, low=0.3))
    line = (
        "gain: 40.0 % (20.0 % to 60.0 %); published 80.0 % [abstract]: same direction (50 % of the published effect); "
        "our limit >= 50.0 % [ours]: does not hold"
    )
    assert finding_line(judged.findings[0]) == line
    assert finding_line(judged.findings[1]).endswith("60.0 %); our limit >= 30.0 % [ours]: holds")
    page = claims_page("T", [judged], [None], {"command": "how", **as_dict([judged])})
    assert "80.0 % [abstract]" in page and "same direction (50 % of the published effect)" in page
    claims = as_dict([judged])["claims"]
    assert isinstance(claims, list)
    first, second = claims[0]["expectations"]
    assert (first["verdict"], first["published"]["value"]) == ("same direction", 0.8)
    assert first["share"] == pytest.approx(0.5)
    assert (second["verdict"], second["published"]) == (None, None)


@pytest.mark.parametrize("name", SETS)
def test_every_figure_of_a_claim_can_be_judged(name: str) -> None:
    """A figure without published number and without limits would have no verdict; marks are those of the sources."""
    for claim in claims_of([name]):
        for expect in claim.expects:
            assert expect.published or expect.low is not None or expect.high is not None, (claim.id, expect.text)
            if expect.published is not None:
                assert expect.published.mark in ("[abstract]", "[code]", "[notes]", "[recalled]", "[derived]"), claim.id
                assert expect.published.value != expect.published.neutral
