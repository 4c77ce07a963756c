"""Traffic beside a job that is played step by step: that of a run, and the same whether the network has rested or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_cases import make_trace, ps_job
from sim_cases import scenario as case

from gradwire.emu.session import Session as Emulated
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.sessions import persistent_network
from gradwire.sim.sessions.session import Session
from gradwire.sim.simulate import simulate
from gradwire.workload.traffic.base import Flows, flows_since

TRACE = make_trace([[200_000], [100_000]], forward=10**7, backward=10**7)
POISSON = {"name": "others", "kind": "poisson", "load": 0.6, "sizes": "web_search"}
SLOW = {"link": {"rate": "10Gbps"}}


def scenario(*traffic: dict[str, Any], **fields: Any):
    return case(ps_job(3, push_bound=0.0), hosts=5, traffic=list(traffic), **SLOW, **fields)


@pytest.mark.parametrize("traffic", [(), (POISSON,), ({"name": "many", "kind": "incast", "fan_in": 4, "size": "1MB", "period": "1ms"},)],
                         ids=["none", "poisson", "incast"])  # fmt: skip
def test_first_session_step_equals_first_iteration_of_run(traffic: tuple[dict[str, Any], ...]) -> None:
    """Times agree to the picosecond with the same background flows; traffic makes the step longer."""
    one = scenario(*traffic)
    ends = simulate(one, TRACE).iterations["end_ps"].to_pylist()
    session = Session(one)
    took = session.step(TRACE).time_ps
    session.close()
    assert took == max(ends)
    if traffic:
        alone = Session(scenario())
        assert took > 1.05 * alone.step(TRACE).time_ps
        alone.close()


@pytest.mark.parametrize("traffic", [[], [{**POISSON, "sizes": "20kB"}]], ids=["alone", "beside"])
def test_session_steps_equal_iterations_of_run(traffic: list[dict[str, Any]]) -> None:
    """The job has one worker, whose iterations follow without a gap. All step times agree to the picosecond, and
    their sum is the network's time."""

    def one(iterations: int):
        return case(ps_job(1, push_bound=0.0, iterations=iterations), hosts=5, traffic=traffic, **SLOW)

    made = make_trace([[20_000], [10_000]], forward=10**6, backward=10**6)
    ends = [0, *sorted(simulate(one(12), made).iterations["end_ps"].to_pylist())]
    session = Session(one(1))
    found = [session.step(made).time_ps for _ in range(12)]
    assert found == np.diff(ends).tolist()
    assert session.now_ps == sum(found) and session.come_to_rest()[2] == sum(found)


@pytest.mark.parametrize("workers", [1, 12])
def test_session_steps_without_compute_equal_iterations_of_run(workers: int) -> None:
    """A step begins up to one host latency before the network's time; its messages enter within the first window.

    Had they entered late, packets would arrive before the window that they are sorted in: with a dozen workers, the
    sort wrote outside its buckets, and training runs stalled. The right times are those of a run, to the picosecond.
    """

    def one(iterations: int):
        return case(ps_job(workers, push_bound=0.0, iterations=iterations), hosts=workers + 2, link={"rate": "1Gbps"})

    trace = make_trace([[8] * 80], forward=0, backward=0)
    first = max(simulate(one(1), trace).iterations["end_ps"].to_pylist())
    session = Session(one(1))
    times = [session.step(trace).time_ps for _ in range(8)]
    session.close()
    assert times == [first] * 8


