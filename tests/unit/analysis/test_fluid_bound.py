"""The fluid bound of an iteration against closed forms, and below the simulated iteration."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.analysis.metrics import measure
from gradwire.scenarios.loading.load import build_scenario
from gradwire.studies.connect import simulate
from gradwire.studies.reproduce.claim_values import gain_at_best
from gradwire.studies.reproduce.fluid_bound import fluid_bound
from gradwire.traces.trace import load_trace

BYTES = sum(tensor.bytes for tensor in load_trace("resnet20").tensors)
STAR = {"kind": "star", "hosts": 5}
RACKS = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2, "uplink_rate": "1Gbps"}


def result_of(topology: dict[str, Any] = STAR, scale: float = 0.001, **job: Any) -> Any:
    scenario = {
        "name": "case",
        "topology": topology,
        "link": {"rate": "10Gbps", "latency": "1us"},
        "transport": "dlcp",
        "job": [
            {
                "name": "job", "trace": "resnet20", "iterations": 4, "workers": 4, "servers": 1, "compute_scale": scale,
                "exchange": {"kind": "parameter_server"}, **job,
            }
        ],
    }  # fmt: skip
    return simulate(build_scenario(scenario))


@pytest.mark.parametrize("bound", [0.0, 0.25])
def test_fluid_bound_is_that_of_the_server_link(bound: float) -> None:
    """Four workers' tensors are pulled without loss, whatever the bound of the pushes."""
    result = result_of(push_bound=bound, pull_bound=bound, pull_important=False, tagging={"magnitude": True})
    expected = 4 * BYTES * (1 - bound) * 8e12 / 10e9
    assert fluid_bound(result) == pytest.approx(expected)
    (entry,) = measure(result)
    assert entry.iteration.mean_ps > expected


def test_lossless_pull_determines_fluid_bound() -> None:
    result = result_of(push_bound=0.5, tagging={"magnitude": True})
    assert fluid_bound(result) == pytest.approx(4 * BYTES * 8e12 / 10e9)


def test_uplinks_determine_fluid_bound_if_scarce() -> None:
    """The server is alone in the second rack: all four workers cross two uplinks of 1 Gbps."""
    assert fluid_bound(result_of(RACKS)) == pytest.approx(4 * BYTES * 8e12 / 2e9)


def test_computing_determines_fluid_bound_if_long() -> None:
    """Workers begin at different iterations of the trace, and the median of their times counts."""
    times = [iteration.backward_end_ps for iteration in load_trace("resnet20").iterations]
    assert fluid_bound(result_of(scale=1.0)) in times
    assert 4 * BYTES * 8e12 / 10e9 < min(times) / 10


def test_fluid_bound_is_unknown_with_other_traffic() -> None:
    scenario = {
        "name": "case", "topology": STAR, "transport": "dctcp",
        "traffic": [{"name": "burst", "kind": "incast", "fan_in": 3, "size": "10kB", "rounds": 1}],
    }  # fmt: skip
    assert fluid_bound(simulate(build_scenario(scenario))) is None


def test_gain_at_best_takes_best_setting_of_each_side() -> None:
    times = {
        ("a", "mine"): 10.0,
        ("b", "mine"): 8.0,
        ("a", "x"): 30.0,
        ("b", "x"): 20.0,
        ("a", "y"): 12.0,
        ("b", "y"): 25.0,
    }
    value = gain_at_best("a", "b", "mine", ["x", "y"])
    assert value(lambda setting, policy, measure: times[setting, policy]) == pytest.approx(12 / 8 - 1)
