"""Fast-forward: what is left out, what is not and why, and that each of its conditions is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forward_cases import difference, left_out
from sim_cases import US, make_trace, ps_job, ring_job, scenario

from gradwire.jit.records.network import Switch
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.engine.fast_forward import fast_forward
from gradwire.sim.engine.fast_forward.fast_forward import FastForward
from gradwire.sim.engine.fast_forward.iteration_skip import IterationSkipper
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle.oracle import Oracle
from gradwire.testing.scenario_comparison import Difference, agree_on
from gradwire.traces.trace import Trace
from gradwire.workload.program import Repeats

TRACE = make_trace([[2000], [90_000]])
TWO = make_trace([[2000], [90_000]], iterations=2, skew=3 * US)
SHORT = make_trace([[2000], [90_000]], forward=2 * US, backward=2 * US)
CALM = make_trace([[2000], [90_000]], forward=300 * US, backward=300 * US)
"""Silences that are no longer than a time-out."""
LOSSY = {"loss": 0.001}
SPINES = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2}
IN_ORDER = {"kind": "dlcp", "send_order": "sequential"}


def ring(iterations: int = 40, compute_scale: float = 1.0, **fields: Any) -> Scenario:
    return scenario(ring_job(4, iterations=iterations, bucket="100kB", compute_scale=compute_scale), **fields)


def servers(iterations: int = 40, **fields: Any) -> Scenario:
    """All workers push at the same time, so that their packets tie at the server's port."""
    return scenario(ps_job(3, iterations=iterations), **fields)


def lasting(kind: str, **rules: Any) -> dict[str, Any]:
    """A transport whose connections carry the messages of one iteration after those of another."""
    return {"kind": kind, "connections": "persistent", **rules}


def summed(slots: int, **fields: Any) -> Scenario:
    job = ps_job(3, iterations=60, exchange={"aggregation": True})
    return scenario(job, switch={"aggregation_slots": slots}, **fields)


def both(case: Scenario, trace: Trace = TRACE, **how: Any) -> tuple[Any, Any]:
    return simulate(case, trace, **how), simulate(case, trace, fast_forward=False, **how)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("case", "trace", "least"),
    [
        (ring(), TRACE, 28),
        (ring(), TWO, 26),  # every other iteration is alike
        (servers(), TRACE, 28),
        (servers(output={"delays": True}), TRACE, 28),
        (ring(duration="100ms"), TRACE, 12),
        (servers(transport={"kind": "dctcp", "min_rto": "20us"}, switch={"buffer": "20kB"}), TRACE, 20),  # packets are dropped
    ],
)  # fmt: skip
def test_skipped_iterations_equal_simulated_ones(case, trace, least, threads):
    fast, full = both(case, trace, threads=threads)
    assert difference(fast, full) == []
    assert least <= left_out(fast) < 40
    assert full.timing["fast_forward"] == "off"


@pytest.mark.parametrize(
    ("case", "trace"),
    [
        (ring(60, transport=lasting("dctcp")), CALM),
        (ring(60, transport=lasting("dctcp")), TRACE),  # windows fall in every silence, and rise: 17 times by turns
        (ring(60, transport=lasting("tcp_newreno"), topology=SPINES), CALM),  # connections keep their ways
        (servers(120, transport=lasting("dctcp", delayed_acks="10us", recovery="prr")), TRACE),
        (servers(120, transport=lasting("tcp_newreno", min_rto="20us"), switch={"buffer": "20kB"}), TRACE),  # drops
        (ring(60, transport=lasting("cubic")), CALM),
        (servers(60, transport={"kind": "cubic", "preset": "linux", "timers": "exact"}), CALM),
        (servers(60, transport=IN_ORDER), TRACE),
        (ring(60, transport=IN_ORDER), CALM),
        (summed(1000), TRACE),
        (summed(3), CALM),
    ],
    ids=["ring", "rhythm", "ways", "delayed", "drops", "cubic", "exact timers", "pairs", "ring of pairs", "sums", "few slots"],
)  # fmt: skip
def test_fast_forward_skips_once_persistent_state_is_periodic(case, trace):
    """Windows, rates and round trips of connections and pairs, and slots of switches, repeat from iteration to
    iteration."""
    fast, full = both(case, trace)
    assert difference(fast, full) == []
    assert 10 < left_out(fast) < case.job[0].iterations


