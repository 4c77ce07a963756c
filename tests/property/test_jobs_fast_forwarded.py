"""Random jobs with fast-forward and without: the same Result to the byte, whatever was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from forward_cases import difference, left_out, long_jobs
from profiles import is_usual

from gradwire.scenarios.errors import ScenarioError, StallError, TraceError
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.engine.specialization import combination_of
from gradwire.sim.simulate import simulate
from tests.soak.drawn import COMMON, Scenarios

Engine = tuple[tuple[str, ...], tuple[str, ...]]
LEAST = 10
"""Scenarios that are tried in any case; then as many as it takes to have met what there is to meet."""
COMBINATIONS = {
    "plain": COMMON,
    "several transports, shared buffers": replace(
        COMMON, transports=("tcp_newreno", "dcqcn"), features=frozenset({"shared_buffer"}), delays=True
    ),
    "connections that last": replace(COMMON, transports=("tcp_newreno", "cubic")),
    "pairs, switches that sum": replace(
        COMMON, transports=("dlcp", "dctcp"), features=frozenset({"aggregation_slots"})
    ),
    "flow control, faults": replace(COMMON, features=frozenset({"pfc", "drr_quantum"}), faults=True),
}


LASTS = ("connections that last", "pairs, switches that sum")
ENGINES: dict[str, set[Engine]] = {
    "plain": {(("dctcp",), ())},
    "several transports, shared buffers": {
        (("tcp_newreno", "dcqcn"), ("shared", "delays")), (("tcp_newreno",), ("shared", "delays", "ack_delay")),
    },
    "connections that last": {(("tcp_newreno",), ("streams",))},
    "pairs, switches that sum": {(("dlcp",), ("pairs", "aggregation")), (("dlcp", "dctcp"), ("pairs", "aggregation"))},
    "flow control, faults": {(("dctcp",), ("drr", "pfc", "faults"))},
}  # fmt: skip
"""Transports and features of the engines whose scenarios are tried in the usual profile: each takes seconds to compile. The
thorough profile tries all."""


@pytest.mark.parametrize("name", COMBINATIONS)
def test_fast_forward_of_random_jobs_equals_full_simulation(name: str, tmp_path: Any) -> None:
    made, answers, engines = Scenarios(tmp_path, COMBINATIONS[name]), Counter[str](), Counter[Engine]()
    for seed in range(800 if is_usual() else 1000):
        try:
            case = long_jobs(made, seed, tmp_path, name in LASTS)
            if case is None:
                continue
            engine = engine_of(case)
            if is_usual() and engine not in ENGINES[name]:
                continue
            fast = simulate(case, threads=1 + seed % 2, max_wall_s=10.0)
            if fast.summary["totals"]["ended_by"] == "max_wall":
                continue
            full = simulate(case, fast_forward=False)
        except (ScenarioError, TraceError, StallError):
            continue
        assert difference(fast, full) == [], f"seed {seed}"
        engines[engine] += 1
        answers["skipped" if left_out(fast) else str(fast.timing["fast_forward"])] += 1
        met = answers["skipped"] >= 3 and len(answers) > 4 and set(engines) >= ENGINES[name]
        if is_usual() and met and engines.total() >= LEAST:
            break
    assert answers["skipped"] >= 3, answers
    assert len(answers) > 4, answers
    assert set(engines) >= ENGINES[name], engines


def engine_of(case: Scenario) -> Engine:
    """Transports and features of the engine that a scenario needs."""
    about = combination_of(case).names()
    return tuple(about["transports"]), tuple(about["features"])
