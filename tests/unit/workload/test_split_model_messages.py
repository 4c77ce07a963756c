"""Messages of models split over workers: their bytes, what gradients become there, and the same from every player."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from array_cases import Arrays
from formats_cases import SHARED
from sim_cases import US, make_trace, rows, scenario
from split_cases import MOE, both_ways, imported, made, run, split

from gradwire.analysis.breakdown.breakdown import PARTS, breakdown
from gradwire.analysis.timeline.tensors import tensors as tensor_table
from gradwire.analysis.training.lost_values import lost_values
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.table_schema import KINDS
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.case_runs import FOREVER, fabric_of
from gradwire.testing.scenario_comparison import FabricWithoutPrograms
from gradwire.topology import LinkSpec, star
from gradwire.traces.formats import import_trace
from gradwire.workload.program_export import export_program


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


def test_message_bytes_match_the_workload_file(tmp_path):
    trace = imported(MOE, tmp_path)
    assert [(info.group, info.bytes) for info in trace.tensors] == [
        ("data", 80000),
        ("data", 160000),
        ("expert_data", 320000),
    ]
    result = run(trace, 8, iterations=2)
    found = of_kinds((row["kind"] for row in rows(result.messages)), (row["bytes"] for row in rows(result.messages)))
    assert found == Counter({key: 2 * value for key, value in wire_bytes(MOE, 8).items()})
    assert check_loss_invariant(result) == []


@pytest.mark.skipif(not SHARED.exists(), reason="needs shared data")
def test_llama7b_message_bytes_match_the_workload_file():
    path = SHARED / "workloads" / "simai_llama7b_tp2.txt"
    job = made(import_trace(path), 8, gpus=4, payload="4KiB")
    messages = export_program([job.part]).messages
    expected = wire_bytes(path.read_text(), 8)
    assert of_kinds((KINDS[kind] for kind in messages.kind), messages.nbytes) == expected
    assert job.exchange.bytes_per_iteration == sum(expected.values())


def test_tensor_parallel_messages_stay_within_hosts(tmp_path):
    """Eight accelerators share two hosts: tensor-parallel messages stay within a host, gradients cross hosts."""
    job = made(imported(MOE, tmp_path), 8, gpus=4)
    cards, messages = job.exchange.context.cards, export_program([job.part]).messages
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
def test_gradient_exchange_gives_each_group_its_sums(exchange, gpus, tmp_path):
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


def test_lossy_split_model_loses_only_gradient_values_within_the_bound():
    """On a lossy star, workers lose only values of their group's gradients; tensor-parallel calls lose nothing."""
    trace = split(make_trace([[20_000], [20_000]]), both_ways(0, "all_reduce", "tensor", 40_000), {"tensor": 2})
    job = {
        "workers": 4,
        "exchange": {"kind": "ring"},
        "parallel": {},
        "push_bound": 0.2,
        "tagging": {"magnitude": True},
    }
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


def test_engine_and_simpy_replay_identical_split_model_times(tmp_path):
    """The engine and SimPy agree to the picosecond on every message time and every note."""
    job = made(imported(MOE, tmp_path), 8, iterations=3, jitter=0.1)
    found = []
    for simpy in (False, True):
        transports = [Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})]
        fabric = fabric_of(Case(star(8, LinkSpec(10**10, US)), transports, [], host_latency=2 * US))
        coupling = Coupling(FabricWithoutPrograms(fabric) if simpy else fabric, 2 * US, ["job"])
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
    """Both run all messages of one iteration at their recorded start times."""
    job = made(imported(MOE, tmp_path), 8)
    network = {
        "transport": {"kind": "dctcp", "payload": "1000B"},
        "switch": {"buffer": "60KB", "ecn_threshold": "20KB"},
    }
    result = run(imported(MOE, tmp_path), 8, network=network)
    letters = [
        MessageSpec(row["start_ps"] + 2 * US, int(row["src"][1:]), int(row["dst"][1:]), row["bytes"])
        for row in sorted(rows(result.messages), key=lambda row: row["start_ps"])
    ]
    assert len(letters) == len(export_program([job.part]).messages)
    case = scenario({"workers": 8, "exchange": {"kind": "ring"}}, **network)
    transports = [Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})]
    whole = Case(star(8, LinkSpec(10**11, US)), transports, letters, case.switch)
    assert first_difference(run_engine(whole), run_oracle(whole)) == ""


def test_fast_forward_gives_the_same_tables_as_full_simulation(tmp_path):
    trace, network = imported(MOE, tmp_path), {"transport": "dctcp"}
    job = {"workers": 8, "iterations": 30, "exchange": {"kind": "sharded"}, "parallel": {}}
    job |= {"trace": "w", "compute_scale": 1000.0}
    fast, full = (simulate(scenario(job, **network), trace, fast_forward=each) for each in (True, False))
    assert "not simulated again" in str(fast.timing["fast_forward"])
    assert fast.iterations.equals(full.iterations) and fast.messages.equals(full.messages)


def test_breakdown_parts_sum_to_the_iteration_time(tmp_path):
    case = scenario({"workers": 8, "iterations": 3, "exchange": {"kind": "ring"}, "parallel": {}})
    trace = imported(MOE, tmp_path)
    result = simulate(case, trace)
    found = breakdown(result, trace).rows
    assert len(found) == 3 * 8
    assert all(sum(row[f"{part}_ps"] for part in PARTS) == row["end_ps"] - row["start_ps"] for row in found)
    assert all(row["serialisation_ps"] > 0 for row in found)
    timed = {row["tensor"]: row["ready_ps"] for row in tensor_table(result, trace).to_pylist()}
    assert sorted(timed) == [0, 1, 2] and min(timed.values()) >= 0
