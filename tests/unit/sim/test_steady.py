"""Iterations that are alike on average: what is left out and said of it, what is not and why, and what is found out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forward_cases import difference
from sim_cases import US, Ideal, make_trace, ps_job, ring_job, scenario
from steady_cases import mean_times

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.engine.fast_forward import fast_forward, steady_state
from gradwire.sim.engine.fast_forward.fast_forward import FastForward
from gradwire.sim.engine.fast_forward.mean_uncertainty import USUAL, MeanUncertainty
from gradwire.sim.engine.fast_forward.steady_state import Regime, SteadyReport, SteadyState
from gradwire.sim.simulate import simulate
from gradwire.traces.trace import Trace
from gradwire.workload.incremental.iteration_player import single_iteration_scenario

TRACE = make_trace([[2000], [90_000]], forward=20 * US, backward=20 * US)
TWO = make_trace([[2000], [90_000]], iterations=2, forward=20 * US, backward=20 * US, skew=40 * US)
SPINES = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2}
DLCP = {"kind": "dlcp", "send_order": "sequential"}
ASKED = {"approximate": 0.02}


@pytest.fixture(autouse=True)
def _on_average_only(monkeypatch):
    """Iterations of DLCP's are taken for what does not repeat itself exactly, even where packets go in order."""
    monkeypatch.setattr(Dlcp, "further_dependence", staticmethod(lambda settings: "something is drawn"))


def ring(iterations: int = 120, **fields: Any) -> Scenario:
    return scenario(ring_job(4, iterations=iterations, bucket="100kB"), **fields)


def servers(iterations: int = 120, **fields: Any) -> Scenario:
    """With buffers that lose nothing."""
    return scenario(ps_job(3, iterations=iterations), switch={"buffer": "4MB"}, **fields)


def both(case: Scenario, trace: Trace = TRACE, **how: Any) -> tuple[Any, Any]:
    """Approximated and whole."""
    asked = case.model_copy(update={"simulation": type(case.simulation)(**ASKED)})
    return simulate(asked, trace, **how), simulate(case, trace, **how)


def job_of(result: Any, name: str = "job0") -> dict[str, Any]:
    found: dict[str, Any] = result.summary["approximate"]["jobs"][name]
    return found


def repeated(result: Any) -> dict[int, int]:
    """Of one job: the iterations that were left out, and those that they repeat, as the summary says."""
    found: dict[int, int] = {}
    for each in result.summary["approximate"]["left_out"]:
        those = [first + i for first, many in each["repeats"] for i in range(many)]
        assert each["iterations"] % len(those) == 0
        found |= {each["first"] + i: those[i % len(those)] for i in range(each["iterations"])}
    return found


def without(result: Any) -> Any:
    """The Result without what is said of approximation, and of the scenario that asked for it."""
    for key in ("approximate", "scenario_hash"):
        result.summary.pop(key, None)
    return result


# --- what is left out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [ring(400), ring(400, output={"delays": True})], ids=["ring", "delays"])
def test_where_iterations_are_the_same_the_result_is(case, monkeypatch):
    """A job that repeats itself exactly, for which fast-forward is told that something was drawn: what is approximated
    is the same to the byte."""
    monkeypatch.setattr(FastForward, "_drawn", lambda *_: "something is drawn")
    approximated, full = both(case)
    assert job_of(approximated)["approximated"] > 60
    assert job_of(approximated)["error_largest"] == job_of(approximated)["uncertainty"] == 0
    assert difference(without(approximated), without(full)) == []


def test_what_pairs_of_hosts_know_moves_on_in_time(monkeypatch):
    """Where computing is so short that the rate of a pair goes on from iteration to iteration, and the same happens in
    all of them, the same happens behind a leap - unless what a pair knows of times stays behind."""
    case, trace = servers(400, transport=DLCP), make_trace([[2000], [90_000]], forward=2 * US, backward=2 * US)
    approximated, full = both(case, trace)
    assert job_of(approximated)["approximated"] > 60
    assert difference(without(approximated), without(full)) == []
    monkeypatch.setattr("gradwire.sim.engine.memory.pairs.Pairs.shift_times", lambda *_: None)
    stale, _ = both(case, trace)
    assert difference(without(stale), without(full))