def test_background_traffic_continues_across_steps_and_network_rebuilds(tmp_path: Path) -> None:
    """One burst meets the fourth step, and only that step takes longer. The same holds if the network is rebuilt in
    between, or if another session resumes."""
    alone = Session(scenario())
    plain = [alone.step(TRACE).time_ps for _ in range(6)]
    alone.close()
    begin = (sum(plain[:3]) + plain[3] // 4) / 1e12
    late = "".join(f"4 3 3 100 500000 {begin:.12f}\n" for _ in range(8))  # to the server, as much as a step's pushes
    (tmp_path / "flows.txt").write_text(f"9\n0 4 3 100 20 0.0\n{late}")
    one = scenario({"name": "two", "kind": "flows", "file": str(tmp_path / "flows.txt")})

    def steps(rests: set[int], handed_on: bool) -> list[int]:
        session, found = Session(one), []
        for step in range(6):
            if step in rests:
                where = session.come_to_rest()
                if handed_on:
                    session = Session(one)
                    session.resume(*where)
            found.append(session.step(TRACE).time_ps)
        session.close()
        return found

    together = steps(set(), False)
    assert [step for step in range(6) if together[step] > 1.3 * plain[step]] == [3]
    for rests in ({2}, {3}, {1, 2, 3, 4, 5}):
        there = steps(rests, False)
        assert [step for step in range(6) if there[step] > 1.3 * plain[step]] == [3], rests
        assert steps(rests, True) == there


def test_session_rebuilds_network_at_message_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_network, "MAX_MESSAGES", 150)
    session = Session(scenario({**POISSON, "sizes": "100kB"}))
    times = [session.step(TRACE).time_ps for _ in range(8)]
    assert session.built > 1 and session.now_ps >= sum(times)
    session.close()


def test_losses_of_background_traffic_do_not_affect_job_messages() -> None:
    """The traffic may lose data in a full buffer; messages of the job arrive complete."""
    lossy = {"name": "lossy", "kind": "incast", "fan_in": 4, "size": "500kB", "period": "500us", "bound": 0.5, "droppable": True,
             "transport": {"kind": "dlcp"}}  # fmt: skip
    session = Session(
        scenario(lossy, switch={"queues": 8, "buffer": "40KiB", "ecn_threshold": "10KiB", "selective_drop": True})
    )
    for _ in range(3):
        assert session.step(TRACE).missing == {}
    session.close()


@st.composite
def flows(draw: st.DrawFn) -> Flows:
    n = draw(st.integers(1, 12))
    numbers = np.arange(n)
    edges = [(a, b) for b in range(n) for a in range(b) if draw(st.integers(0, 5)) == 0]
    followers = {b for _, b in edges}
    starts = sorted(draw(st.integers(0, 50)) for _ in range(n))
    start = np.array([0 if b in followers else starts[b] for b in range(n)])
    return Flows(
        numbers, numbers + 1, 10 * numbers, start, numbers // 3, numbers, np.array(edges, dtype=np.int64).reshape(-1, 2)
    )


@given(flows(), st.integers(0, 60))
def test_flows_since_keeps_later_flows_and_their_dependants(part: Flows, since: int) -> None:
    """Flows that start later are kept with their times, and so are flows that wait only for these. Edges join the
    same flows."""
    before = {b: [a for a, c in part.edges.tolist() if c == b] for b in range(len(part))}
    kept: list[int] = []
    for flow in range(len(part)):
        if all(each in kept for each in before[flow]) if before[flow] else part.start_ps[flow] >= since:
            kept.append(flow)
    found = list(flows_since(iter([part]), since))
    if not kept:
        assert not found
        return
    (mine,) = found
    assert mine.flow.tolist() == kept and mine.src.tolist() == kept and mine.dst.tolist() == [each + 1 for each in kept]
    assert mine.nbytes.tolist() == [10 * each for each in kept] and mine.round.tolist() == [each // 3 for each in kept]
    assert mine.start_ps.tolist() == [max(int(part.start_ps[each]) - since, 0) for each in kept]
    assert {(kept[a], kept[b]) for a, b in mine.edges.tolist()} == {(a, b) for b in kept for a in before[b]}


def test_step_sessions_reject_scenarios_with_absolute_times() -> None:
    with pytest.raises(
        ScenarioError, match=r"traffic: happens at times of a whole run.*expected a job only, on real sockets"
    ):
        Emulated(scenario(POISSON))
    with pytest.raises(
        ScenarioError,
        match="duration: is 1ms of a whole run, and iterations are played one at a time; expected no such key",
    ):
        Session(scenario(duration="1ms"))
    with pytest.raises(ScenarioError, match="fault: happens at times of a whole run"):
        Session(scenario(fault=[{"kind": "link_down", "between": ["h0", "s0"], "at": "1ms"}]))
