"""Two ranks under torchrun: every one records its own gradient, not the average, and its own computing time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")

from gradwire.traces.storage.writer import raw_gradient  # noqa: E402
from gradwire.traces.tools.rank_merge import merge_ranks  # noqa: E402
from gradwire.traces.trace import Trace, load_trace  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="this PyTorch has no gloo",
    ),
]

ROOT = Path(__file__).parents[3]
RANKS = (0, 1)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of tests/support/parallel_job.py."""
    out = tmp_path_factory.mktemp("jobs")
    for name in ("plain", "mixed", "slow"):
        (out / name).mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*command, str(ROOT / "tests/support/parallel_job.py"), str(out)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return out


def load(folder: Path, kind: str, rank: int) -> tuple[Trace, dict[str, np.ndarray]]:
    return load_trace(folder / f"{kind}.rank{rank}"), dict(np.load(folder / f"{kind}.rank{rank}.npz"))


CASES = [("plain", "ddp"), ("mixed", "ddp"), ("plain", "fsdp2")]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("folder", "kind"), CASES)
def test_magnitudes_match_local_gradient_of_the_rank(jobs: Path, folder: str, kind: str, rank: int) -> None:
    trace, expected = load(jobs / folder, kind, rank)
    assert trace.ranks == [rank]
    for index in trace.sampled:
        for number, tensor in enumerate(trace.tensors):
            gradient = expected[f"step{trace.iterations[index].step}/{number}"]
            assert gradient.shape == tensor.shape
            runs = np.split(np.abs(gradient.reshape(-1)), range(256, gradient.size, 256))
            mean, largest = trace.magnitudes(index, number)
            np.testing.assert_allclose(mean, [run.mean() for run in runs], rtol=2e-3)
            np.testing.assert_allclose(largest, [run.max() for run in runs], rtol=2e-3)
            np.testing.assert_allclose(trace.l2(index, number), [np.linalg.norm(run) for run in runs], rtol=2e-3)


@pytest.mark.parametrize(("folder", "kind"), CASES)
def test_parallel_capture_has_names_layers_and_times_of_plain_model(jobs: Path, folder: str, kind: str) -> None:
    trace, _ = load(jobs / folder, kind, 0)
    assert trace.layers == ["0.0", "1.0", "2.0", "3"]
    names = ["0.0.weight", "1.0.weight", "1.0.bias", "2.0.weight", "2.0.bias", "3.weight", "3.bias"]
    assert [tensor.name for tensor in trace.tensors] == names
    for iteration in trace.iterations:
        assert iteration.backward_end_ps == iteration.ready_ps.max()  # and not when the network was done
        assert (np.diff(iteration.forward_start_ps) > 0).all()
        per_layer = [max(iteration.ready_ps[n] for n, t in enumerate(trace.tensors) if t.layer == k) for k in range(4)]
        assert per_layer == sorted(per_layer, reverse=True)
    exposed = trace.manifest["exposed_communication_ps"]
    assert len(exposed) == 3
    assert min(exposed) > 0
    overhead = trace.manifest["capture_overhead"]
    assert overhead["pairs"] == 1
    assert overhead["fraction"] > -0.9  # pauses are part of the measured step


def test_ddp_buckets_are_recorded_as_groups(jobs: Path) -> None:
    trace, _ = load(jobs / "plain", "ddp", 0)
    assert trace.manifest["parallel"] == {"kind": "ddp", "world_size": 2, "backend": "gloo"}
    assert {group["kind"] for group in trace.groups} == {"ddp_bucket"}
    members = [group["tensors"] for group in trace.groups]
    # A bucket takes gradients as they become ready until it holds its 20,971 bytes: the last bias, matrix (2,560
    # bytes) and so on up to the second matrix of 16 KiB, then the first matrix.
    assert members == [[6, 5, 4, 3, 2, 1], [0]]


def test_gradient_accumulation_and_scaler_skipped_steps_are_recorded(jobs: Path) -> None:
    trace, _ = load(jobs / "mixed", "ddp", 1)
    assert [iteration.step for iteration in trace.iterations] == [2, 4, 5]
    assert trace.manifest["skipped_steps"] == [3]
    assert trace.manifest["model_calls"] == [2, 2, 2]


def test_raw_gradients_match_local_gradient_of_the_rank(jobs: Path) -> None:
    trace, expected = load(jobs / "mixed", "ddp", 1)
    for index, iteration in enumerate(trace.iterations):
        for number in range(len(trace.tensors)):
            raw = raw_gradient(jobs / "mixed" / "ddp.rank1", index, number)
            np.testing.assert_allclose(raw, expected[f"step{iteration.step}/{number}"], rtol=1e-4, atol=1e-8)


def test_fsdp2_units_are_recorded_as_groups(jobs: Path) -> None:
    trace, _ = load(jobs / "plain", "fsdp2", 0)
    assert trace.sampled == [0, 2]
    weights = 4 * (64 * 64 + 64)
    units = {group["name"]: group for group in trace.groups}
    assert {group["kind"] for group in trace.groups} == {"fsdp_unit"}
    assert {name: group["tensors"] for name, group in units.items()} == {
        "model": [5, 6],
        "0": [0],
        "1": [1, 2],
        "2": [3, 4],
    }
    # Blocks are gathered for forward and again for backward; the root keeps its parameters in between.
    assert units["1"]["all_gather"] == {"bytes": weights, "per_iteration": 2}
    assert units["0"]["all_gather"]["bytes"] == weights  # the frozen bias is gathered
    assert units["0"]["reduce_scatter"] == {"bytes": weights - 4 * 64, "per_iteration": 1}  # and not reduced
    assert units["model"]["all_gather"]["per_iteration"] == 1
    assert all(group["shards"] == 2 for group in trace.groups)


def test_fsdp2_times_exclude_communication(jobs: Path) -> None:
    """The clock jumps by a million at each FSDP communication; recorded times stay below 200."""
    trace, expected = load(jobs / "slow", "fsdp2", 0)
    assert len(expected) == 9 * 7
    for iteration in trace.iterations:
        assert 0 < iteration.forward_end_ps.max() < iteration.backward_end_ps < 200
    assert min(trace.manifest["exposed_communication_ps"]) < 200
    assert max(trace.manifest["capture_overhead"]["plain_s"]) > 10 * 1e6 / 1e12  # it is in the step as a whole


def test_traces_of_ddp_ranks_merge_into_one_trace(jobs: Path, tmp_path: Path) -> None:
    paths = [jobs / "plain" / f"ddp.rank{rank}" for rank in RANKS]
    merged = load_trace(merge_ranks(paths, tmp_path / "all"))
    assert merged.ranks == [0, 1]
    assert merged.phases == {"training": [0, 1, 2, 3, 4, 5]}
    assert merged.groups == load_trace(paths[0]).groups
    assert "exposed_communication_ps" in merged.manifest["per_rank"]["1"]


def test_failing_rank_writes_no_trace(jobs: Path) -> None:
    assert sorted(path.name for path in jobs.iterdir()) == ["failing.rank0", "mixed", "plain", "slow"]
