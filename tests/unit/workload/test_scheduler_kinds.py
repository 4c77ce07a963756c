"""Schedulers: what each decides, worked out by hand, and that what is said twice is refused."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from array_cases import Arrays, job_of, same
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows, scenario

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from gradwire.workload.schedulers.tictac import tac_order

h, l, BYTE = 2 * US, US, 80  # software latency, network latency, picoseconds a byte at 100 Gbps  # noqa: E741

LAYERS = make_trace([[250_000]] * 3, iterations=2, backward=MS // 10, forward=MS // 10)
"""Three layers of 1 MB, 80 us on the wire; 100 us forward, 100 us backward each."""
SIZE = 1_000_000


def run(job, trace=LAYERS, **ideal):
    result = simulate(scenario(job), trace, fabric=Ideal(**ideal))
    return rows(result.iterations), rows(result.messages)


def spans(job, trace=LAYERS):
    """When the first iteration begins and ends, at the first worker."""
    first = next(row for row in run(job, trace)[0] if row["iteration"] == 0 and row["worker"] == 0)
    return first["end_ps"] - first["start_ps"], first


def test_barrier_scheduler_exposes_all_communication():
    """One iteration takes 300 us forward, 300 us backward, three serial pushes of 80 us and one pull."""
    one, _ = spans(ps_job(1, scheduler="barrier"))
    assert one == 6 * MS // 10 + (h + 3 * SIZE * BYTE + l) + (h + SIZE * BYTE + l)


def test_fifo_hides_all_pushes_but_the_front_layer_behind_backward():
    """A push takes less than a layer's backward pass, so only the front layer's push is exposed."""
    one, _ = spans(ps_job(1, scheduler="fifo"))
    assert one == 6 * MS // 10 + 2 * (h + SIZE * BYTE + l)


def test_p3_front_layer_waits_only_for_slices_within_the_credit():
    """The back layer has 25 MB in 16 slices, 2 ms on the wire. The front layer, ready 0.1 ms later, waits for the four
    slices of the credit; with FIFO, it waits for all 16. On the way back it is alone, because no slice is complete
    before it."""
    trace = make_trace([[250], [25_000_000 // 4]], backward=MS // 10)
    part, ready = 1_562_500 * BYTE, 2 * MS + MS // 10 * 2
    p3 = ps_job(1, scheduler={"kind": "p3", "slice": "1562500B"})
    ends = {}
    for name, job in (("p3", p3), ("fifo", ps_job(1, scheduler="fifo", exchange={"partition": "1562500B"}))):
        ends[name] = next(row["end_ps"] for row in run(job, trace)[1] if row["kind"] == "push" and row["tensor"] == 0)
    begun = ready - MS // 10
    assert ends["fifo"] == begun + h + 16 * part + 1000 * BYTE + l
    assert ends["p3"] == begun + h + 4 * part + 1000 * BYTE + l


def test_p3_exposes_less_communication_than_fifo_and_fifo_than_barrier():
    """An earlier start of the forward pass reduces the exposed communication."""
    trace = make_trace([[2500], [2500], [2_500_000]], iterations=2, backward=MS // 10, forward=MS // 10)
    job = ps_job(1, iterations=2)
    waits = {kind: run({**job, "scheduler": kind}, trace)[0][0]["exposed_ps"] for kind in ("barrier", "fifo", "p3")}
    assert waits["p3"] < waits["fifo"] < waits["barrier"]
    assert waits["barrier"] - waits["fifo"] == 2 * MS // 10, "what was hidden behind the backward pass of two layers"


def same_messages(one, other, trace=LAYERS):
    found = [run(job, trace) for job in (one, other)]
    assert found[0] == found[1]


def test_p3_equals_layer_order_with_credit_partitions_and_layerwise_pull():
    """P3 combines the keys `order`, `credit`, `partition` and `pull`."""
    keys = ps_job(2, iterations=2, order="layer", credit=4, exchange={"partition": "200kB", "pull": "layerwise"})
    same_messages(ps_job(2, iterations=2, scheduler="p3"), keys)


def test_bytescheduler_equals_layer_order_with_partitions_and_credit():
    table = {"kind": "bytescheduler", "partition": "100kB", "credit": "300kB"}
    keys = ps_job(2, iterations=2, order="layer", credit=3, exchange={"partition": "100kB"})
    same_messages(ps_job(2, iterations=2, scheduler=table), keys)


def test_fifo_equals_an_unscheduled_job_with_barrier_pull():
    same_messages(ps_job(2, iterations=2, scheduler="fifo"), ps_job(2, iterations=2, exchange={"pull": "barrier"}))
    same_messages(ring_job(3, iterations=2, scheduler="fifo"), ring_job(3, iterations=2))


def test_bytescheduler_defaults_match_the_published_code():
    trace = make_trace([[3_000_000], [12_000_000]])
    served = job_of({"kind": "parameter_server"}, 1, servers=1, scheduler="bytescheduler", trace=trace)
    assert [each.bytes for each in served.exchange.partitions] == [4_000_000] * 3 + [4_000_000] * 12
    assert served.part.table.credit == 16_000_000
    ring = job_of({"kind": "ring"}, 2, scheduler="bytescheduler", trace=trace)
    assert sorted(bucket.slice[1] for bucket in ring.exchange.buckets) == [3_000_000, 4_000_000, 8_000_000]
    assert ring.part.table.credit == 64_000_000


# --- DDP -------------------------------------------------------------------------------------------------------------


def buckets(trace, **table):
    job = job_of({"kind": "ring"}, 2, scheduler={"kind": "ddp", **table}, trace=trace, iterations=2)
    return [[bucket.tensors for bucket in layout] for layout in job.exchange._layouts]


def test_ddp_first_bucket_closes_at_1_mib_and_later_buckets_at_25_mib():
    """Buckets fill in reverse model order: 0.8 + 0.4 MB, then 20 + 8 MB, then the rest."""
    trace = make_trace([[500_000], [2_000_000], [5_000_000], [100_000], [200_000]])
    assert buckets(trace)[0] == [(4, 3), (2, 1), (0,)]
    assert buckets(trace, bucket="1MB")[0] == [(4, 3), (2,), (1,), (0,)]


def test_ddp_rebuilds_buckets_in_gradient_ready_order():
    trace = make_trace([[500_000], [500_000], [500_000]])
    iteration = trace.iterations[0]
    iteration.ready_ps[:] = iteration.ready_ps[[1, 2, 0]]  # the middle layer first, then the front one
    assert buckets(trace) == [[(2,), (1, 0)], [(1,), (0, 2)]]
    assert buckets(trace, rebuild=False) == [[(2,), (1, 0)]]


def test_ddp_uses_rebuilt_buckets_from_the_second_iteration():
    trace = make_trace([[2000], [3000], [500]])
    trace.iterations[0].ready_ps[:] = trace.iterations[0].ready_ps[[1, 2, 0]]
    _, sent = run(ring_job(2, iterations=3, scheduler={"kind": "ddp", "bucket": "1kB"}), trace)
    mine = [row for row in sent if row["src"] == "h0" and row["kind"] == "reduce_scatter"]
    sizes = [[row["bytes"] for row in mine if row["iteration"] == n] for n in range(3)]
    assert sizes == [[1000, 6000, 4000], [6000, 4000, 1000], [6000, 4000, 1000]]


@pytest.mark.parametrize("scheduler", [{"kind": "ddp", "bucket": "8kB"}, {"kind": "p3", "slice": "1kB"}, "barrier"])
def test_every_worker_receives_the_gradient_sum_under_each_scheduler(scheduler):
    made = job_of({"kind": "ring"}, 3, scheduler=scheduler, iterations=2 if "ddp" in str(scheduler) else 1)
    for seed in range(2):
        arrays = Arrays(made, np.random.default_rng(seed)).run()
        assert same(arrays.buffers, arrays.sums())


# --- TicTac ----------------------------------------------------------------------------------------------------------


def test_tac_order_sends_the_prerequisite_of_both_operations_first():
    """For any transfer times, the transfer that both operations need precedes the transfer that only one needs."""
    for times in ([1, 9], [9, 1]):
        assert tac_order(times, {"one": (1.0, [0]), "two": (1.0, [0, 1])}) == [0, 1]
        assert tac_order(times, {"one": (1.0, [1]), "two": (1.0, [0, 1])}) == [1, 0]


def test_tac_order_sends_the_operation_with_shorter_transfers_first():
    """Transfers 1 and 2 enable an operation after time 3, transfers 0 and 3 only after time 9."""
    assert tac_order([4, 1, 2, 5], {"long": (1.0, [0, 3]), "short": (1.0, [1, 2])})[:2] == [1, 2]


def makespan(order, times, lengths):
    """Until all is computed, one piece for each transfer, one after the other as they arrive."""
    arrived = done = 0.0
    for each in order:
        arrived += times[each]
        done = max(done, arrived) + lengths[each]
    return done


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=2, max_size=5))
def test_tac_order_of_independent_operations_minimises_the_makespan(pieces):
    """One operation per transfer is a two-machine flow shop, which Johnson's rule solves optimally."""
    times, lengths = zip(*pieces, strict=True)
    found = tac_order(times, {n: (length, [n]) for n, length in enumerate(lengths)})
    best = min(makespan(order, times, lengths) for order in permutations(range(len(times))))
    assert makespan(found, times, lengths) == best


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8))
def test_tac_order_of_a_layer_chain_is_the_layer_order(pieces):
    times, lengths = zip(*pieces, strict=True)
    chain = {n: (length, range(n + 1)) for n, length in enumerate(lengths)}
    assert tac_order(times, chain) == list(range(len(times)))


