"""Sharded training: parameters gathered for every pass, an update between the halves of an all-reduce, micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
from array_cases import Arrays, job_of, same
from sim_cases import MS, US, make_trace, ps_job, ring_job, scenario

from gradwire.sim.simulate import simulate

PAYLOAD = 1000
PACKET = (PAYLOAD + 58) * 80
A = 2 * US + 2 * US + PACKET
"""Of a message on a star: software latency, two cables, and the last packet once more."""
WORKERS = 4
UNIT = WORKERS * 10 * PAYLOAD
"""Bytes of a layer: ten packets for every worker."""


def steps(packets):
    """N - 1 messages of so many packets each, one after the other."""
    return (WORKERS - 1) * (A + packets * PACKET)


GATHER = steps(10)


def run(exchange, *, layers=3, forward=MS, backward=MS, optimizer=0, iterations=1, **fields):
    trace = make_trace([[UNIT // 4]] * layers, forward=forward, backward=backward, optimizer=optimizer)
    job = {"workers": WORKERS, "iterations": iterations, "exchange": exchange, **fields}
    case = scenario(
        job, hosts=WORKERS, switch={"queues": 1, "buffer": "100MB"},
        transport={"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
    )  # fmt: skip
    return simulate(case, trace)


def notes(result):
    """By iteration (start, end of forward, end of backward, end) of all workers, which are alike."""
    found = [
        [row[f"{name}_ps"] for name in ("start", "forward_end", "backward_end", "end")]
        for row in result.iterations.to_pylist()
    ]
    by_iteration = {row["iteration"]: each for row, each in zip(result.iterations.to_pylist(), found, strict=True)}
    assert all(
        by_iteration[row["iteration"]] == each for row, each in zip(result.iterations.to_pylist(), found, strict=True)
    )
    return [by_iteration[number] for number in sorted(by_iteration)]


def fsdp(**fields):
    return {"kind": "fsdp", "unit": "1KB", **fields}


# --- fully sharded ---------------------------------------------------------------------------------------------------


def test_fsdp_overlaps_communication_with_compute():
    """All gathers but the first, and all reduce-scatters but the last, overlap with compute."""
    result = run(fsdp(), optimizer=4000, iterations=2)
    once = GATHER + 6 * MS + GATHER + 1000
    assert notes(result) == [
        [begin, begin + GATHER + 3 * MS, begin + GATHER + 6 * MS, begin + once] for begin in (0, once)
    ]


@pytest.mark.parametrize(
    ("prefetch", "forward"),
    [(0, 3 * GATHER + 3 * MS), (1, GATHER + 3 * MS), (2, GATHER + 3 * MS), (9, GATHER + 3 * MS)],
)
def test_fsdp_prefetch_overlaps_gathers_with_the_forward_pass(prefetch, forward):
    result = run(fsdp(prefetch=prefetch))
    assert notes(result)[0][1] == forward


def test_fsdp_gathers_are_serialised_at_any_prefetch_depth():
    """Compute is shorter than a gather, so the forward pass ends one layer's step after the last gather."""
    for prefetch in (1, 2, 5):
        result = run(fsdp(prefetch=prefetch), forward=US)
        assert notes(result)[0][1] == 3 * GATHER + US


def test_fsdp_without_resharding_gathers_once_per_iteration():
    """The backward pass gathers nothing without resharding; the next iteration gathers the updated parameters."""
    result = run(fsdp(reshard=False), backward=US, iterations=2)
    (start, forward, backward, end), (again, *_) = notes(result)
    assert (start, forward, backward, end) == (0, GATHER + 3 * MS, GATHER + 3 * MS + 3 * US, again)
    kinds = result.messages.to_pylist()
    assert sum(row["kind"] == "all_gather" for row in kinds) == 2 * 3 * WORKERS * (WORKERS - 1)


def test_fsdp_backward_pass_waits_for_gathers():
    """The backward pass reuses the last unit and gathers earlier units again, the next one during compute."""
    result = run(fsdp(), layers=2)
    found = notes(result)[0]
    assert found[2] == GATHER + 2 * MS + 2 * MS
    slow = run(fsdp(), layers=2, backward=US)  # shares the wire with the reduce-scatter of the last unit
    least = GATHER + 2 * MS + GATHER + US
    assert least <= notes(slow)[0][2] <= least + 30 * PACKET


