"""Models split over workers: who talks with whom, how long passes stand still for it, and what gradients become there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_cases import Arrays
from formats_cases import SHARED
from sim_cases import MS, US, make_trace, rows, scenario

from gradwire.analysis.breakdown import PARTS, breakdown
from gradwire.analysis.lost_values import lost_values
from gradwire.analysis.tensors import tensors as tensor_table
from gradwire.components.transports.dctcp import Dctcp
from gradwire.experiment.collectives.groups import Groups
from gradwire.experiment.needs import find_needs
from gradwire.experiment.resolve import jobs_of
from gradwire.experiment.stepwise import played_scenario
from gradwire.experiment.topology import LinkSpec, star
from gradwire.experiment.written import written_out
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.result import KINDS
from gradwire.scenarios.soundness import check_loss_invariant
from gradwire.sim.coupling import Coupling
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, Letter, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.cases import FOREVER, fabric_of
from gradwire.testing.scenario import Plain
from gradwire.traces.formats import import_trace
from gradwire.traces.parts import Communication
from gradwire.traces.trace import Iteration, TensorInfo, Trace

PAYLOAD = 1000
PACKET = (PAYLOAD + 58) * 80
A = 2 * US + 2 * US + PACKET
"""Of a message on a star: software latency, two cables, and the last packet once more."""
QUIET: dict[str, Any] = {
    "switch": {"queues": 1, "buffer": "100MB"},
    "transport": {"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
}


def split(base: Trace, calls: list[tuple[int, str, str, str, int]], parallel: dict[str, int], experts=()) -> Trace:
    """A trace of `make_trace` whose passes wait for calls, (layer, pass, kind, dimension, bytes): forward at the end of
    the layer's step, backward in the middle of it. `experts`: layers whose gradients are of experts."""
    named = [Communication(f"call{n}", layer, *rest) for n, (layer, *rest) in enumerate(calls)]
    captured = []
    for each in base.iterations:
        ready = {info.layer: int(each.ready_ps[n]) for n, info in enumerate(base.tensors)}
        begin = [*(ready[layer] for layer in range(1, len(base.layers))), int(each.forward_end_ps[-1])]
        asked = [
            int(each.forward_end_ps[call.layer]) if call.turn == "forward" else (begin[call.layer] + ready[call.layer]) // 2
            for call in named
        ]
        captured.append(Iteration(**{**vars(each), "asked_ps": np.array(asked, dtype=np.int64)}))
    tensors = [
        TensorInfo(**{**vars(info), "group": "expert_data" if info.layer in experts else "data"}) for info in base.tensors
    ]
    said = {**base.manifest, "split": parallel}
    return Trace(said, base.layers, tensors, captured, base._mean, base._max, communications=named)


def both_ways(layer: int, kind: str, dimension: str, nbytes: int) -> list[tuple[int, str, str, str, int]]:
    return [(layer, turn, kind, dimension, nbytes) for turn in ("forward", "backward")]


def run(trace: Trace, workers: int, *, exchange: Any = None, parallel: Any = None, network: Any = None, **fields: Any) -> Any:
    exchange = {"kind": "ring", "bucket": "1GB"} if exchange is None else exchange
    job = {"workers": workers, "exchange": exchange, "parallel": parallel or {}, **fields}
    return simulate(scenario(job, hosts=workers, **(network or QUIET)), trace)


