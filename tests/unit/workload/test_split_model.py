"""Models split over workers: who talks with whom, how long passes stand still for it, and what does not fit."""

from __future__ import annotations

from collections import Counter

import pytest
from sim_cases import MS, make_trace, rows, scenario
from split_cases import MOE, PAYLOAD, both_ways, imported, made, run, split, steps

from gradwire.scenarios.errors import ScenarioError
from gradwire.workload.collectives.common.groups import ModelGroups
from gradwire.workload.incremental.iteration_player import single_iteration_scenario
from gradwire.workload.prerequisites import find_prerequisites

# --- groups ----------------------------------------------------------------------------------------------------------


def test_model_groups_list_the_members_of_each_dimension():
    """Of twelve workers, worker n has tensor rank n % 2 and expert rank n // 2 % 3."""
    groups = ModelGroups(2, 3, 6)
    found = {name: groups.members(name).tolist() for name in ("tensor", "expert", "data", "expert_data")}
    assert found["tensor"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert found["expert"] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert found["data"] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert found["expert_data"] == [[0, 6], [2, 8], [4, 10], [1, 7], [3, 9], [5, 11]]


def test_context_groups_lie_between_tensor_and_expert_groups():
    """Of twelve workers, worker n has tensor rank n % 2, part n // 2 % 3 of a sample, and expert rank n // 6."""
    groups = ModelGroups(2, 2, 6, 3)
    assert groups.members("tensor").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert groups.members("context").tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert groups.members("expert").tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert groups.members("data").tolist() == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert groups.members("expert_data").tolist() == [[0, 2, 4], [6, 8, 10], [1, 3, 5], [7, 9, 11]]


def test_layer_waits_for_the_gather_of_its_context_group():
    """Tensor 2 and context 2: a gather of 24 packets between workers 0 and 2, and between 1 and 3; gradients follow."""
    calls = [
        (0, "forward", "all_gather", "context", 24 * PAYLOAD),
        (0, "backward", "reduce_scatter", "context", 8 * PAYLOAD),
    ]
    result = run(split(make_trace([[10]]), calls, {"tensor": 2, "context": 2}), 4)
    for row in rows(result.iterations):
        assert row["forward_end_ps"] == MS + steps(12)
    pairs = {(row["src"], row["dst"]) for row in rows(result.messages) if row["kind"] == "context_parallel"}
    assert pairs == {("h0", "h2"), ("h2", "h0"), ("h1", "h3"), ("h3", "h1")}
    reduced = {(row["src"], row["dst"]) for row in rows(result.messages) if row["kind"] == "reduce_scatter"}
    assert reduced == pairs, "gradients are summed over the same two workers, and over context ranks"


# --- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "algorithm", "workers", "expected"), [
    ("all_reduce", "ring", 2, steps(12, 12)), ("all_reduce", "ring", 4, steps(*[6] * 6)),
    ("all_reduce", "all_to_all", 4, steps(18, 18)), ("all_reduce", "halving", 4, steps(12, 6, 6, 12)),
    ("reduce_scatter", "ring", 4, steps(6, 6, 6)), ("all_gather", "ring", 4, steps(6, 6, 6)),
    ("all_gather", "all_to_all", 4, steps(18)), ("all_to_all", "ring", 4, steps(18)), ("broadcast", "ring", 2, steps(24)),
])  # fmt: skip
def test_layer_waits_for_the_collective_of_its_tensor_group(kind, algorithm, workers, expected):
    """A call of 24 packets takes its alpha-beta time after 1 ms of compute; nothing else is sent."""
    trace = split(make_trace([[10]]), both_ways(0, kind, "tensor", 24 * PAYLOAD), {"tensor": workers})
    result = run(trace, workers, parallel={"algorithm": algorithm})
    for row in rows(result.iterations):
        # the root of a broadcast waits for nobody, and so is ahead with the second one
        waits = (0 if row["worker"] == 0 else 1, 0) if kind == "broadcast" else (1, 1)
        assert row["forward_end_ps"] == MS + waits[0] * expected
        assert row["end_ps"] == 2 * MS + sum(waits) * expected
    assert {row["kind"] for row in rows(result.messages)} == {"tensor_parallel"}


