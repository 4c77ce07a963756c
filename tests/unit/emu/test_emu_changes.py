"""Faults on the testbed, as far as no kernel is needed: what they change, which hosts stand still, and who is slow."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gradwire.emu.agent.host_part import part_of
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.script import Script
from gradwire.emu.planning.faults import fault_changes, fault_departures
from gradwire.emu.planning.plan import Change, pauses_of, slowness_of
from gradwire.emu.planning.planner import check_scenario, make_plan
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import build_network
from gradwire.workload.resolve import resolve

MS = 10**6
TRAFFIC = [{"name": "t", "kind": "incast", "fan_in": 2, "size": "10kB"}]


def scenario_of(**more: object) -> Scenario:
    table = {"name": "x", "topology": {"kind": "star", "hosts": 4}, "host": {"software_latency": "1ms"},
             "switch": {"queues": 4}, "traffic": TRAFFIC}  # fmt: skip
    return build_scenario({**table, **more})


def changes(**more: object) -> tuple[Change, ...]:
    scenario = scenario_of(**more)
    return fault_changes(scenario, build_network(scenario.topology, scenario.link, scenario.link_override))


def test_worst_of_overlapping_faults_applies():
    fault = [
        {"kind": "gray_loss", "between": ["h0", "s0"], "loss": 0.2, "at": "10ms", "until": "40ms"},
        {"kind": "link_down", "between": ["h0", "s0"], "one_way": True, "at": "20ms", "until": "30ms"},
        {"kind": "host_paused", "host": "h2", "at": "20ms", "until": "50ms"},
    ]
    assert changes(link={"loss": 0.01}, fault=fault) == (
        Change(10 * MS, ((0, 0.2), (1, 0.2))),
        Change(20 * MS, ((0, 1.0),), stop=(2,)),
        Change(30 * MS, ((0, 0.2),)),
        Change(40 * MS, ((0, 0.01), (1, 0.01))),
        Change(50 * MS, (), go=(2,)),
    )


def test_overlapping_slowdowns_multiply_and_overlapping_pauses_merge():
    fault = [
        {"kind": "host_slow", "host": "h1", "factor": 2.0, "at": "1ms", "until": "4ms"},
        {"kind": "host_slow", "host": "h1", "factor": 1.5, "at": "2ms", "until": "3ms"},
        {"kind": "host_paused", "host": "h1", "at": "5ms", "until": "6ms"},
        {"kind": "host_paused", "host": "h1", "at": "7ms", "until": "9ms"},
        {"kind": "host_paused", "host": "h1", "at": "8ms", "until": "10ms"},
    ]
    found = changes(fault=fault)
    assert slowness_of(found, 1) == [
        (0, 1_000_000), (MS * 1000, 2_000_000), (2 * MS * 1000, 3_000_000), (3 * MS * 1000, 2_000_000),
        (4 * MS * 1000, 1_000_000),
    ]  # fmt: skip
    assert slowness_of(found, 0) == []
    assert pauses_of(found, 1) == [(5 * MS, 6 * MS), (7 * MS, 10 * MS)]
    assert pauses_of(found, 0) == []


def test_failed_switch_cuts_all_its_cables():
    found = changes(fault=[{"kind": "switch_down", "switch": "s0", "at": "1ms"}])
    assert found == (Change(MS, tuple((port, 1.0) for port in range(8))),)
    assert any("drops_loss" in line for line in fault_departures(found, {}, True))
    assert any("noticed_after" in line for line in fault_departures(found, {(4, 0): (1, 2)}, False))


def test_unsupported_faults_and_unknown_nodes_are_rejected():
    with pytest.raises(ScenarioError) as caught:
        check_scenario(
            scenario_of(fault=[{"kind": "link_degraded", "between": ["h0", "s0"], "rate": "1Gbps", "at": "1ms"}])
        )
    assert [each.path for each in caught.value.mistakes] == ["fault[0]"]
    check_scenario(scenario_of(fault=[{"kind": "host_slow", "host": "h1", "factor": 2.0, "at": "1ms"}]))
    for fault, key in (
        ({"kind": "link_down", "between": ["h0", "h1"], "at": "1ms"}, "between"),
        ({"kind": "switch_down", "switch": "h0", "at": "1ms"}, "switch"),
        ({"kind": "host_paused", "host": "s0", "at": "1ms", "until": "2ms"}, "host"),
    ):
        scenario = scenario_of(fault=[fault])
        with pytest.raises(ScenarioError) as caught:
            make_plan(scenario, resolve(scenario, None), clock="virtual", switch="bpf")
        assert [each.path for each in caught.value.mistakes] == [f"fault[0].{key}"]


class Loop:
    """Time that goes on to whatever comes next."""

    def __init__(self) -> None:
        self.time, self.calls = 0, list[tuple[int, Any]]()

    def now(self) -> int:
        return self.time

    def at(self, time_ns: int, call: Any) -> None:
        self.calls.append((time_ns, call))

    def run(self) -> None:
        while self.calls:
            self.calls.sort(key=lambda each: each[0])
            self.time, call = self.calls.pop(0)
            call()


def computing(slowness: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(end, computing) of two iterations of a lone worker."""
    job = {"name": "j", "trace": "lstm", "iterations": 2, "workers": 2, "exchange": {"kind": "ring"}}
    scenario = scenario_of(job=[job], traffic=[])
    program = resolve(scenario, None).program
    loop = Loop()
    script = Script(part_of(program, 0), loop, lambda message: None, tick_ps=1, slowness=slowness)  # type: ignore[arg-type]
    script.start()
    while loop.calls:
        loop.run()
        for message in [each for each in script.starts if each in script._unsettled]:
            script.message_finished(message)
        for message in sorted(script._missing):
            script.delivered(message)
    return [(row.end_ps, row.compute_ps) for row in script.iterations]


def test_slow_host_multiplies_compute_time_by_the_factor():
    whole, never = computing([]), computing([(0, 1_000_000)])
    assert whole == never and len(whole) == 2
    thrice = computing([(0, 3_000_000)])
    assert [compute for _, compute in thrice] == [3 * compute for _, compute in whole]
    second = computing([(0, 1_000_000), (whole[0][0], 3_000_000)])
    assert [compute for _, compute in second] == [whole[0][1], 3 * whole[1][1]]


def test_timers_due_during_a_pause_do_not_count_as_late():
    loop = EpollLoop()
    loop.begin(time.monotonic_ns())
    called = []
    loop.at(2 * MS, lambda: loop.pause_until(30 * MS), counts=False)
    loop.at(5 * MS, lambda: called.append(loop.now()))
    loop.at(40 * MS, loop.stop)
    loop.run()
    assert called[0] >= 30 * MS
    assert loop.punctuality()["timers"] == 1, "of what was due at 5 ms nothing is said"
