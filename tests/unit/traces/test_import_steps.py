"""Import of training steps that no iteration of one backward pass and one update describes, and of odd accelerators."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from profile_cases import DATA_GROUPS, MODEL_GROUPS, Job, Recorded

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import import_trace
from gradwire.traces.formats.profile.collectives import dimension_of
from gradwire.traces.formats.profile.events import side_of

US = 10**6
Event = dict[str, Any]


def imported(events: list[Event]) -> Any:
    Path("profile.json").write_text(json.dumps({"traceEvents": events}))
    return import_trace("profile.json")


def shifted(events: list[Event], by: int, ids: int) -> list[Event]:
    """Return the events later, with other correlation ids."""
    later = copy.deepcopy(events)
    for event in later:
        event["ts"] += by
        if "correlation" in event["args"]:
            event["args"]["correlation"] += ids
    return later


def without_steps(events: list[Event]) -> list[Event]:
    return [event for event in events if not event["name"].startswith("ProfilerStep")]


def step(number: int, begin: int, end: int) -> Event:
    name = f"ProfilerStep#{number}"
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": 1,
        "tid": 100,
        "ts": begin,
        "dur": end - begin,
        "args": {},
    }


def test_steps_with_one_backward_pass_per_optimizer_are_refused() -> None:
    """A GAN trains a generator of two layers and a discriminator of three in each profiler step."""
    first = without_steps(Recorded(Job(iterations=1)).events)
    second = without_steps(Recorded(Job(iterations=1, forward=(5, 6, 7), backward=(8, 9, 10))).events)
    events: list[Event] = []
    for number in range(3):
        at = 100_000 * number
        events += shifted(first, at, 1000 * number) + shifted(second, at + 50_000, 1000 * number + 500)
        events.append(step(number, 1_000_000 + at - 1, 1_000_000 + at + 99_000))
    with pytest.raises(TraceError, match="3 x steps whose optimizers wait for backward passes of their own"):
        imported(events)


def test_one_profiler_step_with_several_iterations_is_split() -> None:
    recorded = Recorded(Job(iterations=4, layout="none"))
    begin = recorded.events[0]["ts"]
    trace = imported([*recorded.events, step(0, begin - 10, recorded.clock)])
    assert [iteration.optimizer_ps // US for iteration in trace.iterations] == [t.optimizer for t in recorded.times]


def test_optimizer_with_repeated_closure_calls_is_refused() -> None:
    """Each LBFGS optimizer step encloses two forward and backward passes."""
    recorded = Recorded(Job(micro_batches=2))
    events = recorded.events
    for begin in [event for event in events if event["name"].startswith("ProfilerStep")]:
        inside = [e for e in events if begin["ts"] <= e["ts"] < begin["ts"] + begin["dur"]]
        (optimizer,) = [e for e in inside if e["name"].startswith("Optimizer.step")]
        end = optimizer["ts"] + optimizer["dur"]
        optimizer.update(ts=begin["ts"] + 1, dur=end - begin["ts"] - 1)
    with pytest.raises(TraceError, match="3 x iterations whose optimizer calls its closure several times"):
        imported(events)


def test_nested_optimizer_step_is_counted_once() -> None:
    recorded = Recorded(Job())
    inner = [copy.deepcopy(e) for e in recorded.events if e["name"].startswith("Optimizer.step")]
    for event in inner:
        event.update(name="Optimizer.step#Wrapped.step", ts=event["ts"] + 1, dur=event["dur"] - 2)
    trace = imported([*recorded.events, *inner])
    assert [iteration.optimizer_ps // US for iteration in trace.iterations] == [t.optimizer for t in recorded.times]


def test_profile_with_launches_but_no_device_work_is_refused() -> None:
    events = [event for event in Recorded(Job(vendor="mtia")).events if event["cat"] != "mtia_ccp_events"]
    with pytest.raises(TraceError, match=r"holds launches \(mtia_runtime\) but no work of the accelerator"):
        imported(events)


@pytest.mark.parametrize(
    ("category", "side"),
    [
        ("cuda_driver", "host"),
        ("privateuse1_runtime", "host"),
        ("xpu_driver", "host"),
        ("kernel", "device"),
        ("gpu_memcpy", "device"),
        ("mtia_ccp_events", "unknown"),
        ("cuda_sync", ""),
        ("gpu_user_annotation", ""),
        ("overhead", ""),
        ("python_function", ""),
    ],
)
def test_event_categories_map_to_host_or_device(category: str, side: str) -> None:
    assert side_of(category) == side


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        *((group, "data") for group in DATA_GROUPS),
        *((group, "model") for group in MODEL_GROUPS),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("mesh_dp_replicate", "data"),
        ("dataParallel", "data"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "model"),
        ("CONTEXT_PARALLEL_GROUP", "model"),
        ("default_pg", ""),
        ("undefined", ""),
        ("0", ""),
    ],
)
def test_process_groups_map_to_data_or_model_parallelism(description: str, dimension: str) -> None:
    assert dimension_of(description) == dimension


def test_process_groups_without_description_are_counted_as_doubtful() -> None:
    events = Recorded(Job(has_shapes=False, model_group="other")).events
    for event in events:
        event["args"].pop("Process Group Description", None)
    # The other group is called in the forward pass, too, which those of gradients are not.
    assert [t.numel for t in imported(events).tensors] == [30_000, 20_000]
    backward = [
        e for e in events if e["tid"] != 100 or e["args"].get("Process Group Name") != "2" or "nelems" in e["name"]
    ]
    doubtful = imported(backward).manifest["source"]["doubtful"]
    assert "collectives of process groups that may not exchange gradients (1, 2)" in doubtful


def test_gpu_clock_offset_is_counted_and_changes_no_duration() -> None:
    """The GPU's clock is 50 us behind the CPU's."""
    recorded = Recorded(Job(iterations=5, pause=20_000))
    for event in recorded.events:
        if event["cat"] == "kernel":
            event["ts"] -= 50
    trace = imported(recorded.events)
    assert [iteration.optimizer_ps // US for iteration in trace.iterations] == [t.optimizer for t in recorded.times]
    assert [iteration.forward_end_ps.max() // US for iteration in trace.iterations] == [
        t.forward for t in recorded.times
    ]
    doubtful = trace.manifest["source"]["doubtful"]
    assert doubtful == {"kernels that begin before their launch, so often that the clocks differ": 5}


def test_kernels_that_overlap_their_predecessors_are_accepted() -> None:
    """With programmatic launches, kernels begin 5 us before their predecessors end."""
    recorded = Recorded(Job(iterations=6))
    for event in recorded.events:
        if event["cat"] == "kernel" and event["name"] != "update":
            event["dur"] += 5
    trace = imported(recorded.events)
    assert len(trace.iterations) == 6
    assert "doubtful" not in trace.manifest["source"]
