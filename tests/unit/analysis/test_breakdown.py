"""Parts of an iteration: each known by closed form in a small job, never negative, and adding up to the picosecond."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, scenario

from gradwire.analysis.breakdown.breakdown import CAUSES, PARTS, TrafficBreakdown, breakdown
from gradwire.analysis.breakdown.result_context import result_context
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate
from gradwire.traces.trace import Trace

PACKET = 1066 * 80  # picoseconds that 1000 bytes take on a cable of 100 Gbps, with headers of TCP
LINK = {"link": {"rate": "100Gbps", "latency": "1us"}}
WIDE: dict[str, Any] = {
    "transport": {"kind": "dctcp", "payload": "1000B", "initial_window": 4000}, "switch": {"buffer": "100MB"}, **LINK,
    "host": {"software_latency": "2us"},
}  # fmt: skip
SOFT = 2 * US


def alone(packets: int, rounds: int = 1) -> int:
    """Software latency, and so many packets through a star."""
    return rounds * (SOFT + (packets + 1) * PACKET + 2 * US)


def parts_of(result: Result, trace: Trace) -> dict[tuple[int, int], dict[str, int]]:
    """Parts by (worker, iteration), checked: none negative, all together the iteration."""
    found = {}
    for row in breakdown(result, trace).rows:
        parts = {name: row[f"{name}_ps"] for name in PARTS}
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == row["end_ps"] - row["start_ps"]
        found[row["worker"], row["iteration"]] = parts
    shown = {(row["worker"], row["iteration"]): row for row in result.iterations.to_pylist()}
    assert set(found) == set(shown)
    for key, row in shown.items():
        assert found[key]["computing"] == row["compute_ps"]
        assert sum(found[key][cause] for cause in CAUSES) == row["exposed_ps"]
    return found


def only(parts: dict[str, int]) -> dict[str, int]:
    """The causes that are there."""
    return {cause: parts[cause] for cause in CAUSES if parts[cause]}


def test_sharing_time_equals_sum_over_all_concurrent_messages() -> None:
    """The indexed search equals the sum over all pairs of messages."""
    trace = make_trace([[40_000], [90_000, 3000]])
    result = simulate(
        scenario(ps_job(3, 2, iterations=4, exchange={"kind": "parameter_server", "partition": "20kB"}), **LINK), trace
    )
    traffic = TrafficBreakdown(result_context(result, trace))
    rows = traffic.ran.columns
    each = list(zip(*(
        values.tolist() for values in (
            rows["number"], rows["src"], rows["priority"], traffic.released, traffic.end, traffic.wire,
        )
    ), strict=True))  # fmt: skip
    found = 0
    for number, src, priority, begin, end, wire in each:
        wanted = 0
        for other, host, urgency, released, over, size in each:
            together = min(over, end) - max(released, begin)
            if other == number or host != src or together <= 0:
                continue
            late = 0 if urgency > priority else size if urgency < priority else min(size, wire)
            wanted += min(size if over <= end else late, together)
        assert traffic.sharing(number) == wanted
        found += wanted > 0
    assert found > 20


# --- with the packet engine ------------------------------------------------------------------------------------------


def test_idle_network_has_serialisation_time_only() -> None:
    """One worker waits for the push and the pull of one tensor."""
    trace = make_trace([[250 * 40]])
    parts = parts_of(simulate(scenario(ps_job(1), hosts=2, **WIDE), trace), trace)
    assert only(parts[0, 0]) == {"serialisation": alone(40, 2)}
    assert parts[0, 0]["computing"] == 2 * MS


def test_transfers_of_the_same_host_count_as_sharing() -> None:
    """One card sends three tensors in turn; the last arrives when all have left."""
    trace = make_trace([[250 * 40, 250 * 40, 250 * 40]])
    parts = parts_of(simulate(scenario(ps_job(1), hosts=2, **WIDE), trace), trace)
    shared = only(parts[0, 0])
    assert set(shared) == {"serialisation", "sharing"}
    # the last pull ends when all three pulls have gone; the last push before, too, or earlier by what pulls overtake
    assert shared["serialisation"] == alone(40, 2)
    assert shared["sharing"] <= 2 * 80 * PACKET


def test_pushes_of_two_workers_queue_at_the_server() -> None:
    """Two pushes of n packets meet at the server's cable; n packets of waiting are queueing. Pulls leave one card."""
    n, trace = 40, make_trace([[250 * 40]])
    parts = parts_of(simulate(scenario(ps_job(2), hosts=3, **WIDE), trace), trace)
    for worker in range(2):
        found = only(parts[worker, 0])
        assert set(found) == {"serialisation", "queueing", "sharing"}
        assert found["serialisation"] == alone(n, 2)
        assert found["queueing"] == n * PACKET
        assert (n - 2) * PACKET <= found["sharing"] <= n * PACKET  # they take turns, after a first packet or two
    assert max(parts[worker, 0]["sharing"] for worker in range(2)) == n * PACKET


