"""Capture around a training loop: exact times with a counting clock, statistics against the raw gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")
from capture_cases import CountingClock, Tiny, images, train  # noqa: E402
from torch import nn  # noqa: E402

from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.traces.capture.recorder import TraceRecorder, summarise  # noqa: E402
from gradwire.traces.capture.session import capture  # noqa: E402
from gradwire.traces.trace import load_trace  # noqa: E402

RELATIVE = 2.0**-11 + 1e-6  # rounding to float16, and float32 sums in another order


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingClock:
    clock = CountingClock()
    monkeypatch.setattr("gradwire.traces.capture.recorder.clock_for", lambda device: clock)
    return clock


# Times ---------------------------------------------------------------------------------------------------------


def test_capture_records_all_clock_marks_of_an_iteration(tmp_path: Path, counting: CountingClock) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    trace = train(model, tmp_path / "t", lambda: torch.randn(3, 4), {"early": range(1, 3)})
    assert trace.layers == ["0", "2"]
    for iteration in trace.iterations:
        # Marks: 0 the model is called, 1 its own start, 2-3 and 4-5 the layers, 6 its end, 7-10 the gradients,
        # 11 the end of the backward pass, then (statistics in between) start and end of the optimiser.
        assert iteration.forward_start_ps.tolist() == [2, 4]
        assert iteration.forward_end_ps.tolist() == [3, 5]
        assert sorted(iteration.ready_ps[2:].tolist()) == [7, 8]
        assert sorted(iteration.ready_ps[:2].tolist()) == [9, 10]
        assert (iteration.backward_end_ps, iteration.optimizer_ps, iteration.end_ps) == (11, 1, 12)
    assert [(i.phase, i.step) for i in trace.iterations] == [("early", 1), ("early", 2)]


def test_gradient_statistics_add_no_recorded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CountingClock()
    monkeypatch.setattr("gradwire.traces.capture.recorder.clock_for", lambda device: clock)

    def slow(gradient: Any) -> Any:
        clock.now += 1_000_000
        return summarise(gradient)

    monkeypatch.setattr("gradwire.traces.capture.recorder.summarise", slow)
    trace = train(nn.Linear(4, 5), tmp_path / "t", lambda: torch.randn(3, 4), {"early": range(2)})
    assert max(i.end_ps for i in trace.iterations) < 20


def test_only_captured_steps_are_hooked(counting: CountingClock) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = TraceRecorder(model, optimizer, {"early": [1], "late": [3]}, overhead_pairs=2)
    marks = []
    while not recorder.done:
        before = counting.now
        model(torch.randn(1, 4)).sum().backward()
        optimizer.step()
        recorder.step(1.0)
        marks.append(counting.now - before)
    # Four marks frame any step; layers (2 each, and the model) and four gradients add ten.
    assert marks == [4, 14, 4, 14, 4, 14, 14, 4]
    recorder.close()
    before = counting.now
    model(torch.randn(1, 4)).sum().backward()
    optimizer.step()
    assert counting.now == before
    overhead = recorder.trace({"name": "x"}).manifest["capture_overhead"]
    # The model is called at mark 1; backward ends at 2 or 12; the optimiser takes one more.
    assert overhead["pairs"] == 2
    assert overhead["fraction"] == pytest.approx(12 / 2 - 1)


def test_validation_between_steps_is_not_recorded(tmp_path: Path, counting: CountingClock) -> None:
    model = Tiny()

    def validate(step: int) -> None:
        with torch.no_grad():
            model(images())

    trace = train(model, tmp_path / "t", images, {"early": range(1)}, on_gradients=validate)
    assert trace.iterations[0].forward_end_ps.max() < trace.iterations[0].ready_ps.min()


def test_cpu_clock_records_layers_in_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trace = train(Tiny(), tmp_path / "t", images, {"early": range(2, 5)}, overhead_pairs=2)
    assert trace.layers == ["conv1", "bn", "conv2", "fc"]
    assert [t.name for t in trace.tensors][:3] == ["conv1.weight", "conv1.bias", "bn.weight"]
    for iteration in trace.iterations:
        assert (iteration.forward_start_ps[1:] >= iteration.forward_end_ps[:-1]).all()
        assert iteration.ready_ps.min() >= iteration.forward_end_ps.max()
        per_layer = [
            max(int(iteration.ready_ps[n]) for n, t in enumerate(trace.tensors) if t.layer == layer)
            for layer in range(4)
        ]
        assert per_layer == sorted(per_layer, reverse=True)
    assert trace.manifest["device"] == "cpu"
    assert trace.manifest["parameters"] == sum(t.numel for t in trace.tensors)
    assert len(trace.manifest["capture_overhead"]["plain_s"]) == 2


# Magnitudes ----------------------------------------------------------------------------------------------------


def test_captured_magnitudes_match_the_raw_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tiny()
    raw: dict[int, list[np.ndarray]] = {}

    def keep(step: int) -> None:
        raw[step] = [p.grad.detach().numpy().copy().reshape(-1) for p in model.parameters()]

    trace = train(model, tmp_path / "t", images, {"early": range(1, 3), "late": range(6, 8)}, on_gradients=keep)
    assert trace.phases == {"early": [0, 1], "late": [2, 3]}
    for iteration in trace.iterations:
        for number, gradient in enumerate(raw[iteration.step]):
            mean, largest = trace.magnitudes(iteration.index, number)
            assert len(mean) == -(-len(gradient) // 256)
            for chunk in range(len(mean)):
                values = np.abs(gradient[256 * chunk : 256 * (chunk + 1)].astype(np.float64))
                assert mean[chunk] == pytest.approx(values.mean(), rel=RELATIVE, abs=1e-30)
                assert largest[chunk] == pytest.approx(values.max(), rel=RELATIVE, abs=1e-30)


def test_captured_magnitudes_keep_tiny_gradients(tmp_path: Path) -> None:
    """Gradients of 1e-12, as of a nearly converged model, would all be zero in plain float16."""
    model = nn.Linear(300, 3)
    trace = train(model, tmp_path / "t", lambda: torch.full((2, 300), 1e-12), {"early": range(1)})
    mean, _ = trace.magnitudes(0, 0)
    assert 0 < mean.max() < 1e-11


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_gradient_statistics_accept_half_and_double_precision(kind: Any) -> None:
    mean, largest, root = summarise(torch.arange(600, dtype=torch.float64).to(kind)).double().numpy()
    runs = np.split(np.arange(600.0), [256, 512])
    np.testing.assert_allclose(root, [np.sqrt((run**2).mean()) for run in runs], rtol=0.01)
    np.testing.assert_allclose(mean, [127.5, 383.5, 555.5], rtol=0.01)
    np.testing.assert_allclose(largest, [255, 511, 599], rtol=0.01)


def test_non_finite_gradients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"step 0: gradient of weight is not finite"):
        train(nn.Linear(3, 2), tmp_path / "t", lambda: torch.full((1, 3), 1e30), {"early": range(1)})
    assert not (tmp_path / "t").exists()


# Models of other shapes -------------------------------------------------------------------------------------------


def test_layer_of_frozen_parameters_is_timed_but_has_no_tensors(tmp_path: Path) -> None:
    model = Tiny()
    for parameter in model.conv2.parameters():
        parameter.requires_grad_(False)
    trace = train(model, tmp_path / "t", images, {"early": range(1)})
    assert trace.layers == ["conv1", "bn", "conv2", "fc"]
    assert {trace.layers[t.layer] for t in trace.tensors} == {"conv1", "bn", "fc"}


def test_tied_weights_belong_to_the_first_layer_that_runs(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 40, bias=False)  # declared first, runs last
            self.embed = nn.Embedding(40, 16)
            self.middle = nn.Linear(16, 16)
            self.embed.weight = self.head.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.middle(self.embed(x)))

    trace = train(Tied(), tmp_path / "t", lambda: torch.randint(0, 40, (2, 5)), {"early": range(2)})
    assert trace.layers == ["embed", "middle", "head"]
    assert [(t.name, t.layer) for t in trace.tensors] == [("head.weight", 0), ("middle.weight", 1), ("middle.bias", 1)]
    # The sum of both uses is complete only after the embedding's backward: last of all.
    assert trace.iterations[0].ready_ps.argmax() == 0


def test_unused_parameters_are_left_out_and_listed_in_the_manifest(tmp_path: Path) -> None:
    model = Tiny()
    model.spare = nn.Linear(3, 3)
    trace = train(model, tmp_path / "t", images, {"early": range(1)})
    assert trace.manifest["without_gradient"] == ["spare.weight", "spare.bias"]
    assert "spare" not in trace.layers


def test_layer_skipped_in_an_iteration_has_zero_time_and_gradient(tmp_path: Path) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.second(self.first(x)) if self.calls % 2 else self.first(x)

    trace = train(Sometimes(), tmp_path / "t", lambda: torch.randn(2, 4), {"early": range(2)})
    assert trace.layers == ["first", "second"]
    skipped = trace.iterations[1]
    assert skipped.forward_start_ps[1] == skipped.forward_end_ps[1] == skipped.forward_end_ps[0]
    assert (skipped.ready_ps[2:] == skipped.backward_end_ps).all()
    assert trace.chunk_mean(1, 2).max() == 0 < trace.chunk_mean(0, 2).max()


def test_layer_called_twice_spans_both_calls(tmp_path: Path, counting: CountingClock) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(self.layer(x))

    trace = train(Twice(), tmp_path / "t", lambda: torch.randn(2, 4), {"early": range(1)})
    assert trace.iterations[0].forward_start_ps.tolist() == [2]
    assert trace.iterations[0].forward_end_ps.tolist() == [4]


def test_parameters_of_uncalled_modules_belong_to_the_enclosing_layer(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.hidden = nn.Linear(8, 8)
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            y, _ = self.attention(x, x, x)
            return nn.functional.linear(y, self.hidden.weight, self.hidden.bias) * self.scale

    trace = train(Block(), tmp_path / "t", lambda: torch.randn(2, 3, 8), {"early": range(1)})
    assert trace.layers == ["model", "attention"]
    homes = {t.name: trace.layers[t.layer] for t in trace.tensors}
    assert homes["attention.out_proj.weight"] == homes["attention.in_proj_weight"] == "attention"
    assert homes["hidden.weight"] == homes["scale"] == "model"


# Rules of use ----------------------------------------------------------------------------------------------------


def test_existing_directory_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="exists already"):
        train(Tiny(), tmp_path, images, {"early": range(1)}, on_gradients=lambda step: pytest.fail("trained"))


def test_failed_training_loop_writes_no_trace(tmp_path: Path) -> None:
    def fail(step: int) -> None:
        if step == 1:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train(Tiny(), tmp_path / "t", images, {"early": range(3)}, on_gradients=fail)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_capture_writes_the_completed_iterations(tmp_path: Path) -> None:
    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Tiny(), tmp_path / "t", images, {"early": range(5)}, on_gradients=interrupt)
    assert [i.step for i in load_trace(tmp_path / "t").iterations] == [0, 1]


def test_training_loop_shorter_than_the_phases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"called 3 times; expected training beyond step 50"):
        train(Tiny(), tmp_path / "t", images, {"late": range(50, 52)}, steps=3)


def test_step_without_optimizer_is_refused(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with (
        pytest.raises(TraceError, match=r"step 0: no forward pass or no optimizer\.step\(\)"),
        capture(model, optimizer, out=tmp_path / "t", phases={"early": range(1)}) as recorder,
    ):
        recorder.step(model(images()).sum())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"optimizer": []}, "capture: no optimiser"),
        ({"optimizer": 3}, "capture: optimiser int"),
        ({"iterations": 0}, r"capture\(iterations\): is 0; expected a whole number from 1"),
        ({"iterations": 2.5}, r"capture\(iterations\): is 2.5, of type float"),
        ({"warmup": -1}, r"capture\(warmup\): is -1; expected a whole number from 0"),
        ({"every": 1.5}, r"capture\(every\): is 1.5, of type float"),
        ({"overhead_pairs": -1}, r"capture\(overhead_pairs\): is -1"),
        ({"phases": [1, 2]}, r"capture\(phases\): is \[1, 2\], of type list"),
        ({"phases": {"a": [3, "x"]}}, r"capture\(phases\), a: is 'x', of type str"),
        ({"phases": {"a": 3}}, r"capture\(phases\), a: is 3, of type int; expected numbers of steps"),
        ({"phases": {3: [4]}}, r"capture\(phases\): is 3, of type int; expected phase names"),
        ({"name": 3}, r"capture\(name\): is 3, of type int"),
        ({"manifest": 3}, r"capture\(manifest\): is 3, of type int"),
        ({"manifest": {"seen": object()}}, r"manifest: cannot be written as JSON \(Object of type object"),
    ],
)
def test_invalid_capture_arguments_are_refused_before_training(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    model = nn.Linear(2, 2)
    given = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "out": tmp_path / "out", **wrong}
    with pytest.raises(TraceError, match=said), capture(model, **given):
        pytest.fail("it began")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("loss", ["x", torch.ones(3), [1.0]])
def test_loss_that_is_not_a_scalar_is_refused(tmp_path: Path, loss: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(TraceError, match=r"step\(loss\): is .*; expected the loss of the step as a single number"),
        capture(model, optimizer, out=tmp_path / "out", iterations=1, warmup=0) as recorder,
    ):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        recorder.step(loss)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("phases", [{}, {"early": range(0)}, {"early": [1, 2], "late": [2]}])
def test_empty_and_overlapping_phases_are_refused(phases: dict[str, Any]) -> None:
    model = Tiny()
    with pytest.raises(TraceError, match="at least one step, each in one phase only"):
        TraceRecorder(model, torch.optim.SGD(model.parameters(), 0.1), phases)


def test_model_without_trainable_parameters_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(TraceError, match="Linear: has no trainable parameter"):
        TraceRecorder(model, torch.optim.SGD(model.parameters(), 0.1), {"early": [0]})


def test_parameter_without_elements_has_no_tensor(tmp_path: Path) -> None:
    class WithEmpty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.empty = nn.Parameter(torch.zeros(0, 3))

        def forward(self, x: Any) -> Any:
            return self.linear(x) + self.empty.sum()

    trace = train(WithEmpty(), tmp_path / "t", lambda: torch.randn(3, 4), {"early": range(2)})
    assert [tensor.name for tensor in trace.tensors] == ["linear.weight", "linear.bias"]
    assert trace.manifest["without_gradient"] == ["empty"]
