"""Random jobs whose paths, losses and compute times are drawn, whole and approximated: mean iteration times within what
is tolerated, always, and within what is said of them, mostly."""

from __future__ import annotations

from hypothesis import settings
from steady_cases import TRANSPORTS, mean_times, steady_case

from gradwire.sim.simulate import simulate

TOLERANCE = 0.02


def test_random_jobs():
    many = 5 if settings.default.max_examples < 1000 else 60
    covered = []
    for transport in TRANSPORTS:
        for seed in range(many):
            (case, trace), (asked, _) = (steady_case(seed, transport, 200, each) for each in (None, TOLERANCE))
            full, approximated = simulate(case, trace), simulate(asked, trace, threads=1 + seed % 2)
            error = mean_times(approximated)["job0"] / mean_times(full)["job0"] - 1
            assert abs(error) <= TOLERANCE, f"{transport}, seed {seed}"
            assert approximated.messages.num_rows == full.messages.num_rows
            if said := approximated.summary["approximate"]["jobs"].get("job0"):
                covered.append(abs(error) <= said["uncertainty"] + 1e-4)
    assert len(covered) >= many - 1
    assert sum(covered) > 0.6 * len(covered)
