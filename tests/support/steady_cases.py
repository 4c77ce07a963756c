"""Random scenarios of one job whose iterations are alike on average at best, simulated whole and approximated."""

from __future__ import annotations

from random import Random
from typing import Any

from sim_cases import make_trace, ps_job, ring_job, scenario

from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import Trace

LEAF_SPINE = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 4}
TRANSPORTS: dict[str, dict[str, Any]] = {"dctcp": {}, "dlcp": {}, "ndp": {"switch": {"trim_threshold": "40kB"}}}


def mean_times(result: Any) -> dict[str, float]:
    """Mean iteration times of every job, picoseconds."""
    jobs = result.iterations["job"].to_numpy(zero_copy_only=False)
    took = result.iterations["end_ps"].to_numpy() - result.iterations["start_ps"].to_numpy()
    return {name: float(took[jobs == name].mean()) for name in dict.fromkeys(jobs.tolist())}


def steady_case(seed: int, transport: str, iterations: int, approximate: float | None) -> tuple[Scenario, Trace]:
    """A job that spends much of its time on the network: over two spines, mostly, whose ways packets draw; with losses,
    bounds, jitter and captured iterations that differ, sometimes."""
    rng = Random(seed)
    elements = [rng.randint(2000, 20_000), rng.randint(20_000, 120_000)]
    compute = rng.choice((5, 20, 60)) * 1_000_000
    trace = make_trace(
        [[each] for each in elements], iterations=rng.choice((1, 1, 2)), forward=compute, backward=compute,
        skew=compute // 4,
    )  # fmt: skip
    fields: dict[str, Any] = {"iterations": iterations}
    if rng.random() < 0.3:
        fields["jitter"] = rng.choice((0.01, 0.03))
    workers = rng.randint(3, 6)
    if rng.random() < 0.5:
        job = ring_job(workers, bucket=f"{rng.randint(50, 300)}kB", **fields)
    else:
        if transport == "dlcp":
            fields["push_bound"] = rng.choice((0.0, 0.05, 0.1))
            fields["tagging"] = {"magnitude": fields["push_bound"] > 0}
        job = ps_job(workers, rng.choice((1, 2)), **fields)
    more: dict[str, Any] = dict(TRANSPORTS[transport])
    if rng.random() < 0.3:
        more["link"] = {"loss": rng.choice((1e-5, 1e-4))}
    if approximate is not None:
        more["simulation"] = {"approximate": approximate}
    case = scenario(
        job, topology=LEAF_SPINE, transport={"kind": transport}, seed=rng.randint(1, 1 << 30), **more
    )  # fmt: skip
    return case, trace
