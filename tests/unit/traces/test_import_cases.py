"""Profiles and other files after public bug reports: each gives the value that its README states, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from formats_cases import SHARED
from typer.testing import CliRunner

from gradwire import cli
from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import import_trace

CASES = SHARED / "cases" / "traces"
MS = 10**9
pytestmark = pytest.mark.skipif(not CASES.exists(), reason="no ../shared/data/cases/traces with public cases")


class Expected(NamedTuple):
    """Values of every iteration in milliseconds, as README of the cases has them."""

    forward: float = 4.0
    ready: Sequence[float] = (6.0, 8.0, 10.0, 12.0)
    optimizer: float = 0.5
    total_bytes: int = 16_000_000
    iterations: int = 3
    doubtful: str = ""  # a kind of doubt that is counted
    skipped: str = ""


BASE = Expected()
ONE_BUCKET = BASE._replace(ready=(12.0,))
GOOD = {
    "base.json": BASE,
    "01-windows-backslash/name.json": BASE._replace(doubtful="invalid escapes in text, taken literally"),
    "01-windows-backslash/tracename.json": BASE._replace(doubtful="invalid escapes in text, taken literally"),
    "02-inf-token/trace.json": BASE._replace(doubtful="bare inf or nan"),
    "02-inf-token/infinity.json": BASE,
    "07-two-optimizers/trace.json": BASE._replace(optimizer=2.0),
    # Two passes of 12 ms; waiting for the second micro-batch between them is no computing.
    "08-step-per-microbatch/trace.json": BASE._replace(
        forward=16.0, ready=(18.0, 20.0, 22.0, 24.0), skipped="micro-batches before the last of a step"
    ),
    "09-xpu/cuda.json": BASE,
    "09-xpu/trace.json": BASE,
    "10-tensor-parallel/trace.json": ONE_BUCKET._replace(
        skipped="all_reduce of process group TENSOR_MODEL_PARALLEL_GROUP"
    ),
    "10-tensor-parallel/both_passes.json": ONE_BUCKET._replace(
        skipped="all_reduce of process group TENSOR_MODEL_PARALLEL_GROUP"
    ),
    "12-bom-crlf-gzip/bom_crlf.json": BASE,
    "12-bom-crlf-gzip/two_members.json.gz": BASE,
    "12-bom-crlf-gzip/zero_padding.json.gz": BASE,
    "12-bom-crlf-gzip/trailing_garbage.json.gz": BASE._replace(doubtful="bytes behind the gzip data, ignored"),
    "12-bom-crlf-gzip/utf16.json": BASE._replace(doubtful="text in UTF-16, read as UTF-8"),
    "18-syncbn/trace.json": ONE_BUCKET._replace(skipped="all_reduce of SyncBatchNorm's statistics"),
    "19-small-metric-allreduce/trace.json": ONE_BUCKET._replace(skipped="collectives outside of the backward pass"),
    # The step of the damaged kernel is left out: when its gradient was ready is not known.
    "22-zero-timestamps/one_kernel.json": BASE._replace(iterations=2, doubtful="kernels with ts 0 and dur 0"),
    "22-zero-timestamps/trace.json": BASE._replace(iterations=2, doubtful="kernels with ts 0 and dur 0"),
    "30-step-before-update/trace.json": BASE,
    "31-chakra-launchers-only/job.0.et": BASE._replace(
        iterations=1, doubtful="nodes of the GPU that depend on their launcher alone: chained by stream"
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_public_cases_import_with_the_values_of_their_readme(name: str) -> None:
    expected = GOOD[name]
    trace = import_trace(CASES / name)
    assert trace.total_bytes == expected.total_bytes
    assert len(trace.iterations) == expected.iterations
    for iteration in trace.iterations:
        assert iteration.forward_end_ps.max() == expected.forward * MS
        assert sorted(iteration.ready_ps.tolist()) == [moment * MS for moment in expected.ready]
        assert iteration.optimizer_ps == expected.optimizer * MS
    source = trace.manifest["source"]
    if expected.skipped:
        assert source["skipped"][expected.skipped] > 0
    if expected.doubtful:
        assert source["doubtful"][expected.doubtful] > 0
    else:
        assert "doubtful" not in source


@pytest.mark.parametrize("name", ["trace", "distinct_ids"])
def test_profile_with_several_ranks_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match=r"holds several ranks \(processes 1, 2\); expected one rank per file"):
        import_trace(CASES / "17-two-processes" / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "shapes", "kinds"),
    [
        ("torch_size", [(64, 3, 7, 7), (1000, 2048)], ["float32", "float32"]),
        ("tuple", [(64, 3, 7, 7), (1000, 2048), (1,)], ["float32"] * 3),
    ],
)
def test_csv_accepts_shapes_in_python_notation(name: str, shapes: list[tuple[int, ...]], kinds: list[str]) -> None:
    trace = import_trace(CASES / "13-csv" / f"{name}.csv")
    assert [tensor.shape for tensor in trace.tensors] == shapes
    assert [tensor.dtype for tensor in trace.tensors] == kinds


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("excel_de", r"line 2: forward_ms is '0,9'; expected .* with a decimal point"),
        ("thousands", r"line 2: numel is '9,408'; expected .* without thousands separators"),
        ("huge", "line 4: numel is '99999999999999999999'"),  # so bf16 in the lines before is read
        ("nan", "line 2: ready_ms is 'nan'"),
    ],
)
def test_csv_with_unsupported_number_formats_is_refused_with_line(name: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        import_trace(CASES / "13-csv" / f"{name}.csv")


def test_simai_workloads_without_weight_gradients_are_refused() -> None:
    micro = import_trace(CASES / "14-simai" / "micro.txt")
    assert [tensor.bytes for tensor in micro.tensors] == [4_800_000]
    empty = import_trace(CASES / "14-simai" / "zero_size.txt")
    assert [tensor.bytes for tensor in empty.tensors] == [4000, 8000]
    assert empty.manifest["source"]["skipped"]["input gradient REDUCESCATTER of 0 bytes"] == 2
    with pytest.raises(TraceError, match="expected a collective in the column of weight gradients"):
        import_trace(CASES / "14-simai" / "forward_only.txt")


def test_import_and_info_summaries_list_doubtful_records_by_kind() -> None:
    path = CASES / "22-zero-timestamps" / "one_kernel.json"
    done = CliRunner().invoke(cli.app, ["trace", "import", str(path), "--out", "imported"])
    assert done.exit_code == 0
    assert "doubtful: 1 x kernels with ts 0 and dur 0" in done.output
    summary = CliRunner().invoke(cli.app, ["trace", "info", "imported"])
    assert "doubtful: 1 x kernels with ts 0 and dur 0" in summary.output