def test_compute_bound_job_has_no_exposed_communication() -> None:
    trace = make_trace([[250 * 40]], iterations=1)
    late = trace.iterations[0]
    trace.iterations[0] = replace(late, backward_end_ps=late.backward_end_ps + 10 * MS, end_ps=late.end_ps + 10 * MS)
    job = ps_job(2, iterations=3)
    parts = parts_of(simulate(scenario(job, hosts=3, **WIDE), trace), trace)
    assert len(parts) == 6
    assert all(not only(each) and each["computing"] == 12 * MS for each in parts.values())


def test_fast_worker_waits_for_the_straggler() -> None:
    """Worker 1 computes twice as long, so worker 0 waits 2 ms for it."""
    trace = make_trace([[250 * 40]])
    slow = {"fault": [{"kind": "host_slow", "host": "h1", "at": "0s", "factor": 2.0}]}
    parts = parts_of(simulate(scenario(ps_job(2), hosts=3, **WIDE, **slow), trace), trace)
    assert parts[0, 0]["straggler"] == 2 * MS
    assert parts[0, 0]["queueing"] == 0
    assert parts[1, 0]["straggler"] == 0
    assert parts[1, 0]["computing"] == 4 * MS


def test_loss_of_a_single_packet_counts_as_timeout() -> None:
    """The only packet of the push is lost on its first cable and retransmitted after the minimum RTO."""
    trace = make_trace([[250]])
    fault = {"kind": "gray_loss", "between": ["h0", "s0"], "at": "1ms", "until": "2500us", "loss": 0.999999}
    tables = {**WIDE, "transport": {**WIDE["transport"], "min_rto": "1ms", "max_rto": "1ms"}, "fault": [fault]}
    result = simulate(scenario(ps_job(1), hosts=2, **tables), trace)
    push = result.messages.to_pylist()[0]
    assert (push["timeouts"], push["retransmitted"], result.drops.num_rows) == (1, 1, 1)
    parts = parts_of(result, trace)
    assert only(parts[0, 0]) == {"serialisation": alone(1, 2), "timeouts": push["end_ps"] - push["start_ps"] - alone(1)}
    assert parts[0, 0]["timeouts"] == MS


def test_loss_detected_by_later_packets_counts_as_retransmission() -> None:
    """Later packets of the push reveal the loss of earlier ones before any time-out."""
    trace = make_trace([[250 * 400]])
    fault = {"kind": "gray_loss", "between": ["h0", "s0"], "at": "2005us", "until": "2010us", "loss": 0.05}
    result = simulate(scenario(ps_job(1), hosts=2, **{**WIDE, "fault": [fault]}), trace)
    push = result.messages.to_pylist()[0]
    assert push["timeouts"] == 0 < push["retransmitted"]
    found = only(parts_of(result, trace)[0, 0])
    assert set(found) <= {"serialisation", "retransmission"}
    assert found["retransmission"] == push["end_ps"] - push["start_ps"] - alone(400)


def test_breakdown_of_messages_with_tolerated_loss_adds_up() -> None:
    """DLCP over a lossy cable delivers messages without their lost bytes."""
    trace = make_trace([[250 * 400]])
    tables: dict[str, Any] = {
        "transport": {"kind": "dlcp", "payload": "1000B"}, **LINK,
        "fault": [{"kind": "gray_loss", "between": ["h0", "s0"], "at": "0s", "loss": 0.05}],
    }  # fmt: skip
    job = ps_job(2, push_bound=0.2, tagging={"magnitude": True})
    result = simulate(scenario(job, hosts=3, **tables), trace)
    assert result.summary["totals"]["lost_bytes"] > 0
    parts_of(result, trace)


# --- on networks without packets ---------------------------------------------------------------------------------------


