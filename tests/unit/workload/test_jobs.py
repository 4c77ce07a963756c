"""Training jobs on an ideal network, against closed forms to the picosecond.

h is the software latency of a host, l the latency of the ideal network; at 100 Gbps a byte takes 80 ps.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from array_cases import job_of
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows, scenario

from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.sim.simulate import simulate
from gradwire.traces.tagging import Tagger, layer_priorities
from gradwire.traces.trace import Trace

h, l, BYTE = 2 * US, US, 80  # noqa: E741
FULL = 2**22  # a partition's default size in bytes


def run(job, trace, *, hosts=8, fabric=None, **fields):
    result = simulate(scenario(job, hosts=hosts, **fields), trace, fabric=fabric or Ideal())
    assert check_loss_invariant(result) == []
    return result, rows(result.iterations), rows(result.messages)


def exposed(iterations, iteration=0):
    return [row["exposed_ps"] for row in iterations if row["iteration"] == iteration]


# --- parameter servers ----------------------------------------------------------------------------


def test_one_worker_waits_for_one_push_and_one_pull():
    size = 4 * 1000
    _, iterations, messages = run(ps_job(1), make_trace([[1000]]))
    assert [row["kind"] for row in messages] == ["push", "pull"]
    (row,) = iterations
    assert (row["start_ps"], row["forward_end_ps"], row["backward_end_ps"]) == (0, MS, 2 * MS)
    assert row["compute_ps"] == 2 * MS
    assert row["exposed_ps"] == 2 * (h + size * BYTE + l)
    assert row["end_ps"] == row["compute_ps"] + row["exposed_ps"]


def test_server_sends_pulls_serially_in_rotating_worker_order():
    size, workers = 4000 * BYTE, 4
    one, two = make_trace([[1000]]), make_trace([[1000, 1000]])
    _, iterations, _ = run(ps_job(workers), one)
    assert exposed(iterations) == [2 * (h + l) + size + (w + 1) * size for w in range(workers)]
    _, _, messages = run(ps_job(workers, exchange={"partition": "4000B"}), two)
    pulls = [row["dst"] for row in messages if row["kind"] == "pull"]
    assert pulls == ["h0", "h1", "h2", "h3", "h1", "h2", "h3", "h0"]


def test_server_aggregates_pushes_serially_at_server_rate():
    size, workers = 4000, 3
    job = ps_job(workers, exchange={"server_rate": "1Gbps"})
    _, iterations, _ = run(job, make_trace([[1000]]))
    adding = workers * size * 8000  # 1 Gbps: 8000 ps a byte
    assert exposed(iterations)[0] == 2 * (h + l) + 2 * size * BYTE + adding


def test_forward_waits_per_layer_or_for_all_layers_with_a_barrier():
    """The back layer takes 1 ms on the wire and the front layer almost nothing. Each layer has its own server. The
    layers are ready at 2 and 3 ms (forward 0.5 ms, backward 1 ms per layer), so the front layer's pull comes
    first."""
    big, small = 12_500_000 // 4, 100
    trace = make_trace([[small], [big]], forward=MS // 2)
    small_back = 3 * MS + 2 * (h + small * 4 * BYTE + l)
    big_back = 2 * MS + 2 * (h + MS + l)
    job = ps_job(1, 2, iterations=2, exchange={"partition": "64MiB"})
    _, (first, second), _ = run(job, trace)
    assert first["end_ps"] == second["start_ps"] == small_back
    assert second["forward_end_ps"] == max(small_back + MS // 2, big_back) + MS // 2
    assert second["forward_end_ps"] > second["start_ps"] + MS, "layer 1 did wait in the middle of forward"
    job["exchange"]["pull"] = "barrier"
    _, (first, second), _ = run(job, trace)
    assert first["end_ps"] == second["start_ps"] == big_back
    assert second["forward_end_ps"] == big_back + MS


def test_last_iteration_ends_when_all_messages_have_arrived():
    trace = make_trace([[100], [12_500_000 // 4]], forward=MS // 2)
    _, (row,), messages = run(ps_job(1, 2, exchange={"partition": "64MiB"}), trace)
    assert row["end_ps"] == max(message["end_ps"] for message in messages)


def test_worker_iterations_are_contiguous_and_split_into_compute_and_exposed():
    _, iterations, _ = run(ps_job(3, 2, iterations=4, jitter=0.3), make_trace([[500], [70_000]], iterations=3))
    for worker in range(3):
        mine = [row for row in iterations if row["worker"] == worker]
        for before, after in itertools.pairwise(mine):
            assert before["end_ps"] == after["start_ps"]
        for row in mine:
            assert row["exposed_ps"] == row["end_ps"] - row["start_ps"] - row["compute_ps"] >= 0


def test_colocated_server_exchanges_no_messages_with_its_own_worker():
    _, (row,), messages = run(ps_job(1, exchange={"colocated": True}), make_trace([[1000]]))
    assert messages == [] and row["exposed_ps"] == 0
    workers, tensors = 4, 6
    job = ps_job(workers, workers, exchange={"colocated": True})
    _, _, messages = run(job, make_trace([[1000]] * tensors))
    assert len(messages) == 2 * tensors * (workers - 1)
    assert all(row["src"] != row["dst"] for row in messages)


def test_partitions_cover_every_tensor_and_balance_the_servers():
    elements = [[3_000_000, 7], [1, 2_097_152], [1_048_577]]
    trace = make_trace(elements)
    result, _, messages = run(ps_job(2, 3), trace, hosts=8)
    pushes = [row for row in messages if row["kind"] == "push" and row["src"] == "h0"]
    for tensor, info in enumerate(trace.tensors):
        parts = sorted((row["part"], row["bytes"]) for row in pushes if row["tensor"] == tensor)
        assert [part for part, _ in parts] == list(range(-(-info.bytes // FULL)))
        assert sum(size for _, size in parts) == info.bytes
        assert all(size == FULL for _, size in parts[:-1])
    loads = [sum(row["bytes"] for row in pushes if row["dst"] == server) for server in ("h2", "h3", "h4")]
    assert sum(loads) == trace.total_bytes
    assert max(loads) - min(loads) <= FULL
    assert result.summary["totals"]["bytes"] == 2 * 2 * trace.total_bytes


def test_partitions_are_assigned_to_servers_greedily_by_size():
    assert homes(make_trace([[5, 4, 3, 3, 3]])) == [0, 1, 1, 0, 1]
    # 5 | 4, 4+3 | 5+3, then the tie at 8 and 7 goes to the lighter


def homes(trace, servers=2, **exchange):
    """The server of every partition."""
    job = job_of({"kind": "parameter_server", **exchange}, 1, servers=servers, trace=trace)
    return [piece.server for piece in job.exchange.partitions]


def test_round_robin_shards_alternate_between_servers():
    trace = make_trace([[5, 4], [300, 3]])
    assert homes(trace, shards="round_robin", partition="400B") == [0, 1, 0, 1, 0, 1]


def test_split_shards_spread_large_tensors_over_all_servers():
    """Each of three servers has 100 of 300 values, in two partitions of at most 60. Small tensors are assigned round-
    robin."""
    trace = make_trace([[5, 4], [300, 3]])
    split = {"shards": "split", "split_above": "1kB", "partition": "240B"}
    assert homes(trace, 3, **split) == [0, 1, 0, 0, 1, 1, 2, 2, 2]
    job = job_of({"kind": "parameter_server", **split}, 1, servers=3, trace=trace)
    mine = [(piece.part, piece.first, piece.elements) for piece in job.exchange.partitions if piece.tensor == 2]
    assert mine == [(0, 0, 60), (1, 60, 40), (2, 100, 60), (3, 160, 40), (4, 200, 60), (5, 260, 40)]


# --- rings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_ring_takes_2_n_minus_1_steps_of_an_nth_each(workers):
    """The ring takes 2(N-1)/N S/B plus latencies; S is a multiple of N elements."""
    elements = 840 * 10
    _, iterations, messages = run(ring_job(workers), make_trace([[elements]]))
    step = h + elements * 4 // workers * BYTE + l
    assert exposed(iterations) == [2 * (workers - 1) * step] * workers
    for host in range(workers):
        sent = [row["bytes"] for row in messages if row["src"] == f"h{host}"]
        assert sum(sent) == 2 * (workers - 1) * elements * 4 // workers
    kinds = [row["kind"] for row in messages]
    assert kinds.count("reduce_scatter") == kinds.count("all_gather") == workers * (workers - 1)


def test_segments_are_padded_to_whole_elements():
    _, _, messages = run(ring_job(4), make_trace([[5]]))
    assert {row["bytes"] for row in messages} == {8}


def test_late_ring_worker_sends_all_segments_back_to_back():
    """Worker 0 of three is late and sends three segments back to back when it is ready. The times are worked out by
    hand."""
    c, q = 4000 * BYTE, h + 4000 * BYTE + l
    trace = make_trace([[3000]], iterations=3)
    job = ring_job(3, placement={"workers": ["h0", "h1", "h2"]})
    # Worker w replays captured iteration w: make number 0 the slow one.
    slow = trace.iterations[0]
    slow.forward_end_ps[:] += 50 * MS
    slow.ready_ps[:] += 50 * MS
    object.__setattr__(slow, "backward_end_ps", slow.backward_end_ps + 50 * MS)
    _, iterations, _ = run(job, trace)
    ready = iterations[0]["backward_end_ps"]
    assert ready == 52 * MS and iterations[1]["backward_end_ps"] == 2 * MS
    assert [row["end_ps"] for row in iterations] == [ready + 3 * q + c, ready + 4 * q, ready + 2 * q + 2 * c]


def test_ring_segment_visits_workers_in_ring_order():
    workers = 4
    _, _, messages = run(ring_job(workers), make_trace([[4000]]))
    for row in messages:
        sender, step = int(row["src"][1:]), row["start_ps"]
        assert row["dst"] == f"h{(sender + 1) % workers}"
        assert step >= 2 * MS
    for segment in range(workers):
        walk = sorted((row for row in messages if row["part"] == segment), key=lambda row: row["start_ps"])
        assert [int(row["src"][1:]) for row in walk] == [(segment + s) % workers for s in range(2 * workers - 2)]
        assert all(before["end_ps"] == after["start_ps"] for before, after in itertools.pairwise(walk))


def test_buckets_fill_in_gradient_order_and_start_when_full():
    """Layers have 1 MiB and buckets 2 MiB: layers 3 and 2 come first, then 1 and 0."""
    trace = make_trace([[2**18]] * 4)
    _, _, messages = run(ring_job(2, bucket="2MiB"), trace)
    firsts = {row["part"] // 2: row["start_ps"] for row in reversed(messages)}
    assert firsts == {0: 4 * MS + 2 * MS, 1: 4 * MS + 4 * MS}
    assert {row["bytes"] for row in messages} == {2**20}
    _, _, messages = run(ring_job(2, bucket="1MiB"), trace)
    assert {row["part"] // 2 for row in messages} == {0, 1, 2, 3}


def test_ring_workers_run_the_optimizer_but_parameter_server_workers_do_not():
    trace = make_trace([[1000]], optimizer=MS)
    _, iterations, _ = run(ring_job(2, iterations=2), trace)
    step = h + 2000 * BYTE + l
    assert [row["compute_ps"] for row in iterations] == [3 * MS] * 4
    assert [row["exposed_ps"] for row in iterations] == [2 * step] * 4
    _, iterations, _ = run(ps_job(2), trace)
    assert [row["compute_ps"] for row in iterations] == [2 * MS] * 2


# --- replay ---------------------------------------------------------------------------------------


def test_workers_replay_captured_iterations_in_turn():
    trace = make_trace([[100]], iterations=3, skew=10 * US)
    _, iterations, _ = run(ps_job(4, iterations=4), trace)
    for row in iterations:
        index = (row["worker"] + row["iteration"]) % 3
        assert row["forward_end_ps"] - row["start_ps"] == MS + index * 10 * US


def test_workers_replay_iterations_of_their_captured_rank():
    """Workers 0 and 1 replay the two ranks at the same iteration, workers 2 and 3 one iteration ahead. The trace has
    two ranks with three iterations each."""
    one = make_trace([[100]], iterations=6, skew=10 * US)
    ranked = [replace(iteration, rank=iteration.index // 3) for iteration in one.iterations]
    trace = Trace(one.manifest, one.layers, one.tensors, ranked, one._mean, one._max)
    _, iterations, _ = run(ps_job(4, iterations=4), trace)
    for row in iterations:
        index = 3 * (row["worker"] % 2) + (row["worker"] // 2 + row["iteration"]) % 3
        assert row["forward_end_ps"] - row["start_ps"] == MS + index * 10 * US


def test_phase_restricts_replayed_iterations():
    trace = make_trace([[100]], iterations=4, skew=10 * US, phases=("early", "late"))
    _, iterations, _ = run(ps_job(4, phase="late"), trace)
    times = [row["forward_end_ps"] - row["start_ps"] - MS for row in iterations]
    assert times == [20 * US, 30 * US, 20 * US, 30 * US]


def test_compute_scale_multiplies_compute_time_only():
    trace = make_trace([[1000]])
    _, (row,), _ = run(ps_job(1, compute_scale=0.25), trace)
    assert row["forward_end_ps"] == MS // 4 and row["compute_ps"] == MS // 2
    _, (bare,), _ = run(ps_job(1, compute_scale=0.0), trace)
    assert bare["compute_ps"] == 0
    assert bare["exposed_ps"] == row["exposed_ps"] == 2 * (h + 4000 * BYTE + l)


def test_job_starts_at_its_start_time():
    _, iterations, _ = run(ps_job(2, start="3ms"), make_trace([[10]]))
    assert [row["start_ps"] for row in iterations] == [3 * MS, 3 * MS]


def factors(iterations):
    return {(row["job"], row["worker"], row["iteration"]): row["compute_ps"] / (2 * MS) for row in iterations}


def test_jitter_depends_on_seed_job_worker_and_iteration_alone():
    trace = make_trace([[10]])
    _, small, _ = run(ps_job(2, iterations=2, jitter=0.1), trace)
    result = simulate(
        scenario(ps_job(3, iterations=5, jitter=0.1), ps_job(2, iterations=3, jitter=0.1), hosts=8),
        trace,
        fabric=Ideal(),
    )
    large = factors(rows(result.iterations))
    assert factors(small).items() <= large.items()
    assert len(set(large.values())) == len(large), "every draw is another one"
    _, other, _ = run(ps_job(2, iterations=2, jitter=0.1), trace, seed=2)
    assert not set(factors(other).values()) & set(large.values())


def test_jitter_is_log_normal_with_median_one():
    _, iterations, _ = run(ps_job(20, iterations=50, jitter=0.2), make_trace([[1]]), hosts=21)
    logs = np.log([*factors(iterations).values()])
    assert abs(logs.mean()) < 4 * 0.2 / len(logs) ** 0.5
    assert 0.18 < logs.std() < 0.22


# --- tags, priorities and loss --------------------------------------------------------------------


def test_messages_carry_priority_bound_and_important_packets():
    trace = make_trace([[3000], [3000], [3000]])
    tagging = {"layer_priority": True, "magnitude": True, "priorities": [2, 4, 5]}
    job = ps_job(2, tagging=tagging, push_bound=0.1, pull_bound=0.01)
    case = scenario(job, transport={"kind": "dlcp", "payload": "1024B"})
    ideal = Ideal()
    messages = rows(simulate(case, trace, fabric=ideal).messages)
    wanted = layer_priorities(trace, (2, 4, 5)).tolist()
    assert wanted == [2, 4, 5]
    tagger = Tagger(trace, case.job[0].tagging, case.seed)
    for row, sent in zip(messages, ideal.made.sent, strict=True):
        _, _, _, size, priority, bound, important = sent
        assert priority == row["priority"] == wanted[row["tensor"]]
        assert (size, bound) == (row["bytes"], row["bound"])
        assert row["packets"] == 12
        if row["kind"] == "push":
            assert bound == 0.1
            assert (important == tagger.important(0, row["tensor"], 0, 3000, 1024)).all()
            assert 0 < important.sum() < 12
        else:
            assert bound == 0.01 and important is True


def test_untagged_messages_have_priority_0_and_no_importance_mask():
    ideal = Ideal()
    _, _, messages = run(ps_job(2), make_trace([[3000], [10]]), fabric=ideal)
    assert {sent[6] for sent in ideal.made.sent} == {None}
    assert {row["priority"] for row in messages} == {0}


def test_ring_packet_is_important_if_any_tensor_in_the_packet_is():
    """The expected tags are counted packet by packet. Packets of 1 KiB hold 256 elements across tensors of odd
    sizes."""
    trace = make_trace([[300, 700], [1111]])
    job = ring_job(2, tagging={"magnitude": True}, push_bound=0.1)
    case = scenario(job, transport={"kind": "dlcp", "payload": "1024B"})
    ideal = Ideal()
    messages = rows(simulate(case, trace, fabric=ideal).messages)
    tagger = Tagger(trace, case.job[0].tagging, case.seed)
    element = [(tensor, n) for tensor in (2, 0, 1) for n in range(trace.tensors[tensor].numel)]
    half = -(-len(element) // 2)
    for row, sent in zip(messages, ideal.made.sent, strict=True):
        if row["kind"] == "all_gather":
            assert sent[6] is True
            continue
        segment = element[row["part"] * half : (row["part"] + 1) * half]
        for packet, bit in enumerate(sent[6]):
            carried = segment[packet * 256 : (packet + 1) * 256]
            runs = [[n for t, n in carried if t == tensor] for tensor in range(3)]
            found = [
                tagger.important(0, tensor, run[0], len(run), 1024).any() for tensor, run in enumerate(runs) if run
            ]
            assert bit == any(found)


def test_ring_bucket_has_the_priority_of_its_frontmost_layer():
    trace = make_trace([[1000]] * 4)
    job = ring_job(2, bucket="8000B", tagging={"layer_priority": True, "priorities": [1, 2, 3, 4]})
    _, _, messages = run(job, trace)
    assert {(row["part"] // 2, row["priority"]) for row in messages} == {(0, 3), (1, 1)}


def test_losses_are_recorded_per_message_and_bound_violations_reported():
    job = ps_job(2, push_bound=0.25, tagging={"magnitude": True})
    case = scenario(job, transport="dlcp")
    lose = Ideal(lossy=lambda number, size, bound: int(size * bound))
    result = simulate(case, make_trace([[1000]]), fabric=lose)
    lost = {row["kind"]: (row["received_bytes"], row["lost_bytes"]) for row in rows(result.messages)}
    assert lost == {"push": (3000, 1000), "pull": (4000, 0)}
    assert check_loss_invariant(result) == []
    assert result.summary["totals"]["lost_bytes"] == 2000
    lose = Ideal(lossy=lambda number, size, bound: int(size * bound) + 1)
    assert len(check_loss_invariant(simulate(case, make_trace([[1000]]), fabric=lose))) == 4
