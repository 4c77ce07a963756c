"""The bundled traces are what their manifests say: real models, recorded at two moments of their training."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest

from gradwire.scenarios.schema.policy import Tagging
from gradwire.traces.models import MODELS
from gradwire.traces.tagging import Tagger, layer_priorities
from gradwire.traces.trace import BUNDLED, Trace, bundled_traces, load_trace

# Layers, tensors and parameters that the architecture has, with 10 classes where it learnt CIFAR-10.
SHAPES: dict[str, tuple[int, int, int]] = {
    "resnet20": (39, 59, 269_722),
    "resnet50": (107, 161, 25_557_032 - 990 * 2049),
    "vgg16": (16, 32, 138_357_544 - 990 * 4097),
    "lstm": (4, 11, 19_780_400),
    "gpt2-small": (76, 148, 124_439_808),
    "resnet50-h100": (107, 161, 25_557_032 - 990 * 2049),
}
RETIMED = {"resnet50-v100", "vgg16-gpu", "vgg16-h100", "gpt2-small-h100"}  # see test_trace_retime.py
MEGABYTE = 10**6


@pytest.fixture(scope="module", params=SHAPES)
def trace(request: Any) -> Trace:
    return load_trace(request.param)


@pytest.fixture(scope="module")
def resnet50() -> Trace:
    return load_trace("resnet50")


def test_bundled_traces_are_complete_and_small() -> None:
    assert set(bundled_traces()) == set(SHAPES) | RETIMED
    sizes = {name: sum(f.stat().st_size for f in (BUNDLED / name).iterdir()) for name in bundled_traces()}
    assert max(sizes.values()) < 10 * MEGABYTE
    assert sum(sizes.values()) < 40 * MEGABYTE


def test_bundled_trace_matches_its_model_architecture(trace: Trace) -> None:
    elements = sum(tensor.numel for tensor in trace.tensors)
    assert (len(trace.layers), len(trace.tensors), elements) == SHAPES[trace.name]
    assert trace.manifest["parameters"] == elements
    assert trace.manifest["without_gradient"] == []


def test_bundled_manifest_records_provenance(trace: Trace) -> None:
    wanted = "model batch dataset device cpu threads versions seed capture_overhead optimizer command phase_steps"
    assert set(wanted.split()) <= set(trace.manifest)
    assert trace.manifest["model"] == trace.name.removesuffix("-h100")
    assert trace.manifest["capture_overhead"]["pairs"] >= 5
    assert trace.magnitude_source == "measured"
    assert "synthetic" not in trace.manifest
    if trace.manifest["device"] == "cpu":  # an honest label: how much of the processor each iteration had
        assert len(trace.manifest["cpu_share"]) == len(trace.iterations)
        assert trace.manifest["clock"] == "CpuClock"


def test_bundled_capture_command_names_a_builtin_model_and_is_documented(trace: Trace) -> None:
    command = trace.manifest["command"]
    words = shlex.split(command)
    assert words[:2] == ["gradwire", "capture"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--model"] in MODELS
    assert options["--out"] == trace.name
    assert "/" not in command
    assert f"\n    {command}\n" in (BUNDLED / "README.md").read_text(encoding="utf-8")


def test_bundled_trace_has_early_and_late_steps_with_falling_loss(trace: Trace) -> None:
    phases = {name: [trace.iterations[i] for i in members] for name, members in trace.phases.items()}
    assert list(phases) == ["early", "late"]
    for members in phases.values():
        steps = [iteration.step for iteration in members]
        assert len(steps) >= 4
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        assert sum(iteration.index in trace.sampled for iteration in members) >= 2
    loss = {name: np.mean([iteration.loss for iteration in members]) for name, members in phases.items()}
    assert loss["late"] < loss["early"] - 0.2


def test_gradients_become_ready_from_back_to_front(trace: Trace) -> None:
    """Gradients become ready from back to front. Tied weights of the first and last layer are the exception: they are
    ready last."""
    layers = np.array([tensor.layer for tensor in trace.tensors])
    places = np.unique(layers)
    for iteration in trace.iterations:
        assert iteration.forward_end_ps.max() < iteration.ready_ps.min()
        latest = np.array([iteration.ready_ps[layers == layer].max() for layer in places])
        falling = np.diff(latest) < 0
        assert falling.mean() > 0.95
        assert latest[0] == latest.max() or trace.name == "gpt2-small"


def test_magnitudes_of_bundled_traces_are_consistent(trace: Trace) -> None:
    """Every chunk has mean <= rms <= max. Each large tensor is uneven enough to tag: the upper half of its chunks
    holds more than 53 % of the gradient."""
    for iteration in (trace.sampled[0], trace.sampled[-1]):
        for number, tensor in enumerate(trace.tensors):
            mean, largest = trace.magnitudes(iteration, number)
            assert (mean <= largest * 1.001).all()
            l2 = trace.l2(iteration, number)
            if l2 is not None:
                elements = np.full(tensor.chunks, 256)
                elements[-1] = tensor.numel - 256 * (tensor.chunks - 1)
                rms = l2 / np.sqrt(elements)
                assert (mean <= rms * 1.002 + 1e-12).all()
                assert (rms <= largest * 1.002 + 1e-12).all()
            if tensor.numel >= 500_000:
                mean = np.sort(mean)
                assert mean[len(mean) // 2 :].sum() > 0.53 * mean.sum()


def test_early_and_late_magnitudes_differ(trace: Trace) -> None:
    early, late = trace.phases["early"][0], trace.phases["late"][0]
    for number, tensor in enumerate(trace.tensors):
        if tensor.numel >= 500_000:
            assert (trace.chunk_mean(early, number) != trace.chunk_mean(late, number)).any()


def test_layer_priorities_and_magnitude_tags_split_resnet50_as_requested(resnet50: Trace) -> None:
    priorities = layer_priorities(resnet50, [1, 2, 3, 4, 5, 6, 7])
    size = np.array([tensor.bytes for tensor in resnet50.tensors])
    shares = np.array([size[priorities == p].sum() for p in range(1, 8)]) / size.sum()
    assert (np.abs(shares - 1 / 7) < 0.06).all()
    tagger = Tagger(resnet50, Tagging(magnitude=True, important_fraction=0.5), 1)
    for iteration in range(len(resnet50.iterations)):
        tags = [tagger.important(iteration, n, 0, t.numel, 4096) for n, t in enumerate(resnet50.tensors)]
        # The scale of gradients changes from batch to batch while the threshold follows slowly (see Tagger).
        assert 0.35 < np.concatenate(tags).mean() < 0.75