def test_waiting_for_credit_counts_as_scheduler_time() -> None:
    """With credit for one partition, the second partition starts when the first has arrived."""
    elements, trace = 25_000, make_trace([[50_000]])
    job = ps_job(1, exchange={"partition": "100000B"}, order="layer", credit=1)
    result = simulate(
        scenario(job, hosts=2, **LINK, host={"software_latency": "2us"}), trace, fabric=Ideal(latency=3 * US)
    )
    takes = elements * 4 * 80 + 3 * US
    first, second = (row for row in result.messages.to_pylist() if row["kind"] == "push")
    assert second["released_ps"] == first["end_ps"] + SOFT
    assert second["released_ps"] - second["start_ps"] == 2 * SOFT + takes
    parts = parts_of(result, trace)
    # the push of the second waited for the first; its pull for nothing, as the other is long over
    assert parts[0, 0]["scheduler"] == SOFT + takes


def test_aggregation_at_the_server_counts_as_server_time() -> None:
    trace = make_trace([[25_000]])
    job = ps_job(1, exchange={"server_rate": "10Gbps"})
    result = simulate(scenario(job, hosts=2, **LINK, host={"software_latency": "2us"}), trace, fabric=Ideal())
    assert parts_of(result, trace)[0, 0]["server"] == 100_000 * 800


def test_server_on_the_worker_host_adds_server_time_only() -> None:
    """No message is sent, and the server aggregates one tensor after the other."""
    trace = make_trace([[25_000, 25_000]])
    job = ps_job(1, exchange={"server_rate": "10Gbps"}, placement={"workers": ["h0"], "servers": ["h0"]})
    result = simulate(scenario(job, hosts=2, **LINK), trace, fabric=Ideal())
    assert only(parts_of(result, trace)[0, 0]) == {"server": 2 * 100_000 * 800}


@given(data=st.data())
@budget(0.3)
def test_breakdown_adds_up_for_random_jobs(data: st.DataObject) -> None:
    draw = data.draw
    layers = draw(st.lists(st.lists(st.integers(1, 60_000), min_size=1, max_size=2), min_size=1, max_size=4))
    trace = make_trace(
        layers, iterations=draw(st.integers(1, 2)), forward=draw(st.integers(0, 20)) * US,
        backward=draw(st.integers(0, 20)) * US, optimizer=draw(st.sampled_from((0, 7 * US))), skew=3 * US,
    )  # fmt: skip
    common: dict[str, Any] = {
        "iterations": draw(st.integers(1, 4)), "jitter": draw(st.sampled_from((0.0, 0.5))),
        "order": draw(st.sampled_from(("fifo", "layer"))), "credit": draw(st.integers(1, 3)),
        "start": draw(st.sampled_from(("0s", "30us"))),
    }  # fmt: skip
    workers = draw(st.integers(1, 4))
    if workers > 1 and draw(st.booleans()):
        job = ring_job(workers, bucket=draw(st.sampled_from(("4KiB", "1MiB"))), **common)
    else:
        exchange = {
            "pull": draw(st.sampled_from(("layerwise", "barrier"))), "partition": draw(st.sampled_from(("8KiB", "1MiB"))),
            **draw(st.sampled_from(({}, {"server_rate": "40Gbps"}))),
        }  # fmt: skip
        servers = draw(st.integers(1, 3))
        if draw(st.booleans()):
            common["placement"] = {
                "workers": [f"h{n}" for n in range(workers)], "servers": [f"h{n}" for n in range(servers)],
            }  # fmt: skip
        job = ps_job(workers, servers, exchange=exchange, **common)
    tables = scenario(job, hosts=8, **LINK, seed=draw(st.integers(1, 9)))
    result = simulate(
        tables, trace, fabric=Ideal(rate=draw(st.sampled_from((10**10, 10**11))), priorities=draw(st.booleans()))
    )
    parts = parts_of(result, trace)
    assert len(parts) == workers * common["iterations"]
    assert all(each["timeouts"] == each["retransmission"] == 0 for each in parts.values())


