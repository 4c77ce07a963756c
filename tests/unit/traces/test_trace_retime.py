"""A retimed trace has one trace's gradients and another's times, exactly, and says what it could not match."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_cases import small_trace
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import export_trace
from gradwire.traces.parts import Iteration, TensorInfo
from gradwire.traces.storage.writer import write
from gradwire.traces.tools.info import info, print_info
from gradwire.traces.tools.retime import load_times, require_equal_magnitudes, retime
from gradwire.traces.tools.tensor_matching import match_tensors
from gradwire.traces.trace import BUNDLED, Trace, load_trace

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
DATA = {
    "resnet50-v100": SHARED / "traces" / "kineto_resnet50_v100.json.gz",
    "vgg16-gpu": SHARED / "workloads" / "pipedream_vgg16.txt",
}


def trace_of(
    sizes: list[int],
    *,
    names: str = "t",
    layers: list[int] | None = None,
    scale: int = 1,
    phases: tuple[str, ...] = ("early", "late"),
    rank: int = 0,
    **manifest: object,
) -> Trace:
    """A layer for each tensor unless `layers` says otherwise. Iteration i of layer l of L, in units of `scale`: forward
    from 10 l to 10 l + 10, ready at 10 L + 7 (L - l) + i, the pass over at 20 L + i, an optimiser of 3.
    """
    layers = list(range(len(sizes))) if layers is None else layers
    count = max(layers) + 1
    infos = [TensorInfo(f"{names}{n}", (size,), size, "float32", layers[n], n) for n, size in enumerate(sizes)]
    captured = []
    for index, phase in enumerate(phases):
        begin = 10 * scale * np.arange(count, dtype=np.int64)
        ready = np.array([(10 * count + 7 * (count - layer) + index) * scale for layer in layers], dtype=np.int64)
        end = (20 * count + index) * scale
        captured.append(
            Iteration(
                index,
                phase,
                index,
                0.5 + index,
                begin,
                begin + 10 * scale,
                ready,
                end,
                3 * scale,
                end + 3 * scale,
                rank,
            )
        )
    chunks = sum(-(-size // 256) for size in sizes)
    draw = np.random.default_rng(len(sizes) + scale)
    mean = draw.lognormal(0, 1, (len(phases), chunks)).astype(np.float16)
    said = {"name": names, **manifest}
    return Trace(said, [f"{names}layer{n}" for n in range(count)], infos, captured, mean, (2 * mean).astype(np.float16))


def same_gradients(made: Trace, a: Trace) -> None:
    assert (made.layers, made.tensors, made.sampled) == (a.layers, a.tensors, a.sampled)
    for index in range(len(a.iterations)):
        assert (made.iterations[index].loss, made.iterations[index].phase) == (
            a.iterations[index].loss, a.iterations[index].phase,
        )  # fmt: skip
        for number in range(len(a.tensors)):
            np.testing.assert_array_equal(made.chunk_mean(index, number), a.chunk_mean(index, number))
            np.testing.assert_array_equal(made.chunk_max(index, number), a.chunk_max(index, number))


def same_times(one: Iteration, other: Iteration) -> None:
    for name in ("forward_start_ps", "forward_end_ps", "ready_ps"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("backward_end_ps", "optimizer_ps", "end_ps"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("names", ["t", "other"])
def test_retime_copies_times_exactly_for_equal_tensors(names: str) -> None:
    a = trace_of([300, 40, 300, 40, 7])
    b = trace_of([300, 40, 300, 40, 7], names=names, scale=1000, phases=("x", "y", "z"))
    made = retime(a, b, "new")
    same_gradients(made, a)
    for index in range(2):  # b has no phase of that name: the k-th of a phase has the k-th of all
        same_times(made.iterations[index], b.iterations[0])
    assert made.name == "new"
    assert made.manifest["retimed"]["matched_by"] == ("name" if names == "t" else "order")
    assert made.manifest["retimed"]["matched"] == made.manifest["retimed"]["units"] == 5
    assert a.name == "t"  # as it was


def test_retime_prefers_equal_phase_names_and_cycles_through_iterations() -> None:
    a = trace_of([300, 40], phases=("early", "early", "early", "late"))
    b = trace_of([300, 40], scale=10, phases=("late", "early", "early"))
    made = retime(a, b)
    for index, theirs in enumerate([1, 2, 1, 0]):
        same_times(made.iterations[index], b.iterations[theirs])


def test_retime_cycles_through_ranks() -> None:
    a, b = small_trace(ranks=3, iterations=2), small_trace(seed=0, ranks=2, iterations=2)
    made = retime(a, b)
    for index, theirs in enumerate([0, 1, 2, 3, 0, 1]):
        same_times(made.iterations[index], b.iterations[theirs])
        assert made.iterations[index].rank == index // 2


def test_retime_copies_times_of_a_different_head_and_reports_its_size() -> None:
    a, b = trace_of([300, 40, 300, 40, 70]), trace_of([300, 40, 300, 40, 7000], names="other", scale=1000)
    made = retime(a, b)
    same_gradients(made, a)
    same_times(made.iterations[0], b.iterations[0])
    said = made.manifest["retimed"]
    assert said["matched"] == 4
    assert said["same_place_other_size"] == [{"name": "t4", "elements": 70, "there": "other4", "there_elements": 7000}]


@pytest.mark.parametrize("names", ["t", "other"])
def test_retime_copies_times_of_layers_with_tied_weights(names: str) -> None:
    """The last layer of both traces has no tensor, like a head that is tied to the embedding."""
    pair = []
    for trace in (trace_of([300, 40, 70]), trace_of([300, 40, 70], names=names, scale=1000)):
        tensors = [*trace.tensors[:2], replace(trace.tensors[2], layer=0)]
        pair.append(Trace(dict(trace.manifest), trace.layers, tensors, trace.iterations, trace._mean, trace._max))
    made = retime(*pair)
    same_times(made.iterations[0], pair[1].iterations[0])


def test_retime_interpolates_tensors_missing_in_times_trace() -> None:
    """The expected times are computed by hand. a is ready at 57 + 7 * (0, 1, 2, 3, 4) from the last tensor to the first; b
    lacks a's tensor 2 and has layers 0, 1, 2, 3 for a's 0, 1, 3, 4: ready at 47 + 7 * (3, 2, 1, 0) thousand.
    """
    a, b = trace_of([300, 40, 999, 50, 60]), trace_of([300, 40, 50, 60], names="other", scale=1000)
    made = retime(a, b)
    theirs = b.iterations[0]
    assert made.manifest["retimed"]["interpolated"] == ["t2"]
    ready = made.iterations[0].ready_ps.tolist()
    assert [ready[n] for n in (0, 1, 3, 4)] == theirs.ready_ps.tolist()
    assert ready[2] == (theirs.ready_ps[1] + theirs.ready_ps[2]) // 2  # midway in a
    start, end = made.iterations[0].forward_start_ps.tolist(), made.iterations[0].forward_end_ps.tolist()
    assert (start[2], end[2]) == (20_000, 20_000)  # in no time, after the layer before it
    assert (start[3], end[3]) == (20_000, 30_000)


@pytest.mark.parametrize(("place", "ready"), [(0, "backward_end_ps"), (4, "first")])
def test_retime_places_missing_first_or_last_tensor_at_backward_end_or_start(place: int, ready: str) -> None:
    sizes = [300, 40, 50, 60]
    b = trace_of(sizes, names="other", scale=1000)
    made = retime(trace_of([*sizes[:place], 999, *sizes[place:]]), b)
    theirs = b.iterations[0]
    expected = theirs.backward_end_ps if ready == "backward_end_ps" else int(theirs.ready_ps.min())
    assert int(made.iterations[0].ready_ps[place]) == expected


def test_retime_reports_unused_tensors_of_times_trace() -> None:
    made = retime(trace_of([300, 40, 50]), trace_of([300, 999, 40, 50], names="other", scale=10))
    assert made.manifest["retimed"]["unused"] == ["other1"]
    assert made.manifest["retimed"]["matched"] == 3


def test_retime_matches_layers_if_tensors_do_not_match() -> None:
    """Trace a has a weight and a bias per layer; b has one gradient for both."""
    a = trace_of([300, 3, 400, 4, 500, 5], layers=[0, 0, 1, 1, 2, 2])
    b = trace_of([303, 404, 505], names="node", scale=1000)
    made = retime(a, b)
    assert made.manifest["retimed"]["matched_by"] == "layers"
    theirs = b.iterations[0]
    np.testing.assert_array_equal(made.iterations[0].ready_ps, np.repeat(theirs.ready_ps, 2))
    np.testing.assert_array_equal(made.iterations[0].forward_end_ps, theirs.forward_end_ps)


def test_tensors_listed_in_another_order_are_matched_by_readiness() -> None:
    sizes = [300, 40, 70, 90]
    a, plain = trace_of(sizes), trace_of(sizes, names="other", scale=1000)
    order = [2, 0, 3, 1]
    b = Trace(
        plain.manifest, plain.layers, [plain.tensors[n] for n in order],
        [replace(each, ready_ps=each.ready_ps[order]) for each in plain.iterations], plain._mean, plain._max,
    )  # fmt: skip
    assert match_tensors(a, b).by == "readiness"
    same_times(retime(a, b).iterations[0], plain.iterations[0])


def test_retime_rejects_another_model_and_names_unmatched_tensors() -> None:
    a, b = trace_of([300, 40, 50, 60]), trace_of([300, 41, 51, 61], names="other")
    with pytest.raises(TraceError, match=r"other: is of another model: 1 of 4 tensors .*t1 \(40 elements\), t2"):
        retime(a, b)


def test_retime_rejects_inconsistent_times_and_names_both_traces() -> None:
    """One layer of a spans two layers of b, and a gradient is ready before the forward pass ends."""
    a = trace_of([300, 40, 50, 60], layers=[0, 0, 1, 2], names="one")
    b = trace_of([300, 40, 50, 60], names="two")
    late = b.iterations[0]
    ends, ready = late.forward_end_ps.copy(), late.ready_ps.copy()
    ends[1], ready[0] = 60, 55
    b.iterations[0] = replace(late, forward_end_ps=ends, ready_ps=ready)
    with pytest.raises(TraceError, match=r"one at the times of two: .*ready at 55 ps"):
        retime(a, b)


def test_retimed_manifest_records_both_sources() -> None:
    a = trace_of([300, 40], cpu="a slow one", device="cpu", cpu_share=[1.0, 1.0], model="m", timing="measured")
    b = trace_of([300, 40], device="cuda", gpu="a fast one", timing="imported", timing_how="as told")
    manifest = retime(a, b).manifest
    assert (manifest["model"], manifest["device"], manifest["gpu"], manifest["timing"]) == (
        "m", "cuda", "a fast one", "imported",
    )  # fmt: skip
    assert "cpu" not in manifest and "cpu_share" not in manifest
    said = manifest["retimed"]
    assert said["magnitudes_of"] == {
        "name": "t", "digest": a.digest(), "cpu": "a slow one", "device": "cpu", "cpu_share": [1.0, 1.0],
        "timing": "measured",
    }  # fmt: skip
    assert said["times_of"]["gpu"] == "a fast one" and said["times_of"]["digest"] == b.digest()


# --- magnitudes that are not written again ---------------------------------------------------------------------------


def test_shared_magnitudes_are_read_from_owner_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.traces.trace.BUNDLED", tmp_path / "bundled")
    (tmp_path / "bundled").mkdir()
    a = trace_of([300, 40])
    a.save(tmp_path / "bundled" / "owner")
    made = retime(load_trace("owner"), trace_of([300, 40], scale=9), "made")
    write(made, tmp_path / "made", chunks_of="owner")
    assert not (tmp_path / "made" / "chunks.parquet").exists()
    back = load_trace(tmp_path / "made")
    assert back.digest() == made.digest()
    back.save(tmp_path / "alone")
    assert (tmp_path / "alone" / "chunks.parquet").exists()
    assert load_trace(tmp_path / "alone").digest() == made.digest()
    (tmp_path / "bundled" / "owner").rename(tmp_path / "gone")
    with pytest.raises(TraceError, match="chunks_of 'owner'"):
        load_trace(tmp_path / "made")
    with pytest.raises(TraceError, match="shares the magnitudes of owner"):
        require_equal_magnitudes(made, "owner")


def test_sharing_rejects_different_magnitudes() -> None:
    trace = trace_of([300, 40])
    with pytest.raises(TraceError, match="t: magnitudes differ from those of resnet20"):
        require_equal_magnitudes(trace, "resnet20")


# --- the command -----------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["trace", "retime", *words])
    return answer.exit_code, answer.output


def test_retime_command_accepts_trace_folder_or_csv_file_as_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace_of([300, 40]).save("a")
    trace_of([300, 40], scale=9).save("b")
    Path("t.csv").write_text("name,numel,forward_us,backward_us\nx,300,5,7\ny,40,11,13\n")
    for times in ("b", "t.csv"):
        code, text = run("a", "--times", times, "--out", f"by-{times}")
        assert code == 0, text
        assert "2 of 2 tensors matched" in text
    ready = load_trace("by-t.csv").iterations[0].ready_ps
    assert ready.tolist() == [36 * 10**6, 29 * 10**6]
    said = load_trace("by-t.csv").manifest
    assert said["command"] == "gradwire trace retime a --times t.csv --out by-t.csv"
    assert said["retimed"]["times_of"]["format"] == "csv" and len(said["retimed"]["times_of"]["sha256"]) == 64
    code, text = run("a", "--times", "b", "--out", "by-json", "--json")
    assert json.loads(text)["matched"] == 2


def test_retime_reads_times_from_chakra_file(tmp_path: Path) -> None:
    """The exported job has times in whole microseconds and no usable layer names."""
    a, b = trace_of([300, 40, 90]), trace_of([300, 40, 90], names="other", scale=10**6)
    (file,) = export_trace(b, tmp_path / "job", format="chakra")
    times, source = load_times(file)
    made, theirs = retime(a, times).iterations[0], b.iterations[0]
    assert source["format"] == "chakra"
    np.testing.assert_array_equal(made.ready_ps, theirs.ready_ps)
    np.testing.assert_array_equal(made.forward_end_ps, theirs.forward_end_ps)
    assert (made.backward_end_ps, made.optimizer_ps) == (theirs.backward_end_ps, theirs.optimizer_ps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "--times", "nope", "--out", "x"), "nope: no such trace or file"),
        (("nope", "--times", "a", "--out", "x"), "nope: no such trace"),
        (("a", "--times", "other", "--out", "x"), "is of another model"),
        (("a", "--times", "broken.json", "--out", "x"), "broken.json"),
        (("a", "--times", "a", "--out", "a"), "exists already"),
        (("a", "--times", "a", "--out", "x", "--share"), "shares the magnitudes of a"),
    ],
)
def test_retime_command_rejects_invalid_arguments(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace_of([300, 40]).save("a")
    trace_of([301, 41], names="other").save("other")
    Path("broken.json").write_text("{")
    code, text = run(*words)
    assert code == 2
    assert message in text.replace("\n", " ")
    assert "Traceback" not in text
    assert not Path("x").exists()


# --- what comes with gradwire ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "owner", "matched"),
    [
        ("resnet50-v100", "resnet50", 159),
        ("vgg16-gpu", "vgg16", 15),
        ("vgg16-h100", "vgg16", 32),
        ("gpt2-small-h100", "gpt2-small", 148),
    ],
)
def test_bundled_retimed_trace_matches_owner_and_readme(name: str, owner: str, matched: int) -> None:
    trace, of = load_trace(name), load_trace(owner)
    same_gradients(trace, of)
    assert trace.manifest["retimed"]["matched"] == matched
    assert trace.manifest["retimed"]["magnitudes_of"]["digest"] == of.digest()
    assert sum(file.stat().st_size for file in (BUNDLED / name).iterdir()) < 36_000
    readme = (BUNDLED / "README.md").read_text(encoding="utf-8")
    assert f"\n    {trace.manifest['command']}\n" in readme
    source = trace.manifest["retimed"]["times_of"]
    assert source["sha256"] in readme if "sha256" in source else f"\n    {source['command']}\n" in readme
    json.dumps(info(trace), allow_nan=False)
    print_info(trace)


@pytest.mark.parametrize("name", list(DATA))
def test_bundled_retimed_trace_equals_output_of_its_command(name: str, tmp_path: Path) -> None:
    if not DATA[name].exists():
        pytest.skip(f"needs {DATA[name].name} of the shared data")
    bundled = load_trace(name)
    times, source = load_times(DATA[name])
    made = retime(load_trace(bundled.manifest["retimed"]["magnitudes_of"]["name"]), times, name, source)
    made.manifest["command"] = bundled.manifest["command"]
    assert made.digest() == bundled.digest()


def test_first_linear_layer_of_vgg16_is_ready_far_earlier_on_gpu() -> None:
    """The layer has 77 % of the bytes; no constant factor converts CPU times into GPU times."""

    def share(name: str) -> float:
        trace = load_trace(name)
        number = next(n for n, tensor in enumerate(trace.tensors) if tensor.name == "head.0.weight")
        first = trace.iterations[0]
        begin = int(first.forward_end_ps.max())
        return (int(first.ready_ps[number]) - begin) / (first.backward_end_ps - begin)

    assert math.isclose(share("vgg16-gpu"), 0.0135, abs_tol=0.001)
    assert share("vgg16") > 0.39


def test_retime_reads_times_from_gzipped_csv(tmp_path: Path) -> None:
    text = b"name,numel,forward_us,backward_us\nx,300,5,7\n"
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text))
    trace, source = load_times(tmp_path / "t.csv.gz")
    assert trace.iterations[0].forward_end_ps.tolist() == [5 * 10**6]
    assert source["file"] == "t.csv.gz"
