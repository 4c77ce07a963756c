"""When each gradient was ready, released, delivered and needed: hand-worked on a network without packets."""

from __future__ import annotations

from typing import Any

import pytest
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows, scenario

from gradwire.analysis.timeline.tensors import COLUMNS, longest_waits, tensors
from gradwire.sim.simulate import simulate

LINK: dict[str, Any] = {"link": {"rate": "100Gbps", "latency": "1us"}, "host": {"software_latency": "2us"}}
SOFT, FLIGHT = 2 * US, US
WIRE = 100_000 * 80  # 25,000 float32


def by_tensor(table: Any, iteration: int, worker: int = 0) -> dict[int, dict[str, Any]]:
    return {row["tensor"]: row for row in rows(table) if (row["iteration"], row["worker"]) == (iteration, worker)}


def test_layerwise_gradients_are_needed_by_their_layer() -> None:
    """Two layers take 1 ms each way, with one worker and one server. The last layer's gradient is ready at 3 ms and
    needed by the second forward step of the next iteration; the first layer's is ready and needed at 4 ms."""
    trace = make_trace([[25_000], [25_000]])
    result = simulate(scenario(ps_job(1, iterations=2), hosts=2, **LINK), trace, fabric=Ideal(latency=FLIGHT))
    table = tensors(result, trace)
    assert table.column_names == list(COLUMNS)
    there = SOFT + WIRE + FLIGHT
    found = by_tensor(table, 0)
    assert {key: found[1][key] for key in ("name", "layer", "layer_name", "bytes")} == {
        "name": "l1.t0", "layer": 1, "layer_name": "layer1", "bytes": 100_000,
    }  # fmt: skip
    assert (found[1]["ready_ps"], found[1]["released_ps"]) == (3 * MS, 3 * MS + SOFT)
    assert found[1]["delivered_ps"] == 3 * MS + 2 * there
    assert (found[0]["ready_ps"], found[0]["delivered_ps"]) == (4 * MS, 4 * MS + 2 * there)
    begin = 4 * MS + 2 * there  # of the next iteration
    assert (found[0]["needed_ps"], found[0]["waited_ps"]) == (4 * MS, 2 * there)
    assert (found[1]["needed_ps"], found[1]["waited_ps"]) == (begin + MS, 0)
    last = by_tensor(table, 1)  # the last iteration waits for everything
    assert last[0]["needed_ps"] == last[1]["needed_ps"] == begin + 4 * MS


def test_barrier_makes_all_gradients_needed_at_the_end() -> None:
    trace = make_trace([[25_000], [25_000]])
    job = ps_job(2, iterations=2, exchange={"pull": "barrier"})
    table = tensors(simulate(scenario(job, hosts=3, **LINK), trace, fabric=Ideal()), trace)
    assert table.num_rows == 2 * 2 * 2
    assert {row["needed_ps"] for row in rows(table) if row["iteration"] == 0} == {4 * MS}


def test_tensors_of_a_bucket_are_ready_together() -> None:
    trace = make_trace([[25_000], [25_000], [100]])
    table = tensors(simulate(scenario(ring_job(3, bucket="1KiB"), hosts=3, **LINK), trace, fabric=Ideal()), trace)
    found = by_tensor(table, 0, 2)
    assert found[2]["ready_ps"] == found[1]["ready_ps"]  # 400 bytes are no bucket of a KiB: with the one after it
    assert found[0]["ready_ps"] > found[1]["ready_ps"] and found[0]["delivered_ps"] > found[0]["ready_ps"]


def test_gradients_within_a_host_have_no_messages() -> None:
    trace = make_trace([[25_000]])
    job = ps_job(1, placement={"workers": ["h0"], "servers": ["h0"]})
    (row,) = rows(tensors(simulate(scenario(job, hosts=2, **LINK), trace, fabric=Ideal()), trace))
    assert (row["ready_ps"], row["released_ps"], row["delivered_ps"], row["waited_ps"]) == (-1, -1, -1, 0)


def test_cut_run_leaves_gradients_undelivered() -> None:
    trace = make_trace([[25_000], [25_000]])
    tables = scenario(ps_job(1, iterations=2), hosts=2, duration="3005us", **LINK)
    found = by_tensor(tensors(simulate(tables, trace, fabric=Ideal()), trace), 0)
    assert found[1]["ready_ps"] == 3 * MS and found[1]["delivered_ps"] == -1 == found[0]["ready_ps"]


@pytest.mark.parametrize("workers", [1, 3])
def test_longest_wait_equals_exposed_communication(workers: int) -> None:
    """Without jitter, an iteration with a barrier ends with the tensor of the longest wait."""
    trace = make_trace([[60_000, 40], [25_000]])
    job = ps_job(workers, exchange={"pull": "barrier"})
    result = simulate(scenario(job, hosts=4, **LINK), trace, fabric=Ideal())
    table = rows(tensors(result, trace))
    for row in rows(result.iterations):
        assert row["exposed_ps"] == max(each["waited_ps"] for each in table if each["worker"] == row["worker"])


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("micros", [1, 2])
def test_fsdp_parameter_gathers_are_not_counted_as_gradients(reshard: bool, micros: int) -> None:
    """Two workers have a unit for each of two layers of 1 ms each way. Gradients are ready after the backward steps
    of the first micro-batch and needed by the update."""
    trace = make_trace([[25_000], [25_000]])
    exchange = {"kind": "fsdp", "unit": "4B", "reshard": reshard}
    job = {"workers": 2, "iterations": 2, "exchange": exchange, "accumulate": micros}
    result = simulate(scenario(job, hosts=2, **LINK), trace, fabric=Ideal(latency=FLIGHT))
    passes = {row["iteration"]: row for row in rows(result.iterations) if row["worker"] == 0}
    reductions = [row for row in rows(result.messages) if row["kind"] == "reduce_scatter" and row["src"] == "h0"]
    assert len(reductions) == 2 * 2 * micros
    for iteration in (0, 1):
        found = by_tensor(tensors(result, trace), iteration)
        mine = sorted(row["start_ps"] for row in reductions if row["iteration"] == iteration)
        assert [found[1]["ready_ps"], found[0]["ready_ps"]] == mine[:2]
        assert found[1]["ready_ps"] >= passes[iteration]["start_ps"] + 3 * MS  # two steps forward, and its own back
        there = SOFT + WIRE // 2 + FLIGHT
        for tensor in (0, 1):
            assert found[tensor]["needed_ps"] == passes[iteration]["backward_end_ps"]
            assert found[tensor]["released_ps"] == found[tensor]["ready_ps"] + SOFT
        assert found[0]["delivered_ps"] == mine[-1] + there == found[0]["needed_ps"] + there


def test_forwarded_tensors_have_no_negative_transfer_times() -> None:
    """In a broadcast a worker receives a tensor before it sends it, and the first worker receives none."""
    trace = make_trace([[25_000]])
    job = {"workers": 4, "exchange": {"kind": "broadcast"}}
    table = tensors(simulate(scenario(job, hosts=4, **LINK), trace, fabric=Ideal(latency=FLIGHT)), trace)
    assert any(0 <= row["delivered_ps"] < row["released_ps"] for row in rows(table))
    (grid,) = longest_waits(table, 20)
    (line,) = grid.rows
    assert line[3:5] == ["2.00 us", "-"]