@pytest.mark.parametrize(
    "case", [ring(400, topology=SPINES), servers(400, transport={"kind": "dlcp"})], ids=["ecmp", "dlcp"]
)
def test_rows_are_those_of_other_iterations(case):
    """Every table is whole, and what was left out has the rows of what it repeats, later by one time for all of them."""
    result, full = both(case)
    names = repeated(result)
    assert len(names) == job_of(result)["approximated"] > 60
    assert not set(names.values()) & set(names)
    iterations, messages = (result.to_pandas(name) for name in ("iterations", "messages"))
    assert len(iterations) == len(full.to_pandas("iterations"))
    assert messages["message"].tolist() == list(range(full.messages.num_rows))
    times = ["start_ps", "released_ps", "end_ps"]
    for left, simulated in names.items():
        mine, its = (messages[messages["iteration"] == each].reset_index() for each in (left, simulated))
        by = mine[times] - its[times]
        assert (by == by.iloc[0, 0]).all().all()
        apart = ["index", "message", "iteration", *times]
        assert mine.drop(columns=apart).equals(its.drop(columns=apart))
        mine, its = (iterations[iterations["iteration"] == each].set_index("worker") for each in (left, simulated))
        assert (mine["end_ps"] - its["end_ps"] == by.iloc[0, 0]).all()
        assert (mine["exposed_ps"] == its["exposed_ps"]).all()
    for _, own in iterations.groupby("worker"):  # where stretches meet, workers are not apart by more than usual
        assert np.abs(own["start_ps"].to_numpy()[1:] - own["end_ps"].to_numpy()[:-1]).max() < 20 * US
    assert check_loss_invariant(result) == []
    hosts = result.to_pandas("ports").query("port.str.match('h.*->')")
    whole = full.to_pandas("ports").query("port.str.match('h.*->')")
    assert hosts["packets"].sum() == pytest.approx(whole["packets"].sum(), rel=0.02)
    assert sum(result.messages["sent_packets"].to_numpy()) <= hosts["packets"].sum()


def test_a_long_job_is_simulated_as_long_as_some_tens(monkeypatch):
    laid = []
    lay = fast_forward.Track._load
    monkeypatch.setattr(fast_forward.Track, "_load", lambda self, step, now: laid.append(step) or lay(self, step, now))
    result = simulate(ring(1000, transport=DLCP, simulation=ASKED), TRACE)
    assert len(laid) == 1000 - job_of(result)["approximated"] <= 130
    assert result.iterations.num_rows == 4000


@pytest.mark.parametrize(
    "case", [ring(400, topology=SPINES, simulation=ASKED), servers(400, transport=DLCP, simulation=ASKED)]
)
def test_it_is_the_same_on_any_number_of_threads(case, monkeypatch):
    """And wherever the engine has rested meanwhile."""
    once = simulate(case, TRACE)
    assert job_of(once)["approximated"]
    for threads in (1, 2, 3):
        assert difference(simulate(case, TRACE, threads=threads), once) == []
    monkeypatch.setattr("gradwire.sim.engine.fabric.CALL_SECONDS", 1e-6)
    assert difference(simulate(case, TRACE), once) == []


# --- what is found out --------------------------------------------------------------------------------------------


def test_periods_are_kept():
    """Two captured iterations in turn, one twice as long."""
    approximated, full = both(ring(500, transport=DLCP), TWO)
    assert job_of(approximated)["approximated"] > 40
    assert all(left % 2 == simulated % 2 for left, simulated in repeated(approximated).items())
    assert mean_times(approximated)["job0"] == pytest.approx(mean_times(full)["job0"], rel=0.005)


def test_a_straggler_for_a_while():
    """Nothing is left out across the beginning and the end of a fault, and what was before stands for nothing behind."""
    slow = {"kind": "host_slow", "host": "h1", "factor": 3.0, "at": "30ms", "until": "70ms"}
    approximated, full = both(ring(800, transport=DLCP, fault=[slow]))
    assert mean_times(approximated)["job0"] == pytest.approx(mean_times(full)["job0"], rel=0.02)
    rows, whole = (
        each.to_pandas("iterations").query("worker == 1").set_index("iteration") for each in (approximated, full)
    )
    slowly = rows["compute_ps"] > 200 * US  # of 80 us
    assert rows[slowly]["start_ps"].min() >= 29_000_000_000 and rows[slowly]["end_ps"].max() <= 71_000_000_000
    assert abs(slowly.sum() - (whole["compute_ps"] > 200 * US).sum()) <= 1
    assert all(slowly[left] == slowly[simulated] for left, simulated in repeated(approximated).items())
    assert len({bool(slowly[left]) for left in repeated(approximated)}) == 2