@pytest.mark.parametrize(("fields", "micros", "gathers", "scatters"), [
    ({}, 1, 5, 3), ({"reshard": False}, 1, 3, 3), ({}, 3, 15, 9), ({"reshard": False}, 3, 3, 9),
])  # fmt: skip
def test_fsdp_bytes_per_kind_equal_the_closed_form(fields, micros, gathers, scatters):
    """Workers gather (N - 1) times all units forward, and all but the last unit backward. Every micro-batch repeats
    the exchange; without resharding, only the reduce-scatters."""
    result = run(fsdp(**fields), accumulate=micros)
    sent = {"all_gather": 0, "reduce_scatter": 0}
    for row in result.messages.to_pylist():
        sent[row["kind"]] += row["bytes"]
    assert sent == {"all_gather": gathers * (WORKERS - 1) * UNIT, "reduce_scatter": scatters * (WORKERS - 1) * UNIT}
    made = job_of(fsdp(**fields), WORKERS, accumulate=micros)
    assert made.exchange.bytes_per_iteration == sum(Arrays(made, np.random.default_rng(1)).program.messages.nbytes)


@pytest.mark.parametrize(
    ("algorithm", "gpus"), [("ring", 1), ("ring", 2), ("all_to_all", 1), ("halving", 1), ("hierarchical", 2)]
)
def test_fsdp_gathers_and_scatters_deliver_correct_values(algorithm, gpus):
    """Gathers copy every worker's segments to all workers; reduce-scatters leave each segment's sum at one worker."""
    made = job_of({"kind": "fsdp", "unit": "4KB", "algorithm": algorithm}, 4, gpus=gpus, cards=gpus, accumulate=2)
    arrays = Arrays(made, np.random.default_rng(2)).run()
    gathers, segments = len(made.exchange.gathers.buckets), made.exchange.gathers.plan.segments
    for bucket in range(len(made.exchange.buckets)):
        own, ends = (
            [which[w, bucket].reshape(segments, -1) for w in range(4)] for which in (arrays.own, arrays.buffers)
        )
        for segment in range(segments):
            if bucket < gathers:
                assert sum(all((end[segment] == own[w][segment]).all() for end in ends) for w in range(4)) == 1
            else:
                whole = sum(each[segment] for each in own)
                assert sum((end[segment] == whole).all() for end in ends) == 1
    lossy = Arrays(made, np.random.default_rng(3), lose=0.2).run()
    assert same(lossy.buffers, lossy.predicted())


# --- in groups -------------------------------------------------------------------------------------------------------


def test_grouped_fsdp_iteration_time_equals_the_closed_form():
    """In two groups of two, a gather is one message of half a unit. A reduction adds one such message, and then both
    halves of a ring of two, with a quarter each. Every worker updates a half."""
    gather, across = A + 20 * PACKET, 2 * (A + 10 * PACKET)
    result = run(fsdp(group=2), optimizer=4000, iterations=2)
    once = gather + 6 * MS + gather + across + 2000
    assert notes(result) == [
        [begin, begin + gather + 3 * MS, begin + gather + 6 * MS, begin + once] for begin in (0, once)
    ]


