"""Random jobs whose paths, losses and compute times are drawn, whole and approximated: mean iteration times within what
is tolerated, and within what is said of them as a rule."""

from __future__ import annotations

import pytest
from hypothesis import settings
from steady_cases import TRANSPORTS, mean_times, steady_case

from gradwire.sim.simulate import simulate

TOLERANCE = 0.02


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_random_jobs(transport):
    many = 6 if settings.default.max_examples < 1000 else 60
    covered = []
    for seed in range(many):
        (case, trace), (asked, _) = (steady_case(seed, transport, 200, each) for each in (None, TOLERANCE))
        full, approximated = simulate(case, trace), simulate(asked, trace, threads=1 + seed % 2)
        error = mean_times(approximated)["job0"] / mean_times(full)["job0"] - 1
        assert abs(error) <= TOLERANCE, f"seed {seed}"
        assert approximated.messages.num_rows == full.messages.num_rows
        if said := approximated.summary["approximate"]["jobs"].get("job0"):
            covered.append(abs(error) <= said["uncertainty"] + 1e-4)
    assert len(covered) >= many // 4, f"{len(covered)} approximated"
    assert sum(covered) > 0.6 * len(covered)
