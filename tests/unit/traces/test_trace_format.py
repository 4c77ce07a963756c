"""The trace format: what is written is read back, also from the first version; samples, ranks, and magnitudes as float16."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import small_trace
from written_traces import TABLES, edit_manifest, same

from gradwire.scenarios.errors import TraceError
from gradwire.traces.trace import Iteration, TensorInfo, Trace, bundled_traces, load_trace, scale_exponents, to_float16


@given(
    seed=st.integers(0, 2**32 - 1),
    iterations=st.integers(1, 5),
    tensors=st.integers(1, 6),
    rms=st.booleans(),
    ranks=st.integers(1, 3),
    every=st.integers(1, 2),
)
def test_saved_trace_loads_unchanged(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    iterations: int,
    tensors: int,
    rms: bool,
    ranks: int,
    every: int,
) -> None:
    directory = tmp_path_factory.mktemp("round") / "trace"
    halves = (range(iterations // 2), range(iterations // 2, iterations))
    chosen = [iterations * rank + n for rank in range(ranks) for half in halves for n in half[::every]]
    trace = small_trace(seed=seed, iterations=iterations, tensors=tensors, rms=rms, ranks=ranks, sampled=chosen)
    trace.save(directory)
    again = load_trace(directory)
    same(trace, again)
    assert again.digest() == trace.digest()
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        ["manifest.json", *(f"{name}.parquet" for name in TABLES)]
    )


def test_digest_changes_with_every_part_of_trace() -> None:
    base = small_trace(seed=1)
    digests = {base.digest(), small_trace(seed=2).digest()}
    iteration = base.iterations[0]
    later = np.array(iteration.ready_ps)
    later[0] -= 1
    changed = [Iteration(**{**vars(iteration), "ready_ps": later}), *base.iterations[1:]]
    means = np.array(base._mean)
    means[0, 0] += np.float16(0.5)
    for trace in (
        Trace({**base.manifest, "note": 1}, base.layers, base.tensors, base.iterations, base._mean, base._max),
        Trace(base.manifest, base.layers, base.tensors, changed, base._mean, base._max),
        Trace(base.manifest, base.layers, base.tensors, base.iterations, means, base._max),
    ):
        digests.add(trace.digest())
    assert len(digests) == 5
    for other in (small_trace(seed=1, rms=True), small_trace(seed=1, ranks=2), small_trace(seed=1, sampled=[0, 3])):
        digests.add(other.digest())
    half = base.iterations[0], Iteration(**{**vars(base.iterations[1]), "rank": 1}), *base.iterations[2:]
    digests.add(Trace(base.manifest, base.layers, base.tensors, half, base._mean, base._max).digest())
    assert len(digests) == 9


def test_total_bytes_and_phases() -> None:
    trace = small_trace(iterations=4, tensors=3)
    assert trace.total_bytes == sum(4 * tensor.numel for tensor in trace.tensors)
    assert trace.phases == {"early": [0, 1], "late": [2, 3]}
    assert TensorInfo("h", (3,), 3, "bfloat16", 0).bytes == 6


def test_save_rejects_existing_directory_and_leaves_it_unchanged(tmp_path: Path) -> None:
    trace = small_trace()
    target = tmp_path / "trace"
    target.mkdir()
    (target / "mine").write_text("precious")
    with pytest.raises(TraceError, match=r"trace: exists already; expected a directory that"):
        trace.save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    assert (target / "mine").read_text() == "precious"


def test_failed_save_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(TraceError, match="no space left"):
        small_trace().save(tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


def test_unknown_trace_name_error_lists_bundled_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gradwire.traces.trace.BUNDLED", tmp_path)
    small_trace().save(tmp_path / "resnet50")
    assert bundled_traces() == ["resnet50"]
    assert load_trace("resnet50").name == "small"
    with pytest.raises(TraceError, match=r"resnet5: no such trace.*resnet50; did you mean 'resnet50'\?"):
        load_trace("resnet5")
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="is a file"):
        load_trace(tmp_path / "file")


# Ranks, sampled iterations, rms ------------------------------------------------------------------------------


def test_unsampled_iteration_uses_nearest_sample_of_its_phase_and_rank() -> None:
    # Two ranks of 8 iterations, early 0-3 and late 4-7; sampled are rank 0: 0, 2 | 7 and rank 1: 9, 11 | 12, 14.
    trace = small_trace(iterations=8, ranks=2, sampled=[0, 2, 7, 9, 11, 12, 14], rms=True)
    assert trace.ranks == [0, 1]
    stand_ins = [0, 0, 2, 2, 7, 7, 7, 7, 9, 9, 9, 11, 12, 12, 14, 14]
    assert [trace.sample_of(iteration) for iteration in range(16)] == stand_ins
    for iteration, stand_in in enumerate(stand_ins):
        row = trace.sampled.index(stand_in)
        chunks = trace.tensors[0].chunks
        np.testing.assert_array_equal(trace.chunk_mean(iteration, 0), trace._mean[row, :chunks])
        np.testing.assert_array_equal(trace.chunk_rms(iteration, 0), trace._rms[row, :chunks])


@pytest.mark.parametrize("sampled", [[], [0], [0, 1], [2, 3]])
def test_every_phase_needs_a_sample(sampled: list[int]) -> None:
    with pytest.raises(TraceError, match=r"no sampled iteration in phase .(early|late). of rank 0"):
        small_trace(sampled=sampled)


@pytest.mark.parametrize("sampled", [[3, 0], [0, 0, 3], [0, 4], [-1, 3]])
def test_invalid_sample_indices_are_rejected(sampled: list[int]) -> None:
    with pytest.raises(TraceError, match="rising indices, 0 to 3"):
        small_trace(sampled=sampled)


def test_l2_equals_norm_of_chunk_values() -> None:
    draw = np.random.default_rng(3)
    values = draw.normal(0, 1e-3, 600)  # chunks of 256, 256 and 88 elements
    runs = np.split(values, [256, 512])
    exponent = int(scale_exponents(np.array([np.abs(values).max()]))[0])
    figures = [
        to_float16(np.array([f(run) for run in runs]), exponent)[np.newaxis]
        for f in (lambda run: np.abs(run).mean(), lambda run: np.abs(run).max(), lambda run: np.sqrt((run**2).mean()))
    ]
    base = small_trace(iterations=1, tensors=1)
    iteration = base.iterations[0]
    tensor = TensorInfo("t", (600,), 600, "float32", 0, exponent)
    trace = Trace({"name": "x"}, ["layer"], [tensor], [iteration], *figures)
    np.testing.assert_allclose(trace.l2(0, 0), [np.linalg.norm(run) for run in runs], rtol=2**-11)
    assert small_trace().l2(0, 0) is None
    assert small_trace().chunk_rms(0, 0) is None


def test_version_1_trace_loads_unchanged(tmp_path: Path) -> None:
    """Version 1 has no rank or sampled columns; each chunk names its iteration and tensor."""
    trace = small_trace(iterations=3, largest=50_000)
    new, old = trace.save(tmp_path / "new"), tmp_path / "old"
    shutil.copytree(new, old)
    iterations = pq.read_table(old / "iterations.parquet").drop_columns(["rank", "sampled"])
    pq.write_table(iterations, old / "iterations.parquet")
    chunks = pq.read_table(old / "chunks.parquet")
    tensor = np.repeat(np.arange(4, dtype=np.int32), [t.chunks for t in trace.tensors])
    named = {"iteration": np.repeat(np.arange(3, dtype=np.int32), len(tensor)), "tensor": np.tile(tensor, 3)}

    def write_chunks(**columns: np.ndarray) -> None:
        parts = {**columns, "mean": chunks["mean"], "max": chunks["max"]}
        pq.write_table(pa.table(parts), old / "chunks.parquet", row_group_size=50)

    write_chunks(**named)
    edit_manifest(old, schema_version=1)
    again = load_trace(old)
    same(trace, again)
    assert again.digest() == trace.digest()
    assert again.sampled == [0, 1, 2]
    assert again.chunk_rms(0, 0) is None
    swapped = np.array(named["tensor"])
    swapped[[60, -1]] = swapped[[-1, 60]]
    write_chunks(**{**named, "tensor": swapped})
    with pytest.raises(TraceError, match=rf"tensor {swapped[60]} in row 60; expected {swapped[-1]}"):
        load_trace(old)


def test_resaved_bundled_trace_has_the_same_digest(tmp_path: Path) -> None:
    trace = load_trace("resnet50")
    assert load_trace(trace.save(tmp_path / "again")).digest() == trace.digest()


def test_chunks_table_has_one_row_group_per_sampled_iteration(tmp_path: Path) -> None:
    small_trace(iterations=4, sampled=[1, 3]).save(tmp_path / "t")
    assert pq.ParquetFile(tmp_path / "t" / "chunks.parquet").num_row_groups == 2


# Magnitudes as float16 ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(min_value=2.0**-140, max_value=2.0**100), min_size=1, max_size=40))
def test_scaled_float16_values_neither_underflow_nor_overflow(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    exponent = int(scale_exponents(np.array([array.max()]))[0])
    halves = to_float16(array, exponent)
    assert (halves > 0).all()
    assert np.isfinite(halves).all()
    assert 2**14 <= halves.max() <= 2**15
    # Full precision of float16 (half a unit in the last of 11 bits) down to 2**-28 of the largest value.
    precise = array >= array.max() * 2.0**-28
    error = np.abs(np.ldexp(halves[precise].astype(np.float64), -exponent) / array[precise] - 1)
    assert (error <= 2.0**-11).all()


def test_scale_exponent_preserves_gradients_below_float16_range() -> None:
    tiny = np.array([0.0, 1e-12, 3e-9])
    assert (tiny.astype(np.float16) == 0).all()
    exponent = int(scale_exponents(np.array([tiny.max()]))[0])
    restored = np.ldexp(to_float16(tiny, exponent).astype(np.float64), -exponent)
    assert restored[0] == 0
    np.testing.assert_allclose(restored[1:], tiny[1:], rtol=2**-11)


def test_all_zero_tensor_has_exponent_zero() -> None:
    assert scale_exponents(np.array([0.0, 1.0])).tolist() == [0, 14]


def test_magnitudes_undo_the_scale_exponent() -> None:
    trace = small_trace(exponent=20)
    mean, largest = trace.magnitudes(1, 2)
    np.testing.assert_array_equal(mean * 2.0**20, trace.chunk_mean(1, 2).astype(np.float64))
    np.testing.assert_array_equal(largest * 2.0**20, trace.chunk_max(1, 2).astype(np.float64))


def test_trace_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        small_trace().chunk_mean(0, 0)[0] = 1


def test_trace_format_modules_do_not_import_torch() -> None:
    code = (
        "import sys, gradwire.traces.trace, gradwire.traces.storage.writer, gradwire.traces.storage.reader, gradwire.traces.tagging, gradwire.traces.tools.info, gradwire.traces.datasets.images;"
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
