"""Damaged profiles: a sound recording of 4 ms forward and gradients at 6, 8, 10 and 12 ms, changed in one place."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from formats_cases import SHARED

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import import_trace
from gradwire.traces.storage.writer import write
from gradwire.traces.trace import Trace

BASE = SHARED / "cases" / "traces" / "base.json"
MS = 10**9
SOUND = (4.0, (6.0, 8.0, 10.0, 12.0), 0.5)
"""Milliseconds of the forward pass, of the gradients and of the update in every step of the file."""
pytestmark = pytest.mark.skipif(not BASE.exists(), reason="no ../shared/data/cases/traces with public cases")

Events = list[dict[str, Any]]


def damaged(folder: Path, damage: Callable[[Events], None]) -> Trace:
    data = json.loads(BASE.read_text())
    damage(data["traceEvents"])
    path = folder / "damaged.json"
    path.write_text(json.dumps(data))
    trace = import_trace(path)
    write(trace, folder / "trace")
    return trace


def times_of(trace: Trace) -> list[tuple[float, tuple[float, ...], float]]:
    return [
        (max(each.forward_end_ps) / MS, tuple(sorted(ready / MS for ready in each.ready_ps)), each.optimizer_ps / MS)
        for each in trace.iterations
    ]


@pytest.mark.parametrize("shape", [[True, 1000], [1000, False], ["1000", 1000], [1000.0, 1000]])
def test_shapes_with_non_integer_sizes_are_skipped(tmp_path: Path, shape: list[object]) -> None:
    def damage(events: Events) -> None:
        next(each for each in events if "AccumulateGrad" in each["name"])["args"]["Input Dims"] = [shape]

    trace = damaged(tmp_path, damage)
    assert all(type(n) is int for tensor in trace.tensors for n in tensor.shape)
    assert times_of(trace) == [SOUND] * 2
    assert trace.manifest["source"]["skipped"]["AccumulateGrad without a shape (profile with record_shapes=True)"] == 1


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (None, "null"),
        ("abc", "a string"),
        (5, "a number"),
        (1.5, "a number"),
        ({"a": 1}, "an object"),
        (True, "a boolean"),
    ],
)
def test_profile_without_an_event_array_is_refused(tmp_path: Path, events: object, kind: str) -> None:
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(TraceError, match=f"traceEvents is {kind}; expected an array of events"):
        import_trace(path)


def later(events: Events) -> None:
    """Move all times, so that 0 is far before the recording."""
    for event in events:
        event["ts"] += 1e9


@pytest.mark.parametrize("values", [{"ts": 0}, {"ts": -5}, {"ts": 1e9 + 1e6}])
@pytest.mark.parametrize("which", [0, 5, 6, 11])
@pytest.mark.parametrize(
    ("name", "kind"), [("evaluate_function", "autograd functions"), ("AccumulateGrad", "AccumulateGrad")]
)
def test_step_with_a_damaged_cpu_record_time_is_left_out(
    tmp_path: Path, name: str, kind: str, which: int, values: dict[str, float]
) -> None:
    def damage(events: Events) -> None:
        later(events)
        named = [
            each
            for each in events
            if each["name"].startswith((name, f"autograd::engine::{name}", f"torch::autograd::{name}"))
        ]
        assert len(named) == 12
        named[which].update(values)

    trace = damaged(tmp_path, damage)
    assert times_of(trace) == [SOUND] * 2
    assert trace.manifest["source"]["doubtful"][f"{kind} at a time far outside of the recording, left out"] == 1


def test_damaged_forward_operator_time_leaves_all_steps(tmp_path: Path) -> None:
    def damage(events: Events) -> None:
        later(events)
        next(each for each in events if "aten::linear" in each["name"])["ts"] = 0

    trace = damaged(tmp_path, damage)
    assert times_of(trace) == [SOUND] * 3
    assert (
        trace.manifest["source"]["doubtful"]["forward operators at a time far outside of the recording, left out"] == 1
    )


def kernels(events: Events) -> Events:
    return [each for each in events if each.get("cat") == "kernel"]


@pytest.mark.parametrize("row", [{"pid": None}, {"tid": 8}, {"pid": 2}, {"pid": 2, "tid": 8}])
@pytest.mark.parametrize("which", [4, 5, 13, 22])
def test_step_with_a_kernel_on_a_wrong_stream_is_left_out(
    tmp_path: Path, row: dict[str, int | None], which: int
) -> None:
    def damage(events: Events) -> None:
        kernel = kernels(events)[which]
        kernel.update(row)
        if row.get("pid", 0) is None:
            del kernel["pid"]

    trace = damaged(tmp_path, damage)
    assert times_of(trace) == [SOUND] * 2
    assert trace.manifest["source"]["doubtful"]["kernels on a stream that has fewer kernels than there are steps"] == 1


def test_stream_that_recurs_in_every_step_is_accepted(tmp_path: Path) -> None:
    """The second stream runs the second half of each forward pass; no other kernel waits for it."""

    def damage(events: Events) -> None:
        for kernel in kernels(events)[1::9]:
            kernel["tid"] = 8

    trace = damaged(tmp_path, damage)
    assert times_of(trace) == [SOUND] * 3
    assert "doubtful" not in trace.manifest["source"]


@pytest.mark.parametrize("which", [(4,), (4, 5, 6, 7), (8,), (4, 13)])
def test_steps_without_critical_kernels_are_left_out(tmp_path: Path, which: tuple[int, ...]) -> None:
    def damage(events: Events) -> None:
        for kernel in [kernels(events)[index] for index in which]:
            events.remove(kernel)

    trace = damaged(tmp_path, damage)
    steps = {index // 9 for index in which}
    assert times_of(trace) == [SOUND] * (3 - len(steps))
    assert trace.manifest["source"]["doubtful"]["kernels whose record was lost"] == len(which)


def test_update_without_a_kernel_has_zero_duration(tmp_path: Path) -> None:
    """The launches of the update are missing from the file, too, as with an optimizer on the CPU."""

    def damage(events: Events) -> None:
        launched = {kernel["args"]["correlation"] for kernel in kernels(events)[8::9]}
        events[:] = [each for each in events if each.get("args", {}).get("correlation") not in launched]

    trace = damaged(tmp_path, damage)
    assert times_of(trace) == [(*SOUND[:2], 0.0)] * 3
    assert trace.manifest["source"]["doubtful"]["updates without a kernel: no time is taken from them"] == 3


DDP = SHARED / "traces" / "kineto_ddp_2gpu.json.gz"


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    if not DDP.exists():
        pytest.skip("no ../shared/data/traces with recordings")
    return json.loads(gzip.decompress(DDP.read_bytes()))  # type: ignore[no-any-return]


def without_kernels(recording: dict[str, Any], folder: Path, is_lost: Callable[[int, int], bool]) -> Trace | str:
    """Import the recording without some kernels, by rank in time and number; the message where it is refused."""
    events = recording["traceEvents"]
    ordered = sorted(kernels(events), key=lambda kernel: kernel["ts"])
    lost = {id(kernel) for rank, kernel in enumerate(ordered) if is_lost(rank, len(ordered))}
    path = folder / "lost.json"
    path.write_text(json.dumps({**recording, "traceEvents": [each for each in events if id(each) not in lost]}))
    try:
        return import_trace(path)
    except TraceError as error:
        return str(error)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
def test_profile_steps_with_randomly_lost_kernels_are_left_out(
    recording: dict[str, Any], tmp_path: Path, share: float
) -> None:
    draws = random.Random(3)
    sound = dict(zip(*steps_of(import_trace(DDP)), strict=True))
    trace = without_kernels(recording, tmp_path, lambda rank, count: draws.random() < share)
    if isinstance(trace, str):
        assert "no complete iteration" in trace or "no gradient" in trace
    else:
        assert_sound(trace, sound)


@pytest.mark.parametrize(("low", "high"), [(1 / 3, 2 / 3), (0.5, 0.52), (0.35, 0.6), (0.5, 1.0), (0.25, 0.7)])
def test_profile_steps_with_a_lost_range_of_kernels_are_left_out(
    recording: dict[str, Any], tmp_path: Path, low: float, high: float
) -> None:
    sound = dict(zip(*steps_of(import_trace(DDP)), strict=True))
    trace = without_kernels(recording, tmp_path, lambda rank, count: low * count <= rank < high * count)
    if isinstance(trace, str):
        assert "no complete iteration" in trace or "no gradient" in trace
    else:
        assert_sound(trace, sound)


def steps_of(trace: Trace) -> tuple[list[int], list[tuple[float, tuple[float, ...], float]]]:
    return [each.step for each in trace.iterations], times_of(trace)


def assert_sound(trace: Trace, sound: dict[int, tuple[float, tuple[float, ...], float]]) -> None:
    """Assert that each step has exactly the times that it has in the whole recording."""
    for step, times in zip(*steps_of(trace), strict=True):
        assert times == sound[step]
    assert trace.manifest["source"]["doubtful"]["kernels whose record was lost"] > 0