def made(trace: Trace, workers: int, *, exchange: Any = None, gpus: int = 1, parallel: Any = None, payload: str = "400B", **fields: Any) -> Any:
    """The only job of a scenario, resolved."""
    table = {"workers": workers, "exchange": exchange or {"kind": "ring"}, "parallel": parallel or {}, **fields}
    topology = {"kind": "rail", "hosts": workers // gpus, "cards": gpus, "spines": 1} if gpus > 1 else {"kind": "star", "hosts": workers}
    case = scenario(table, topology=topology, host={"gpus": gpus}, transport={"kind": "dlcp", "payload": payload})
    (job,) = jobs_of(case, find_needs(case, trace))
    return job


def steps(*packets: int) -> int:
    """So many messages, one after the other."""
    return sum(A + each * PACKET for each in packets)


# --- groups ----------------------------------------------------------------------------------------------------------


def test_who_is_with_whom():
    """Twelve workers, tensor 2, expert 3: worker n is in place n % 2 of its tensor group, and has experts n // 2 % 3."""
    groups = Groups(2, 3, 6)
    found = {name: groups.members(name).tolist() for name in ("tensor", "expert", "data", "expert_data")}
    assert found["tensor"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert found["expert"] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert found["data"] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert found["expert_data"] == [[0, 6], [2, 8], [4, 10], [1, 7], [3, 9], [5, 11]]


# --- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "algorithm", "workers", "expected"), [
    ("all_reduce", "ring", 2, steps(12, 12)), ("all_reduce", "ring", 4, steps(*[6] * 6)),
    ("all_reduce", "all_to_all", 4, steps(18, 18)), ("all_reduce", "halving", 4, steps(12, 6, 6, 12)),
    ("reduce_scatter", "ring", 4, steps(6, 6, 6)), ("all_gather", "ring", 4, steps(6, 6, 6)),
    ("all_gather", "all_to_all", 4, steps(18)), ("all_to_all", "ring", 4, steps(18)), ("broadcast", "ring", 2, steps(24)),
])  # fmt: skip
def test_a_layer_waits_for_its_group(kind, algorithm, workers, expected):
    """24 packets among all workers: alpha-beta, after one millisecond of computing; and nothing else is sent."""
    trace = split(make_trace([[10]]), both_ways(0, kind, "tensor", 24 * PAYLOAD), {"tensor": workers})
    result = run(trace, workers, parallel={"algorithm": algorithm})
    for row in rows(result.iterations):
        # the root of a broadcast waits for nobody, and so is ahead with the second one
        waits = (0 if row["worker"] == 0 else 1, 0) if kind == "broadcast" else (1, 1)
        assert row["forward_end_ps"] == MS + waits[0] * expected
        assert row["end_ps"] == 2 * MS + sum(waits) * expected
    assert {row["kind"] for row in rows(result.messages)} == {"tensor_parallel"}


def test_two_by_two_by_hand():
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


def test_a_call_comes_before_what_its_layer_hands_over_at_that_moment():
    """Computing takes no time: calls go one after the other, back layers first, and each layer's gradient behind its call."""
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


def test_micro_batches_call_each_time():
    trace = split(make_trace([[2000]]), both_ways(0, "all_reduce", "tensor", 4000), {"tensor": 2})
    found = [rows(run(trace, 4, accumulate=micros).messages) for micros in (1, 3)]
    sent = [Counter(row["kind"] for row in each) for each in found]
    assert sent[1]["tensor_parallel"] == 3 * sent[0]["tensor_parallel"]
    assert sent[1]["reduce_scatter"] == sent[0]["reduce_scatter"]


@pytest.mark.parametrize("forward", ["barrier", "layerwise"])
@pytest.mark.parametrize("parallel", [{"tensor": 4}, {"tensor": 1, "expert": 4}, {"tensor": 2, "expert": 2}, {"tensor": 1}])
def test_everybody_updates_all_that_it_has(parallel, forward):
    """Whether gradients are exchanged or not: in one group, in two, or none at all."""
    calls = [*both_ways(0, "all_reduce", "tensor", 4000)]
    calls = [calls[0], (1, "forward", "all_to_all", "expert", 4000), calls[1]]
    trace = split(make_trace([[2000], [6000]], optimizer=8000), calls, {"tensor": 1}, experts=(1,))
    result = run(trace, 4, exchange={"kind": "ring", "forward": forward}, parallel=parallel, iterations=3)
    computed = Counter()
    for row in rows(result.iterations):
        computed[row["worker"]] += row["compute_ps"]
    assert set(computed.values()) == {3 * (4 * MS + 8000)}


def test_sharded_updates_take_shares_of_the_time():
    """A quarter of the bytes is shared by four workers, the rest by two that have the same experts, or by nobody."""
    calls = [(0, "forward", "all_reduce", "tensor", 4000)]
    trace = split(make_trace([[2000], [6000]], optimizer=8000), calls, {"tensor": 2, "expert": 2}, experts=(1,))
    for workers, expert, update in ((8, 2, 500 + 3000), (8, 4, 500 + 6000), (4, 2, 1000 + 6000)):
        result = run(trace, workers, exchange={"kind": "sharded"}, parallel={"expert": expert})
        assert {row["compute_ps"] for row in rows(result.iterations)} == {4 * MS + update}


# --- bytes -------------------------------------------------------------------------------------------------------------