def test_fast_forward_compares_persistent_connection_state(monkeypatch):
    """Windows grow from iteration to iteration. If they were not compared, one iteration would stand for all."""
    case = servers(60, transport=lasting("dctcp"))
    assert left_out(simulate(case, CALM)) == 0
    monkeypatch.setattr("gradwire.sim.engine.memory.flows.Flows.persistent_state", lambda *_: [])
    fast, full = both(case, CALM)
    assert left_out(fast)
    assert difference(fast, full)


@pytest.mark.parametrize(
    ("case", "what"),
    [
        (servers(60, transport=IN_ORDER), "memory.pairs.Pairs"),
        (
            scenario(
                ring_job(4, iterations=60, bucket="10MB"), transport=lasting("dctcp", min_rto="100us"),
                switch={"buffer": "4MB"},
            ),
            "memory.connections.Streams",
        ),
    ],
    ids=["pairs", "connections"],
)  # fmt: skip
def test_fast_forward_shifts_times_in_persistent_state(case, what, monkeypatch):
    """Without the shift, hosts take their state for stale after a skip."""
    monkeypatch.setattr(f"gradwire.sim.engine.{what}.shift_times", lambda *_: None)
    fast, full = both(case, SHORT)
    assert left_out(fast)
    assert difference(fast, full)


def test_fast_forward_advances_aggregation_counters(monkeypatch):
    """The switches' counters of summed and copied packets rise with every skipped iteration."""
    monkeypatch.setattr("gradwire.sim.engine.fast_forward.iteration_skip.SUMS", (Switch.summed.offset,))
    fast, full = both(summed(1000))
    assert left_out(fast)
    assert difference(fast, full) == ["summary"]


def test_fast_forward_simulates_few_of_a_thousand_iterations(monkeypatch):
    """The steps loaded into the engine show that a dozen of a thousand iterations are simulated."""
    laid = []
    lay = fast_forward.Track._load
    monkeypatch.setattr(fast_forward.Track, "_load", lambda self, step, now: laid.append(step) or lay(self, step, now))
    result = simulate(servers(1000), TRACE)
    assert len(laid) == 1000 - left_out(result) <= 13
    assert result.iterations.num_rows == 3000
    messages = result.messages
    assert messages["message"].to_numpy().tolist() == list(range(12_000))
    assert np.bincount(messages["iteration"].to_numpy()).tolist() == [12] * 1000


def test_fast_forward_with_two_concurrent_jobs():
    """Two jobs share a network, first with a common period, then without one."""
    jobs = [ring_job(3, iterations=30, name="a"), ring_job(3, iterations=34, name="b")]
    fast, full = both(scenario(*jobs), TRACE)
    assert difference(fast, full) == []
    assert left_out(fast) > 30
    jobs[1]["compute_scale"] = 1.37
    fast, full = both(scenario(*jobs), TRACE)
    assert difference(fast, full) == []
    assert left_out(fast) < 10  # when it is alone at the end


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"iterations": 12}, {}),
        ({"iterations": 3}, {}),  # too few of them to find out anything
        ({"iterations": 12, "jitter": 0.1}, {}),
        ({"iterations": 12}, {"start": "30ms"}),
    ],
)
def test_finished_job_does_not_prevent_fast_forward(first, second):
    """The remaining jobs decide about fast-forward; the finished job keeps its rows."""
    jobs = [ring_job(3, name="a", **first), ring_job(3, name="b", **{"iterations": 50, **second})]
    for order in (jobs, jobs[::-1]):
        fast, full = both(scenario(*order), TRACE)
        assert difference(fast, full) == []
        assert left_out(fast) > 20


