"""The measured window of traffic, by hand: which flows count, in every figure that is of flows."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.analysis.comparison.detailed_metrics import detailed_metrics
from gradwire.analysis.flows import flow_blocks, flow_times
from gradwire.analysis.metrics import measure
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from tests.support.analysis_cases import iterations, messages, ports
from tests.support.sweep_cases import SCENARIO

FLOWS = {
    "message": [10, 11, 12, 13, 14],
    "kind": ["flow"] * 5,
    "job": ["web"] * 5,
    "start_ps": [0, 999, 1000, 1999, 2000],
    "released_ps": [0, 999, 1000, 1999, 2000],
    "end_ps": [100, 1199, 1300, -1, 2500],
    "lost_bytes": [0, 500, 20, 0, 0],
    "bound": [1.0] * 5,
    "share": [1.0] * 5,
}
"""Flows of 100, 200, 300 and 500 ps; the fourth, which begins in the last picosecond of 1 to 2 ns, is under way."""


def result(window: str) -> Result:
    """Pushes of a job that begin at 5 ps, besides those flows; some of what a scenario says is all that is needed."""
    job = messages()
    rows = {name: job[name] + (FLOWS[name] if name in FLOWS else job[name]) for name in job}
    scenario = f'name = "n"\n[topology]\nkind = "star"\n{window}'
    tables = {"messages": rows, "iterations": iterations(), "ports": ports(),
              "flows": {"message": FLOWS["message"], "ideal_ps": [100] * 5}}  # fmt: skip
    return Result.build({"name": "n", "totals": {}}, tables, scenario=scenario)


@pytest.mark.parametrize(
    ("window", "taken", "under_way", "again", "lost"),
    [
        ("", [100, 200, 300, 500], 1, 3, 520),
        ('[measure]\nafter = "1ns"', [300, 500], 1, 2, 20),
        ('[measure]\nuntil = "2ns"', [100, 200, 300], 1, 3, 520),
        ('[measure]\nafter = "1ns"\nuntil = "2ns"', [300], 1, 2, 20),
        ('[measure]\nuntil = "1ns"', [100, 200], 0, 1, 500),
        ('[measure]\nafter = "1us"', [], 0, 0, 0),
    ],
)
def test_metrics_cover_flows_that_start_in_the_window(
    window: str, taken: list[int], under_way: int, again: int, lost: int
) -> None:
    """The window includes its start and excludes its end. Of 999, 1000 and 2000 ps only 1000 is within 1 to 2 ns.
    Retransmissions are 0, 1, 2, 0, 0 by flow. The job's figures do not depend on the window."""
    found = result(window)
    job, web = measure(found)
    assert web.traffic and not job.traffic
    assert web.completion["all"].count == len(taken) and web.completion["all"].mean_ps == (
        sum(taken) / len(taken) if taken else 0
    )
    assert (web.under_way, web.retransmitted, web.loss.total_bytes) == (under_way, again, lost)
    everything = flow_times(found, "web")
    if taken or under_way:
        assert everything[0].count == len(taken) and everything[0].under_way == under_way
        assert sorted(everything[0].slowdowns.tolist()) == [each / 100 for each in taken]
    assert detailed_metrics(found, "web").from_ready.count == len(taken)
    assert (job.completion["all"].count, job.under_way, job.retransmitted) == (4, 1, 3)


def test_table_heading_states_the_measured_window() -> None:
    found = result('[measure]\nafter = "1ns"\nuntil = "2ns"')
    ((traffic, _, _),) = flow_blocks([found], [measure(found)])
    assert traffic == "web that begin from 1ns to 2ns"


def test_measured_window_does_not_change_the_run() -> None:
    """Tables and digest equal those without a window; only metrics differ."""
    tables: dict[str, Any] = {key: value for key, value in SCENARIO.items() if key != "policy"}
    plain = build_scenario(tables)
    measured = build_scenario({**tables, "measure": {"after": "2us", "until": "20us"}})
    assert measured.digest() == plain.digest()
    one, two = simulate(plain), simulate(measured)
    assert one.messages.equals(two.messages) and one.summary == two.summary
    start = one.messages["start_ps"].to_numpy()
    inside = int(((start >= 2_000_000) & (start < 20_000_000)).sum())
    assert 0 < inside < len(start) and measure(two)[0].completion["flow"].count == inside


@pytest.mark.parametrize(
    ("window", "more", "words"),
    [
        ({"after": "2us", "until": "2us"}, {}, "measure.until: is not after the start of the window"),
        ({"after": "2us"}, {"duration": "2us"}, "measure.after: is not before the end of the run"),
        ({"after": "x"}, {}, "measure.after"),
        ({"since": "2us"}, {}, "measure.since: unknown key"),
    ],
)
def test_invalid_measured_windows_are_refused(window: dict[str, str], more: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        build_scenario({**SCENARIO, "measure": window, **more})
    assert words in str(caught.value)


def test_measured_window_without_traffic_is_refused() -> None:
    tables = {"name": "n", "topology": {"kind": "star", "hosts": 4}, "measure": {"after": "1us"},
              "job": [{"name": "j", "trace": "resnet50", "workers": 2, "servers": 1, "exchange": {"kind": "parameter_server"}}]}  # fmt: skip
    with pytest.raises(ScenarioError, match="applies to traffic, but there is none"):
        build_scenario(tables)