MOE = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 2 ga: 1 all_gpus: 8 checkpoints: 0
4
embedding -1 1000 ALLREDUCE  40000 1000 NONE 0 1000 ALLREDUCE 80000 100
attention -1 2000 ALLGATHER  40000 2000 REDUCESCATTER 40000 2000 ALLREDUCE 160000 100
router    -1 500  ALLTOALL_EP 64000 500 ALLTOALL_EP 64000 10 NONE 0 100
experts   -1 4000 ALLTOALL_EP 64000 4000 ALLTOALL_EP 64000 4000 ALLREDUCE_DP_EP 320000 100
"""


def wire_bytes(text: str, workers: int) -> Counter[str]:
    """What all workers send in an iteration, by the file alone: of S bytes among g workers 2(g - 1)S in a group for an
    all-reduce, (g - 1)S for its halves, an all-to-all and a broadcast."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = dict(zip(lines[0][1::2], lines[0][2::2], strict=False))
    tensor, expert = int(head["model_parallel_NPU_group:"]), int(head.get("ep:", 1))
    data = workers // tensor
    size = {"TP": tensor, "EP": expert, "DP": data, "DP_EP": data // expert}
    found: Counter[str] = Counter()
    for cells in lines[2:]:
        for column, default in ((3, "TP"), (6, "TP"), (9, "DP")):
            name, nbytes = cells[column], int(cells[column + 1])
            kind, _, suffix = name.partition("_")
            group = suffix or default
            g = size[group] if name != "NONE" else 1
            if g == 1:
                continue
            nbytes += -nbytes % (4 * g)  # padded to whole segments of whole values
            sent = (2 if kind == "ALLREDUCE" or column == 9 else 1) * (g - 1) * nbytes * (workers // g)
            key = {"TP": "tensor_parallel", "EP": "expert_parallel"}.get(group, "gradients")
            found[key] += sent
    return found


def of_kinds(kinds: Any, nbytes: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, size in zip(kinds, nbytes, strict=True):
        found["gradients" if kind in ("reduce_scatter", "all_gather") else kind] += int(size)
    return found


def imported(text: str, tmp_path: Path) -> Trace:
    (tmp_path / "w.txt").write_text(text)
    return import_trace(tmp_path / "w.txt")


def test_bytes_are_those_of_the_file(tmp_path):
    trace = imported(MOE, tmp_path)
    assert [(info.group, info.bytes) for info in trace.tensors] == [("data", 80000), ("data", 160000), ("expert_data", 320000)]
    result = run(trace, 8, iterations=2)
    found = of_kinds((row["kind"] for row in rows(result.messages)), (row["bytes"] for row in rows(result.messages)))
    assert found == Counter({key: 2 * value for key, value in wire_bytes(MOE, 8).items()})
    assert check_loss_invariant(result) == []


@pytest.mark.skipif(not SHARED.exists(), reason="needs shared data")
def test_bytes_of_a_language_model():
    path = SHARED / "workloads" / "simai_llama7b_tp2.txt"
    job = made(import_trace(path), 8, gpus=4, payload="4KiB")
    messages = written_out([job.part]).messages
    expected = wire_bytes(path.read_text(), 8)
    assert of_kinds((KINDS[kind] for kind in messages.kind), messages.nbytes) == expected
    assert job.exchange.bytes_per_iteration == sum(expected.values())


def test_tensor_groups_stay_inside_of_hosts(tmp_path):
    """Eight accelerators in two hosts: what passes wait for never leaves a host, whoever's gradients do."""
    job = made(imported(MOE, tmp_path), 8, gpus=4)
    cards, messages = job.exchange.context.cards, written_out([job.part]).messages
    host = np.repeat(np.arange(8), np.diff(cards.first[:9])) // 4
    kinds = np.array([KINDS[kind] for kind in messages.kind])
    across = host[messages.src] != host[messages.dst]
    assert not across[kinds == "tensor_parallel"].any() and across[kinds == "all_gather"].any()


# --- values ------------------------------------------------------------------------------------------------------------


class Gradients(Arrays):
    """The same for gradients alone: nobody knows the values of what passes wait for."""

    def leaves(self, message):
        if KINDS[self.program.messages.kind[message]].endswith("_parallel"):
            assert not self.program.own[message] and not len(self.program.sums[message])
            return np.zeros(self.count[message], dtype=np.int64)
        return super().leaves(message)

    def group_sums(self):
        """Of every bucket of gradients, what its group has of its own."""
        found, number = {}, 0
        for each in self.job.exchange.gradients:
            for _ in each.buckets:
                for members in each.context.groups.tolist():
                    whole = sum(self.own[worker, number] for worker in members)
                    found |= {(worker, number): whole for worker in members}
                number += 1
        return found


@pytest.mark.parametrize("exchange", ["ring", "halving_doubling", "transpose", "sharded"])
@pytest.mark.parametrize("gpus", [1, 4])
def test_every_group_has_its_sums(exchange, gpus, tmp_path):
    trace = split(
        make_trace([[301, 50], [1999, 7], [4001], [12]]),
        [(1, "forward", "all_to_all", "expert", 4000), (1, "backward", "all_reduce", "tensor", 5000),
         (0, "backward", "all_to_all", "expert", 4000)],
        {"tensor": 2, "expert": 2}, experts=(1, 3),
    )  # fmt: skip
    job = made(trace, 16, exchange={"kind": exchange, "bucket": "6KB"}, gpus=gpus)
    for seed in range(2):
        arrays = Gradients(job, np.random.default_rng(seed)).run()
        wanted = arrays.group_sums()
        assert len(wanted) == 16 * sum(len(each.buckets) for each in job.exchange.gradients) > 32
        for (worker, number), value in wanted.items():
            size = job.exchange.buckets[number].segments * job.exchange.buckets[number].segment_elements
            assert (arrays.buffers[worker, number][:size] == value[:size]).all()


def test_lost_values_are_shares_of_a_group():
    """A star that loses packets: nobody misses more than all of its group's values, and calls lose nothing."""
    trace = split(make_trace([[20_000], [20_000]]), both_ways(0, "all_reduce", "tensor", 40_000), {"tensor": 2})
    job = {"workers": 4, "exchange": {"kind": "ring"}, "parallel": {}, "push_bound": 0.2, "tagging": {"magnitude": True}}
    case = scenario(
        job, hosts=4, link={"loss": 0.02}, transport={"kind": "dlcp", "payload": "1000B"},
        switch={"selective_drop": True, "ecn_threshold": "16KiB"},
    )  # fmt: skip
    result = simulate(case, trace)
    assert check_loss_invariant(result) == []
    lost = [row for row in rows(result.messages) if row["lost_bytes"]]
    assert lost and all(row["kind"] == "reduce_scatter" for row in lost)
    found = lost_values(case, result, trace)
    assert len(found) == 4 * 2 and 0 < max(each.share for each in found) <= 0.1
    total = sum(row["lost_bytes"] for row in lost)
    # a lost value is missing at both members of a group, of two workers' values
    assert sum(each.share for each in found) * 20_000 * 4 == pytest.approx(total)


# --- players -----------------------------------------------------------------------------------------------------------


def test_both_players_play_the_same(tmp_path):
    """The engine and SimPy: every message ready, started and delivered, every note, at the same picosecond."""
    job = made(imported(MOE, tmp_path), 8, iterations=3, jitter=0.1)
    found = []
    for simpy in (False, True):
        transports = [Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})]
        fabric = fabric_of(Case(star(8, LinkSpec(10**10, US)), transports, [], host_latency=2 * US))
        coupling = Coupling(Plain(fabric) if simpy else fabric, 2 * US, ["job"])
        track = coupling.play(job.part)
        assert coupling.run(lambda track=track: track.finished, until=FOREVER)
        ends = fabric.finish().end_ps
        found.append([
            (each.numbers.tolist(), each.ready.tolist(), each.started.tolist(), each.notes.tolist(), ends[each.numbers].tolist())
            for each in track.steps
        ])  # fmt: skip
        fabric.close()
    assert found[0] == found[1] and len(found[0]) == 3


def test_the_engine_and_the_oracle_agree_on_every_packet(tmp_path):
    """All messages of an iteration at the times at which they were ready."""
    job = made(imported(MOE, tmp_path), 8)
    network = {"transport": {"kind": "dctcp", "payload": "1000B"}, "switch": {"buffer": "60KB", "ecn_threshold": "20KB"}}
    result = run(imported(MOE, tmp_path), 8, network=network)
    letters = [
        Letter(row["start_ps"] + 2 * US, int(row["src"][1:]), int(row["dst"][1:]), row["bytes"])
        for row in sorted(rows(result.messages), key=lambda row: row["start_ps"])
    ]
    assert len(letters) == len(written_out([job.part]).messages)
    case = scenario({"workers": 8, "exchange": {"kind": "ring"}}, **network)
    transports = [Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})]
    whole = Case(star(8, LinkSpec(10**11, US)), transports, letters, case.switch)
    assert first_difference(run_engine(whole), run_oracle(whole)) == ""


