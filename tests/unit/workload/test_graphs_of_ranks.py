"""Graphs of ranks, from Chakra files to what happens: worked by hand, and against the other player and the oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sim_cases import MS, US, make_trace, rows, scenario
from split_cases import PACKET, PAYLOAD, QUIET, A

from gradwire.analysis.breakdown.breakdown import PARTS, breakdown
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.errors import GradwireError, ScenarioError, TraceError
from gradwire.sim.simulate import simulate
from gradwire.testing.scenario_comparison import PacketRecorder
from gradwire.traces.formats import export_trace, import_trace
from gradwire.traces.formats import protobuf as pb
from gradwire.traces.trace import Trace, load_trace
from gradwire.workload.prerequisites import find_prerequisites, make_jobs
from gradwire.workload.program_export import export_program

COMP, SEND, RECV, COLL = 4, 5, 6, 7
REDUCE, GATHER, TO_ALL, SCATTER, BARRIER = 0, 2, 6, 7, 9
Node = tuple[Any, ...]


def compute(name: str, ms: float, *deps: int, cpu: bool = False) -> Node:
    return COMP, name, deps, {"micros": round(ms * 1000), "is_cpu_op": cpu}


def call(kind: int, nbytes: int, group: str, *deps: int) -> Node:
    return COLL, "call", deps, {"comm_type": kind, "comm_size": nbytes, "pg_name": group}


def send(dst: int, nbytes: int, tag: int, *deps: int) -> Node:
    return SEND, "send", deps, {"comm_dst": dst, "comm_size": nbytes, "comm_tag": tag}


def recv(src: int, nbytes: int, tag: int, *deps: int) -> Node:
    return RECV, "recv", deps, {"comm_src": src, "comm_size": nbytes, "comm_tag": tag}


def files(folder: Path, *ranks: list[Node]) -> Path:
    """A Chakra file of each rank; nodes have their places as ids. The first one."""
    for rank, nodes in enumerate(ranks):
        data = pb.put_message(pb.put(1, "0.0.4"))
        for ident, (kind, name, deps, told) in enumerate(nodes):
            more = b"".join(_attribute(key, value) for key, value in told.items() if key != "micros")
            more += pb.put(7, told["micros"]) if told.get("micros") else b""
            data += pb.put_message(pb.put(1, ident) + pb.put(2, name) + pb.put(3, kind) + pb.put_packed(5, deps) + more)
        (folder / f"job.{rank}.et").write_bytes(data)
    return folder / "job.0.et"


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        return pb.put(10, pb.put(1, name) + pb.put(28, b"".join(pb.put(1, int(each)) for each in value)))
    field = 27 if isinstance(value, bool) else 29 if isinstance(value, str) else 9
    return pb.put(10, pb.put(1, name) + pb.put(field, int(value) if isinstance(value, bool) else value))


def read(folder: Path, *ranks: list[Node]) -> Trace:
    return import_trace(files(folder, *ranks), ranks=True)


def run(
    trace: Trace,
    *,
    workers: int | None = None,
    network: Any = None,
    fabric: Any = None,
    fast: bool = True,
    **fields: Any,
) -> Any:
    workers = trace.graphs.ranks if workers is None else workers
    job = {"workers": workers, "exchange": {"kind": "graph"}, "trace": trace.name, **fields}
    case = scenario(job, hosts=workers, **(network or QUIET))
    return simulate(case, trace, fabric=fabric, fast_forward=fast)


def ends(result: Any) -> list[int]:
    return [row["end_ps"] for row in rows(result.iterations)]


def steps(*packets: int) -> int:
    """So many messages, one after the other."""
    return sum(A + each * PACKET for each in packets)


LAST = steps(2, 2)
"""An all-reduce of four packets between two ranks."""
BACK = steps(6 + 2)
"""The last errors of `pipeline`: rank 1 has its own part of the all-reduce then, and sends two packets of it as well."""
HALF = steps(2 + 2)
"""From when rank 0 has its part to when rank 1 has the sum."""


def pipeline(micro: int = 1) -> list[list[Node]]:
    """Two stages, so many micro-batches: activations of 10 packets, errors of 6, and at the end gradients of 4."""
    first: list[Node] = []
    second: list[Node] = []
    for m in range(micro):
        first += [compute(f"F{m} FWD", 1), send(1, 10 * PAYLOAD, m, 2 * m)]
        second += [recv(0, 10 * PAYLOAD, m), compute(f"F{m} FWD", 1, 4 * m), compute(f"B{m} BWD", 2, 4 * m + 1)]
        second.append(send(0, 6 * PAYLOAD, 100 + m, 4 * m + 2))
    for m in range(micro):
        first += [recv(1, 6 * PAYLOAD, 100 + m), compute(f"B{m} BWD", 2, 2 * micro + 2 * m)]
    for nodes, before in ((first, 4 * micro - 1), (second, 4 * micro - 2)):
        nodes.append(call(REDUCE, 4 * PAYLOAD, "dp", before))
    return [first, second]


# --- by hand -----------------------------------------------------------------------------------------------------------


def test_two_stage_pipeline_matches_hand_computed_times(tmp_path):
    """Forward, activations, forward, backward, errors, backward and all-reduce follow one another without overlap.
    Only rank 1 has its part of the all-reduce earlier."""
    result = run(read(tmp_path, *pipeline()), iterations=2)
    first, second = (row for row in rows(result.iterations) if row["iteration"] == 0)
    turn = 4 * MS + steps(10)
    assert (first["forward_end_ps"], second["forward_end_ps"]) == (MS, 2 * MS + steps(10))
    assert (first["backward_end_ps"], second["backward_end_ps"]) == (turn + BACK + 2 * MS, turn)
    assert (first["end_ps"], second["end_ps"]) == (turn + BACK + 2 * MS + LAST, turn + BACK + 2 * MS + HALF)
    assert {row["compute_ps"] for row in rows(result.iterations)} == {3 * MS}
    again = [row for row in rows(result.iterations) if row["iteration"] == 1]
    assert [row["start_ps"] for row in again] == [first["end_ps"], second["end_ps"]]
    assert again[0]["end_ps"] - again[0]["start_ps"] == first["end_ps"]
    assert Counter(row["kind"] for row in rows(result.messages)) == {"point_to_point": 4, "collective": 8}
    assert {(row["bytes"], row["src"]) for row in rows(result.messages) if row["kind"] == "point_to_point"} == {
        (10 * PAYLOAD, "h0"), (6 * PAYLOAD, "h1")
    }  # fmt: skip


def test_three_micro_batches_keep_the_second_stage_busy(tmp_path):
    """The second stage is busy from the first activation on; the last backward step follows."""
    result = run(read(tmp_path, *pipeline(3)))
    last = MS + steps(10) + 3 * 3 * MS + BACK + 2 * MS
    assert ends(result) == [last + LAST, last + HALF]


def test_interleaved_forward_and_backward_passes_match_hand_computed_times(tmp_path):
    """A rank starts another forward pass after its first backward pass. It calls a collective after each backward
    pass, as tensor groups do."""
    nodes = [compute("F0 FWD", 1), compute("F1 FWD", 1, 0), compute("B0 BWD", 2, 1), call(REDUCE, 4 * PAYLOAD, "tp", 2)]
    nodes += [compute("F2 FWD", 1, 3), compute("B1 BWD", 2, 4), call(REDUCE, 4 * PAYLOAD, "tp", 5)]
    trace = read(tmp_path, nodes, nodes)
    assert "of other micro-batches" in trace.manifest["timing_how"]
    assert trace.iterations[0].forward_end_ps.max() == 2 * MS and trace.iterations[0].ready_ps.tolist() == [
        7 * MS,
        4 * MS,
    ]
    assert ends(run(trace)) == [7 * MS + 2 * LAST] * 2


def test_forward_pass_ends_at_first_gradient_if_nodes_name_no_pass(tmp_path):
    """The first gradient is ready within a third of the time to the last one."""
    nodes = [compute("a", 1), call(REDUCE, 4 * PAYLOAD, "x", 0), compute("b", 8, 0), call(REDUCE, 4 * PAYLOAD, "x", 2)]
    trace = read(tmp_path, nodes, nodes)
    assert trace.iterations[0].forward_end_ps.max() == MS
    assert ends(run(trace)) == [9 * MS + LAST] * 2


def test_tensor_and_data_groups_of_four_ranks_match_hand_computed_times(tmp_path):
    """Tensor groups are {0, 1} and {2, 3}, data groups {0, 2} and {1, 3}. Each pass contains a collective, and
    gradients follow at the end."""
    ranks: list[list[Node]] = []
    for rank in range(4):
        tensor, data = f"tp{rank // 2}", f"dp{rank % 2}"
        ranks.append([
            compute("a FWD", 1), call(REDUCE, 8 * PAYLOAD, tensor, 0), compute("b FWD", 1, 1),
            compute("b BWD_IG", 1, 2), call(REDUCE, 8 * PAYLOAD, tensor, 3), compute("b BWD_WG", 1, 3),
            call(REDUCE, 4 * PAYLOAD, data, 5), compute("a BWD_WG", 1, 4, 5), call(REDUCE, 4 * PAYLOAD, data, 7),
        ])  # fmt: skip
    result = run(read(tmp_path, *ranks))
    tensor = steps(4, 4)
    # the backward call hides behind the weight gradient of b (1 ms), as does the first gradient behind that of a
    assert tensor < MS and ends(result) == [5 * MS + tensor + LAST] * 4
    pairs = {(row["src"], row["dst"]) for row in rows(result.messages)}
    assert pairs == {(f"h{a}", f"h{b}") for a, b in ((0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1))}


@pytest.mark.parametrize(("kind", "nbytes", "expected"), [
    (REDUCE, 24, steps(*[6] * 6)), (SCATTER, 24, steps(6, 6, 6)), (GATHER, 6, steps(6, 6, 6)), (TO_ALL, 24, steps(18)),
])  # fmt: skip
def test_collective_time_of_four_ranks_matches_its_steps(kind, nbytes, expected, tmp_path):
    """The comm_size of an all-gather is the input size of each rank."""
    nodes = [
        compute("a BWD", 1),
        call(kind, nbytes * PAYLOAD, "all", 0),
        compute("rest", 0.5, 1),
        call(REDUCE, 8 * PAYLOAD, "all", 2),
    ]
    result = run(read(tmp_path, *[nodes] * 4))
    assert ends(result) == [1.5 * MS + expected + steps(*[2] * 6)] * 4


def test_accelerator_computes_in_order_and_the_cpu_in_parallel(tmp_path):
    """Node b waits for a message of rank 1 and precedes c, so c waits as well. The CPU's 9 ms overlap with all of
    that."""
    for cpu in (0, 9):
        zero = [recv(1, 5 * PAYLOAD, 1), compute("b", 1, 0), compute("c", 4), call(REDUCE, 4 * PAYLOAD, "dp", 1, 2)]
        zero.append(compute("host", cpu, cpu=True))
        one = [compute("a", 0), send(0, 5 * PAYLOAD, 1, 0), compute("d", 3), call(REDUCE, 4 * PAYLOAD, "dp", 2)]
        result = run(read(tmp_path, zero, one))
        assert ends(result)[0] == max(steps(5) + 5 * MS + LAST, cpu * MS)
        assert rows(result.iterations)[0]["compute_ps"] == 5 * MS


def test_collectives_of_two_groups_overlap(tmp_path):
    """Two concurrent collectives share the link: equally many packets, half of the latencies."""
    nodes = [compute("a BWD", 1), call(REDUCE, 12 * PAYLOAD, "x", 0), call(REDUCE, 12 * PAYLOAD, "y", 0)]
    (end, other) = ends(run(read(tmp_path, nodes, nodes)))
    assert end == other and MS + steps(9, 9) < end <= MS + steps(12, 12) < MS + 2 * steps(6, 6)


def test_barrier_is_a_4_byte_all_reduce_and_one_rank_group_sends_nothing(tmp_path):
    nodes = [
        compute("a BWD", 1),
        call(REDUCE, 400, "me", 0),
        call(BARRIER, 0, "all", 1),
        call(REDUCE, 4 * PAYLOAD, "all", 2),
    ]
    ranks = [
        [*nodes[:1], (COLL, "own", (0,), {**nodes[1][3], "pg_name": f"me{rank}"}), *nodes[2:]] for rank in range(2)
    ]
    trace = read(tmp_path, *ranks)
    assert [(each.kind, each.bytes) for each in trace.graphs.calls] == [("all_reduce", 4), ("all_reduce", 4 * PAYLOAD)]
    small = 4 * US + 2 * (4 + 58) * 80
    assert ends(run(trace)) == [MS + 2 * small + LAST] * 2


# --- the whole ---------------------------------------------------------------------------------------------------------


def test_program_sends_the_bytes_of_the_chakra_files(tmp_path):
    """Of S bytes among g ranks, an all-reduce sends 2(g - 1)S and other collectives (g - 1)S. Point-to-point messages
    have the sizes of the files."""
    case = scenario({"workers": 2, "exchange": {"kind": "graph"}})
    (job,) = make_jobs(case, find_prerequisites(case, read(tmp_path, *pipeline(3))))
    messages = export_program([job.part]).messages
    found = Counter()
    for kind, nbytes in zip(messages.kind.tolist(), messages.nbytes.tolist(), strict=True):
        found[KINDS[kind]] += nbytes
    assert found == {"point_to_point": 3 * 16 * PAYLOAD, "collective": 2 * 4 * PAYLOAD}
    assert job.exchange.bytes_per_iteration == sum(found.values())


def test_chakra_export_of_data_parallel_job_runs_with_equal_bytes(tmp_path):
    """The trace is exported as graphs of four workers and run; it sends as many bytes as a ring."""
    trace = make_trace([[4000], [8000], [400]], iterations=2)
    export_trace(trace, tmp_path / "dp", format="chakra", ranks=4)
    again = import_trace(tmp_path / "dp.2.et", ranks=True)
    assert (again.graphs.ranks, len(again.graphs.calls), again.total_bytes) == (4, 3, trace.total_bytes)
    result = run(again)
    assert sum(row["bytes"] for row in rows(result.messages)) == 2 * 3 * trace.total_bytes
    assert {row["compute_ps"] for row in rows(result.iterations)} == {6 * MS}


@pytest.mark.parametrize("network", [{"transport": "dctcp"}, {"transport": {"kind": "dlcp"}, "link": {"loss": 0.01}}])
def test_program_player_process_player_and_oracle_agree(network, tmp_path):
    trace = read(tmp_path, *pipeline(3))
    recorders = [PacketRecorder(), PacketRecorder(by_processes=True, log=False)]
    found = [run(trace, network=network, fabric=each, iterations=3, jitter=0.2) for each in recorders]
    assert recorders[0].difference() == ""
    assert found[0].messages.equals(found[1].messages) and found[0].iterations.equals(found[1].iterations)
    assert check_loss_invariant(found[0]) == []


def test_skipped_iterations_equal_simulated_ones(tmp_path):
    trace = read(tmp_path, *pipeline(2))
    fast, full = (run(trace, network={"transport": "dctcp"}, iterations=30, fast=each) for each in (True, False))
    assert "not simulated again" in str(fast.timing["fast_forward"])
    assert fast.iterations.equals(full.iterations) and fast.messages.equals(full.messages)


def test_breakdown_parts_sum_to_iteration_time(tmp_path):
    trace = read(tmp_path, *pipeline(2))
    found = breakdown(run(trace, network={"transport": "dctcp"}, iterations=3), trace).rows
    assert len(found) == 6 and any(row["straggler_ps"] for row in found)
    assert all(sum(row[f"{part}_ps"] for part in PARTS) == row["end_ps"] - row["start_ps"] for row in found)


def test_compute_scale_shortens_computation_of_the_graph(tmp_path):
    result = run(read(tmp_path, *pipeline()), compute_scale=0.5, start="1ms")
    last = MS + 3 * MS + steps(10) + BACK
    assert ends(result) == [last + LAST, last + HALF]


def test_saved_graph_trace_loads_unchanged_and_corruption_is_refused(tmp_path):
    trace = read(tmp_path, *pipeline(2))
    saved = trace.save(tmp_path / "saved")
    again = load_trace(saved)
    assert again.digest() == trace.digest() and again.graphs.calls == trace.graphs.calls
    other = read(tmp_path, *pipeline(3))
    assert other.digest() != trace.digest()
    table = pq.read_table(saved / "nodes.parquet")
    column = np.array(table["rank"].to_pylist(), dtype=np.int32)[::-1]
    pq.write_table(table.set_column(2, "rank", [column]), saved / "nodes.parquet")
    with pytest.raises(TraceError, match="a node"):
        load_trace(saved)


# --- what does not fit -------------------------------------------------------------------------------------------------


def _changed(ranks: list[list[Node]], rank: int, place: int, **told: Any) -> list[list[Node]]:
    kind, name, deps, before = ranks[rank][place]
    nodes = [*ranks[rank]]
    nodes[place] = kind, name, told.pop("deps", deps), {**before, **told}
    return [*ranks[:rank], nodes, *ranks[rank + 1 :]]


@pytest.mark.parametrize(("ranks", "what"), [
    (_changed(pipeline(), 1, 0, comm_tag=9), "1 sends and 0 receives from rank 0 to 1 with tag 0"),
    (_changed(pipeline(), 1, 0, comm_size=9), "1 sends and 1 receives .* a receive of the same size"),
    (_changed(pipeline(), 0, 1, comm_dst=7), "goes from 0 to 7"),
    (_changed(pipeline(), 1, 4, comm_size=8), "process group dp: ranks call all_reduce of 8 bytes and all_reduce of 4000 bytes"),
    (_changed(pipeline(), 1, 4, comm_type=11), "node 4 of rank 1: is a collective 11; expected ALL_REDUCE"),
    (_changed(pipeline(), 1, 4, pg_name="", involved_dim=[True, False]), "along some dimensions of a network"),
    ([pipeline()[0], pipeline()[1][:-1]], "no trouble"),
    ([[*pipeline()[0], call(REDUCE, 64, "dp", 3)], pipeline()[1]], "process group dp is called 2 by rank 0, 1 by rank 1"),
    (_changed(pipeline(), 0, 0, deps=(2,)), "node . of rank . waits forever"),
])  # fmt: skip
def test_inconsistent_rank_files_are_refused(ranks, what, tmp_path):
    if what == "no trouble":  # a group of one
        assert len(read(tmp_path, *ranks).graphs.calls) == 2
        return
    with pytest.raises(TraceError, match=what):
        read(tmp_path, *ranks)


def test_import_refuses_missing_or_unnumbered_rank_files(tmp_path):
    path = files(tmp_path, *pipeline(), pipeline()[0])
    (tmp_path / "job.1.et").unlink()
    with pytest.raises(TraceError, match="the graph of rank 1 is missing"):
        import_trace(path, ranks=True)
    path = path.rename(tmp_path / "job.et")
    with pytest.raises(TraceError, match="has no rank in its name"):
        import_trace(path, ranks=True)
    (tmp_path / "t.csv").write_text("name,numel\na,10\n")
    with pytest.raises(TraceError, match="format csv has no graphs of ranks"):
        import_trace(tmp_path / "t.csv", ranks=True)


def test_jobs_incompatible_with_a_rank_graph_are_refused(tmp_path):
    trace = read(tmp_path, *pipeline())
    for given, fields, what in (
        (trace, {"workers": 3}, "workers: are not the ranks of the trace job"), (make_trace([[10]]), {}, "has none"),
    ):  # fmt: skip
        case = scenario({"workers": 2, "exchange": {"kind": "graph"}, **fields})
        with pytest.raises(ScenarioError, match=what):
            find_prerequisites(case, given)
    nodes = [compute("a BWD", 1), call(REDUCE, 4 * PAYLOAD, "all", 0)]
    odd = read(tmp_path, *[nodes] * 3)
    case = scenario({"workers": 3, "exchange": {"kind": "graph", "algorithm": "halving"}})
    with pytest.raises(ScenarioError, match="does not work for the 3 ranks"):
        find_prerequisites(case, odd)
    for fields in ({"accumulate": 2}, {"push_bound": 0.1}, {"scheduler": "ddp"}, {"parallel": {}}, {"workers": 1}):
        with pytest.raises((GradwireError, ValueError)):
            scenario({"workers": 2, "exchange": {"kind": "graph"}, **fields})


def test_gpu_and_cpu_of_a_rank_wait_for_the_same_call(tmp_path: Path) -> None:
    """Only one process can wait for an event, so the CPU has one of its own."""
    both = [call(REDUCE, 64, "g"), compute("work", 1, 0, cpu=True), compute("more", 2, 0)]
    result = run(read(tmp_path, both, [call(REDUCE, 64, "g")]))
    ends = result.iterations["end_ps"].to_pylist()
    arrival = max(result.messages["end_ps"].to_pylist())
    assert 2 * MS < ends[0] - arrival + US < 2 * MS + 20 * US and ends[1] < MS


REDUCE_TO, GATHER_AT, SCATTER_FROM, BROADCAST = 1, 3, 4, 5


@pytest.mark.parametrize(("kind", "nbytes", "root", "sent"), [
    (REDUCE_TO, 24, 2, {(0, 2): 24, (1, 0): 24, (3, 1): 24}),  # a binomial tree over 2, 0, 1, 3
    (BROADCAST, 24, 2, {(2, 0): 24, (2, 1): 24, (1, 3): 24}),
    (GATHER_AT, 24, 1, {(0, 1): 24, (2, 1): 24, (3, 1): 24}),  # 24 is the size of each rank's share
    (SCATTER_FROM, 24, 0, {(0, 1): 6, (0, 2): 6, (0, 3): 6}),
])  # fmt: skip
def test_rooted_collectives_send_to_or_from_their_root(kind, nbytes, root, sent, tmp_path):
    node = COLL, "call", (), {"comm_type": kind, "comm_size": nbytes * PAYLOAD, "pg_name": "g", "root_rank": root}
    messages = run(read(tmp_path, *[[node, call(REDUCE, 16, "h", 0)]] * 4)).messages.to_pydict()
    rows = zip(messages["src"], messages["dst"], messages["bytes"], strict=True)
    found = {(int(a[1:]), int(b[1:])): nbytes for a, b, nbytes in rows if nbytes > 16}
    if kind in (REDUCE_TO, BROADCAST):
        assert len(found) == 3 and set(found.values()) == {24 * PAYLOAD}
        assert sum((root in ends) for ends in found) == 2  # the tree's root has two neighbours
        assert all((ends[1] if kind == REDUCE_TO else ends[0]) == root for ends in found if root in ends)
    else:
        assert found == {ends: each * PAYLOAD for ends, each in sent.items()}


def test_rooted_calls_start_at_the_first_member_without_a_root_and_refuse_others(tmp_path):
    node = COLL, "call", (), {"comm_type": SCATTER_FROM, "comm_size": 64, "pg_name": "g"}
    ranks = [[node, call(REDUCE, 16, "h", 0)]] * 2
    assert read(tmp_path, *ranks).graphs.calls[0].members == (0, 1)
    with pytest.raises(TraceError, match="root 5 of a scatter is not a member"):
        read(tmp_path, *_changed(_changed(ranks, 0, 0, root_rank=5), 1, 0, root_rank=5))


def test_comm_group_json_gives_members_in_order(tmp_path):
    (tmp_path / "comm_group.json").write_text('{"1": [2, 0], "2": [1, 3]}')
    ranks = [[call(REDUCE, 64, group)] for group in ("1", "2", "1", "2")]
    assert [tuple(made.members) for made in read(tmp_path, *ranks).graphs.calls] == [(2, 0), (1, 3)]


@pytest.mark.parametrize(("text", "says"), [
    ("{", "is not JSON"),
    ("[1]", "json: is .1.; expected process groups"),
    ('{"1": [0, 9]}', "process group 1 is .*0, 9.* expected distinct ranks, 0 to 1"),
    ('{"1": [0, 0]}', "distinct ranks"),
    ('{"g": [0]}', "process group g has ranks .*0.*, and is called by .*0, 1"),
])  # fmt: skip
def test_damaged_comm_group_files_are_refused(text, says, tmp_path):
    (tmp_path / "comm_group.json").write_text(text)
    with pytest.raises(TraceError, match=says):
        read(tmp_path, *[[call(REDUCE, 64, "g")]] * 2)
