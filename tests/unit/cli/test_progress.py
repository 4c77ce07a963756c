"""How far a run is, and runs that the wall clock ends: what they leave is the beginning of the whole run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows

from gradwire.analysis.comparison.compare import compare
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.readable import wall_text
from gradwire.scenarios.units import UnitError, parse_wall
from gradwire.sim import progress as at
from gradwire.sim.engine import time_advance
from gradwire.sim.progress import Observer, ProgressReport, WallClockLimit
from gradwire.sim.simulate import packet_fabric, simulate
from gradwire.studies.eta import RemainingTime, SpeedEstimate

TRACE = make_trace(
    [[1000], [100_000], [900_000], [2000], [50_000], [50_000]], iterations=2, forward=20 * US, backward=20 * US
)
POISSON = {"kind": "poisson", "load": 0.5, "sizes": "web_search"}


def case(*traffic: dict[str, Any], job: dict[str, Any] | None = None, **fields: Any) -> Any:
    jobs = [{"name": "job", "trace": "none", **job}] if job else []
    return build_scenario(
        {
            "name": "case",
            "topology": {"kind": "star", "hosts": 8},
            "switch": {"ecn_threshold": "96KiB"},
            "traffic": [{"name": f"t{number}", **table} for number, table in enumerate(traffic)],
            "job": jobs,
            **fields,
        }
    )


class Clock:
    """A wall clock on which a second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that pass as somebody looks, and an engine that rests after every few windows."""
    monkeypatch.setattr(at.time, "monotonic", Clock())
    monkeypatch.setattr(time_advance, "CALL_SECONDS", 0.0)


# --- looking up ------------------------------------------------------------------------------------


def test_progress_reports_are_limited_in_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(at.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(at, "PROGRESS_INTERVAL_S", 1 / 8)
    monkeypatch.setattr(at, "MAX_PROGRESS_SHARE", 1 / 16)
    seen: list[int] = []

    def progress(standing: ProgressReport) -> None:
        seen.append(standing.now_ps)
        now[0] += 2 / 128  # what the report takes

    observer = Observer(lambda ps: ProgressReport(0, 1, 0.0, ps, 0), progress, DeferredInterrupt())
    for tick in range(100):
        now[0] = max(now[0], tick / 128)
        assert not observer.report_within_call(tick)
    # the first at once; then 2 / 128 s of looking are paid for with 32 / 128 s of simulating
    assert seen == [0, 34, 68]
    observer.report(1000, last=True)
    assert seen[-1] == 1000


def test_time_limit_and_interrupt_end_a_run_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(at.time, "monotonic", lambda: now[0])
    ctrl_c = DeferredInterrupt()
    observer = Observer(lambda ps: ProgressReport(0, 1, 0.0, ps, 0), None, ctrl_c, 2.0)
    assert not observer.report_within_call(5)
    observer.report_progress(5)
    now[0] = 2.0
    assert observer.report_within_call(6)
    with pytest.raises(WallClockLimit):
        observer.report_progress(6)
    now[0], ctrl_c.is_requested = 0.0, True
    assert observer.report_within_call(7)
    with pytest.raises(KeyboardInterrupt):
        observer.report_progress(7)


# --- runs that are ended ---------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [3, 40, 41, 42, 43, 50, 55, 120])
@pytest.mark.parametrize(
    "scenario",
    [
        case(job={"iterations": 3, **ps_job(3)}),
        # software so slow that the engine looks up between a delivery and its return
        case(job={"iterations": 3, **ps_job(3)}, host={"software_latency": "200us"}),
        case(job={"iterations": 3, **ring_job(4)}),
        case(POISSON, duration="3ms"),
        case({**POISSON, "stop": "1ms"}, job={"iterations": 3, **ps_job(3)}),
    ],
    ids=["ps", "slow software", "ring", "traffic", "both"],
)
def test_run_cut_by_the_time_limit_equals_the_start_of_the_whole_run(scenario: Any, looks: int, slow: None) -> None:
    """All messages and iterations before the end equal those of the whole run."""
    whole = simulate(scenario, TRACE)
    cut = simulate(scenario, TRACE, max_wall_s=looks)
    totals = cut.summary["totals"]
    if looks == 120 and totals["ended_by"] != "max_wall":
        assert rows(cut.messages) == rows(whole.messages)
        return
    assert (totals["ended_by"], totals["finished"]) == ("max_wall", False)
    end = totals["simulated_ps"]
    assert end < whole.summary["totals"]["simulated_ps"]
    full = {row["message"]: row for row in rows(whole.messages)}
    found = {row["message"]: row for row in rows(cut.messages)}
    assert {number for number, row in full.items() if 0 <= row["end_ps"] < end} <= {
        number for number, row in found.items() if row["end_ps"] >= 0
    }
    for number, row in found.items():
        assert row["start_ps"] == full[number]["start_ps"] <= end
        assert row["end_ps"] in (-1, full[number]["end_ps"])
    before = [row for row in rows(whole.iterations) if row["end_ps"] < end]
    assert [row for row in rows(cut.iterations) if row["end_ps"] < end] == before
    assert not check_loss_invariant(cut)
    assert compare([cut]).cut_short


def test_summary_names_how_the_run_ended() -> None:
    assert simulate(case(job=ps_job(2)), TRACE, fabric=Ideal()).summary["totals"]["ended_by"] == "done"
    by_duration = simulate(case(job=ps_job(2), duration="100us"), TRACE, fabric=Ideal())
    assert by_duration.summary["totals"]["ended_by"] == "duration"
    assert not compare([by_duration]).cut_short
    in_time = simulate(case(job=ps_job(2)), TRACE, fabric=Ideal(), max_wall_s=1e9)
    assert in_time.summary["totals"]["ended_by"] == "done"


# --- shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [
        case(job={"iterations": 3, **ps_job(3, exchange={"partition": "64KiB"})}),
        case(job={"iterations": 3, **ps_job(2, 2, exchange={"pull": "layerwise", "partition": "64KiB"})}),
        case(job={"iterations": 3, **ring_job(4, bucket="4kB")}),
        case({"kind": "permutation", "size": "5MB"}),
        case({"kind": "permutation", "size": "200kB", "rounds": 30, "period": "50us"}),
        case({"kind": "permutation", "size": "5MB", "bound": 0.2}, transport="dlcp"),
        case({**POISSON, "stop": "2ms"}),
        case({**POISSON, "flows": 100}),
        case(POISSON, duration="2ms"),
        case(job={"iterations": 50, **ps_job(3)}, duration="3ms"),
    ],
)  # fmt: skip
def test_progress_shares_rise_to_one(scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr(at, "MAX_PROGRESS_SHARE", 1e9)
    monkeypatch.setattr(time_advance, "CALL_SECONDS", 0.0)
    seen: list[ProgressReport] = []
    simulate(scenario, TRACE, progress=seen.append)
    shares = [standing.share for standing in seen]
    assert shares == sorted(shares) and shares[0] < 0.2 and shares[-1] == 1
    assert len(set(shares)) > 8
    hops = [standing.packet_hops for standing in seen]
    assert hops == sorted(hops) and hops[-1] > 0
    if scenario.duration is None:  # what is done of the work is what has been done of the packets
        assert all(abs(share - hop / hops[-1]) < 0.12 for share, hop in zip(shares, hops, strict=True))
    # no long silence, and no half of the work that passes without a sign
    assert max(late - early for early, late in itertools.pairwise(shares)) < 0.5


def test_tolerated_loss_counts_as_settled_bytes() -> None:
    made: list[Any] = []

    def keep(*arguments: Any) -> Any:
        made.append(packet_fabric(*arguments))
        return made[-1]

    flows = {"kind": "permutation", "size": "1MB", "bound": 0.2, "droppable": True}
    result = simulate(case(flows, transport="dlcp", link={"loss": 0.05}), fabric=keep)
    assert result.summary["totals"]["lost_bytes"] > 0
    assert made[0].settled_bytes == result.summary["totals"]["bytes"] == 8_000_000


# --- words -----------------------------------------------------------------------------------------


def test_speed_estimate_follows_recent_progress() -> None:
    now = [100.0]
    pace = SpeedEstimate(lambda: now[0])
    assert pace.parts == ("", "")
    for second in range(1, 21):
        now[0] = 100.0 + second
        pace.note(second / 80, (min(second, 10) + 3 * max(0, second - 10)) * 1_000_000)
        assert (pace.left_s is None) == (second < 3)
    # three million a second of late, one before; a quarter is done after 20 s
    assert pace.hops_per_s == pytest.approx(3e6)
    assert pace.left_s == pytest.approx(60)
    assert pace.parts == ("about 60 s left", "3.00 M hops/s")
    pace.note(1.0, 40_000_000)
    assert pace.parts[0] == ""


def test_remaining_time_estimates_are_within_25_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pushes of a job precede its pulls, on a machine of 5,000 packet-hops a second."""
    monkeypatch.setattr(at, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr(at, "MAX_PROGRESS_SHARE", 1e9)
    monkeypatch.setattr(time_advance, "CALL_SECONDS", 0.0)
    seen: list[ProgressReport] = []
    simulate(case(job={"iterations": 2, **ps_job(7)}), TRACE, progress=seen.append)
    clock = [0.0]
    pace, guesses = SpeedEstimate(lambda: clock[0]), []
    for standing in seen:
        clock[0] = standing.packet_hops / 5_000
        pace.note(standing.share, standing.packet_hops)
        if pace.left_s is not None:
            guesses.append((clock[0], pace.left_s))
    end = clock[0]
    assert guesses[0][0] < end / 4
    assert all(abs(now + left - end) < end / 4 for now, left in guesses)


def test_progress_counts_iterations_of_the_scenario() -> None:
    """An iteration counts once, when all workers have finished it."""
    seen: list[ProgressReport] = []
    two = {"iterations": 3, **ps_job(3)}
    simulate(case(job=two), TRACE, progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (3, 3)
    assert {standing.total for standing in seen} == {3}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (99.4, "99 s"), (100, "2 min"), (5969, "99 min"), (5970, "1.66 h"), (36_000, "10.0 h")],
)
def test_remaining_time_is_formatted_with_units(seconds: float, text: str) -> None:
    assert wall_text(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("1.5min", 90), ("2h", 7200), ("250ms", 0.25)])
