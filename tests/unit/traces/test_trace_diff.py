"""`gradwire trace diff`: every figure by hand."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from trace_cases import small_trace

from gradwire.traces.tools.diff import diff, print_diff
from gradwire.traces.tools.info import info
from gradwire.traces.trace import Iteration, TensorInfo, Trace

BASE = {"name": "base"}


def trace(
    names: list[str], values: list[list[float]], *, phase: str = "early", factor: int = 1, dtype: str = "float32",
    exponent: int = 0, name: str = "base",
) -> Trace:  # fmt: skip
    """One layer and 256 elements a chunk; `values` are chunk means, `factor` stretches all times."""
    infos = [
        TensorInfo(each, (256 * len(row),), 256 * len(row), dtype, 0, exponent)
        for each, row in zip(names, values, strict=True)
    ]
    times = [Iteration(0, phase, 5, 1.0, np.array([0]), np.array([100 * factor]),
             np.array([(300 + min(10 * n, 100)) * factor for n in range(len(names))]), 400 * factor, 50 * factor, 450 * factor)]  # fmt: skip
    means = np.ldexp(np.concatenate(values), exponent).astype(np.float16)[np.newaxis]
    return Trace({"name": name}, ["layer"], infos, times, means, means)


def shown(a: Trace, b: Trace) -> str:
    stream = io.StringIO()
    print_diff(diff(a, b), Console(file=stream, width=120))
    return stream.getvalue()


def test_diff_of_equal_traces_reports_identical_data() -> None:
    one = small_trace()
    data = diff(one, small_trace())
    assert data["identical"]
    assert "small and small hold the same data" in shown(one, one)
    for times in data["timing"].values():
        assert {time["ratio"] for time in times.values()} == {1.0}
    for found in data["magnitudes"].values():
        assert found["ratio"] == 1.0
        assert found["rank_correlation"] == pytest.approx(1)
        assert {row["log2_ratio"] for row in found["tensors"]} == {0.0}


def test_diff_is_json_serializable() -> None:
    data = diff(small_trace(), small_trace(seed=1, tensors=6))
    assert json.loads(json.dumps(data)) == data
    assert not data["identical"]


def test_diff_reports_phase_times_and_ratios() -> None:
    data = diff(trace(["t", "u"], [[1.0], [1.0]]), trace(["t", "u"], [[1.0], [1.0]], factor=3))
    assert data["timing"]["early"] == {
        "forward_ps": {"a": 100, "b": 300, "ratio": 3.0},
        "backward_ps": {"a": 300, "b": 900, "ratio": 3.0},
        "optimizer_ps": {"a": 50, "b": 150, "ratio": 3.0},
        "iteration_ps": {"a": 450, "b": 1350, "ratio": 3.0},
        "first_ready_ps": {"a": 300, "b": 900, "ratio": 3.0},
        "last_ready_ps": {"a": 310, "b": 930, "ratio": 3.0},
    }


def test_ratio_to_zero_is_none() -> None:
    one = trace(["t"], [[0.0]])
    still = replace(one.iterations[0], optimizer_ps=0, end_ps=400)
    data = diff(Trace(BASE, one.layers, one.tensors, [still], one._mean, one._max), trace(["t"], [[2.0]]))
    assert data["timing"]["early"]["optimizer_ps"]["ratio"] is None
    assert data["magnitudes"]["early"]["ratio"] is None
    assert data["magnitudes"]["early"]["tensors"][0] == {"name": "t", "a": 0.0, "b": 2.0, "log2_ratio": None}
    assert data["magnitudes"]["early"]["rank_correlation"] is None


def test_diff_reports_missing_changed_and_reordered_tensors() -> None:
    a = trace(["t", "u", "v"], [[1.0], [1.0], [1.0, 1.0]])
    b = trace(["v", "t", "w"], [[1.0], [1.0], [1.0]], dtype="float16")
    tensors = diff(a, b)["tensors"]
    assert (tensors["matched_by"], tensors["common"], tensors["reordered"]) == ("name", 2, True)
    assert (tensors["only_in_a"], tensors["only_in_b"]) == (["u"], ["w"])
    assert tensors["changed"] == [
        {
            "name": "t",
            "a": {"shape": [256], "dtype": "float32", "bytes": 1024},
            "b": {"shape": [256], "dtype": "float16", "bytes": 512},
        },
        {
            "name": "v",
            "a": {"shape": [512], "dtype": "float32", "bytes": 2048},
            "b": {"shape": [256], "dtype": "float16", "bytes": 512},
        },
    ]
    text = shown(a, b)
    assert "only in A: u" in text
    assert "only in B: w" in text
    assert "changed: v: [512] float32, 2.00 KiB -> [256] float16, 512 B" in text
    assert "2 common tensors (by name, reordered), 2 of them changed" in text


def test_tensors_with_different_names_are_matched_by_position_and_size() -> None:
    a, b = trace(["t", "u"], [[1.0], [1.0, 1.0]]), trace(["x", "y"], [[4.0], [1.0, 1.0]])
    data = diff(a, b)
    assert (data["tensors"]["matched_by"], data["tensors"]["common"]) == ("place", 2)
    assert data["magnitudes"]["early"]["tensors"][0] == {"name": "t", "a": 1.0, "b": 4.0, "log2_ratio": 2.0}
    assert "by position and size, no common names" in shown(a, b)
    assert diff(a, trace(["x"], [[4.0]]))["tensors"]["matched_by"] == "nothing"
    assert "no common tensors" in shown(a, trace(["x"], [[4.0]]))


def test_mean_magnitudes_are_unscaled_and_weighted_by_tensor_size() -> None:
    a = trace(["t", "u"], [[1.0, 3.0], [1.0]])
    b = trace(["t", "u"], [[4.0, 12.0], [0.5]], exponent=6)
    found = diff(a, b)["magnitudes"]["early"]
    assert found["a"] == pytest.approx((1 + 3 + 1) / 3)
    assert found["b"] == pytest.approx((4 + 12 + 0.5) / 3)
    assert found["ratio"] == pytest.approx(16.5 / 5)
    assert [(row["name"], row["log2_ratio"]) for row in found["tensors"]] == [("t", 2.0), ("u", -1.0)]


def test_rank_correlation_handles_ties_and_weights_tensors_by_bytes() -> None:
    rising = [float(n) for n in range(1, 13)]
    same = [2.0**n for n in range(12)]  # other values in the same order
    for other, expected in ((same, 1.0), (same[::-1], -1.0)):
        found = diff(trace(["t"], [rising]), trace(["t"], [other]))["magnitudes"]["early"]
        assert found["rank_correlation"] == pytest.approx(expected)
    # Ties share their mean rank: 1.5 twice, 5.5 six times, 10.5 four times against 1 to 12.
    tied = [1.0] * 2 + [2.0] * 6 + [3.0] * 4
    found = diff(trace(["t"], [rising]), trace(["t"], [tied]))["magnitudes"]["early"]
    assert found["rank_correlation"] == pytest.approx((120 / 143) ** 0.5)
    # Fewer than ten chunks: no answer. Two tensors: weighted by bytes, 20 chunks in order and 10 in reverse.
    assert (
        diff(trace(["t"], [rising[:9]]), trace(["t"], [rising[:9]]))["magnitudes"]["early"]["rank_correlation"] is None
    )
    twenty, ten = [float(n) for n in range(20)], [float(n) for n in range(10)]
    found = diff(trace(["t", "u"], [twenty, ten]), trace(["t", "u"], [twenty, ten[::-1]]))["magnitudes"]["early"]
    assert found["rank_correlation"] == pytest.approx((20 - 10) / 30)


def test_traces_without_common_phases_are_compared_as_a_whole() -> None:
    data = diff(trace(["t"], [[1.0]], phase="early"), trace(["t"], [[2.0]], phase="imported"))
    assert data["phases"] == {"common": [], "only_in_a": ["early"], "only_in_b": ["imported"]}
    assert list(data["timing"]) == list(data["magnitudes"]) == ["all"]
    assert data["magnitudes"]["all"]["ratio"] == 2.0
    assert "phases only in B: imported" in shown(trace(["t"], [[1.0]]), trace(["t"], [[2.0]], phase="imported"))


def test_magnitudes_are_averaged_over_sampled_iterations_only() -> None:
    """Three of eight iterations are sampled; the unsampled ones refer to the third, which is far larger."""
    one = trace(["t"], [[1.0]])
    captured = [replace(one.iterations[0], index=n, step=n) for n in range(8)]
    means = np.array([[1.0], [2.0], [10.0]], dtype=np.float16)
    sparse = Trace(one.manifest, one.layers, one.tensors, captured, means, means, None, [0, 1, 2])
    found = diff(one, sparse)["magnitudes"]["early"]
    assert (found["a"], found["b"], found["ratio"]) == (1.0, 2.0, 2.0)
    assert info(sparse)["phases"]["early"]["mean_magnitude"] == 2.0


def test_print_diff_truncates_long_name_lists_and_escapes_markup() -> None:
    many = trace([f"[bold]t{n}" for n in range(30)], [[1.0]] * 30, name="[red]a")
    text = shown(many, trace(["other"], [[1.0]]))
    assert "[bold]t0" in text
    assert "and 20 more" in " ".join(text.split())
    assert "[red]a" in text
