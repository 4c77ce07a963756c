"""Collectives as schedules: real arrays through their programs, bytes, and what losses cost on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from array_cases import Arrays, job_of, same

from gradwire.workload.collectives.allreduce.double_tree import _depths, _second, parents_of_workers
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
def test_every_worker_has_the_sum_in_any_order(kind, workers, fields):
    made = job(kind, workers, fields)
    assert len(made.exchange.buckets) > 1
    for seed in range(3):
        arrays = Arrays(made, np.random.default_rng(seed)).run()
        assert same(arrays.buffers, arrays.sums())


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_what_is_lost_is_missing_where_it_should_be(kind, workers, fields):
    made = job(kind, workers, fields)
    for seed in range(2):
        arrays = Arrays(made, np.random.default_rng(seed), lose=0.2).run()
        assert same(arrays.buffers, arrays.predicted())
        assert not same(arrays.buffers, arrays.sums())


@pytest.mark.parametrize(("kind", "workers", "algorithm"), HALVES)
def test_halves_of_all_reduces(kind, workers, algorithm):
    """Every segment is a sum at one worker, or everywhere what one worker had of its own; each has an N-th."""
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
def test_broadcast(workers):
    arrays = Arrays(job("broadcast", workers, {}), np.random.default_rng(1)).run()
    assert all((value == arrays.own[0, bucket]).all() for (_, bucket), value in arrays.buffers.items())


@pytest.mark.parametrize("kind", ["ring", "halving_doubling", "transpose", "double_tree"])
def test_with_several_cards_each_has_a_share(kind):
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
def test_bytes(kind, workers, fields):
    made = job(kind, workers, fields)
    sent = Arrays(made, np.random.default_rng(1)).program.messages.nbytes.sum()
    exchange = made.exchange
    padded = sum(4 * bucket.segment_elements * exchange.plan.segments for bucket in exchange.buckets)
    assert sent == exchange.bytes_per_iteration == round(padded * most(kind, workers, fields))
    assert padded - made.trace.total_bytes < 4 * exchange.plan.segments * len(exchange.buckets)
    assert exchange.unit_bytes == max(Arrays(made, np.random.default_rng(1)).program.messages.nbytes)


# --- what follows from what ------------------------------------------------------------------------------------------


def test_by_hand():
    """0 adds to 1 what 1 adds to 2, who sends it back to 0; 0 passes it on to 1."""
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
def test_segments_that_go_together_may_be_taken_together(monkeypatch, kind, workers, fields):
    plan = job(kind, workers, fields).exchange.plan
    found = []
    for long in (0, 10**9):
        monkeypatch.setattr("gradwire.workload.collectives.common.transfer_schedule.MIN_PIECE_LENGTH", long)
        found.append(dependencies_of(plan))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_runs_of_segments_wait_for_what_they_overlap():
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


def test_who_sends_the_same_to_many_waits_once():
    found = job("transpose", 5, {}).exchange._links
    assert len(found.lead) == 5 * 4 + 5, "segments of one's own to each, and one sum to all"


@pytest.mark.parametrize("workers", range(2, 40))
def test_trees_are_trees_and_few_are_inside_of_both(workers):
    first = parents_of_workers(workers)
    second = _second(first)
    for tree in (first, second):
        assert tree.count(-1) == 1
        assert max(_depths(tree)) <= math.ceil(math.log2(workers)) + 1
        assert max(tree.count(rank) for rank in range(workers)) <= 2
    inside = [set(tree) - {-1} for tree in (first, second)]
    assert len(inside[0] & inside[1]) <= 1


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_in_a_ring_a_budget_is_divided_as_the_notes_say(workers):
    plan = job("ring", workers, {}).exchange.plan
    assert mean_hops(plan, workers) == ((workers - 1) / 2, (workers - 1) / 2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_by_halving_values_are_sent_in_every_other_step_on_average(depth):
    workers = 1 << depth
    assert mean_hops(job("halving_doubling", workers, {}).exchange.plan, workers) == (depth / 2, depth / 2)


def test_by_two_all_to_alls_all_but_a_worker_s_own_values_are_sent_once():
    assert mean_hops(job("transpose", 5, {}).exchange.plan, 5) == (4 / 5, 4 / 5)


@pytest.mark.parametrize(("kind", "workers", "fields"), CASES)
def test_a_budget_for_the_exchange_is_kept_whatever_is_lost(kind, workers, fields):
    """Every message loses as much as it may, where it costs as much as it can: at its end."""
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


def test_a_column_of_one_number_takes_no_memory():
    """And none is a view of something larger, which would be kept with it."""
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
