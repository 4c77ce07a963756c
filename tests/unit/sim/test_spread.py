"""How well means are known: intervals that hold the mean as often as they say, of values that depend on each other
too, and trends that are found where there are any; and what is too rare to be judged."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.sim.engine.fast_forward.mean_uncertainty import (
    RARE,
    USUAL,
    MeanUncertainty,
    drifts,
    exceeds,
    quantile,
    trend,
)
from gradwire.sim.engine.fast_forward.rare_events import FEW, MANY, too_rare

RUNS = 1000


def held(values: np.ndarray) -> float:
    """In how many of many runs, float64[runs, n] of mean 0, the interval holds the mean."""
    found = [MeanUncertainty.of(each) for each in values]
    return float(np.mean([abs(each.mean) <= each.half_width for each in found]))


def dependent(rng: np.random.Generator, n: int, weight: float) -> np.ndarray:
    """Values each of which is so much of the one before, and chance."""
    values = rng.standard_normal((RUNS, n + 100))
    for i in range(1, n + 100):
        values[:, i] += weight * values[:, i - 1]
    return values[:, 100:]


@pytest.mark.parametrize(("freedom", "usual"), [(7, 2.3646), (15, 2.1314), (63, 1.9983)])
def test_quantiles_are_those_of_tables(freedom, usual):
    assert quantile(USUAL, freedom) == pytest.approx(usual, rel=0.005)
    assert quantile(RARE, freedom) > quantile(USUAL, freedom)


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(3)
    assert 0.94 <= held(rng.standard_normal((RUNS, 16))) <= 0.995
    assert held(dependent(rng, 64, 0.5)) > 0.9
    alone = dependent(rng, 64, 0.5)
    naive = np.abs(alone.mean(axis=1)) <= quantile(USUAL, 63) * alone.std(axis=1, ddof=1) / 8
    assert naive.mean() < 0.85  # which is why batches are looked at


def test_values_that_are_all_the_same():
    same = np.full(16, 7.0)
    assert MeanUncertainty.of(same) == (7.0, 0.0, 16)
    assert not drifts(same, 10**6, 1e-9) and not exceeds(same, same[:4], 0.0)
    assert exceeds(same, same[:4] + 0.2, 0.1)


def test_trends_are_found_and_chance_is_none():
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((RUNS, 32))
    found = [trend(each) > 0 for each in noise], [trend(each, RARE) > 0 for each in noise]
    assert 0.03 < np.mean(found[0]) < 0.07 and np.mean(found[1]) < 0.01
    rising = noise[0] * 0.01 + np.arange(32)
    assert trend(rising) == pytest.approx(1.0, rel=0.01)
    assert drifts(rising, 10, 9.5) and not drifts(rising, 10, 10.5)


def test_a_sample_is_given_the_benefit_of_chance():
    rng = np.random.default_rng(9)
    before = 100 + rng.standard_normal(64)
    assert not exceeds(before, before[:4] + 1.0, 0.5)
    assert exceeds(before, before[:4] + 5.0, 0.5)


def test_what_is_too_rare():
    def flags(losses: int, timeouts: int) -> np.ndarray:
        found = np.zeros((2 * MANY, 2), dtype=np.bool_)
        found[:losses, 0] = found[:timeouts, 1] = True
        return found

    assert too_rare(flags(0, 0), lossy=False) == ""
    assert "lost" in too_rare(flags(0, 0), lossy=True)
    assert "lost" in too_rare(flags(MANY - 1, 0), lossy=False)
    assert too_rare(flags(MANY, 0), lossy=True) == ""
    assert "time-outs" in too_rare(flags(MANY, FEW - 1), lossy=True)
    assert too_rare(flags(FEW, FEW), lossy=True) == ""
