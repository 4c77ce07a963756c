"""How many messages a job makes is known before any is made, and what does not fit is refused with what would."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.jit.limits import ARENA_WORDS, LOADED_MESSAGE_BYTES, MAX_LOADED_MESSAGES
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.scenarios.units import parse_size
from gradwire.traces.formats import export_trace, import_trace
from gradwire.traces.trace import load_trace
from gradwire.workload.collectives.allreduce.transpose import Transpose
from gradwire.workload.collectives.common.buckets import count_pieces, cut_tensor
from gradwire.workload.collectives.common.staged_table import MOST_WORKERS, StagedTable
from gradwire.workload.message_count import CountedJob, loaded_iterations
from gradwire.workload.prerequisites import find_prerequisites, make_jobs

MACHINES = {
    "topology": {"kind": "rail", "hosts": 4, "cards": 2, "spines": 2},
    "host": {"gpus": 4, "scale_up_rate": "3600Gbps", "scale_up_latency": "500ns"},
}
CARDS = {"topology": {"kind": "rail", "hosts": 8, "cards": 3, "spines": 2}}


def tables(workers: int, exchange: dict[str, Any], servers: int = 0, top: dict[str, Any] | None = None, **job: Any):
    hosts = workers + servers
    return {
        "name": "x", "topology": {"kind": "star", "hosts": hosts}, **(top or {}),
        "job": [{
            "name": "j", "trace": "resnet20", "workers": workers, "servers": servers, "exchange": exchange,
            "iterations": 3, **job,
        }],
    }  # fmt: skip


SERVERS = {"kind": "parameter_server", "partition": "8KiB"}
HALVES = ("ring", "all_to_all", "halving")
CASES: list[Any] = [
    (3, SERVERS, {"servers": 2}),
    (3, {**SERVERS, "colocated": True}, {"servers": 2, "top": {"topology": {"kind": "star", "hosts": 3}}}),
    (2, {**SERVERS, "shards": "split", "split_above": "10kB"}, {"servers": 3}),
    (2, {**SERVERS, "shards": "round_robin", "asynchronous": True}, {"servers": 1}),
    (2, {"kind": "parameter_server"}, {"servers": 2, "scheduler": {"kind": "p3", "slice": "1002B"}}),
    (2, {"kind": "parameter_server"}, {"servers": 2, "scheduler": {"kind": "bytescheduler", "partition": "2003B"}}),
    (4, {"kind": "in_network", "partition": "16KiB"}, {"top": {"switch": {"aggregation_slots": 8}}}),
    *((workers, {"kind": "ring", "bucket": "100kB", **more}, {}) for workers in (2, 5) for more in ({}, {"channels": 3})),
    *((workers, {"kind": "halving_doubling", "bucket": "100kB"}, {}) for workers in (2, 3, 6, 8)),
    *((5, {"kind": kind, "bucket": "100kB"}, {}) for kind in ("transpose", "tree", "broadcast", "all_to_all")),
    *((workers, {"kind": "double_tree", "chunks": 3}, {}) for workers in (2, 7)),
    (6, {"kind": "hierarchical", "group": 3}, {}),
    (12, {"kind": "hierarchical", "group": 3, "across": "halving"}, {}),
    *((8, {"kind": kind, "algorithm": each}, {}) for kind in ("sharded", "reduce_scatter", "all_gather") for each in HALVES),
    *((8, {"kind": "fsdp", "algorithm": each, "unit": "100kB"}, {}) for each in HALVES),
    (8, {"kind": "fsdp", "unit": "100kB", "reshard": False}, {"accumulate": 3}),
    *((8, {"kind": "fsdp", "unit": "100kB", "group": 4, "algorithm": each}, {"accumulate": 2}) for each in HALVES),
    (4, {"kind": "overlapped", "batch": 4}, {}),
    (4, {"kind": "overlapped", "batch": 4, "dense": "gradients"}, {}),
    (4, {"kind": "ring"}, {"scheduler": {"kind": "bytescheduler", "partition": "1000B"}}),
    (4, {"kind": "ring"}, {"scheduler": {"kind": "ddp", "bucket": "100kB"}}),
    # accelerators, and hosts with several cards
    *((workers, {"kind": "ring", "bucket": "100kB"}, {"top": MACHINES}) for workers in (8, 16)),
    *((16, {"kind": kind, "algorithm": "hierarchical"}, {"top": MACHINES}) for kind in ("sharded", "fsdp")),
    (4, {"kind": "fsdp", "algorithm": "hierarchical"}, {"top": MACHINES}),
    (16, {"kind": "fsdp", "group": 4, "algorithm": "hierarchical"}, {"top": MACHINES}),
    (16, {"kind": "fsdp", "group": 8, "algorithm": "hierarchical"}, {"top": MACHINES}),
    (16, {"kind": "fsdp", "group": 2, "algorithm": "ring"}, {"top": MACHINES}),
    (16, {"kind": "fsdp", "group": 4, "algorithm": "halving"}, {"top": MACHINES}),
    (16, {"kind": "hierarchical"}, {"top": MACHINES}),
    *((8, {"kind": kind}, {"top": CARDS}) for kind in ("ring", "tree", "broadcast", "transpose", "double_tree", "fsdp")),
    (6, SERVERS, {"servers": 2, "top": CARDS}),
]  # fmt: skip


def counted(scenario: Any, trace: Any = None) -> tuple[int | None, list[int]]:
    """What is told of the first job, and how many messages its iterations have."""
    needs = find_prerequisites(scenario, trace)
    (made,) = make_jobs(scenario, needs)
    told = CountedJob.of(scenario, 0, needs.traces[0], needs.places[0], needs.network.cards).messages(scenario.job[0])
    return told, [len(step.messages) for step in made.part.steps()]


@pytest.mark.parametrize(("workers", "exchange", "more"), CASES)
def test_predicted_message_count_equals_generated_messages(workers, exchange, more):
    told, made = counted(build_scenario(tables(workers, exchange, **more)))
    assert told == max(made)


def test_count_pieces_equals_the_number_of_cut_tensor_pieces():
    for numel, width, most in ((5, 4, 3), (5, 4, 8), (8, 2, 8), (1, 8, 100)):
        assert count_pieces(numel, width, most) == len(cut_tensor(numel, width, most))


def test_predicted_message_count_includes_split_model_calls(tmp_path):
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 pp: 1 vpp: 4 ga: 1 all_gpus: 16\n4\n"
    rows = """attention -1 400000 ALLREDUCE 4194304 400000 ALLGATHER 4194304 400000 ALLREDUCE 8388608 1000
