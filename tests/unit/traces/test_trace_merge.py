"""Traces of ranks become one: nothing is lost, scales agree, and what does not belong together is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_cases import small_trace

from gradwire.scenarios.errors import TraceError
from gradwire.traces.storage.writer import RAW, raw_folder, raw_gradient, write
from gradwire.traces.tools.rank_merge import merge_ranks
from gradwire.traces.trace import Trace, load_trace


def rank_trace(rank: int, *, exponent: int = 0, draws: int = 1, rms: bool = True, **manifest: Any) -> Trace:
    """What rank `rank` recorded: the same model and steps, other times and magnitudes, every other one sampled."""
    base = small_trace(seed=5, rms=rms, sampled=[0, 2])
    generator = np.random.default_rng([rank, draws])
    mean, top, root = (
        None if values is None else (values * generator.uniform(0.5, 1, values.shape)).astype(np.float16)
        for values in (base._mean, base._max, base._rms)
    )
    iterations = [replace(i, rank=rank, loss=i.loss + rank) for i in base.iterations]
    tensors = [replace(t, scale_exponent=exponent + n) for n, t in enumerate(base.tensors)]
    said = {"name": f"r{rank}", "model": "m", "cpu_share": [0.5 + rank], "rank": rank, **manifest}
    return Trace(said, base.layers, tensors, iterations, mean, top, root, [0, 2])


def test_merged_trace_contains_iterations_and_magnitudes_of_all_ranks(tmp_path: Path) -> None:
    ranks = [rank_trace(rank, exponent=4 - rank) for rank in range(3)]
    paths = [trace.save(tmp_path / f"t.rank{n}") for n, trace in enumerate(ranks)]
    assert merge_ranks([paths[2], paths[0], paths[1]], tmp_path / "all") == tmp_path / "all"
    merged = load_trace(tmp_path / "all")
    assert merged.ranks == [0, 1, 2]
    assert merged.name == "all"
    assert merged.phases == {"early": [0, 1, 4, 5, 8, 9], "late": [2, 3, 6, 7, 10, 11]}
    assert merged.sampled == [0, 2, 4, 6, 8, 10]
    for index, iteration in enumerate(merged.iterations):
        rank, own = divmod(index, 4)
        source = ranks[rank].iterations[own]
        assert (iteration.rank, iteration.step, iteration.loss) == (rank, source.step, source.loss)
        np.testing.assert_array_equal(iteration.ready_ps, source.ready_ps)
        for number in range(len(merged.tensors)):
            assert merged.tensors[number].scale_exponent == 2 + number  # of rank 2, the smallest
            for mine, theirs in zip(merged.magnitudes(index, number), ranks[rank].magnitudes(own, number), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=2**-11)
            np.testing.assert_allclose(merged.l2(index, number), ranks[rank].l2(own, number), rtol=2**-11)


def test_merged_manifest_separates_common_and_per_rank_entries(tmp_path: Path) -> None:
    for rank in range(2):
        rank_trace(rank).save(tmp_path / f"r{rank}")
    merge_ranks([tmp_path / "r0", tmp_path / "r1"], tmp_path / "all")
    manifest = load_trace(tmp_path / "all").manifest
    assert manifest["model"] == "m"
    assert manifest["per_rank"] == {
        "0": {"name": "r0", "rank": 0, "cpu_share": [0.5]},
        "1": {"name": "r1", "rank": 1, "cpu_share": [1.5]},
    }


def test_merge_does_not_underflow_small_gradients_of_one_rank(tmp_path: Path) -> None:
    """Rank 1's gradients are 2**-30 of rank 0's: below float16's range in the common scale, but not zero."""
    large, small = rank_trace(0), rank_trace(1, exponent=30)
    large.save(tmp_path / "r0")
    small.save(tmp_path / "r1")
    merged = load_trace(merge_ranks([tmp_path / "r0", tmp_path / "r1"], tmp_path / "all"))
    for number in range(len(merged.tensors)):
        assert (merged.chunk_mean(4, number) > 0).all()
        np.testing.assert_array_equal(merged.chunk_mean(0, number), large.chunk_mean(0, number))


