"""`gradwire trace info`: figures against hand-made traces, and a table that shows them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from trace_cases import small_trace

from gradwire.traces.tools.info import info, layer_blocks, print_info
from gradwire.traces.trace import Iteration, TensorInfo, Trace


def two_layers(ready: list[list[int]], mean: np.ndarray) -> Trace:
    """Layer a (one tensor, 2560 elements) before layer b (two tensors, 256 elements each)."""
    infos = [
        TensorInfo("a.w", (2560,), 2560, "float32", 0, 4),
        TensorInfo("b.w", (256,), 256, "float32", 1, 4),
        TensorInfo("b.b", (256,), 256, "float32", 1, 4),
    ]
    captured = [
        Iteration(i, "early", i, 2.0 - i, np.array([0, 10]), np.array([10, 30]), np.array(times), 100, 5, 105)
        for i, times in enumerate(ready)
    ]
    mean = np.tile(mean.astype(np.float16), (len(ready), 1))
    return Trace({"name": "two", "model": "made [up]"}, ["a", "b"], infos, captured, mean, mean)


def test_info_equals_hand_computed_values() -> None:
    # Chunks of a: nine of 1 and one of 91; the two of b: 20. Stored figures are 16 times the gradients.
    mean = np.array([1.0] * 9 + [91.0] + [20.0, 20.0])
    data = info(two_layers([[90, 40, 50], [60, 70, 80]], mean))
    assert data["total_bytes"] == 4 * (2560 + 512)
    assert data["back_layers"] == {"layers": 2, "share_of_bytes": 1.0}
    early = data["phases"]["early"]
    assert (early["forward_ps"], early["backward_ps"], early["optimizer_ps"]) == (30, 70, 5)
    assert early["ready_inversions"] == 1  # in the second iteration layer a is ready before layer b
    assert early["mean_magnitude"] == pytest.approx((100 + 40) / 16 / 12)
    assert early["magnitude_spread"] == pytest.approx(0.91)
    assert data["layer_table"][0]["ready_ps"] == {"early": 75}
    assert data["layer_table"][1] == {
        "layer": 1,
        "name": "b",
        "tensors": ["b.w", "b.b"],
        "bytes": 2048,
        "forward_ps": 20,
        "ready_ps": {"early": 65},
    }


def test_info_is_json_serializable() -> None:
    trace = small_trace()
    data = json.loads(json.dumps(info(trace)))
    assert data["digest"] == trace.digest()
    assert [row["layer"] for row in data["layer_table"]] == list(range(len(trace.layers)))


def shown(trace: Trace, *, layers: bool = True) -> str:
    stream = io.StringIO()
    print_info(trace, Console(file=stream, width=100), layers=layers)
    return stream.getvalue()


def test_print_info_shows_losses_and_layers() -> None:
    text = shown(two_layers([[90, 40, 50]], np.ones(12)))
    assert "made [up]" in text
    assert "2.000" in text
    assert "0 to 0" in text
    assert "10.0 KiB" in text
    assert "1 iteration; times measured; gradient magnitudes measured" in text


def deep(names: list[str]) -> Trace:
    """Layers of 256 elements each, one millisecond of forward pass and one of backward pass each."""
    infos = [TensorInfo(f"{name}.w", (256,), 256, "float32", n) for n, name in enumerate(names)]
    ends = np.arange(1, len(names) + 1) * 10**9
    ready = 2 * ends[-1] - ends + 10**9
    captured = [Iteration(0, "early", 3, 1.0, ends - 10**9, ends, ready, int(ready.max()), 0, int(ready.max()))]
    ones = np.ones((1, len(names)), dtype=np.float16)
    return Trace({"name": "deep"}, names, infos, captured, ones, ones)


def test_print_info_groups_layers_into_blocks_unless_layers_is_set() -> None:
    trace = deep(["stem", *(f"stage{a}.{b}.conv" for a in range(3) for b in range(12)), "head"])
    text = shown(trace, layers=False)
    lines = [line.split() for line in text.splitlines()]
    # Layers 1 to 12: 12 KiB of 38, 12 ms forward; backward takes 1 ms each from 38 ms on, last to layer 1 at 75 ms.
    assert ["1-12", "stage0", "12.0", "KiB", "31.6", "%", "12", "75"] in lines
    assert ["0", "stem", "1.00", "KiB", "2.63", "%", "1", "76"] in lines
    assert not any("stage0.3.conv" in line for line in lines)
    assert "stage0.3.conv" in shown(trace, layers=True)


def test_layer_blocks_use_deepest_name_prefixes_within_limit() -> None:
    names = ["a.0.x", "a.0.y", "a.1.x", "b.0.x", "a.0.z"]
    assert layer_blocks(names, 5) == [
        ("a.0.x", 0, 0),
        ("a.0.y", 1, 1),
        ("a.1.x", 2, 2),
        ("b.0.x", 3, 3),
        ("a.0.z", 4, 4),
    ]
    assert layer_blocks(names, 4) == [("a.0", 0, 1), ("a.1", 2, 2), ("b.0", 3, 3), ("a.0", 4, 4)]
    assert layer_blocks(names, 3) == [("a", 0, 2), ("b", 3, 3), ("a", 4, 4)]  # only neighbours belong together
    nodes = ["n1 Conv2d(3, 0.5)", "n2 ReLU()", "n3 Linear(0.1)"]
    assert layer_blocks(nodes, 2) == [("n1 Conv2d to n2 ReLU", 0, 1), ("n3 Linear", 2, 2)]
    assert layer_blocks(names, 2) == [("a.0.x to a.0.y", 0, 1), ("a.1.x to a.0.z", 2, 4)]


def test_nan_loss_is_null_in_json() -> None:
    plain = two_layers([[90, 40, 50]], np.ones(12))
    unknown = [replace(each, loss=float("nan")) for each in plain.iterations]
    trace = Trace(plain.manifest, plain.layers, plain.tensors, unknown, plain._mean, plain._max)
    assert json.loads(json.dumps(info(trace), allow_nan=False))["phases"]["early"]["loss"] == [None]
    assert ["loss", "(mean)", "-"] in [line.split() for line in shown(trace).splitlines()]


def test_short_last_chunk_is_weighted_by_its_element_count() -> None:
    infos = [TensorInfo("t", (300,), 300, "float32", 0, 1)]
    times = np.array([1])
    captured = [Iteration(0, "early", 0, 1.0, times - 1, times, times, 2, 0, 2)]
    mean = np.array([[2.0, 20.0]], dtype=np.float16)  # |g| is half of that: 256 elements of 1 and 44 of 10
    trace = Trace({"name": "one"}, ["l"], infos, captured, mean, mean)
    assert info(trace)["phases"]["early"]["mean_magnitude"] == pytest.approx((256 * 1 + 44 * 10) / 300)


def test_info_reports_sources_of_times_and_magnitudes() -> None:
    """The trace has two workers, modelled magnitudes of half its iterations, and entries that the importer skipped."""
    plain = two_layers([[90, 40, 50]] * 4, np.arange(1.0, 13.0))
    captured = [replace(each, rank=each.index % 2, end_ps=105 + 10 * (each.index % 2), optimizer_ps=5 + 10 * (each.index % 2))
                for each in plain.iterations]  # fmt: skip
    manifest = {
        "name": "both",
        "timing": "imported",
        "timing_how": "one after the other",
        "magnitudes": {"source": "model", "model": "lognormal", "fitted_to": "resnet50"},
        "groups": [{"kind": "ddp_bucket", "tensors": [1, 2]}, {"kind": "ddp_bucket", "tensors": [0]}],
        "source": {
            "format": "kineto",
            "file": "t.json",
            "understood": {"kernels": 7},
            "skipped": {f"k{n}": n for n in range(1, 10)},
        },
        "compiled": {"modules": ["model"], "forward_of_layers": "even shares"},
        "note": "a [shared] machine",
    }
    half = np.tile(np.arange(1.0, 13.0).astype(np.float16), (2, 1))
    trace = Trace(manifest, plain.layers, plain.tensors, captured, half, half, None, [0, 1])
    data = json.loads(json.dumps(info(trace)))
    assert data["ranks"] == [0, 1]
    assert data["sampled"] == [0, 1]
    assert data["groups"][0] == {"kind": "ddp_bucket", "tensors": [1, 2], "bytes": 2048}
    assert data["phases"]["early"]["iteration_ps_by_rank"] == {"0": 105, "1": 115}
    text = shown(trace).replace("\n", " ")
    assert "4 iterations of 2 workers (ranks 0, 1), 2 of them with gradient magnitudes" in text
    assert (
        "times imported (one after the other); gradient magnitudes not measured: lognormal model fitted to resnet50"
        in " ".join(text.split())
    )
    assert "2 x ddp_bucket: 2.00 KiB to 10.0 KiB" in text
    assert "imported from kineto (t.json)" in text
    assert "skipped: 9 x k9" in text
    assert "x k3" not in text
    assert "skipped: 3 more kinds, see manifest.json" in text
    assert "in compiled modules: even shares" in text
    assert "note: a [shared] machine" in text