def test_breakdown_adds_up_for_several_jobs_beside_traffic_on_rail_topology() -> None:
    """Messages of other jobs count as queueing unless they leave the same card."""
    trace = make_trace([[25_000], [100, 50_000]])
    tables: dict[str, Any] = {
        "name": "case", **LINK, "transport": {"kind": "dctcp", "payload": "1000B"},
        "topology": {"kind": "rail", "hosts": 6, "cards": 2, "spines": 1},
        "job": [
            {"name": "one", "trace": "case", "iterations": 2, **ps_job(2)},
            {"name": "two", "trace": "case", "iterations": 3, "start": "1ms", **ring_job(3, bucket="100kB")},
        ],
        "traffic": [{"name": "bursts", "kind": "incast", "fan_in": 3, "size": "100kB", "receiver": "h0", "stop": "6ms"}],
    }  # fmt: skip
    result = simulate(Scenario.model_validate(tables), trace)
    found = breakdown(result, trace)
    assert {(row["job"], row["worker"], row["iteration"]) for row in found.rows} == {
        (row["job"], row["worker"], row["iteration"]) for row in result.iterations.to_pylist()
    }
    for row in found.rows:
        assert sum(row[f"{part}_ps"] for part in PARTS) == row["end_ps"] - row["start_ps"]
        assert min(row[f"{part}_ps"] for part in PARTS) >= 0


# --- what it needs -------------------------------------------------------------------------------------------------------


def tiny() -> tuple[Result, Trace]:
    trace = make_trace([[25_000], [100]])
    return simulate(scenario(ps_job(2), hosts=3, **LINK), trace, fabric=Ideal()), trace


def test_breakdown_refuses_unsuitable_results_with_a_reason(tmp_path: Path) -> None:
    result, trace = tiny()
    emulated = replace(result, summary={**result.summary, "engine": {"kind": "emulation", "clock": "wall"}})
    with pytest.raises(ResultError, match="real sockets"):
        breakdown(emulated, trace)
    with pytest.raises(ResultError, match="does not hold its scenario"):
        breakdown(replace(result, scenario=""))
    with pytest.raises(ResultError, match="case' of job job0 is not the one of the run"):
        breakdown(result, make_trace([[25_000], [101]]))
    asked = replace(result, scenario=result.scenario.replace('trace = "case"', 'trace = "case"\nphase = "early"'))
    with pytest.raises(
        ResultError, match="case' of job job0 is not the one of the run"
    ):  # and not that it has no such phase
        breakdown(asked, make_trace([[25_000], [100]], phases=("late",)))
    result.write(tmp_path / "r")
    with pytest.raises(ResultError, match=r"r: its scenario cannot be resolved again: .*case: no such trace"):
        result_context(tmp_path / "r")
    with pytest.raises(ResultError, match="no such directory"):
        result_context(tmp_path / "nothing")
    assert breakdown(tmp_path / "r", trace).rows == breakdown(result, trace).rows


def test_breakdown_detects_tables_inconsistent_with_the_scenario() -> None:
    result, trace = tiny()
    rows = result.messages.to_pylist()
    rows[0]["tensor"] = 1 - rows[0]["tensor"]
    broken = replace(result, messages=result.messages.from_pylist(rows, schema=result.messages.schema))
    with pytest.raises(ResultError, match="are not those of its scenario"):
        breakdown(broken, trace)
    rows = result.iterations.to_pylist()
    rows[1]["end_ps"] += 1
    broken = replace(result, iterations=result.iterations.from_pylist(rows, schema=result.iterations.schema))
    with pytest.raises(ResultError, match="worker 1, iteration 0: end_ps does not follow"):
        breakdown(broken, trace)


def test_breakdown_of_a_cut_run_covers_finished_iterations() -> None:
    trace = make_trace([[25_000], [100]])
    tables = scenario(ps_job(2, iterations=4), hosts=3, **LINK, duration="9ms")
    result = simulate(tables, trace, fabric=Ideal())
    assert 2 <= len(parts_of(result, trace)) < 8


def test_breakdown_means_cover_the_steady_state() -> None:
    trace = make_trace([[25_000], [100]], iterations=4, skew=MS)
    result = simulate(scenario(ps_job(2, iterations=4), hosts=3, **LINK), trace, fabric=Ideal())
    found = breakdown(result, trace)
    chosen = [row for row in found.rows if row["iteration"] in (1, 2)]
    means = found.means("job0")
    assert sum(means.values()) == pytest.approx(np.mean([row["end_ps"] - row["start_ps"] for row in chosen]))
    assert means["computing"] == pytest.approx(np.mean([row["computing_ps"] for row in chosen]))
    assert found.means("nobody") == {}
    assert found.table.num_rows == 8 and found.table.column_names[-1] == "timeouts_ps"