def test_zero_gradients_of_one_rank_preserve_precision_of_other_ranks(tmp_path: Path) -> None:
    """Rank 0's tensor is all zero, with exponent 0; rank 1's values around 2**-50 stay exact."""
    zero, other = rank_trace(0), rank_trace(1, exponent=50)
    nothing = np.zeros_like(zero._mean)
    Trace(zero.manifest, zero.layers, zero.tensors, zero.iterations, nothing, nothing, nothing, [0, 2]).save(
        tmp_path / "r0"
    )
    other.save(tmp_path / "r1")
    merged = load_trace(merge_ranks([tmp_path / "r0", tmp_path / "r1"], tmp_path / "all"))
    np.testing.assert_array_equal(merged.magnitudes(4, 0)[0], other.magnitudes(0, 0)[0])


def test_merged_trace_has_no_rms_if_one_rank_lacks_rms(tmp_path: Path) -> None:
    rank_trace(0).save(tmp_path / "r0")
    rank_trace(1, rms=False).save(tmp_path / "r1")
    assert load_trace(merge_ranks([tmp_path / "r0", tmp_path / "r1"], tmp_path / "all")).chunk_rms(0, 0) is None


def test_merge_includes_raw_gradients(tmp_path: Path) -> None:
    for rank in range(2):
        raw = tmp_path / f"raw{rank}"
        for index in (0, 2):
            raw_folder(raw, index).mkdir(parents=True)
            np.save(raw_folder(raw, index) / "00001.npy", np.full(3, 10 * rank + index, dtype=np.float32))
        write(rank_trace(rank), tmp_path / f"r{rank}", raw=raw / RAW)
    merge_ranks([tmp_path / "r0", tmp_path / "r1"], tmp_path / "all")
    assert [raw_gradient(tmp_path / "all", index, 1)[0] for index in (0, 2, 4, 6)] == [0, 2, 10, 12]
    with pytest.raises(TraceError, match=r"iter0001.*missing; expected a capture with raw=True"):
        raw_gradient(tmp_path / "all", 1, 1)
    (raw_folder(tmp_path / "all", 0) / "00001.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(TraceError, match=r"cannot be read"):
        raw_gradient(tmp_path / "all", 0, 1)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_merge_rejects_mismatched_traces(tmp_path: Path) -> None:
    rank_trace(0).save(tmp_path / "r0")
    one = rank_trace(1)

    def refused(name: str, message: str, **changes: Any) -> None:
        parts = {"layers": one.layers, "tensors": one.tensors, "iterations": one.iterations, **changes}
        odd = Trace(one.manifest, **parts, chunk_mean=one._mean, chunk_max=one._max, sampled=one.sampled)
        odd.save(tmp_path / name)
        with pytest.raises(TraceError, match=message) as caught:
            merge_ranks([tmp_path / "r0", tmp_path / name], tmp_path / "all")
        assert name in str(caught.value)
        assert not (tmp_path / "all").exists()

    refused("again", "rank 0 is also in .*r0", iterations=[replace(i, rank=0) for i in one.iterations])
    refused("layers", r"layer 1 differs \(other\)", layers=["layer0", "other"])
    others = [replace(one.tensors[0], dtype="bfloat16"), *one.tensors[1:]]
    refused("dtype", "tensor 0 differs .t0 .* bfloat16", tensors=others)
    steps = [replace(i, step=i.step + 1) for i in one.iterations]
    refused("steps", "recorded steps .*'early': .1, 11.*expected .*'early': .0, 10", iterations=steps)


def test_merge_rejects_missing_inputs_and_existing_output(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no traces given"):
        merge_ranks([], tmp_path / "all")
    rank_trace(0).save(tmp_path / "r0")
    with pytest.raises(TraceError, match="exists already"):
        merge_ranks([tmp_path / "r0"], tmp_path / "r0")
    with pytest.raises(TraceError, match="no such trace"):
        merge_ranks([tmp_path / "r7"], tmp_path / "all")
