"""`gradwire bench traces`: what is measured is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.benchmarks import traces as bench
from gradwire.scenarios.errors import GradwireError
from gradwire.traces.trace import load_trace


def test_large_benchmark_trace_has_the_tensors_of_vgg16() -> None:
    trace = bench.large_trace(iterations=1)
    assert sum(tensor.numel for tensor in trace.tensors) == 138_357_544
    assert trace.magnitude_source == "model"


def test_large_benchmark_trace_survives_saving_and_reading(tmp_path: Path) -> None:
    made = bench.large_trace(iterations=3, shapes=[(4, 300), (10, 4)])
    made.save(tmp_path / "small")
    row = bench.read_row(str(tmp_path / "small"))
    assert (row["parameters"], row["iterations"], row["sampled"]) == (4 * 300 + 4 + 10 * 4 + 10, 3, 3)
    assert row["disk_bytes"] == sum(file.stat().st_size for file in (tmp_path / "small").iterdir())
    assert load_trace(tmp_path / "small").digest() == made.digest()


def test_bench_traces_prints_rows_and_refuses_unknown_traces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "REPEATS", 1)
    bench.bench_traces(case="resnet50", as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["trace"] == "resnet50"
    assert 0 < row["read_s"]
    assert 20_000_000 < row["peak_rss_bytes"] < 500_000_000
    bench.bench_traces(case="resnet50", as_json=False)
    assert "resnet50" in capsys.readouterr().out
    with pytest.raises(GradwireError, match="no such benchmark"):
        bench.bench_traces(case="resnet51", as_json=False)