def test_tictac_reorders_server_pulls_but_not_worker_pushes():
    """Five layers of 8 us on the wire become ready at once, back layer first. A sum is complete every 8 us and takes
    32 us to send to four workers. To the first worker, the sums of two layers are under way at once; the third has
    room when it is ready, 16 us later; the last two wait until the first two have arrived, and change places."""
    trace = make_trace([[25_000]] * 5)
    for scheduler, wanted in (("tictac", [4, 3, 2, 0, 1]), ("fifo", [4, 3, 2, 1, 0])):
        _, sent = run(ps_job(4, compute_scale=0.0, scheduler=scheduler), trace)
        sent.sort(key=lambda row: row["end_ps"])
        assert [row["tensor"] for row in sent if row["kind"] == "pull" and row["dst"] == "h0"] == wanted
        assert [row["tensor"] for row in sent if row["kind"] == "push" and row["src"] == "h0"] == [4, 3, 2, 1, 0]


# --- layer by layer --------------------------------------------------------------------------------------------------


def test_layerwise_forward_runs_the_optimiser_share_of_each_layer():
    """A layer's share is proportional to its bytes and runs before its forward step. After the last iteration, the
    whole update runs at once."""
    trace = make_trace([[100], [300], [600]], iterations=1, optimizer=1_000_000)
    whole = run(ring_job(2, iterations=3), trace)[0]
    apart = run({**ring_job(2, iterations=3), "exchange": {"kind": "ring", "forward": "layerwise"}}, trace)[0]
    assert sum(row["compute_ps"] for row in whole) == sum(row["compute_ps"] for row in apart)
    job = job_of({"kind": "ring", "forward": "layerwise"}, 2, iterations=2, trace=trace)
    courses = [step.courses[0].operations.tolist() for step in job.part.steps()]
    forward = [value for operation, value, _ in courses[1] if operation == 0][:6]
    assert forward == [100_000, MS, 300_000, MS, 600_000, MS]


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (ps_job(1, scheduler="p3", order="layer"), "order: is set by the scheduler p3"),
        (ps_job(1, scheduler="p3", credit=2), "credit: is set by the scheduler p3"),
        (ps_job(1, scheduler="p3", exchange={"partition": "8kB"}), "exchange.partition: is set by the scheduler p3"),
        (ring_job(2, scheduler="ddp", bucket="1MB"), r'exchange.bucket: is set by the scheduler ddp \(got "1MB"\)'),
        (ps_job(1, scheduler="p3", exchange={"pull": "barrier"}), "exchange.pull: differs from the forward wait"),
        ({"workers": 2, "exchange": {"kind": "ring", "forward": "layerwise"}, "scheduler": "ddp"}, "exchange.forward: differs from"),
        (ps_job(1, scheduler="ddp"), "has no buckets to fill with parameter_server"),
        (ring_job(2, scheduler="tictac"), "orders the messages of servers, and there are none"),
        (ring_job(2, scheduler="fastest"), "'barrier'"),
        ({"workers": 6, "exchange": {"kind": "hierarchical", "group": 4}}, "does not divide 6 workers into groups"),
        ({"workers": 6, "exchange": {"kind": "hierarchical"}}, "group: is absent, and 6 workers on hosts of 1 accelerator make no groups; exp"),
        ({"workers": 1, "exchange": {"kind": "tree"}}, "is too small for tree"),
        ({"workers": 2, "servers": 1, "exchange": {"kind": "transpose"}}, "is not used by transpose"),
    ],
)  # fmt: skip
def test_conflicting_scheduler_and_exchange_settings_are_rejected(job, says):
    with pytest.raises((ScenarioError, ValidationError), match=says):
        scenario(job)