def test_tensor_2_by_data_2_iteration_matches_hand_computed_times():
    """Tensor 2 and data 2, two layers of 1 ms each way, gradients of 8 packets, calls of 4.

    Forward: 1 ms, a call, 1 ms, a call. Backward: half a ms, a call, half a ms and the gradient of layer 1 (its ring takes
    two messages of 4 packets, behind the computing of layer 0 and its call), half, a call, half, the gradient of layer 0,
    which is waited for. A call: two messages of 2 packets.
    """
    trace = split(
        make_trace([[2000], [2000]]),
        [(0, "forward", "all_reduce", "tensor", 4000), (1, "forward", "all_reduce", "tensor", 4000),
         (1, "backward", "all_reduce", "tensor", 4000), (0, "backward", "all_reduce", "tensor", 4000)],
        {"tensor": 2},
    )  # fmt: skip
    result = run(trace, 4, exchange={"kind": "ring", "bucket": "8KB"}, iterations=2)
    call, gradient = steps(2, 2), steps(4, 4)
    once = 4 * MS + 4 * call + gradient
    for row in rows(result.iterations):
        begin = row["iteration"] * once
        found = [row[f"{name}_ps"] - begin for name in ("start", "forward_end", "backward_end", "end")]
        assert found == [0, 2 * MS + 2 * call, 4 * MS + 4 * call, once]
        assert (row["compute_ps"], row["exposed_ps"]) == (4 * MS, 4 * call + gradient)
    pairs = Counter((row["kind"], row["src"], row["dst"]) for row in rows(result.messages))
    assert {ends for kind, *ends in map(list, pairs) if kind == "tensor_parallel" for ends in [tuple(ends)]} == {
        ("h0", "h1"), ("h1", "h0"), ("h2", "h3"), ("h3", "h2")
    }  # fmt: skip
    assert {(src, dst) for kind, src, dst in pairs if kind == "reduce_scatter"} == {
        ("h0", "h2"), ("h2", "h0"), ("h1", "h3"), ("h3", "h1")
    }  # fmt: skip
    assert set(pairs.values()) == {2 * 4 * 2, 2 * 2}  # iterations, calls, halves; iterations, buckets


