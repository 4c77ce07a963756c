"""The bundled trace is what the manifest says: ResNet-50 learning, recorded at two moments of its training."""

from __future__ import annotations

import time

import numpy as np
import pytest

from scenarios.policy import Tagging
from traces.messages import Tagger, layer_priorities
from traces.trace import BUNDLED, Trace, bundled_traces, load_trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load_trace("resnet50")


def test_it_is_small_and_read_quickly(trace: Trace) -> None:
    assert bundled_traces() == ["resnet50"]
    assert sum(file.stat().st_size for file in (BUNDLED / "resnet50").iterdir()) < 10_000_000
    start = time.perf_counter()
    load_trace("resnet50")
    assert time.perf_counter() - start < 3  # 0.03-0.1 s on an idle core; ten times the aim is an alarm


def test_it_is_resnet50(trace: Trace) -> None:
    assert len(trace.layers) == 107
    assert len(trace.tensors) == 161
    # 25,557,032 with 1000 classes; 990 classes fewer are 990 x 2048 weights and 990 biases fewer.
    assert sum(tensor.numel for tensor in trace.tensors) == 25_557_032 - 990 * 2049
    assert trace.manifest["parameters"] == sum(tensor.numel for tensor in trace.tensors)
    assert trace.layers[0] == "conv1"
    assert trace.layers[-1] == "fc"


def test_the_manifest_says_where_it_comes_from(trace: Trace) -> None:
    wanted = "model batch dataset image_size device cpu threads versions seed capture_overhead optimizer classes command"
    assert set(wanted.split()) <= set(trace.manifest)
    assert trace.manifest["capture_overhead"]["pairs"] >= 5
    assert "/" not in trace.manifest["command"]


def test_two_moments_of_consecutive_steps_and_the_model_has_learnt(trace: Trace) -> None:
    phases = {name: [trace.iterations[i] for i in members] for name, members in trace.phases.items()}
    assert list(phases) == ["early", "late"]
    for members in phases.values():
        steps = [iteration.step for iteration in members]
        assert len(steps) >= 5
        assert steps == list(range(steps[0], steps[0] + len(steps)))
    loss = {name: np.mean([iteration.loss for iteration in members]) for name, members in phases.items()}
    assert loss["late"] < 0.8 * loss["early"]


def test_gradients_become_ready_from_back_to_front(trace: Trace) -> None:
    layers = np.array([tensor.layer for tensor in trace.tensors])
    for iteration in trace.iterations:
        latest = np.array([iteration.ready_ps[layers == layer].max() for layer in range(len(trace.layers))])
        assert (np.diff(latest) < 0).all()
        assert iteration.forward_end_ps.max() < iteration.ready_ps.min()


def test_magnitudes_are_uneven_enough_to_tag(trace: Trace) -> None:
    """In each large tensor the upper half of the packets holds clearly more than half of the gradient."""
    for iteration in (0, len(trace.iterations) - 1):
        for number, tensor in enumerate(trace.tensors):
            if tensor.numel >= 500_000:
                mean = np.sort(trace.magnitudes(iteration, number)[0])
                assert mean[len(mean) // 2 :].sum() > 0.55 * mean.sum()


def test_tags_and_priorities(trace: Trace) -> None:
    priorities = layer_priorities(trace, [1, 2, 3, 4, 5, 6, 7])
    size = np.array([tensor.bytes for tensor in trace.tensors])
    shares = np.array([size[priorities == p].sum() for p in range(1, 8)]) / size.sum()
    assert (np.abs(shares - 1 / 7) < 0.06).all()
    tagger = Tagger(trace, Tagging(magnitude=True, important_fraction=0.5), 1)
    for iteration in range(len(trace.iterations)):
        tags = [tagger.important(iteration, n, 0, t.numel, 4096) for n, t in enumerate(trace.tensors)]
        # The scale of gradients changes from batch to batch while the threshold follows slowly (see Tagger).
        assert 0.35 < np.concatenate(tags).mean() < 0.75