@pytest.mark.parametrize(
    "case",
    [
        ring(400, compute_scale=0.0),
        ring(400, traffic=[{"name": "t", "kind": "permutation", "size": "1kB", "period": "1ms"}]),
    ],
)
def test_fast_forward_forgets_states_that_cannot_recur(case, monkeypatch):
    """Memory stays bounded even if the network is never quiet or never used by jobs alone."""
    kept = []
    record = fast_forward.StepRecorder.step
    monkeypatch.setattr(
        fast_forward.StepRecorder, "step", lambda self, *rest: (record(self, *rest), kept.append(len(self.taken)))
    )
    result = simulate(case, TRACE)
    assert not left_out(result)
    assert len(kept) > 390 and max(kept) <= 60


def test_fast_forward_stops_for_scheduled_faults():
    """A host is slow for a while: iterations are skipped before and after the fault."""
    slow = {"kind": "host_slow", "host": "h1", "factor": 2.0, "at": "60ms", "until": "100ms"}
    fast, full = both(ring(60, fault=[slow]), TRACE)
    assert difference(fast, full) == []
    assert left_out(fast) > 20


def test_fast_forward_with_background_traffic():
    traffic = {"name": "t", "kind": "incast", "fan_in": 3, "size": "50kB", "rounds": 3, "period": "9ms"}
    fast, full = both(servers(60, traffic=[traffic]), TRACE)
    assert difference(fast, full) == []
    assert left_out(fast) > 20


DECLINED = [
    (ring(40, output={"queue_samples": "1ms"}), "queues are sampled (output.queue_samples)"),
    (ring(40, output={"packet_log": True}), "packets are logged (output.packet_log)"),
    (scenario(ring_job(4, iterations=40, jitter=0.1)), "compute times vary (jitter)"),
    (ring(40, link=LOSSY), "links lose packets at random"),
    (
        ring(40, transport={"kind": "dlcp"}),
        'the order of packets changes from iteration to iteration (send_order = "important_first")',
    ),
    (
        ring(40, transport={"kind": "dlcp", "send_order": "random"}),
        'the order of packets is drawn for every message (send_order = "random")',
    ),
    (ring(40, transport={"kind": "ltp"}), "at which place of its cycle the rate of ltp begins goes by what time it is"),
    (ring(40, transport={"kind": "dctcp", "preset": "linux"}), 'timers go by ticks of a clock (timers = "ticks")'),
    (
        ring(40, transport=lasting("dctcp", preset="linux")),
        "LinuxDctcp does not declare what outlives its messages in connections (sender_at_rest)",
    ),
    (ring(6), "there are too few iterations"),
    (scenario(ring_job(4, iterations=40, compute_scale=0.0)), "the network is never quiet between two iterations"),
    (ring(40, topology=SPINES), "packets take one of several paths"),
    (
        servers(40, switch={"ecn_threshold": "9kB", "ecn_ceiling": "60kB"}), "queues mark or trim packets at random",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "why"), DECLINED, ids=[why for _, why in DECLINED])
def test_fast_forward_is_declined_with_a_reason(case, why):
    fast, full = both(case)
    assert difference(fast, full) == []
    assert fast.timing["fast_forward"] == f"declined: {why}"


def test_fast_forward_is_declined_without_jobs():
    traffic = {"name": "t", "kind": "permutation", "size": "10kB"}
    result = simulate(scenario(traffic=[traffic], job=[]))
    assert result.timing["fast_forward"] == "declined: there is no job"


