"""Import of PyTorch profiles: worked GPU and CPU cases, real files, the streaming parser."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from formats_cases import SAMPLES, SHARED, kineto, kineto_events

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import import_trace
from gradwire.traces.formats.profile import json_events
from gradwire.traces.formats.source import open_source

US = 10**6


def imported(text: str, name: str = "profile.json") -> Any:
    Path(name).write_text(text)
    return import_trace(name)


def test_gpu_gradient_is_ready_when_kernels_before_its_collective_end():
    trace = imported(kineto(kineto_events(), distributedInfo={"rank": 3, "world_size": 4, "backend": "nccl"}))
    (iteration,) = trace.iterations
    assert (iteration.step, iteration.rank) == (7, 3)
    assert [t.numel for t in trace.tensors] == [1000, 300]  # the first call is the back of the network
    assert iteration.ready_ps.tolist() == [900 * US, 600 * US]
    assert iteration.forward_end_ps.max() == 300 * US
    assert (iteration.backward_end_ps, iteration.optimizer_ps) == (900 * US, 40 * US)
    # backward shares: bucket 1 from 300 to 600, bucket 0 from 600 to 900
    assert iteration.forward_end_ps.tolist() == [150 * US, 300 * US]
    assert trace.manifest["groups"] == [{"kind": "ddp_bucket", "tensors": [1]}, {"kind": "ddp_bucket", "tensors": [0]}]
    assert trace.manifest["magnitudes"]["source"] == "model"


def test_copies_on_the_communication_stream_do_not_count_as_computing():
    events = kineto_events()
    for number in range(30):
        told = {"correlation": 100 + number}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 105, "dur": 1, "args": told}
        events += [launch, {**launch, "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 5000, "tid": 40}]
    trace = imported(kineto(events))
    assert trace.iterations[0].ready_ps.tolist() == [900 * US, 600 * US]


def test_collective_without_a_launch_starts_with_its_kernel():
    events = [e for e in kineto_events() if e.get("cat") != "cuda_runtime"]
    for event in events:
        if event.get("name") == "ProfilerStep#7":
            event.update(ts=900, dur=2000)
    trace = imported(kineto(events))
    # the kernels that began before 1601 and 2000 end at 1900 at the latest
    assert trace.iterations[0].ready_ps.tolist() == [900 * US, 900 * US]
    assert trace.manifest["source"]["skipped"]["collectives without a launch: called when their kernel starts"] == 2


def test_iterations_with_different_or_missing_buckets_are_skipped():
    events = kineto_events()
    for shift, drop in ((1000, None), (2000, 300)):
        for event in kineto_events():
            if event["ph"] != "X" or (event["args"].get("In msg nelems") == drop and drop):
                continue
            event["args"] = {**event["args"]}
            if "correlation" in event["args"]:
                event["args"]["correlation"] += shift
            event["name"] = event["name"].replace("#7", f"#{shift}")
            events.append({**event, "ts": event["ts"] + shift * 10})
    trace = imported(kineto(events))
    assert [i.step for i in trace.iterations] == [7, 1000]
    assert trace.manifest["source"]["skipped"]["iterations with other gradients than most"] == 1


def test_reduce_scatters_are_gradients_and_all_gathers_are_not():
    events = kineto_events()
    for event in events:
        told = event.get("args", {})
        if told.get("In msg nelems") == 1000:
            told["Collective name"] = "_reduce_scatter_base"
        elif told.get("In msg nelems") == 300:
            told["Collective name"] = "_allgather_base"
    trace = imported(kineto(events))
    assert [t.numel for t in trace.tensors] == [1000]
    assert trace.manifest["groups"] == [{"kind": "fsdp_unit", "tensors": [0]}]
    assert trace.manifest["source"]["skipped"]["kernels of _allgather_base"] == 1


def test_real_gloo_profile_has_parameters_in_buckets():
    trace = import_trace(SAMPLES / "gloo_ddp.json.gz")
    shapes = [t.shape for t in trace.tensors]
    # nn.Sequential(Conv2d(3, 16, 3), BatchNorm2d(16), ReLU, Flatten, Linear(1024, 200), ReLU, Linear(200, 10))
    assert sorted(shapes) == sorted([(16, 3, 3, 3), (16,), (16,), (16,), (200, 1024), (200,), (10, 200), (10,)])
    assert set(shapes[-2:]) == {(10,), (10, 200)}
    assert [sorted(g["tensors"]) for g in trace.manifest["groups"]] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert [i.step for i in trace.iterations] == [3, 4]
    assert all(i.forward_end_ps.max() < i.ready_ps.min() for i in trace.iterations)
    assert all((i.ready_ps[:-1] >= i.ready_ps[1:]).all() for i in trace.iterations)


def test_real_fsdp2_profile_has_parameters_in_units():
    # Linear(64, 64), Linear(64, 128) and Linear(128, 8), each a unit of its own
    trace = import_trace(SAMPLES / "gloo_fsdp2.json.gz")
    units = [[trace.tensors[n].numel for n in group["tensors"]] for group in trace.manifest["groups"]]
    assert [sorted(unit) for unit in units] == [[8, 1024], [128, 8192], [64, 4096]]
    assert {group["kind"] for group in trace.manifest["groups"]} == {"fsdp_unit"}


def test_cpu_reduce_scatters_have_the_size_of_their_input():
    text = gzip.open(SAMPLES / "gloo_fsdp2.json.gz", "rt").read()
    trace = imported(text.replace("torch::autograd::AccumulateGrad", "hidden"))
    assert [t.numel for t in trace.tensors] == [4160, 8320, 1032]


def test_gradient_accumulation_takes_the_last_micro_batch():
    # Sequential(Linear(32, 32), ReLU, Linear(32, 32)), three micro-batches a step
    trace = import_trace(SAMPLES / "accumulation.json.gz")
    assert [t.shape for t in trace.tensors].count((32, 32)) == 2
    assert len(trace.tensors) == 4
    assert trace.manifest["source"]["skipped"]["micro-batches before the last of a step"] == 4
    for iteration in trace.iterations:
        assert iteration.forward_end_ps.max() > 0.6 * iteration.backward_end_ps  # two whole micro-batches before


def test_layers_of_equal_shape_are_not_taken_for_micro_batches():
    events = [e for e in kineto_events() if "nccl" not in e["name"]]
    told = {"Input Dims": [[8, 4]], "Input type": ["float"]}
    for at in (145, 170):
        events.append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "torch::autograd::AccumulateGrad",
                "ts": at - 1,
                "dur": 1,
                "args": told,
            }
        )
    # recomputed within one of autograd's functions, as activation checkpointing does
    events.append({"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: C", "ts": 150, "dur": 9})
    again = {"Sequence number": 5, "Fwd thread id": 0}
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 152, "dur": 1, "args": again})
    trace = imported(kineto(events))
    assert trace.iterations[0].ready_ps.tolist() == [900 * US, 600 * US]
    assert trace.iterations[0].forward_end_ps.max() == 300 * US
    events[-1]["ts"] = 161  # outside of it: a forward pass, and so two micro-batches of one parameter
    trace = imported(kineto(events))
    assert trace.iterations[0].ready_ps.tolist() == [900 * US]


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data with real profiles")
def test_real_resnet50_profile_of_two_gpus_has_known_times_and_buckets():
    path = SHARED / "traces" / "kineto_ddp_2gpu.json.gz"
    trace = import_trace(path)
    assert trace.total_bytes == 25_557_032 * 4  # ResNet-50 with 1000 classes
    assert [t.numel for t in reversed(trace.tensors)] == [2049000, 7875584, 6563840, 6637568, 2431040]
    assert [i.step for i in trace.iterations] == [4, 5, 6]
    assert trace.manifest["gpu"] == "NVIDIA A100-PG509-200"
    events = json.loads(gzip.open(path).read())["traceEvents"]
    kernels = sorted((e["ts"], e["dur"]) for e in events if e.get("cat") == "kernel" and "AllReduce" in e["name"])
    for number, iteration in enumerate(trace.iterations):
        ready = iteration.ready_ps[::-1]
        starts = [ts for ts, _ in kernels[5 * number : 5 * number + 5]]
        # Each NCCL kernel starts as soon as its bucket is ready and it has been launched, which on this machine
        # takes up to 0.3 ms: the same distance for all, give or take that.
        distance = [start * US - moment for start, moment in zip(starts, ready.tolist(), strict=True)]
        assert max(distance) - min(distance) < 300 * US
        assert 90e9 < iteration.forward_end_ps.max() < 105e9  # the profile's own "## forward ##" takes 103 ms


def test_kernels_launched_before_the_recording_are_skipped():
    """Kernels launched before the recording have no launch event and may run in its first iterations."""
    events = kineto_events()
    early = [
        {**e, "ts": 150 + 60 * n, "args": {"correlation": 900 + n}} for n, e in enumerate(events) if e["name"] == "gemm"
    ]
    trace = imported(kineto(events + early))
    (iteration,) = trace.iterations
    assert iteration.ready_ps.tolist() == [900 * US, 600 * US]
    assert iteration.forward_end_ps.max() == 300 * US
    assert trace.manifest["source"]["skipped"]["kernels launched before the recording began"] == len(early)


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data with real profiles")
def test_real_resnet18_profile_with_a_lagging_gpu_has_known_times():
    """ResNet-18 on an MI300 takes 2.2 ms for each forward pass. The kernels of three steps are older than the file."""
    trace = import_trace(SHARED / "traces" / "kineto_mi300_resnet18.json.gz")
    assert [iteration.step for iteration in trace.iterations] == [15, 16, 17]
    for iteration in trace.iterations:
        assert 2.15e9 < iteration.forward_end_ps.max() < 2.3e9
        assert 7.4e9 < iteration.backward_end_ps < 7.6e9
        assert 25e6 < iteration.optimizer_ps < 35e6
    assert trace.manifest["source"]["skipped"]["kernels launched before the recording began"] == 963


def old_profile(backward_thread: int = 2) -> list[dict[str, Any]]:
    """`kineto_events` as PyTorch before 1.10 would record it: no functions of autograd, annotations as operators."""
    names = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime", "user_annotation": "Operator"}
    events = kineto_events()
    for event in events:
        event["cat"] = names.get(str(event.get("cat")), event.get("cat"))
        if event["name"].startswith("autograd::engine"):
            event.update(name="AddmmBackward", tid=backward_thread)
    return events


@pytest.mark.parametrize("thread", [1, 2])
def test_old_profiles_without_autograd_functions_give_the_same_times(thread: int):
    (iteration,) = imported(kineto(old_profile(thread))).iterations
    assert iteration.forward_end_ps.max() == 300 * US
    assert iteration.optimizer_ps == 40 * US


def test_forward_operator_named_backward_does_not_start_the_backward_pass():
    """The operator runs on the thread that calls the model; autograd has a separate thread."""
    events = old_profile()
    events.append(
        {**next(e for e in events if e["name"] == "AddmmBackward"), "name": "MyBackward", "tid": 1, "ts": 115}
    )
    (iteration,) = imported(kineto(events)).iterations
    assert iteration.forward_end_ps.max() == 300 * US


def test_profiler_steps_with_huge_numbers_are_refused():
    for digits in (25, 400):
        text = kineto(kineto_events()).replace("ProfilerStep#7", "ProfilerStep#" + "7" * digits)
        with pytest.raises(TraceError, match=r"step 777.* of rank 0; expected numbers from 0"):
            imported(text)


def test_refusal_lists_only_skipped_records_with_nonzero_counts():
    events = [e for e in kineto_events() if "In msg nelems" not in e.get("args", {})]
    with pytest.raises(TraceError, match="no gradients") as refusal:
        imported(kineto(events))
    assert "(left out: " in str(refusal.value) and " 0 x " not in str(refusal.value)


def test_forward_pass_is_one_third_if_backward_events_are_missing():
    events = [e for e in old_profile() if e["name"] != "AddmmBackward"]
    trace = imported(kineto(events))
    assert trace.iterations[0].forward_end_ps.max() == 300 * US  # a third of 900
    assert any("taken as a third of the time" in what for what in trace.manifest["source"]["skipped"])


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data with real profiles")
def test_real_resnet50_profile_of_pytorch_1_9_has_known_times():
    """The first step of ResNet-50 on a V100 takes 116.5 ms, of which forward 50.05 (PyTorch 1.9)."""
    trace = import_trace(SHARED / "traces" / "kineto_resnet50_v100.json.gz")
    forward = [iteration.forward_end_ps.max() / 1e9 for iteration in trace.iterations]
    assert forward == pytest.approx([50.05, 49.27, 49.69, 49.90, 51.44, 50.97], abs=0.01)
    assert [round(i.backward_end_ps / 1e9, 1) for i in trace.iterations][:2] == [116.5, 115.7]
    assert all(1.8e9 < iteration.optimizer_ps < 1.9e9 for iteration in trace.iterations)
    assert trace.total_bytes == 25_557_032 * 4


@pytest.mark.parametrize("block", [1, 3, 64, 1 << 22])
@pytest.mark.parametrize("array", [False, True])
def test_streaming_parser_matches_json_module_for_all_block_sizes(
    monkeypatch: pytest.MonkeyPatch, block: int, array: bool
):
    odd = [{"name": 'a "quoted" \\ µ 名', "ts": -1.5e-3, "args": {"x": [1, [2.5, None]], "y": True}}, {}, {"n": 12345}]
    text = json.dumps(odd, ensure_ascii=False) if array else kineto(odd, last={"deep": [[]]}, number=17)
    Path("odd.json").write_text(" \n" + text + " \n")
    monkeypatch.setattr(json_events, "_BLOCK", block)
    header: dict[str, Any] = {}
    skipped: Counter[str] = Counter()
    with open_source(Path("odd.json")) as source:
        assert list(json_events.events(source, header, skipped)) == odd
    if not array:
        assert header == {"schemaVersion": 1, "last": {"deep": [[]]}, "number": 17}
    assert not skipped


@pytest.mark.parametrize("block", [1, 3, 64, 1 << 22])
def test_streaming_parser_repairs_invalid_json_for_all_block_sizes(monkeypatch: pytest.MonkeyPatch, block: int):
    monkeypatch.setattr(json_events, "_BLOCK", block)
    text = r'[{"n": "C:\Users\\x \"q\" inf, \n\u00b5\u12", "v": [inf, -inf, nan, -nan(ind), 1.#INF]}, {"d": "a\wb", "e": 1e5}]'
    Path("odd.json").write_text(text)
    with open_source(Path("odd.json")) as source:
        events = list(json_events.events(source, {}, Counter()))
    assert events[0]["n"] == 'C:\\Users\\x "q" inf, \n\u00b5\\u12'
    assert [str(value) for value in events[0]["v"]] == ["inf", "-inf", "nan", "nan", "inf"]
    assert events[1] == {"d": "a\\wb", "e": 1e5}
    assert source.notes == {json_events.LITERAL: 3, json_events.NOT_FINITE: 5}


def test_unclosed_event_array_is_read_and_unclosed_object_is_refused():
    text = json.dumps(kineto_events())
    assert len(imported(text[:-1]).tensors) == 2
    with pytest.raises(TraceError, match="ends after event 20"):
        imported(kineto(kineto_events())[:-2])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{}", "has no traceEvents"),
        ('{"a": 1}', "has no traceEvents, only a"),
        ('{"traceEvents": []}', "no gradients.*; expected training profiled with record_shapes=True"),
        ('{"traceEvents": [{"ph": "X"}]}', "no gradient.*without name, ts or dur"),
        ('{"traceEvents": [1, "x", null]}', "no gradient.*that are no events"),
        ('{"traceEvents": [{]}', "is not JSON"),
        ('{"traceEvents": [{"a": nul}], "more": "' + "x" * 100 + '"}', "is not JSON"),
        ('{"traceEvents": 5}', "traceEvents is a number"),
        ('{"a" 5}', "is not JSON"),
        ('{"traceEvents": [' + "9" * 5000 + "]}", "thousands of digits"),
        (
            kineto(
                [
                    {**e, "name": "ProfilerStep#" + "9" * 30} if e["name"] == "ProfilerStep#7" else e
                    for e in kineto_events()
                ]
            ),
            "step 9{30} of rank 0",
        ),
        ("[" * 100_000, "nesting too deep|ends"),
        ('{"traceEvents": [{"name": "', "ends at its beginning"),
    ],
)
def test_invalid_json_profiles_are_refused(text: str, what: str):
    with pytest.raises(TraceError, match=what):
        imported(text)


def test_events_with_invalid_values_are_skipped_and_counted():
    odd: list[Any] = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "x", "dur": 1},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1},
        {"ph": "X", "cat": "kernel", "name": 5, "ts": 1, "dur": 1},
        {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_x", "ts": 1e300, "dur": 1},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "torch::autograd::AccumulateGrad",
            "ts": 150,
            "dur": 1,
            "args": {"Input Dims": [[0]], "Input type": ["float"]},
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "ts": 150,
            "dur": 1,
            "args": {"Collective name": "allreduce", "In msg nelems": "many", "dtype": "Float"},
        },
        {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_x", "ts": 1, "dur": 1, "args": {"correlation": [1]}},
        {"ph": "X", "cat": ["list"], "name": "k", "ts": 1, "dur": 1, "args": 5},
    ]
    trace = imported(kineto(kineto_events() + odd, deviceProperties="none", distributedInfo=[1]))
    assert trace.iterations[0].ready_ps.tolist() == [900 * US, 600 * US]
    skipped = trace.manifest["source"]["skipped"]
    assert skipped["events without name, ts or dur"] == 4
    assert sum(skipped.values()) >= len(odd)


def test_profile_with_invalid_utf8_is_refused_with_byte_position():
    data = kineto(kineto_events()).encode()
    for at in (data.index(b"ProfilerStep") + 3, len(data) - 3):
        Path("profile.json").write_bytes(data[:at] + b"\xe4" + data[at + 1 :])
        with pytest.raises(TraceError, match=rf"profile.json: byte {at + 1:,} \(0xe4\) is not UTF-8; expected JSON"):
            import_trace("profile.json", format="kineto")
