"""Workloads of SimAI whose stages are played: against a recurrence over passes, and by who talks to whom."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_cases import MS, US, rows, scenario

from gradwire.scenarios.errors import TraceError
from gradwire.sim.simulate import simulate
from gradwire.traces.formats import import_trace
from gradwire.traces.rank_graphs import SEND
from gradwire.traces.trace import Trace, load_trace

PAYLOAD = 1000
PACKET = (PAYLOAD + 58) * 80
TRANSFER = 2 * US + 2 * US + PACKET
"""What a message takes but for its packets: software latency, two cables, the last packet once more at the switch."""
MICRO = """
attention -1 300000 NONE 0 200000 NONE 0 300000 NONE 0 0
mlp       -1 100000 NONE 0 200000 NONE 0 100000 NONE 0 0
"""
FORWARD, BACKWARD = 400 * US, 800 * US
GRADIENTS = "grad_norm -1 0 NONE 0 0 NONE 0 0 REDUCESCATTER 4000 0\n"
SPLIT = """
column -1 1000 ALLGATHER      8000 1000 REDUCESCATTER 8000 1000 NONE 0 0
experts -1 1000 ALLTOALL_EP   8000 1000 ALLTOALL_EP   8000 1000 NONE 0 0
row    -1 1000 REDUCESCATTER  8000 1000 ALLGATHER     8000 1000 NONE 0 0
"""


def workload(
    folder: Path, *, ranks: int, stages: int, micros: int, micro: str = MICRO, before: str = GRADIENTS, behind: str = "",
    tensor: int = 1, expert: int = 1, transfer: str = "10000",
) -> Path:  # fmt: skip
    body = [line for line in (before + micro * micros + behind).splitlines() if line.strip()]
    head = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tensor} ep: {expert} pp: {stages} vpp: 8 "
        f"ga: {micros} all_gpus: {ranks} checkpoints: 0 checkpoint_initiates: 0 pp_comm: {transfer}"
    )
    (folder / "w.txt").write_text("\n".join([head, str(len(body)), *body]) + "\n")
    return folder / "w.txt"


def imported(folder: Path, **shape: Any) -> Trace:
    return import_trace(workload(folder, **shape), ranks=True)


def run(trace: Trace, iterations: int = 1) -> Any:
    workers = trace.graphs.ranks
    job = {"workers": workers, "exchange": {"kind": "graph"}, "trace": trace.name, "iterations": iterations}
    network = {
        "switch": {"queues": 1, "buffer": "100MB"},
        "transport": {"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
    }
    return simulate(scenario(job, hosts=workers, **network), trace)


def last_end(stages: int, micros: int, transfer: int) -> int:
    """When the last backward pass of the first stage ends, by the schedule's own rule: a stage runs forward as long as
    no more micro-batches are under way in it than there are stages from it on, and backward otherwise."""
    done: dict[tuple[str, int, int], int] = {}
    clock, ahead, behind = [0] * stages, [0] * stages, [0] * stages
    while behind != [micros] * stages:
        for stage in range(stages):
            back = ahead[stage] == micros or ahead[stage] - behind[stage] == stages - stage
            what, micro = ("B", behind[stage]) if back else ("F", ahead[stage])
            source = stage + 1 if back else stage - 1
            if behind[stage] == micros or (0 <= source < stages and (what, source, micro) not in done):
                continue
            came = done[what, source, micro] + transfer if 0 <= source < stages else 0
            clock[stage] = done[what, stage, micro] = max(clock[stage], came) + (BACKWARD if back else FORWARD)
            (behind if back else ahead)[stage] += 1
    return clock[0]


@pytest.mark.parametrize(("stages", "micros"), [(2, 1), (2, 4), (3, 5), (4, 2), (4, 8)])
def test_pipeline_end_time_matches_the_1f1b_recurrence(stages: int, micros: int, tmp_path: Path) -> None:
    trace = imported(tmp_path, ranks=stages, stages=stages, micros=micros)
    result = run(trace)
    assert max(row["end_ps"] for row in rows(result.iterations)) == last_end(stages, micros, TRANSFER + 10 * PACKET)
    sent = [row for row in rows(result.messages) if row["kind"] == "point_to_point"]
    assert len(sent) == 2 * micros * (stages - 1) and {row["bytes"] for row in sent} == {10_000}


def test_1f1b_recurrence_has_the_published_bubble_without_a_network() -> None:
    """The bubble of `last_end` is (P - 1) forward and backward passes [Narayanan et al.]."""
    for stages, micros in ((2, 4), (4, 8), (8, 3)):
        assert last_end(stages, micros, 0) == (micros + stages - 1) * (FORWARD + BACKWARD)


def test_pipeline_stage_holds_one_activation_per_remaining_stage_at_most(tmp_path: Path) -> None:
    """Forward passes of a 1F1B stage lead its backward passes by at most P - stage."""
    graphs = imported(tmp_path, ranks=4, stages=4, micros=8).graphs
    lead, most = [0] * 4, [0] * 4
    for name, rank in zip(graphs.names, graphs.rank.tolist(), strict=True):
        lead[rank] += name.startswith("mlp") and name.endswith("forward")
        lead[rank] -= name.startswith("attention") and name.endswith("weight gradient")
        most[rank] = max(most[rank], lead[rank])
    assert most == [4, 3, 2, 1] and lead == [0] * 4


def test_simai_collectives_connect_the_expected_rank_groups(tmp_path: Path) -> None:
    """16 ranks form tensor groups of 2, 2 stages of 8, and 4 replicas, of which 2 share experts."""
    both = GRADIENTS + "moe -1 0 NONE 0 0 NONE 0 0 REDUCESCATTER_DP_EP 4000 0\n"
    trace = imported(tmp_path, ranks=16, stages=2, micros=3, micro=SPLIT, tensor=2, expert=2, before=both)
    graphs = trace.graphs
    graphs.check()
    found = Counter((each.kind, each.members) for each in graphs.calls)
    assert found["all_gather", (0, 1)] == found["reduce_scatter", (14, 15)] == 2 * 3
    assert found["all_to_all", (0, 2)] == found["all_to_all", (13, 15)] == 2 * 3
    assert found["reduce_scatter", (1, 3, 5, 7)] == found["reduce_scatter", (8, 10, 12, 14)] == 1
    assert found["reduce_scatter", (0, 4)] == found["reduce_scatter", (11, 15)] == 1
    assert {each.members for each in graphs.calls if each.kind == SEND} == {
        pair for rank in range(8) for pair in ((rank, rank + 8), (rank + 8, rank))
    }
    trace.save(tmp_path / "kept")
    assert load_trace(tmp_path / "kept").graphs.digest() == graphs.digest()
    kinds = Counter(row["kind"] for row in rows(run(trace, iterations=2).messages))
    assert kinds["point_to_point"] == 2 * 2 * 3 * 8


def test_rank_graph_import_includes_transfers_and_gathers(tmp_path: Path) -> None:
    gather = "grad_gather -1 0 NONE 0 0 NONE 0 0 ALLGATHER 4000 0\n"
    shape = {"ranks": 4, "stages": 2, "micros": 2, "before": gather + GRADIENTS}
    alone = import_trace(workload(tmp_path, **shape)).manifest["source"]
    assert alone["skipped"] == {
        "pipeline transfers (pp_comm)": 1, "weight gradient ALLGATHER (of activations or parameters)": 1,
    }  # fmt: skip
    together = imported(tmp_path, **shape)
    assert not together.manifest["source"]["skipped"]
    assert Counter(each.kind for each in together.graphs.calls)["all_gather"] == 2


def test_rows_outside_micro_batches_run_before_or_after_all_micro_batches(tmp_path: Path) -> None:
    """Such rows run before the first forward pass or after the last one; updates run at the end."""
    behind = "loss -1 50000 NONE 0 50000 NONE 0 0 NONE 0 7000\n"
    before = "first -1 20000 NONE 0 30000 NONE 0 0 REDUCESCATTER 4000 0\n"
    trace = imported(tmp_path, ranks=2, stages=2, micros=2, before=before, behind=behind)
    names = [name for name, rank in zip(trace.graphs.names, trace.graphs.rank.tolist(), strict=True) if rank == 1]
    order = [names.index(each) for each in (
        "first.0 forward", "attention.1 forward", "attention.1 weight gradient", "attention.3 forward", "loss.5 forward",
        "loss.5 input gradient", "attention.3 weight gradient", "first.0 input gradient", "update",
    )]  # fmt: skip
    assert order == sorted(order) and names[-1] == "update"
    assert trace.graphs.effort_ps[trace.graphs.rank == 1].sum() == 2 * (FORWARD + BACKWARD) + 157 * US


def test_only_the_update_waits_for_gradients(tmp_path: Path) -> None:
    reduced = "layer -1 1000 NONE 0 1000 NONE 0 1000 ALLREDUCE 4000 3\n"
    graphs = imported(tmp_path, ranks=4, stages=2, micros=1, micro=reduced, before=reduced).graphs
    reductions = set(np.flatnonzero([name.endswith("all_reduce") for name in graphs.names]).tolist())
    needing = {graphs.names[row] for row in range(len(graphs.names)) if reductions & set(graphs.of(row))}
    assert len(reductions) == 2 * 4 and needing == {"update"}


def test_pp_comm_written_as_a_float_is_accepted(tmp_path: Path) -> None:
    """AICB divides pp_comm by the tensor group size and writes a Python float."""
    trace = imported(tmp_path, ranks=2, stages=2, micros=1, transfer="8388608.0")
    assert {each.bytes for each in trace.graphs.calls} == {8388608}
    assert trace.iterations[0].backward_end_ps == 1.2 * MS


@pytest.mark.parametrize(("shape", "says"), [
    ({"transfer": "0"}, "2 stages, and pp_comm is 0"),
    ({"ranks": 3}, "3 ranks in 2 stages"),
    ({"ranks": 2**40}, "nodes would take .* GiB"),
    ({"ranks": 8, "expert": 3}, "3 to an expert group"),
    ({"micros": 0, "before": GRADIENTS + MICRO}, "a size below 1"),
    ({"micros": 3, "micro": "", "before": GRADIENTS + MICRO}, "ga is 3, but no rows repeat 3 times"),
])  # fmt: skip
def test_invalid_pipeline_workloads_are_rejected(shape: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = workload(tmp_path, **{"ranks": 4, "stages": 2, "micros": 2, **shape})
    import_trace(path)
    with pytest.raises(TraceError, match=says):
        import_trace(path, ranks=True)


def test_workload_header_without_all_gpus_is_rejected(tmp_path: Path) -> None:
    path = workload(tmp_path, ranks=4, stages=2, micros=2)
    path.write_text(path.read_text().replace("all_gpus: 4 ", ""))
    with pytest.raises(TraceError, match="has no all_gpus"):
        import_trace(path, ranks=True)