@pytest.mark.parametrize(
    ("exchange", "scheduler", "says"),
    [
        ({"kind": "fsdp"}, "ddp", "has nothing to order: units are sent when they are needed"),
        ({"kind": "overlapped", "batch": 8}, "ddp", "would reorder operations; the communication thread of overlapped"),
        (
            {"kind": "overlapped", "batch": 8},
            "tictac",
            "would reorder operations; the communication thread of overlapped",
        ),
        ({"kind": "graph"}, "ddp", "would order gradients, and graph plays the graphs as they are"),
        ({"kind": "in_network", "partition": "8kB"}, "ddp", "has no buckets to fill with in_network"),
        ({"kind": "ring", "forward": "layerwise"}, "tictac", "orders the messages of servers, and there are none"),
    ],
)
def test_scheduler_unsupported_by_the_exchange_gives_one_mistake(exchange, scheduler, says):
    """The scheduler's own checks and its conflicts with other keys add no further mistakes."""
    job = {"name": "job", "trace": "case", "workers": 2, "exchange": exchange, "scheduler": scheduler}
    if exchange["kind"] in ("ring", "in_network"):
        job["credit"] = 2
    with pytest.raises(ScenarioError) as caught:
        build_scenario({"name": "case", "topology": {"kind": "star", "hosts": 2}, "job": [job]})
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.value) == ("job[0].scheduler", scheduler)
    assert mistake.what.startswith(says)


def test_p3_speedup_grows_with_the_communication_share():
    """Eight layers of 1 MB take 80 us each to send; the compute scale falls from 1000 to 1."""
    trace = make_trace([[250_000]] * 8, iterations=4, backward=80 * US, forward=80 * US)
    gains = []
    for scale in (1000.0, 100.0, 10.0, 3.0, 1.0):
        taken = {}
        for scheduler in ("fifo", "p3"):
            found, _ = run(ps_job(2, 2, scheduler=scheduler, iterations=4, compute_scale=scale), trace)
            taken[scheduler] = max(row["end_ps"] for row in found)
        gains.append(taken["fifo"] / taken["p3"] - 1)
    assert gains == sorted(gains)
    assert 0 <= gains[0] < 0.001
    assert gains[-1] > 0.05