def test_repeats_are_left_out_and_come_to_the_same(tmp_path):
    trace, network = imported(MOE, tmp_path), {"transport": "dctcp"}
    job = {"workers": 8, "iterations": 30, "exchange": {"kind": "sharded"}, "parallel": {}}
    job |= {"trace": "w", "compute_scale": 1000.0}
    fast, full = (simulate(scenario(job, **network), trace, fast_forward=each) for each in (True, False))
    assert "not simulated again" in str(fast.timing["fast_forward"])
    assert fast.iterations.equals(full.iterations) and fast.messages.equals(full.messages)


def test_the_breakdown_adds_up(tmp_path):
    case = scenario({"workers": 8, "iterations": 3, "exchange": {"kind": "ring"}, "parallel": {}})
    trace = imported(MOE, tmp_path)
    result = simulate(case, trace)
    found = breakdown(result, trace).rows
    assert len(found) == 3 * 8
    assert all(sum(row[f"{part}_ps"] for part in PARTS) == row["end_ps"] - row["start_ps"] for row in found)
    assert all(row["serialisation_ps"] > 0 for row in found)
    timed = {row["tensor"]: row["ready_ps"] for row in tensor_table(result, trace).to_pylist()}
    assert sorted(timed) == [0, 1, 2] and min(timed.values()) >= 0


