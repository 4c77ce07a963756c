"""Bayesian optimisation: the process against closed forms, improvement against integrals, and what a search finds."""

from __future__ import annotations

from math import exp, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gradwire import cli, load_scenario
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.simulate import simulate
from gradwire.studies.tune.gaussian_process import DESIGN, Posterior, improvement, posterior, suggest
from gradwire.studies.tune.scheduler_tuning import TuningResult, tune

GRID = np.array([(x, y) for x in np.linspace(0, 1, 21) for y in np.linspace(0, 1, 21)])


def test_posterior_interpolates_observed_values():
    points = np.array([[0.1, 0.1], [0.5, 0.9], [0.9, 0.3]])
    values = np.array([3.0, -1.0, 7.0])
    found = posterior(points, values, points)
    assert found.mean == pytest.approx(values, abs=1e-3)
    assert found.deviation == pytest.approx([0, 0, 0], abs=0.01)


def test_posterior_far_from_observations_returns_the_prior():
    found = posterior(np.array([[0.0, 0.0], [0.01, 0.0]]), np.array([1.0, 5.0]), np.array([[9.0, 9.0]]))
    assert found.mean == pytest.approx([3.0])
    assert found.deviation == pytest.approx([2.0])


def test_posterior_near_one_point_follows_the_kernel():
    """The two points are too far apart to interact: the mean at distance d is exp(-d^2 / 2 l^2)."""
    points, values = np.array([[0.0, 0.0], [50.0, 50.0]]), np.array([1.0, -1.0])
    (mean,) = posterior(points, values, np.array([[0.0, 0.1]])).mean
    assert any(mean == pytest.approx(exp(-0.5 * (0.1 / length) ** 2), rel=1e-4) for length in (0.1, 0.2, 0.4, 0.8))


@pytest.mark.parametrize(("mean", "deviation", "best"), [(0.0, 1.0, 0.5), (2.0, 0.7, 1.0), (-1.0, 0.1, 0.0)])
def test_expected_improvement_equals_the_integral(mean, deviation, best):
    at = np.linspace(mean - 9 * deviation, mean + 9 * deviation, 200_001)
    density = np.exp(-0.5 * ((at - mean) / deviation) ** 2) / (deviation * sqrt(2 * pi))
    wanted = np.trapezoid(np.maximum(best - at, 0) * density, at)
    (found,) = improvement(Posterior(np.array([mean]), np.array([deviation])), best)
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("centre", [(0.3, 0.7), (0.9, 0.1), (0.5, 0.45)])
def test_bayesian_search_finds_the_minimum_in_17_of_441_points(centre):
    """The best point is within one grid step of the minimum."""
    points, values = [], []
    for _ in range(17):
        place = suggest(points, values, GRID)
        points.append(tuple(GRID[place].tolist()))
        values.append(float(((GRID[place] - centre) ** 2 * (3, 1)).sum()))
    assert np.abs(np.array(points[int(np.argmin(values))]) - centre).max() <= 0.0501
    assert len(set(points)) == 17


def test_bayesian_search_visits_every_point_once():
    grid = GRID[:7]
    points, values = [], []
    while (place := suggest(points, values, grid)) is not None:
        points.append(tuple(grid[place].tolist()))
        values.append(1.0)
    assert len(set(points)) == 7 > len(DESIGN)


def test_tune_returns_the_fastest_trial():
    scenario = load_scenario(
        "schedulers", policy="bytescheduler", set=["job.trace=resnet20", "job.iterations=3", "job.compute_scale=0"]
    )
    found = tune(scenario, trials=6)
    assert isinstance(found, TuningResult)
    assert len(found.trials) == 6
    assert (found.trials[0].partition, found.trials[0].credit) == (4_000_000, 16_000_000)
    assert found.best.iteration_ps == min(each.iteration_ps for each in found.trials)
    again = tune(found.scenario, trials=1).trials[0]
    assert again == found.best


def test_interrupted_tune_keeps_finished_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After two trials Ctrl-C prints them, writes the best one and exits with 130. Before the first trial nothing is
    written."""
    ran: list[int] = []
    few = 2

    def ends(scenario: Any, **more: Any) -> Any:
        if len(ran) == few:
            raise KeyboardInterrupt
        ran.append(1)
        return simulate(scenario, **more)

    monkeypatch.setattr("gradwire.studies.tune.scheduler_tuning.simulate", ends)
    settings = ["--set", "job.trace=resnet20", "--set", "job.iterations=3", "--set", "job.compute_scale=0"]
    command = [
        "tune",
        "schedulers",
        "--policy",
        "bytescheduler",
        "--trials",
        "6",
        "--out",
        str(tmp_path / "best.toml"),
        *settings,
    ]
    said = CliRunner().invoke(cli.app, command)
    assert said.exit_code == 130 and said.stdout.count(" ms") == 2 and "best: " in said.stdout
    assert load_scenario(tmp_path / "best.toml").job[0].scheduler is not None
    few = 0
    ran.clear()
    (tmp_path / "best.toml").unlink()
    said = CliRunner().invoke(cli.app, command)
    assert said.exit_code == 130 and not said.stdout and not (tmp_path / "best.toml").exists()


def test_tune_refuses_schedulers_and_jobs_without_parameters():
    with pytest.raises(ScenarioError, match="is p3, which has nothing to tune"):
        tune(load_scenario("schedulers", policy="p3"))
    with pytest.raises(ScenarioError, match="has 1 jobs"):
        tune("ring", job=3)
    with pytest.raises(ScenarioError, match=r"tune\(job\)"):
        tune("ring", job="first")  # type: ignore[arg-type]