def test_tensor_parallel_call_precedes_the_gradient_of_its_layer():
    """With zero compute time, calls run serially, back layers first, and each layer's gradient follows its call."""
    trace = split(make_trace([[2000], [2000]]), [*both_ways(0, "all_reduce", "tensor", 4000)], {"tensor": 2})
    result = run(trace, 4, exchange={"kind": "ring", "bucket": "8KB"}, compute_scale=0.0)
    begin = {row["part"] // 2: 0 for row in rows(result.messages)}
    for row in rows(result.messages):
        begin[row["part"] // 2] = max(begin[row["part"] // 2], row["start_ps"])
    starts = sorted((row["start_ps"], row["kind"], row["part"] // 2) for row in rows(result.messages))
    firsts = {}
    for start, kind, bucket in starts:
        firsts.setdefault((kind, bucket), start)
    call = steps(2, 2)
    # layer 1's gradient is bucket 0, and is ready when the forward call is over; layer 0's waits for the backward call
    assert firsts["reduce_scatter", 0] - firsts["tensor_parallel", 2] == call
    assert firsts["reduce_scatter", 1] - firsts["tensor_parallel", 3] >= call


def test_every_micro_batch_repeats_the_tensor_parallel_calls():
    trace = split(make_trace([[2000]]), both_ways(0, "all_reduce", "tensor", 4000), {"tensor": 2})
    found = [rows(run(trace, 4, accumulate=micros).messages) for micros in (1, 3)]
    sent = [Counter(row["kind"] for row in each) for each in found]
    assert sent[1]["tensor_parallel"] == 3 * sent[0]["tensor_parallel"]
    assert sent[1]["reduce_scatter"] == sent[0]["reduce_scatter"]


@pytest.mark.parametrize("forward", ["barrier", "layerwise"])
@pytest.mark.parametrize(
    "parallel", [{"tensor": 4}, {"tensor": 1, "expert": 4}, {"tensor": 2, "expert": 2}, {"tensor": 1}]
)
def test_every_worker_computes_the_full_optimiser_step(parallel, forward):
    """The workers exchange gradients in one group, in two groups, or not at all."""
    calls = [*both_ways(0, "all_reduce", "tensor", 4000)]
    calls = [calls[0], (1, "forward", "all_to_all", "expert", 4000), calls[1]]
    trace = split(make_trace([[2000], [6000]], optimizer=8000), calls, {"tensor": 1}, experts=(1,))
    result = run(trace, 4, exchange={"kind": "ring", "forward": forward}, parallel=parallel, iterations=3)
    computed = Counter()
    for row in rows(result.iterations):
        computed[row["worker"]] += row["compute_ps"]
    assert set(computed.values()) == {3 * (4 * MS + 8000)}


def test_sharded_update_time_is_the_owned_share_of_the_bytes():
    """Data-parallel workers share a quarter of the bytes; only workers with the same experts share the rest."""
    calls = [(0, "forward", "all_reduce", "tensor", 4000)]
    trace = split(make_trace([[2000], [6000]], optimizer=8000), calls, {"tensor": 2, "expert": 2}, experts=(1,))
    for workers, expert, update in ((8, 2, 500 + 3000), (8, 4, 500 + 6000), (4, 2, 1000 + 6000)):
        result = run(trace, workers, exchange={"kind": "sharded"}, parallel={"expert": expert})
        assert {row["compute_ps"] for row in rows(result.iterations)} == {4 * MS + update}


# --- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "fields", "path", "what"), [
    (6, {"parallel": {"tensor": 4}}, "parallel.tensor", "4 workers to a tensor group do not divide 6 workers"),
    (7, {}, "parallel.tensor", "2 workers to a tensor group .of the trace w. do not divide 7 workers"),
    (6, {}, "parallel.expert", "2 workers to an expert group .of the trace w. do not divide 3"),
    (8, {"parallel": {"context": 3}}, "parallel.context", "3 workers to a context group do not divide 4"),
    (8, {"parallel": {"pipeline": 2}}, "parallel.pipeline", "2 pipeline stages cannot be played"),
    (6, {"parallel": {"tensor": 3, "expert": 1, "algorithm": "halving"}}, "parallel.algorithm", "3 workers of groups of dimension tensor"),
    (6, {"parallel": {"tensor": 2, "expert": 3}, "exchange": {"kind": "sharded", "algorithm": "halving"}}, "workers", "not a power of two"),
])  # fmt: skip
def test_invalid_parallel_group_sizes_are_rejected(workers, fields, path, what, tmp_path):
    with pytest.raises(ScenarioError, match=what) as error:
        find_prerequisites(
            scenario({"workers": workers, "exchange": {"kind": "ring"}, "parallel": {}, **fields}),
            imported(MOE, tmp_path),
        )
    assert path in str(error.value)


def test_pipeline_stages_of_a_trace_are_rejected_unless_overridden(tmp_path):
    trace = imported(MOE.replace("pp: 1", "pp: 4"), tmp_path)
    job = {"workers": 8, "exchange": {"kind": "ring"}, "parallel": {}}
    with pytest.raises(ScenarioError, match=r"4 pipeline stages \(of the trace w\) cannot be played"):
        find_prerequisites(scenario(job), trace)
    find_prerequisites(scenario({**job, "parallel": {"pipeline": 1}}), trace)


def test_tensor_groups_that_span_hosts_are_rejected(tmp_path):
    trace = imported(MOE, tmp_path)
    for fields, gpus in (({"placement": "rails"}, 4), ({"parallel": {"tensor": 3, "expert": 1}, "workers": 12}, 4)):
        with pytest.raises(ScenarioError, match="spans 2 hosts, and fits on") as error:
            made(trace, **{"workers": 8, **fields}, gpus=gpus)
        assert "parallel.tensor" in str(error.value)


def test_split_model_rejects_exchanges_over_all_workers_and_reordering():
    for fields, what in (
        ({"exchange": {"kind": "fsdp"}}, "involves all workers"), ({"exchange": {"kind": "tree"}}, "involves all workers"),
        ({"exchange": {"kind": "ring"}, "scheduler": "p3"}, "holds messages back"),
        ({"exchange": {"kind": "ring"}, "order": "layer"}, "holds messages back"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            scenario({"workers": 4, "parallel": {}, **fields})


def test_split_model_rejects_gradient_only_traces_and_training_runs():
    case = scenario({"workers": 4, "exchange": {"kind": "ring"}, "parallel": {}})
    with pytest.raises(ScenarioError, match="contains gradients only"):
        find_prerequisites(case, make_trace([[10]]))
    with pytest.raises(ScenarioError, match="a training run provides gradients only"):
        single_iteration_scenario(case, "case")


def test_prerequisites_reject_a_split_model_without_messages():
    trace = split(make_trace([[10]]), [(0, "forward", "all_to_all", "expert", 4000)], {"tensor": 4})
    case = scenario({"workers": 4, "exchange": {"kind": "ring"}, "parallel": {}})
    with pytest.raises(ScenarioError, match="leaves nothing to send"):
        find_prerequisites(case, trace)
