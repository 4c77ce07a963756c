"""Collectives as schedules: real arrays through their programs, bytes, and what losses cost on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from array_cases import Arrays, job_of, same

from gradwire.workload.collectives.allreduce.double_tree import parents_of_workers, second_parents, tree_depths
from gradwire.workload.collectives.common.transfer_schedule import TransferRows, dependencies_of, mean_hops, transfers

BUCKET = {"bucket": "8KB"}
CASES = [
    ("ring", 2, {}), ("ring", 5, {}), ("ring", 3, {"channels": 2}),
    *(("halving_doubling", n, {}) for n in (2, 3, 4, 6, 7, 8)),
    ("transpose", 2, {}), ("transpose", 5, {}),
    *(("tree", n, {}) for n in (2, 5, 8)),
    *(("double_tree", n, {"chunks": 3}) for n in (2, 3, 6, 7, 9)),
    ("hierarchical", 4, {"group": 2}), ("hierarchical", 6, {"group": 2}), ("hierarchical", 6, {"group": 3}),
    *(("hierarchical", n, {"group": g, "across": "halving"}) for n, g in ((4, 2), (6, 3), (8, 2), (24, 3))),
]  # fmt: skip


HALVES = [
    (kind, workers, algorithm)
    for kind in ("reduce_scatter", "all_gather")
    for algorithm, workers in (("ring", 5), ("all_to_all", 4), ("halving", 8))
]


def job(kind, workers, fields, **more):
    return job_of({"kind": kind, **BUCKET, **fields}, workers, **more)


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_all_reduce_gives_every_worker_the_sum_in_any_event_order(kind, workers, fields):
    made = job(kind, workers, fields)
    assert len(made.exchange.buckets) > 1
    for seed in range(3):
        arrays = Arrays(made, np.random.default_rng(seed)).run()
        assert same(arrays.buffers, arrays.sums())


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_lost_elements_are_missing_from_the_predicted_sums(kind, workers, fields):
    made = job(kind, workers, fields)
    for seed in range(2):
        arrays = Arrays(made, np.random.default_rng(seed), lose=0.2).run()
        assert same(arrays.buffers, arrays.predicted())
        assert not same(arrays.buffers, arrays.sums())


@pytest.mark.parametrize(("kind", "workers", "algorithm"), HALVES)
def test_reduce_scatter_and_all_gather_assign_each_segment_one_owner(kind, workers, algorithm):
    """Reduce-scatter leaves each segment's sum at one worker; all-gather copies one worker's segment to all. Each
    worker owns an N-th."""
    made = job(kind, workers, {"algorithm": algorithm})
    arrays = Arrays(made, np.random.default_rng(1)).run()
    assert sum(arrays.program.messages.nbytes) == made.exchange.bytes_per_iteration
    for bucket, one in enumerate(made.exchange.buckets):
        size = one.segment_elements
        own, ends = (
            [which[w, bucket].reshape(workers, size) for w in range(workers)] for which in (arrays.own, arrays.buffers)
        )
        owners = []
        for segment in range(workers):
            values = [each[segment] for each in own]
            if kind == "reduce_scatter":
                owners += [w for w in range(workers) if (ends[w][segment] == sum(values)).all()]
            else:
                (owner,) = [w for w in range(workers) if all((each[segment] == values[w]).all() for each in ends)]
                owners.append(owner)
        assert sorted(owners) == list(range(workers))
    lossy = Arrays(made, np.random.default_rng(2), lose=0.2).run()
    assert same(lossy.buffers, lossy.predicted())


@pytest.mark.parametrize("workers", [2, 5, 8])
def test_broadcast_copies_buffers_of_rank_0_to_all_workers(workers):
    arrays = Arrays(job("broadcast", workers, {}), np.random.default_rng(1)).run()
    assert all((value == arrays.own[0, bucket]).all() for (_, bucket), value in arrays.buffers.items())


@pytest.mark.parametrize("kind", ["ring", "halving_doubling", "transpose", "double_tree"])
def test_collective_uses_every_card_of_a_host(kind):
    made = job(kind, 4, {}, cards=2)
    arrays = Arrays(made, np.random.default_rng(1)).run()
    assert same(arrays.buffers, arrays.sums())
    rows = arrays.program.messages
    assert len(set(rows.src.tolist())) == 8
    by_node = np.bincount(rows.src, weights=rows.nbytes)
    assert len(set(by_node[by_node > 0].tolist())) == 1 or kind == "double_tree"


def most(kind, n, fields):
    """Bytes that all workers send of a bucket of S bytes, over S."""
    if kind == "halving_doubling":
        power = 1 << (n.bit_length() - 1)
        return 2 * (power - 1) + 2 * (n - power)
    if kind == "hierarchical":
        g = fields["group"]
        return n * (2 * (g - 1) / g + 2 * (n / g - 1) / n)
    return 2 * (n - 1)


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_collective_sends_the_expected_total_bytes(kind, workers, fields):
    made = job(kind, workers, fields)
    sent = Arrays(made, np.random.default_rng(1)).program.messages.nbytes.sum()
    exchange = made.exchange
    padded = sum(4 * bucket.segment_elements * exchange.plan.segments for bucket in exchange.buckets)
    assert sent == exchange.bytes_per_iteration == round(padded * most(kind, workers, fields))
    assert padded - made.trace.total_bytes < 4 * exchange.plan.segments * len(exchange.buckets)
    assert exchange.unit_bytes == max(Arrays(made, np.random.default_rng(1)).program.messages.nbytes)


# --- what follows from what ------------------------------------------------------------------------------------------


def test_transfer_dependencies_match_a_hand_worked_plan():
    """Worker 0 adds to 1, 1 to 2; 2 returns the sum to 0, which forwards it to 1."""
    plan = transfers(
        [
            TransferRows(0, 0, 1, 0, 1, True),
            TransferRows(1, 1, 2, 0, 1, True),
            TransferRows(2, 2, 0, 0, 1, False),
            TransferRows(3, 0, 1, 0, 1, False),
        ],
        1,
    )
    found = dependencies_of(plan)
    assert found.own.tolist() == [True, True, True, False]
    assert [found.needs[a:b].tolist() for a, b in zip(found.begins, found.begins[1:], strict=False)] == [
        [],
        [0],
        [1],
        [2],
    ]
    forth, back = mean_hops(plan, 3)
    assert forth == (1 + 2) / 3 and back == (1 + 2) / 3


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_dependencies_are_equal_for_any_minimum_piece_length(monkeypatch, kind, workers, fields):
    plan = job(kind, workers, fields).exchange.plan
    found = []
    for long in (0, 10**9):
        monkeypatch.setattr("gradwire.workload.collectives.common.transfer_schedule.MIN_PIECE_LENGTH", long)
        found.append(dependencies_of(plan))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_segment_runs_depend_on_overlapping_transfers():
    plan = transfers(
        [
            TransferRows(0, 0, 1, 0, 2, True),
            TransferRows(0, 2, 1, 2, 2, True),
            TransferRows(1, 1, 0, 1, 2, True),
            TransferRows(1, 1, 2, 3, 1, True),
        ],
        4,
    )
    found = dependencies_of(plan)
    needs = [found.needs[a:b].tolist() for a, b in zip(found.begins, found.begins[1:], strict=False)]
    assert needs == [[], [], [0, 1], [1]]


def test_transfers_of_the_same_sum_to_many_workers_share_dependencies():
    found = job("transpose", 5, {}).exchange._links
    assert len(found.lead) == 5 * 4 + 5, "segments of one's own to each, and one sum to all"


@pytest.mark.parametrize("workers", range(2, 40))
def test_double_tree_has_shallow_binary_trees_sharing_at_most_one_inner_worker(workers):
    first = parents_of_workers(workers)
    second = second_parents(first)
    for tree in (first, second):
        assert tree.count(-1) == 1
        assert max(tree_depths(tree)) <= math.ceil(math.log2(workers)) + 1
        assert max(tree.count(rank) for rank in range(workers)) <= 2
    inside = [set(tree) - {-1} for tree in (first, second)]
    assert len(inside[0] & inside[1]) <= 1


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_ring_mean_hops_are_half_of_workers_minus_one(workers):
    plan = job("ring", workers, {}).exchange.plan
    assert mean_hops(plan, workers) == ((workers - 1) / 2, (workers - 1) / 2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_halving_doubling_mean_hops_are_half_of_log2_workers(depth):
    workers = 1 << depth
    assert mean_hops(job("halving_doubling", workers, {}).exchange.plan, workers) == (depth / 2, depth / 2)


def test_transpose_sends_all_values_once_except_the_own_segment():
    assert mean_hops(job("transpose", 5, {}).exchange.plan, 5) == (4 / 5, 4 / 5)


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_exchange_loss_stays_within_budget_in_the_worst_case(kind, workers, fields):
    """Every message loses all that its bound allows, at its end, where a loss costs most."""
    made = job(kind, workers, fields, push_bound=0.3, bound_per="exchange")
    arrays = Arrays(made, np.random.default_rng(3))
    rows = arrays.program.messages
    for message, count in enumerate(arrays.count):
        if not arrays.replaces[message]:
            arrays.masks[message] = np.arange(count) >= int(rows.bound[message] * count)
    for value in arrays.own.values():
        value[:] = 1
    arrays.buffers = {key: value.copy() for key, value in arrays.own.items()}
    arrays.run()
    share = np.mean([1 - value.mean() / workers for value in arrays.buffers.values()])
    assert 0.03 < share <= 0.3 + 1e-9
    assert (rows.bound[rows.kind == 3] == 0).all()


def test_constant_message_columns_take_no_memory():
    """No column is a view of a larger array, which would stay in memory with it."""
    (step,) = job("transpose", 5, {}, iterations=1).part.steps()
    rows = step.messages
    columns = {name: value for name, value in vars(rows).items() if isinstance(value, np.ndarray)}
    alike = {name for name, column in columns.items() if (column == column[0]).all()}
    assert {"table", "iteration", "tensor", "pool"} <= alike and len(rows) > 40
    assert {name for name, column in columns.items() if column.strides == (0,)} >= alike - {"kind", "turn"}
    for name, column in columns.items():
        assert len(column) == len(rows)
        held = column if column.base is None else column.base
        assert held.size in (1, len(rows)), name
