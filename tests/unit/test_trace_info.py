"""`gradwire trace info`: figures against hand-made traces, and a table that shows them."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from tests.unit.trace_cases import small_trace
from traces.info import info, print_info
from traces.trace import Iteration, TensorInfo, Trace


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


def test_figures_by_hand() -> None:
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


def test_it_is_plain_data() -> None:
    trace = small_trace()
    data = json.loads(json.dumps(info(trace)))
    assert data["digest"] == trace.digest()
    assert [row["layer"] for row in data["layer_table"]] == list(range(len(trace.layers)))


def test_table_shows_losses_and_layers() -> None:
    stream = io.StringIO()
    trace = two_layers([[90, 40, 50]], np.ones(12))
    print_info(trace, Console(file=stream, width=100))
    text = stream.getvalue()
    assert "made [up]" in text
    assert "2.000" in text
    assert "0 to 0" in text
    assert "10.0 KiB" in text
    stream = io.StringIO()
    print_info(trace, Console(file=stream, width=100), layers=False)
    assert "10.0 KiB" not in stream.getvalue()
