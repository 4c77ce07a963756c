"""Captures with built-in models: settings that are refused, the command that repeats them, what is recorded."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.traces import models  # noqa: E402
from gradwire.traces.capture.builtin_models import BuiltinRun, pick_device  # noqa: E402
from gradwire.traces.capture.clocks import clock_for  # noqa: E402
from gradwire.traces.trace import load_trace  # noqa: E402

QUICK: dict[str, Any] = {
    "model": "resnet20", "batch": 2, "iterations": 1, "early": 0, "late": 1, "device": "cpu", "threads": 1,
    "overhead_pairs": 0,
}  # fmt: skip


def test_unknown_and_unsupported_devices_are_refused() -> None:
    assert pick_device("cpu").type == "cpu"
    for name in ("abacus", "meta:zero"):
        with pytest.raises(TraceError, match=name):
            pick_device(name)
    with pytest.raises(TraceError, match="device meta; expected cpu or cuda"):
        clock_for(torch.device("meta"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "resnet5"),
        ("batch", 0),
        ("image_size", 16),
        ("image_size", 5000),
        ("sequence", 16),
        ("tokens", "byte"),
        ("iterations", 0),
        ("every", 0),
        ("late", 21),
        ("threads", 0),
        ("early", -1),
        ("seed", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("overhead_pairs", -1),
    ],
)
def test_invalid_capture_settings_are_refused(field: str, value: Any) -> None:
    with pytest.raises(TraceError, match=f"capture: {field.replace('_', '[_ ]')}"):
        BuiltinRun(**{"data": "nowhere", field: value})


def test_invalid_text_model_settings_are_refused() -> None:
    with pytest.raises(TraceError, match="image size for gpt2-small; expected none: the model learns from text"):
        BuiltinRun("nowhere", "gpt2-small", image_size=64)
    with pytest.raises(TraceError, match="sequence 1025; expected 1 to 1024 for gpt2-small"):
        BuiltinRun("nowhere", "gpt2-small", sequence=1025)


def test_output_directory_is_checked_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    steps: list[int] = []
    with pytest.raises(TraceError, match="out: has a parent that is not a folder"):
        BuiltinRun("synthetic", **QUICK).train(tmp_path / "file" / "out", progress=lambda s, *_: steps.append(s))
    assert steps == []
    BuiltinRun("synthetic", **QUICK).train(tmp_path / "new" / "place")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["place"]


RUNS = [
    BuiltinRun("synthetic", **QUICK),
    BuiltinRun("cifar", "vgg16", batch=16, image_size=64, late=220, every=3, device="cpu", threads=1),
    BuiltinRun("text", "gpt2-small", sequence=64, tokens="word", learning_rate=1e-5, overhead_pairs=4),
    BuiltinRun("text", "lstm"),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.model)
def test_manifest_command_repeats_the_run_settings(run: BuiltinRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in the manifest gives the same settings; defaults of the model appear explicitly."""

    seen: list[BuiltinRun] = []
    monkeypatch.setattr(
        "gradwire.traces.capture.builtin_models.BuiltinRun.train", lambda run, out, progress: seen.append(run) or out
    )
    program, *arguments = shlex.split(run.command(Path("a/b/c")))
    result = CliRunner().invoke(cli.app, arguments)
    assert (program, result.exit_code, result.stdout) == ("gradwire", 0, "trace written to c\n")
    size = "image_size" if run.kind.task == "images" else "sequence"
    expected = dataclasses.replace(run, batch=run.batch or run.kind.batch, **{size: run.size})
    assert seen == [expected]