@pytest.mark.parametrize("counter", ["ways", "tests", "lossy", "ties"])
def test_fast_forward_needs_counters_of_random_draws(counter, monkeypatch):
    """If one kind of draws is not counted, the Result differs from that of the full simulation."""
    cases = {
        "ways": DECLINED[-2][0], "tests": DECLINED[-1][0], "lossy": DECLINED[3][0],
        # ties go by the time in all iterations
        "ties": servers(),
    }  # fmt: skip
    if counter == "ties":
        monkeypatch.setattr("gradwire.sim.engine.program.track.TIE_DRAW_STEPS", 1000)
        monkeypatch.setattr("gradwire.sim.engine.fast_forward.fast_forward.TIE_DRAW_STEPS", 0)
        assert "picosecond" in both(cases["ties"])[0].timing["fast_forward"]
    monkeypatch.setattr(FastForward, "_drawn", lambda *_: "")
    monkeypatch.setattr(fast_forward, "job_snapshot", lambda *_: b"")  # such draws show there as well, as a rule
    fast, full = both(cases[counter])
    assert left_out(fast)
    assert difference(fast, full)


def test_fast_forward_needs_equal_job_states(monkeypatch):
    """Jobs without a common period are treated as if their states were always equal."""
    jobs = [ring_job(3, iterations=30, name="a"), ring_job(3, iterations=34, name="b", compute_scale=1.37)]
    monkeypatch.setattr(fast_forward, "job_snapshot", lambda *_: b"")
    fast, full = both(scenario(*jobs), TRACE)
    assert left_out(fast)
    assert difference(fast, full)


def test_fast_forward_needs_the_period_of_the_trace(monkeypatch):
    """The trace alternates between two iterations, which are treated as one."""
    case = ring()
    monkeypatch.setattr("gradwire.workload.replay.Replay.period", 1)
    assert difference(*both(case, TWO)) == []  # the steps themselves are compared as well
    monkeypatch.setattr(fast_forward, "job_snapshot", lambda *_: b"")
    monkeypatch.setattr(fast_forward, "_same_steps", lambda *_: True)
    assert difference(*both(case, TWO))


def test_fast_forward_simulates_the_last_iterations(monkeypatch):
    """The last iteration waits for all transfers at its end; a skipped iteration would not."""
    fast, full = both(servers(20))
    assert difference(fast, full) == []
    period = "gradwire.workload.jobs.Job._repeats"
    monkeypatch.setattr(period, property(lambda self: Repeats(self.replay.period, 2, self.table.iterations)))
    with pytest.raises((AssertionError, StopIteration)):
        assert not difference(*both(servers(20)))


def test_fast_forward_must_not_skip_past_external_events(monkeypatch):
    slow = {"kind": "host_slow", "host": "h1", "factor": 2.0, "at": "60ms", "until": "100ms"}
    case = ring(60, fault=[slow])
    monkeypatch.setattr(FastForward, "_most", lambda *_: 40)
    fast, full = both(case)
    assert left_out(fast) >= 40
    assert difference(fast, full)


def test_ties_in_later_iterations_match_the_oracle(tmp_path, monkeypatch):
    """Engine and oracle agree on every packet beyond the iterations whose ties depend on absolute time. An oracle
    with time-dependent ties differs."""
    case = scenario(ps_job(3, iterations=8, trace=str(TRACE.save(tmp_path / "case"))))
    assert agree_on(case)
    monkeypatch.setattr(Oracle, "_since", lambda self, packet: 0)
    with pytest.raises(Difference):
        agree_on(case)


def test_interrupt_during_fast_forward_equals_full_simulation(monkeypatch):
    """The Result contains the iterations skipped before the interrupt; the rest is simulated."""
    monkeypatch.setattr(IterationSkipper, "_repeat", _stopping(IterationSkipper._repeat))
    fast = simulate(servers(60, duration="10s"), TRACE)
    full = simulate(servers(60, duration="10s"), TRACE, fast_forward=False)
    assert difference(fast, full) == []


def _stopping(tell: Any) -> Any:
    """Somebody seems to want to end the run after five copies, each time."""

    def told(self: IterationSkipper, *rest: Any) -> int:
        asked = [0]

        def stopped() -> bool:
            asked[0] += 1
            return asked[0] > 5

        before, self._stopped = self._stopped, stopped
        try:
            return int(tell(self, *rest))
        finally:
            self._stopped = before

    return told