def test_wall_clock_limits_are_parsed(text: str, seconds: float) -> None:
    assert parse_wall(text) == seconds


@pytest.mark.parametrize("text", ["30", "5us", "0s", "-1s", "soon", ""])
def test_invalid_wall_clock_limits_are_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_wall(text)


def test_duration_limits_simulated_time() -> None:
    assert simulate(case(job=ps_job(2), duration="1ms"), TRACE, fabric=Ideal()).summary["totals"]["simulated_ps"] <= MS


def estimated(seconds: list[float], pieces: int, left: float) -> str:
    """What is said after pieces of work that took so long, of one unit each."""
    now = [0.0]
    estimate = RemainingTime(pieces, lambda: now[0])
    for each in seconds:
        now[0] += each
        estimate.done(1.0)
    return estimate.text(left)


@pytest.mark.parametrize("seconds, said", [
    ([], "estimating"), ([60, 1, 1], "estimating"),
    ([60, 1, 1, 1, 1, 1], "about 90 s left"),  # the first has compiled, 60 s, which would have made 16 minutes of it
    ([60, 1, 56, 1, 1, 1], "90 s to 18 min left"),  # median 1 s, mean 12 s
])  # fmt: skip
def test_remaining_time_excludes_the_compiling_task(seconds, said):
    assert estimated(seconds, 94, 90) == said


def test_remaining_time_of_many_tasks_waits_for_more_samples():
    assert estimated([1.0] * 10, 1000, 990) == "estimating" != estimated([1.0] * 60, 1000, 940)