@pytest.mark.parametrize(("fields", "micros", "gathers", "scatters"), [({}, 1, 5, 3), ({"reshard": False}, 3, 3, 9)])
@pytest.mark.parametrize("algorithm", ["ring", "all_to_all", "halving"])
def test_grouped_fsdp_bytes_within_and_across_groups_equal_closed_forms(algorithm, fields, micros, gathers, scatters):
    """R groups carry (N - R) times the gathered and scattered bytes inside, 2 (R - 1) times the reduced bytes
    across."""
    result = run(fsdp(group=2, algorithm=algorithm, **fields), accumulate=micros)
    inside, across = {"all_gather": 0, "reduce_scatter": 0}, {"all_gather": 0, "reduce_scatter": 0}
    for row in result.messages.to_pylist():
        ends = {int(row[end][1:]) // 2 for end in ("src", "dst")}
        (inside if len(ends) == 1 else across)[row["kind"]] += row["bytes"]
    assert inside == {"all_gather": gathers * 2 * UNIT, "reduce_scatter": scatters * 2 * UNIT}
    assert across == {"all_gather": scatters * UNIT, "reduce_scatter": scatters * UNIT}
    made = job_of(fsdp(group=2, algorithm=algorithm, **fields), WORKERS, accumulate=micros)
    assert made.exchange.bytes_per_iteration == sum(Arrays(made, np.random.default_rng(1)).program.messages.nbytes)


@pytest.mark.parametrize(("algorithm", "workers", "group", "gpus"), [
    ("ring", 6, 2, 1), ("ring", 6, 3, 1), ("ring", 8, 4, 2), ("ring", 8, 2, 4), ("ring", 6, 2, 3), ("ring", 4, 4, 1),
    ("all_to_all", 6, 3, 1), ("all_to_all", 8, 4, 2), ("halving", 8, 4, 1), ("halving", 8, 2, 2),
    ("hierarchical", 8, 4, 2), ("hierarchical", 8, 2, 2),
])  # fmt: skip
def test_grouped_fsdp_gathers_and_scatters_deliver_correct_values(algorithm, workers, group, gpus):
    """A gather gives each worker the segments of all members of its group. After a reduction, exactly one member of
    every group has the sum of all workers, and its part is the one that is gathered."""
    table = {"kind": "fsdp", "unit": "4KB", "algorithm": algorithm, "group": group}
    made = job_of(table, workers, gpus=gpus, cards=gpus, accumulate=2)
    arrays = Arrays(made, np.random.default_rng(2)).run()
    exchange, segments = made.exchange, made.exchange.gathers.plan.segments
    assert exchange.scatters.plan.segments == segments
    members = [range(first, first + group) for first in range(0, workers, group)]
    owners = []
    for bucket in range(len(exchange.buckets)):
        own, ends = (
            [which[w, bucket].reshape(segments, -1) for w in range(workers)] for which in (arrays.own, arrays.buffers)
        )
        found = []
        for segment in range(segments):
            whole = sum(each[segment] for each in own)
            for mine in members:
                if bucket < len(exchange.gathers.buckets):
                    had = [w for w in mine if all((ends[v][segment] == own[w][segment]).all() for v in mine)]
                else:
                    had = [w for w in mine if (ends[w][segment] == whole).all()]
                assert len(had) == 1
                found += had
        owners.append(found)
    assert all(each == owners[0] for each in owners)
    assert len(set(owners[0])) == workers and len(set(np.bincount(owners[0]))) == 1
    for lose in (0.0, 0.2):
        lossy = Arrays(made, np.random.default_rng(3), lose=lose).run()
        assert same(lossy.buffers, lossy.predicted())


def test_grouped_fsdp_messages_between_hosts_stay_on_their_rail():
    """Hosts have two accelerators with a card each; messages between hosts stay on the accelerator's rail."""
    made = job_of(fsdp(group=2), 4, gpus=2, cards=2)
    plan = made.exchange.scatters.plan
    assert ((plan.src // 2 == plan.dst // 2) | (plan.src % 2 == plan.dst % 2)).all()


def test_grouped_fsdp_balances_bytes_over_all_cards():
    """Each of a host's three cards sends and receives equal bytes, both within groups and across groups."""
    made = job_of(fsdp(group=2), 6, cards=3)
    rows, cards = Arrays(made, np.random.default_rng(1)).program.messages, made.exchange.context.cards
    host = np.repeat(np.arange(6), np.diff(cards.first[:7]))
    across = host[rows.src] // 2 != host[rows.dst] // 2
    assert across.any() and not across.all()
    for which in (across, ~across):
        for side in (rows.src, rows.dst):
            assert len(set(np.bincount(side[which], rows.nbytes[which], minlength=18).tolist())) == 1


def test_fsdp_unit_size_sets_the_layers_per_unit():
    made = job_of(fsdp(unit="4KB"), 2)
    assert made.exchange.units == [(0, 1), (2,)]
    assert job_of(fsdp(unit="1GB"), 2).exchange.units == [(0, 1, 2)]


def test_invalid_fsdp_settings_are_rejected():
    for fields, what in (
        ({"scheduler": "p3"}, "has nothing to order"), ({"order": "layer"}, "has nothing to order"),
        ({"workers": 3, "exchange": fsdp(algorithm="halving")}, "not a power of two"),
        ({"exchange": fsdp(algorithm="hierarchical")}, "needs hosts full of accelerators"),
        ({"exchange": fsdp(group=3)}, "does not divide 4 workers"), ({"exchange": fsdp(group=1)}, "does not divide"),
        ({"workers": 6, "exchange": fsdp(group=3, algorithm="halving")}, "makes halving work on 3"),
        ({"workers": 6, "exchange": fsdp(group=2, algorithm="halving")}, "makes halving work on 3"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            scenario({"workers": 4, "exchange": fsdp(), **fields})


# --- sharded update --------------------------------------------------------------------------------------------------


def sharded(**fields):
    return {"kind": "sharded", "bucket": "1KB", **fields}


def test_sharded_exchange_rejects_blocking_buckets_as_deadlock():
    """The first bucket ends with its gather, which starts only after the last bucket's reduction."""
    with pytest.raises(ValueError, match="would deadlock"):
        scenario({"workers": 4, "exchange": sharded(blocking=True)})


def test_sharded_optimiser_step_runs_between_scatter_and_gather():
    """A single layer takes both halves and, between them, 1/N of the optimiser time."""
    result = run(sharded(), layers=1, optimizer=8 * US)
    assert notes(result)[0][3] == 2 * MS + 2 * GATHER + 2 * US


def test_sharded_gathers_start_after_the_update():
    """The update waits for both buckets, which are then gathered concurrently at link rate."""
    result = run(sharded(), layers=2, optimizer=8 * US)
    end = 4 * MS + GATHER + 2 * US
    rows = result.messages.to_pylist()
    assert min(row["start_ps"] for row in rows if row["kind"] == "all_gather") == end
    assert max(row["end_ps"] for row in rows if row["kind"] == "reduce_scatter") == end - 2 * US


def test_layerwise_forward_starts_after_the_gather_of_the_first_layer():
    """The first layer is gathered first and alone; the forward pass starts on its arrival."""
    fields = {"order": "layer", "credit": 1}
    whole = notes(run(sharded(), iterations=2, **fields))
    layered = notes(run(sharded(forward="layerwise"), iterations=2, **fields))
    assert layered[0][3] < whole[0][3]
    assert layered[1][1] - layered[1][0] >= 3 * MS
    assert layered[1][3] < whole[1][3]


@pytest.mark.parametrize(("algorithm", "workers", "gpus"), [
    ("ring", 5, 1), ("ring", 6, 3), ("all_to_all", 4, 1), ("halving", 8, 1), ("hierarchical", 6, 2),
])  # fmt: skip
def test_sharded_exchange_gives_every_worker_the_sum(algorithm, workers, gpus):
    made = job_of({"kind": "sharded", "bucket": "8KB", "algorithm": algorithm}, workers, gpus=gpus, cards=gpus)
    for seed in range(2):
        arrays = Arrays(made, np.random.default_rng(seed)).run()
        assert same(arrays.buffers, arrays.sums())
        lossy = Arrays(made, np.random.default_rng(seed), lose=0.2).run()
        assert same(lossy.buffers, lossy.predicted())


def test_packet_loss_affects_every_worker_in_ring_and_sharded_exchange():
    """The update between the halves does not change the effect of a loss."""
    lost = []
    for kind in ("ring", "sharded"):
        made = job_of({"kind": kind, "bucket": "1MB"}, 4)
        arrays = Arrays(made, np.random.default_rng(5), lose=0.1).run()
        lost.append(sum(int((arrays.buffers[key] != value).sum()) > 0 for key, value in arrays.sums().items()))
    assert lost[0] == lost[1] == 4


# --- gradient accumulation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [ring_job(2), ps_job(2)])
def test_only_the_last_micro_batch_sends_messages(job):
    """k - 1 passes only compute; the last pass sends the messages of one micro-batch, later."""
    trace = make_trace([[1000], [3000]], iterations=6, skew=US)
    found = [simulate(scenario({**job, "accumulate": micros}), trace) for micros in (1, 3)]
    one, three = (sorted((row["kind"], row["bytes"]) for row in each.messages.to_pylist()) for each in found)
    assert one == three
    compute = [each.iterations["compute_ps"].to_pylist() for each in found]
    # captured iteration i is longer by i US; worker w begins with its own
    assert compute == [[4 * MS, 4 * MS + US], [12 * MS + 3 * US, 12 * MS + 6 * US]]
    starts = [min(row["start_ps"] for row in each.messages.to_pylist()) for each in found]
    assert starts[1] - starts[0] == 8 * MS + US + 2 * US


def test_accumulation_replays_gradients_of_the_last_micro_batch():
    trace = make_trace([[1000], [3000]], iterations=6)
    made = job_of({"kind": "ring"}, 2, trace=trace, accumulate=3)
    assert [made.replay.captured(0, iteration) for iteration in range(2)] == [2, 5]
    assert [made.replay.captured(0, 1, micro) for micro in range(3)] == [3, 4, 5]
    assert made.replay.captured(1, 0) == 3