experts -1 800000 ALLTOALL_EP 2097152 800000 ALLTOALL_EP 2097152 800000 ALLREDUCE_DP_EP 16777216 1000
"""
    (tmp_path / "moe.txt").write_text(head + rows * 2)
    trace = import_trace(tmp_path / "moe.txt")
    for more in ({}, {"accumulate": 2}, {"parallel": {"expert": 1}}, {"parallel": {"algorithm": "halving"}}):
        made = tables(16, {"kind": "ring", "bucket": "1MB"}, **{"parallel": {}, **more})
        told, steps = counted(build_scenario(made), trace)
        assert told == max(steps)


def test_predicted_message_count_includes_rank_graph_calls(tmp_path):
    export_trace(load_trace("resnet20"), tmp_path / "dp", format="chakra", ranks=4)
    trace = import_trace(tmp_path / "dp.0.et", ranks=True)
    told, steps = counted(build_scenario(tables(4, {"kind": "graph"})), trace)
    assert told == max(steps)


def test_schedules_without_a_closed_form_are_counted_for_few_workers(monkeypatch):
    monkeypatch.setattr(Transpose, "sent", StagedTable.sent)
    for workers in (5, MOST_WORKERS):
        told, steps = counted(build_scenario(tables(workers, {"kind": "transpose"}, iterations=1)))
        assert told == max(steps)
    told, _ = counted(build_scenario(tables(MOST_WORKERS + 1, {"kind": "transpose"}, iterations=1)))
    assert told is None  # nothing is refused that nobody has counted


# --- what fits


def has(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    """A machine with so much memory."""
    for module in ("limits", "message_count"):
        monkeypatch.setattr(f"gradwire.workload.{module}.installed_bytes", lambda: memory)


def limited(monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    """A machine in which so many fit."""
    has(monkeypatch, messages * LOADED_MESSAGE_BYTES)


OVER = [
    (2, {"kind": "parameter_server"}, {"servers": 2, "scheduler": {"kind": "p3"}}, "scheduler.slice"),
    (2, {"kind": "parameter_server"}, {"servers": 2, "scheduler": {"kind": "bytescheduler"}}, "scheduler.partition"),
    (2, {"kind": "parameter_server"}, {"servers": 2}, "exchange.partition"),
    (4, {"kind": "ring"}, {}, "exchange.bucket"),
    (4, {"kind": "ring"}, {"scheduler": {"kind": "ddp"}}, "scheduler.bucket"),
    (4, {"kind": "fsdp"}, {}, "exchange.unit"),
]


@pytest.mark.parametrize(("workers", "exchange", "more", "path"), OVER)
def test_memory_error_suggests_the_smallest_size_that_fits(monkeypatch, workers, exchange, more, path):
    """The suggested size fits; a size four bytes smaller does not."""
    table, key = path.split(".")

    def sized(size: str) -> Any:
        job = tables(workers, exchange, **more)
        job["job"][0][table] = {**job["job"][0][table], key: size}
        return build_scenario(job)

    most = 1500 if "servers" in more else 600
    limited(monkeypatch, 3 * most)
    with pytest.raises(ScenarioError, match="has more messages than fit") as caught:
        find_prerequisites(sized("4B"))
    (mistake,) = caught.value.mistakes
    assert mistake.path == f"job[0].{path}" and mistake.value == "4B"
    assert re.match(r"creates [\d,]+ messages per iteration, and 3 iterations are loaded at once", mistake.what)
    found = re.fullmatch(rf"at most {most:,} in this machine's 0\.0 GiB of memory: (\w+) or more", mistake.expected)
    assert found, mistake.expected
    find_prerequisites(sized(found[1]))
    with pytest.raises(ScenarioError):
        find_prerequisites(sized(f"{parse_size(found[1]) - 4}B"))


@pytest.mark.parametrize(
    ("exchange", "more", "path", "says"),
    [
        ({"kind": "ring", "channels": 1000}, {}, "exchange.channels", "20 or fewer"),
        ({"kind": "double_tree", "chunks": 1000}, {}, "exchange.chunks", "41 or fewer"),
        ({"kind": "fsdp"}, {"accumulate": 1000}, "accumulate", "20 or fewer"),
        ({"kind": "overlapped", "batch": 1}, {}, "workers", "fewer workers, or another exchange"),
    ],
)
def test_memory_error_names_the_key_that_causes_too_many_messages(monkeypatch, exchange, more, path, says):
    limited(monkeypatch, 500)
    workers = 16 if path == "workers" else 4
    with pytest.raises(ScenarioError) as caught:
        find_prerequisites(build_scenario(tables(workers, exchange, iterations=1, **more)))
    (mistake,) = caught.value.mistakes
    assert mistake.path == f"job[0].{path}" and mistake.expected.endswith(says)
    if path != "workers":
        most = int(says.split()[0])
        where, key = path.split(".") if "." in path else ("", path)
        for value in (most, most + 1):
            job = tables(workers, {**exchange, key: value} if where else exchange, iterations=1, **more)
            if not where:
                job["job"][0][key] = value
            if value == most:
                find_prerequisites(build_scenario(job))
            else:
                with pytest.raises(ScenarioError):
                    find_prerequisites(build_scenario(job))


def test_message_limit_counts_all_concurrently_loaded_iterations(monkeypatch):
    made, _ = counted(build_scenario(tables(2, SERVERS, 1)))
    for iterations, staleness, steps in ((1, 0, 1), (2, 0, 2), (3, 0, 3), (100, 0, 3), (100, 2, 5)):
        job = build_scenario(tables(2, {**SERVERS, "staleness": staleness}, 1, iterations=iterations))
        assert loaded_iterations(job.job[0]) == steps
        limited(monkeypatch, steps * made)
        find_prerequisites(job)
        limited(monkeypatch, steps * made - 1)
        with pytest.raises(ScenarioError, match=f"creates {made:,} messages"):
            find_prerequisites(job)


def test_message_limit_counts_all_jobs_together(monkeypatch):
    made = tables(2, SERVERS, 1, {"topology": {"kind": "star", "hosts": 6}}, iterations=1)
    made["job"].append({**made["job"][0], "name": "k", "exchange": {**SERVERS, "partition": "4KiB"}})
    each = [counted(build_scenario({**made, "job": [job]}))[0] for job in made["job"]]
    limited(monkeypatch, sum(each))
    find_prerequisites(build_scenario(made))
    limited(monkeypatch, sum(each) - 1)
    with pytest.raises(
        ScenarioError,
        match=rf"job\[1\].exchange.partition: creates {each[1]:,} .*, in addition to {each[0]:,} messages of other jobs",
    ):
        find_prerequisites(build_scenario(made))


def test_engine_arena_limits_messages_on_any_machine(monkeypatch):
    """82 workers with single-value slices fit on a machine of any memory; 83 do not."""
    limited(monkeypatch, 1 << 60)
    assert MAX_LOADED_MESSAGES * 48 <= ARENA_WORDS < (MAX_LOADED_MESSAGES + 1) * 48
    parts = 272_474  # values of ResNet-20, one to a slice
    for workers, fits in ((MAX_LOADED_MESSAGES // (2 * parts), True), (MAX_LOADED_MESSAGES // (2 * parts) + 1, False)):
        job = build_scenario(
            tables(workers, {"kind": "parameter_server"}, 1, iterations=1, scheduler={"kind": "p3", "slice": "4B"})
        )
        if fits:
            find_prerequisites(job)
        else:
            with pytest.raises(ScenarioError, match=f"at most {MAX_LOADED_MESSAGES:,}: 8B or more"):
                find_prerequisites(job)


@pytest.mark.parametrize("model", ["vgg16-gpu", "resnet50-v100"])
def test_lee_scenario_with_256_workers_fits_in_20_gb(monkeypatch, model):
    """Four policies of the `lee` scenario are accepted for each model."""
    has(monkeypatch, 20 * 10**9)
    for policy in ("overlapped", "gradients", "all-reduce", "barrier"):
        find_prerequisites(load_scenario("lee", set=["job.workers=256", f"job.trace={model}"], policy=policy))


def test_ring_of_1024_workers_is_within_the_message_limit(monkeypatch):
    """benchmarks/README.md: 8,380,416 messages of a step of 100 MB, in 7.2 GB."""
    limited(monkeypatch, 8_380_416)
    find_prerequisites(build_scenario(tables(1024, {"kind": "ring", "bucket": "25MB"}, trace="resnet50", iterations=1)))


@pytest.mark.parametrize(
    ("exchange", "fits", "not_", "more"),
    [
        ({"kind": "transpose"}, 1024, 1025, {}),
        ({"kind": "all_to_all"}, 1024, 1025, {}),
        ({"kind": "overlapped", "batch": 1}, 1024, 1025, {}),
        *(
            ({"kind": kind, "algorithm": "all_to_all"}, 1024, 1025, {})
            for kind in ("sharded", "fsdp", "reduce_scatter", "all_gather")
        ),
        ({"kind": "fsdp", "algorithm": "all_to_all", "group": 2}, 1028, None, {}),
        ({"kind": "ring", "channels": 1 << 18}, 3, 4, {}),
        # 36,864 values in the largest tensor, 272,474 in all; a scheduler holds them back
        ({"kind": "parameter_server", "partition": "4B"}, 28, 29, {"servers": 1}),
        ({"kind": "parameter_server", "partition": "4B"}, 3, 4, {"servers": 1, "compute_scale": 0.0}),
        ({"kind": "parameter_server", "partition": "4B"}, 3, 4, {"servers": 1, "scheduler": "barrier"}),
        ({"kind": "parameter_server", "partition": "4B"}, 29, None, {"servers": 1, "order": "layer"}),
        (
            {"kind": "parameter_server", "partition": "4B"},
            29,
            None,
            {"servers": 1, "transport": {"kind": "dctcp", "connections": "persistent"}},
        ),
        ({"kind": "in_network", "partition": "4B"}, 29, 30, {"top": {"switch": {"aggregation_slots": 8}}}),
    ],
)
def test_messages_that_start_at_once_are_limited_to_20_bit_numbers(monkeypatch, exchange, fits, not_, more):
    """Without this check, a run ends with an error when it exceeds the limit."""
    limited(monkeypatch, MAX_LOADED_MESSAGES)

    def made(workers: int) -> Any:
        return build_scenario(tables(workers, exchange, iterations=1, **more))

    find_prerequisites(made(fits))
    if not_ is not None:
        with pytest.raises(
            ScenarioError, match=r"begins 1,0\d\d,\d\d\d messages at once .*; expected at most 1,048,575: "
        ):
            find_prerequisites(made(not_))


def test_error_in_the_count_of_an_exchange_names_the_function(monkeypatch):
    def broken(exchange: Transpose, setting: Any) -> int:
        raise KeyError("no such count")

    for function in ("messages_of", "simultaneous_messages"):
        with monkeypatch.context() as patch:
            patch.setattr(Transpose, function, broken)
            with pytest.raises(
                ScenarioError, match=rf"job\[0\]\.exchange: {function} of Transpose stopped: .*KeyError"
            ):
                find_prerequisites(build_scenario(tables(4, {"kind": "transpose"})))


def test_all_to_all_in_shifts_is_limited_to_flows_that_fit_in_memory(monkeypatch):
    flows = {"name": "a", "kind": "all_to_all", "order": "shifts", "size": "1kB"}
    for hosts, memory in ((6689, 1 << 60), (31, 31 * 30 * LOADED_MESSAGE_BYTES)):
        has(monkeypatch, memory)
        for count in (hosts, hosts + 1):
            made = {"name": "x", "topology": {"kind": "star", "hosts": count}, "traffic": [flows]}
            if count == hosts:
                build_scenario(made)
            else:
                with pytest.raises(
                    ScenarioError, match=rf"traffic\[0\].hosts: creates .* expected at most {hosts} hosts"
                ):
                    build_scenario(made)
