"""What holds for all formats: damage of every kind, recognition, magnitudes by a model, files written or not at all."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from formats_cases import CSV, PIPEDREAM, ROOT, SAMPLES, SIMAI, kineto, kineto_events
from trace_cases import small_trace
from typer.testing import CliRunner

from gradwire import cli
from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import export_trace, exporters, import_trace, importers
from gradwire.traces.formats.magnitudes import MagnitudeModel, fit_model
from gradwire.traces.trace import load_trace

GOOD: dict[str, bytes] = {
    "kineto": kineto(kineto_events()).encode(),
    "pipedream": PIPEDREAM.encode(),
    "simai": SIMAI.encode(),
    "csv": CSV.encode(),
    "chakra": (SAMPLES / "foreign.0.et").read_bytes(),
    "goal": b"num_ranks 2\nrank 0 {\na: calc 7000\nb: send 4000b to 1\nb requires a\n}\nrank 1 {\nrecv 4000b from 0\n}\n",
}


@pytest.fixture
def perfetto() -> bytes:
    (path,) = export_trace(small_trace(tensors=3, iterations=2), "good.json", format="perfetto")
    return path.read_bytes()


def test_all_trace_formats_are_covered():
    assert {*GOOD, "perfetto"} == set(importers())
    assert set(exporters()) == {"chakra", "simai", "perfetto", "csv"}


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("zipped", [False, True])
def test_format_is_detected_from_file_content(name: str, zipped: bool):
    Path("some.file").write_bytes(gzip.compress(GOOD[name]) if zipped else GOOD[name])
    trace = import_trace("some.file")
    assert trace.manifest["source"]["format"] == name
    assert trace.name == "some"
    trace.save("trace")
    assert load_trace("trace").digest() == trace.digest()


def attempt(data: bytes, name: str) -> str:
    """Import `data` as the format; what came of it. Anything but a trace or a TraceError of one line fails."""
    Path("try.bin").write_bytes(data)
    try:
        import_trace("try.bin", format=name)
    except TraceError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("try.bin")
        return "refused"
    return "read"


@pytest.mark.parametrize("name", [*sorted(GOOD), "perfetto"])
def test_truncated_files_import_or_raise_trace_error(name: str, perfetto: bytes):
    good = {**GOOD, "perfetto": perfetto}[name]
    places = {len(good) * n // 40 for n in range(40)}
    outcomes = [attempt(good[:place], name) for place in sorted(places)]
    assert "refused" in outcomes


@pytest.mark.parametrize("name", [*sorted(GOOD), "perfetto"])
def test_corrupted_bytes_import_or_raise_trace_error(name: str, perfetto: bytes):
    good = {**GOOD, "perfetto": perfetto}[name]
    draw = random.Random(name)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(draw.choice([1, 1, 1, 5])):
            data[draw.randrange(len(data))] = draw.choice(
                [0, 10, 32, 34, 45, 57, 57, 57, 0x7F, 0xFF, draw.randrange(256)]
            )
        attempt(bytes(data), name)


@pytest.mark.parametrize("name", ["pipedream", "simai", "csv", "kineto"])
def test_out_of_range_numbers_import_or_raise_trace_error(name: str):
    for number in (b"9" * 17, b"9" * 400, b"1e308", b"-5", b"nan", b"1e-400"):
        for old in {
            "pipedream": (b"2.000", b"448.000"),
            "simai": (b"100 ", b"4096"),
            "csv": (b"10,30", b"2x4"),
            "kineto": (b"1300", b"300", b" 50"),
        }[name]:
            attempt(GOOD[name].replace(old, number), name)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_damaged_gzip_is_refused_and_trailing_bytes_are_ignored(name: str):
    packed = gzip.compress(GOOD[name])
    Path("cut.gz").write_bytes(packed[: len(packed) - 9])
    with pytest.raises(TraceError, match="gzip data are damaged or end too early"):
        import_trace("cut.gz", format=name)
    bent = bytearray(packed)
    bent[len(bent) // 2] ^= 0x55
    Path("bent.gz").write_bytes(bent)
    with pytest.raises(TraceError, match=r"bent\.gz"):
        import_trace("bent.gz", format=name)
    Path("behind.gz").write_bytes(packed + b"something else")
    behind = import_trace("behind.gz", format=name)  # as gzip(1), which warns
    assert behind.manifest["source"]["doubtful"]["bytes behind the gzip data, ignored"] == 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b" \n\n ", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\x1f\x8b", "gzip data are damaged"),
        (b"hello\n", "unknown format"),
        (bytes(range(256)) * 20, "unknown format"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "unknown format"),
    ],
)
def test_empty_files_and_unknown_formats_are_refused(content: bytes, what: str):
    Path("x").write_bytes(content)
    with pytest.raises(TraceError, match=what):
        import_trace("x")


def test_missing_files_folders_and_unknown_formats_are_refused():
    with pytest.raises(TraceError, match="nowhere: cannot be read"):
        import_trace("nowhere")
    Path("folder").mkdir()
    with pytest.raises(TraceError, match="is a folder"):
        import_trace("folder")
    with pytest.raises(TraceError, match="format 'xml'; expected auto, "):
        import_trace("nowhere", format="xml")


@pytest.mark.parametrize("format", ["chakra", "simai", "perfetto", "csv"])
def test_failed_exports_overwrite_no_file_and_leave_no_partial_file(format: str):
    trace = small_trace()
    files = export_trace(trace, "job", format=format, ranks=2)
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(TraceError, match="exists already"):
        export_trace(trace, "job", format=format, ranks=3)
    Path("wall").write_text("")
    with pytest.raises(TraceError, match="wall"):
        export_trace(trace, "wall/job", format=format)
    assert {path: path.read_bytes() for path in Path().glob("job*")} == {Path(p): b for p, b in before.items()}
    with pytest.raises(TraceError, match="iteration 4"):
        export_trace(trace, "other", format=format, iterations=[4])
    with pytest.raises(TraceError, match=r"ranks\): is 0"):
        export_trace(trace, "other", format=format, ranks=0)


def test_model_fit_recovers_the_parameters_of_a_generated_trace():
    # Draw a trace from a known model, then fit: the parameters come back, within what 400 tensors can tell.
    from gradwire.traces.trace import TensorInfo, Trace, scale_exponents, to_float16

    truth = MagnitudeModel("truth", -4.0, -2.0, -0.3, 0.5, 0.2, 0.05, 3.0, 1.5, 0.2)
    count = 400
    sizes = np.exp(np.random.default_rng(0).uniform(8, 12, count)).astype(np.int64)
    mean, top = zip(*truth.draw(sizes, np.arange(count) / (count - 1), 2, seed=5), strict=True)
    exponents = scale_exponents(np.array([t.max() for t in top]))
    base = small_trace(tensors=1, iterations=2)
    iterations = [
        type(i)(n, i.phase, i.step, i.loss, *[np.arange(count, dtype=np.int64)] * 3, count, 0, count)
        for n, i in enumerate(base.iterations)
    ]
    trace = Trace(
        {"name": "drawn"},
        [f"l{n}" for n in range(count)],
        [
            TensorInfo(f"t{n}", (int(s),), int(s), "float32", n, int(e))
            for n, (s, e) in enumerate(zip(sizes, exponents, strict=True))
        ],
        iterations,
        np.concatenate([to_float16(m, int(e)) for m, e in zip(mean, exponents, strict=True)], axis=1),
        np.concatenate([to_float16(t, int(e)) for t, e in zip(top, exponents, strict=True)], axis=1),
    )
    found = fit_model(trace)
    assert found.depth_slope == pytest.approx(truth.depth_slope, abs=0.3)
    assert found.size_slope == pytest.approx(truth.size_slope, abs=0.1)
    assert found.intercept == pytest.approx(truth.intercept, abs=1.0)
    assert found.mu_residual == pytest.approx(truth.mu_residual, rel=0.15)
    assert found.sigma_slope == pytest.approx(truth.sigma_slope, abs=0.02)
    assert found.peak_mean == pytest.approx(truth.peak_mean, abs=0.02)
    assert found.peak_sigma == pytest.approx(truth.peak_sigma, abs=0.02)


def test_magnitudes_depend_on_the_seed_and_manifest_records_the_model():
    Path("t.csv").write_text(CSV)
    first, same, other = (import_trace("t.csv", seed=seed) for seed in (1, 1, 2))
    assert first.digest() == same.digest()
    assert (first.magnitudes(0, 0)[0] != other.magnitudes(0, 0)[0]).any()
    told = first.manifest["magnitudes"]
    assert (told["source"], told["model"], told["fitted_to"], told["seed"]) == ("model", "lognormal", "resnet50", 1)
    assert set(told["parameters"]) >= {"intercept", "sigma_slope", "peak_mean"}
    assert first.chunk_rms(0, 0) is None
    with pytest.raises(TraceError, match="not measured"):
        fit_model(first)


def test_drawn_maxima_lie_between_mean_and_256_times_mean():
    wild = MagnitudeModel("wild", 0.0, 0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 2.0, 5.0)  # maxima all over the place
    means, tops = zip(*wild.draw(np.array([100_000, 3]), np.array([0.0, 1.0]), 2, seed=1), strict=True)
    assert [m.shape for m in means] == [(2, 391), (2, 1)]
    for mean, top in zip(means, tops, strict=True):
        assert (top >= mean).all()
        assert (top <= 256.01 * mean).all()
    assert (tops[0] == means[0]).any()


def test_import_and_export_commands_write_traces():
    runner = CliRunner()
    Path("w.txt").write_text(SIMAI)
    done = runner.invoke(cli.app, ["trace", "import", "w.txt", "--out", "t"])
    assert done.exit_code == 0, done.output
    assert "simai: 2 gradients in 3 layers" in done.output
    assert "skipped: 1 x weight gradient ALLGATHER (of activations or parameters)" in done.output
    assert "log-normal model fitted to resnet50" in done.output
    again = runner.invoke(cli.app, ["trace", "import", "w.txt", "--out", "t"])
    assert again.exit_code == 2
    told = runner.invoke(cli.app, ["trace", "import", "w.txt", "--out", "t2", "--json", "--dtype", "bfloat16"])
    assert json.loads(told.stdout)["understood"]["rows"] == 3
    assert load_trace("t2").tensors[0].dtype == "bfloat16"
    out = runner.invoke(cli.app, ["trace", "export", "t", "--format", "chakra", "--ranks", "2", "--out", "job"])
    assert out.stdout.split() == ["written:", "job.0.et", "written:", "job.1.et"]
    bad = runner.invoke(cli.app, ["trace", "import", "missing", "--out", "t3"])
    assert (bad.exit_code, Path("t3").exists()) == (2, False)


def test_trace_import_and_export_work_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from gradwire.traces.formats import import_trace, export_trace\n"
        f"t = import_trace({str(SAMPLES / 'foreign.0.et')!r}); export_trace(t, 'x.json', format='perfetto')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path.cwd(), env={"PYTHONPATH": str(ROOT)}, timeout=60)


@pytest.mark.parametrize("command", ["import", "export", "merge", "plot", "diff"])
def test_trace_command_help_shows_an_example(command: str):
    shown = CliRunner().invoke(cli.app, ["trace", command, "--help"])
    assert shown.exit_code == 0
    assert f"Example: gradwire trace {command}" in " ".join(shown.output.split())


def test_export_without_disk_space_reports_needed_and_free_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_500))
    with pytest.raises(
        TraceError,
        match=r"out.csv: has 1\d\.\d kB, but only 1.5 kB of disk space are free; expected a disk with enough space$",
    ):
        export_trace(load_trace("resnet50"), "out.csv", format="csv")
    with pytest.raises(
        TraceError, match=r"2 files of \d+\.\d kB in all, but only 1.5 kB of disk space are free.*, or fewer files$"
    ):
        export_trace(load_trace("resnet50"), "job", format="chakra", ranks=2)
