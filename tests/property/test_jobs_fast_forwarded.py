"""Random jobs with fast-forward and without: the same Result to the byte, whatever was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from forward_cases import difference, left_out, long_jobs
from hypothesis import settings

from gradwire.scenarios.errors import ScenarioError, StallError, TraceError
from gradwire.sim.simulate import simulate
from tests.soak.drawn import COMMON, Scenarios

LEAST = 30
"""Seeds that are tried in any case; then as many as it takes to have met what there is to meet."""
COMBINATIONS = {
    "plain": COMMON,
    "several transports, shared buffers": replace(
        COMMON, transports=("tcp_newreno", "dcqcn"), features=frozenset({"shared_buffer"}), delays=True
    ),
    "connections that last": replace(COMMON, transports=("tcp_newreno", "cubic")),
    "pairs, switches that sum": replace(COMMON, transports=("dlcp", "dctcp"), features=frozenset({"aggregation_slots"})),
    "flow control, faults": replace(COMMON, features=frozenset({"pfc", "drr_quantum"}), faults=True),
}


LASTS = ("connections that last", "pairs, switches that sum")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_random_jobs(name: str, tmp_path: Any) -> None:
    combination = COMBINATIONS[name]
    made, answers = Scenarios(tmp_path, combination), Counter[str]()
    many = 80 if settings.default.max_examples < 1000 else 1000
    for seed in range(many):
        try:
            case = long_jobs(made, seed, tmp_path, name in LASTS)
            if case is None:
                continue
            fast = simulate(case, threads=1 + seed % 2, max_wall_s=10.0)
            if fast.summary["totals"]["ended_by"] == "max_wall":
                continue
            full = simulate(case, fast_forward=False)
        except (ScenarioError, TraceError, StallError):
            continue
        assert difference(fast, full) == [], f"seed {seed}"
        answers["skipped" if left_out(fast) else str(fast.timing["fast_forward"])] += 1
        if many < 1000 and seed >= LEAST and answers["skipped"] >= 3 and len(answers) > 4:
            break
    assert answers["skipped"] >= 3, answers
    assert len(answers) > 4, answers