def test_documented_capture_commands_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "capture.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in page.splitlines() if line.startswith("    gradwire capture ")]
    assert len(commands) >= 4
    seen: list[BuiltinRun] = []
    monkeypatch.setattr(
        "gradwire.traces.capture.builtin_models.BuiltinRun.train", lambda run, out, progress: seen.append(run) or out
    )
    for command in commands:
        result = CliRunner().invoke(cli.app, shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
    assert len(seen) == len(commands)


def test_capture_command_contains_no_directory_paths() -> None:
    command = BuiltinRun("/home/someone/data/cifar10").command(Path("/home/someone/out"))
    assert "someone" not in command
    assert command.endswith("--out out")


def test_manifest_of_a_synthetic_run_states_synthetic_data(tmp_path: Path) -> None:
    run = BuiltinRun("synthetic", note="made by a test", **QUICK)
    trace = load_trace(run.train(tmp_path / "made-up"))
    assert "made up" in trace.manifest["synthetic"]
    assert trace.manifest["note"] == "made by a test"
    assert trace.manifest["classes"] == 10
    assert trace.manifest["optimizer"]["kind"] == "sgd"


def test_capture_records_early_and_late_iterations_and_samples(tmp_path: Path) -> None:
    run = BuiltinRun("synthetic", **{**QUICK, "iterations": 3, "late": 5, "every": 2})
    seen: list[tuple[int, int]] = []
    path = run.train(tmp_path / "out", progress=lambda step, steps, _: seen.append((step, steps)))
    trace = load_trace(path)
    assert [iteration.step for iteration in trace.iterations] == [0, 1, 2, 5, 6, 7]
    assert trace.phases == {"early": [0, 1, 2], "late": [3, 4, 5]}
    assert trace.sampled == [0, 2, 3, 5]
    assert seen == [(step, 8) for step in range(1, 9)]


@pytest.fixture
def little_text_model(monkeypatch: pytest.MonkeyPatch) -> str:
    """The LSTM for a vocabulary of 300 and a slow start."""
    kind = dataclasses.replace(models.MODELS["lstm"], outputs=300, learning_rate=0.5, warmup=4)
    monkeypatch.setitem(models.MODELS, "little", kind)
    return "little"


def test_text_model_capture_records_vocabulary_and_zero_rows(tmp_path: Path, little_text_model: str) -> None:
    (tmp_path / "count.txt").write_bytes(bytes(range(200)))
    run = BuiltinRun(tmp_path, **{**QUICK, "model": little_text_model, "sequence": 8})
    trace = load_trace(run.train(tmp_path / "out"))
    assert trace.layers == ["embedding", "layers.0", "layers.1", "head"]
    wanted = {"tokens": "byte", "vocabulary": 300, "sequence": 8, "text_tokens": 200, "batch": 2}
    assert wanted.items() <= trace.manifest.items()
    assert trace.manifest["optimizer"]["warmup_steps"] == 4
    mean = trace.magnitudes(0, 0)[0]
    first = np.arange(len(mean)) * 256 // 650  # row of the embedding, of each chunk's first element
    assert (mean[first >= 200] == 0).all()  # bytes that never occur
    assert (mean[first < 199] > 0).any()


def test_learning_rate_warms_up_linearly(
    tmp_path: Path, little_text_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def noted(self: Any, *rest: Any, **named: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *rest, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    run = BuiltinRun("synthetic", **{**QUICK, "model": little_text_model, "sequence": 4, "late": 5})
    run.train(tmp_path / "out")
    assert rates == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("name", ["googlenet", "inception-v3", "resnet110"])
def test_captures_of_large_models_contain_all_parameter_gradients(tmp_path: Path, name: str) -> None:
    """Models with branches and several outputs have a gradient for every parameter, with layers in forward order."""
    size = models.MODELS[name].sizes[0]
    run = BuiltinRun("synthetic", **{**QUICK, "model": name, "image_size": size})
    trace = load_trace(run.train(tmp_path / "out"))
    assert sum(tensor.numel for tensor in trace.tensors) == models.MODELS[name].parameters
    assert trace.manifest["without_gradient"] == []
    for iteration in trace.iterations:
        assert (np.diff(iteration.forward_start_ps) > 0).all()