def test_a_change_that_nobody_has_announced(monkeypatch):
    """Computing takes longer from some iteration on, in a way that samples alone can tell: the next one does not hold,
    and no more is left out by what was before."""
    times = steady_state.SteadyState._measured

    def slower(self: Any, jobs: Any, begin: Any, now: Any) -> Any:
        fits, span, found = times(self, jobs, begin, now)
        return fits, span, [each * (1.1 if begin.handed[0].steps > 60 else 1.0) for each in found]

    monkeypatch.setattr(steady_state.SteadyState, "_measured", slower)
    said = simulate(ring(500, transport=DLCP, simulation=ASKED), TRACE).summary["approximate"]
    assert said["missed"] == 1
    first, second = said["left_out"][:2]
    assert second["repeats"][0][0] >= first["first"] + first["iterations"]
    assert said["jobs"]["job0"]["error_largest"] == pytest.approx(1 - 1 / 1.1)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (scenario(ring_job(4, iterations=80, jitter=0.3), simulation=ASKED), "iteration times of job job0 vary too much"),
        (ring(80, topology=SPINES, link={"loss": 1e-4}, simulation=ASKED), "packets are lost too rarely"),
        (ring(60, topology=SPINES, simulation=ASKED), "too few iterations"),
        (
            ring(40, transport={"kind": "dctcp", "connections": "persistent", "preset": "linux"}, simulation=ASKED),
            "LinuxDctcp does not declare what outlives its messages in connections",
        ),
        (
            scenario(
                ring_job(3, iterations=100, name="a"), ring_job(3, iterations=104, name="b", compute_scale=1.37),
                simulation=ASKED,
            ),
            "",
        ),
    ],
)  # fmt: skip
def test_it_is_declined_and_said_why(case, why):
    result = simulate(case, TRACE)
    full = simulate(case.model_copy(update={"simulation": type(case.simulation)()}), TRACE)
    said = result.summary["approximate"]
    assert said["left_out"] == [] and said["jobs"] == {} and why in said["declined"] != ""
    assert difference(without(result), without(full)) == []


def test_traffic_alone():
    traffic = {"name": "t", "kind": "permutation", "size": "10kB"}
    result = simulate(scenario(traffic=[traffic], job=[], simulation=ASKED))
    assert result.summary["approximate"]["declined"] == "there is no job"


# --- what is said of it -------------------------------------------------------------------------------------------


def test_iterations_behind_those_left_out_would_have_been_others():
    """Of a hundred 32 are simulated, 32 left out, and 36 simulated that stand for nothing any more: 68 would have been
    others, and those that were repeated count twice."""
    values = 1000 + 10 * np.sin(np.arange(32.0) ** 2)
    found = SteadyState(0.02, None, None, None, "")  # type: ignore[arg-type]
    found.jobs, found.left = {"job0": SteadyReport(1, 32, 32)}, [{}]
    found._regime = Regime([], [[values]], [], [1], [False], leaps=1)
    said = found.summary({"job0": 100})["jobs"]["job0"]["uncertainty"]
    relative = MeanUncertainty.of(values).deviation / values.mean()
    assert said == pytest.approx(USUAL * np.sqrt(32 * 1**2 + 36 + 68) * relative / 100, rel=1e-9)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [{"packet_log": True}, {"queue_samples": "1ms"}])
def test_what_needs_every_iteration_is_refused(output):
    tables = ring(40).model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ScenarioError, match=r"skips iterations, whose (packets|queues) could not be recorded"):
        build_scenario({**tables, "output": output, "simulation": ASKED})


def test_it_is_refused_where_all_are_to_be_simulated():
    case = ring(40, simulation=ASKED)
    with pytest.raises(ScenarioError, match="no-fast-forward"):
        simulate(case, TRACE, fast_forward=False)
    with pytest.raises(ScenarioError, match="which only the packet engine can do"):
        simulate(case, TRACE, fabric=Ideal())
    with pytest.raises(ScenarioError, match="every iteration is played"):
        single_iteration_scenario(case, "here")


def test_a_scenario_that_does_not_ask_has_the_digest_that_it_had():
    case = ring(40)
    assert case.digest() != ring(40, simulation=ASKED).digest()
    assert case.digest() == ring(40, simulation={}).digest()


def test_a_result_with_it_is_read_again(tmp_path):
    result = simulate(ring(400, topology=SPINES, simulation=ASKED), TRACE)
    again = type(result).read(result.write(tmp_path / "result"))
    assert again.summary == result.summary
    assert np.sum(again.messages["bytes"].to_numpy()) == result.summary["totals"]["bytes"]