# --- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "fields", "path", "what"), [
    (6, {"parallel": {"tensor": 4}}, "parallel.tensor", "4 workers to a tensor group do not divide 6 workers"),
    (7, {}, "parallel.tensor", "2 workers to a tensor group .of the trace w. do not divide 7 workers"),
    (6, {}, "parallel.expert", "2 workers to an expert group .of the trace w. do not divide 3"),
    (8, {"parallel": {"pipeline": 2}}, "parallel.pipeline", "2 stages of a pipeline cannot be played"),
    (6, {"parallel": {"tensor": 3, "expert": 1, "algorithm": "halving"}}, "parallel.algorithm", "3 workers of groups of dimension tensor"),
    (6, {"parallel": {"tensor": 2, "expert": 3}, "exchange": {"kind": "sharded", "algorithm": "halving"}}, "workers", "no power of two"),
])  # fmt: skip
def test_sizes_that_do_not_fit(workers, fields, path, what, tmp_path):
    with pytest.raises(ScenarioError, match=what) as error:
        find_needs(scenario({"workers": workers, "exchange": {"kind": "ring"}, "parallel": {}, **fields}), imported(MOE, tmp_path))
    assert path in str(error.value)


def test_stages_that_the_file_has(tmp_path):
    trace = imported(MOE.replace("pp: 1", "pp: 4"), tmp_path)
    job = {"workers": 8, "exchange": {"kind": "ring"}, "parallel": {}}
    with pytest.raises(ScenarioError, match=r"4 stages of a pipeline \(of the trace w\) cannot be played"):
        find_needs(scenario(job), trace)
    find_needs(scenario({**job, "parallel": {"pipeline": 1}}), trace)


def test_groups_that_cross_between_hosts(tmp_path):
    trace = imported(MOE, tmp_path)
    for fields, gpus in (({"placement": "rails"}, 4), ({"parallel": {"tensor": 3, "expert": 1}, "workers": 12}, 4)):
        with pytest.raises(ScenarioError, match="crosses between 2 hosts, and has room on") as error:
            made(trace, **{"workers": 8, **fields}, gpus=gpus)
        assert "parallel.tensor" in str(error.value)


def test_exchanges_that_do_not_go_inside_of_groups():
    for fields, what in (
        ({"exchange": {"kind": "fsdp"}}, "goes among all workers"), ({"exchange": {"kind": "tree"}}, "goes among all workers"),
        ({"exchange": {"kind": "ring"}, "scheduler": "p3"}, "lets messages wait"),
        ({"exchange": {"kind": "ring"}, "order": "layer"}, "lets messages wait"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            scenario({"workers": 4, "parallel": {}, **fields})


def test_a_trace_of_gradients_alone_and_training():
    case = scenario({"workers": 4, "exchange": {"kind": "ring"}, "parallel": {}})
    with pytest.raises(ScenarioError, match="has gradients alone"):
        find_needs(case, make_trace([[10]]))
    with pytest.raises(ScenarioError, match="a training hands over gradients alone"):
        played_scenario(case, "case")


def test_nothing_left_to_send():
    """What `check` looks at finds it."""
    trace = split(make_trace([[10]]), [(0, "forward", "all_to_all", "expert", 4000)], {"tensor": 4})
    case = scenario({"workers": 4, "exchange": {"kind": "ring"}, "parallel": {}})
    with pytest.raises(ScenarioError, match="leaves nothing to send"):
        find_needs(case, trace)
