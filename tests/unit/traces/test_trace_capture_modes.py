"""Capture in the ways people train: two lines, mixed precision, micro-batches, torch.compile, checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")
from capture_cases import CountingClock, Tiny, images, train  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gradwire  # noqa: E402
from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.traces.capture.recorder import TraceRecorder  # noqa: E402
from gradwire.traces.capture.statistics import summarise  # noqa: E402
from gradwire.traces.storage.writer import raw_gradient  # noqa: E402
from gradwire.traces.trace import load_trace  # noqa: E402

HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingClock:
    clock = CountingClock()
    monkeypatch.setattr("gradwire.traces.capture.recorder.clock_for", lambda device: clock)
    return clock


def expect_gradients(trace: Any, raw: dict[int, list[np.ndarray]], rtol: float = 2e-3) -> None:
    """The trace's magnitudes are those of `raw` (step -> gradient per tensor), in all sampled iterations."""
    for index in trace.sampled:
        for number, gradient in enumerate(raw[trace.iterations[index].step]):
            runs = np.split(np.abs(gradient.reshape(-1).astype(np.float64)), range(256, gradient.size, 256))
            mean, largest = trace.magnitudes(index, number)
            np.testing.assert_allclose(mean, [run.mean() for run in runs], rtol=rtol)
            np.testing.assert_allclose(largest, [run.max() for run in runs], rtol=rtol)
            np.testing.assert_allclose(trace.l2(index, number), [np.linalg.norm(run) for run in runs], rtol=rtol)


def gradients(model: nn.Module) -> list[np.ndarray]:
    return [p.grad.detach().float().numpy().copy() for p in model.parameters()]


# Two lines ----------------------------------------------------------------------------------------------------------


def test_capture_with_defaults_records_ten_steps_of_a_training_loop(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = torch.optim.Adam(model.parameters())
    with gradwire.capture(model, optimizer, out=tmp_path / "run1.trace") as cap:
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(images()).square().mean()
            loss.backward()
            optimizer.step()
            cap.step()
    trace = gradwire.load_trace(tmp_path / "run1.trace")
    assert trace.name == "run1.trace"
    assert trace.phases == {"training": list(range(10))}
    assert [iteration.step for iteration in trace.iterations] == list(range(3, 13))
    assert trace.sampled == list(range(10))
    assert all(np.isnan(iteration.loss) for iteration in trace.iterations)
    assert trace.manifest["model"] == "Tiny"
    assert trace.manifest["timing"] == "measured"
    assert trace.magnitude_source == "measured"
    assert trace.manifest["capture_overhead"]["pairs"] == 5
    assert "parallel" not in trace.manifest
    assert (trace.chunk_rms(0, 0) > 0).all()
    assert trace.ranks == [0]


def test_each_phase_samples_its_first_and_every_nth_step(tmp_path: Path) -> None:
    trace = train(Tiny(), tmp_path / "t", images, {"early": range(4), "late": range(6, 9)}, every=3)
    assert trace.sampled == [0, 3, 4]
    assert [trace.sample_of(index) for index in range(7)] == [0, 0, 3, 3, 4, 4, 4]


def test_capture_removes_all_hooks_after_its_last_step_or_an_exception(tmp_path: Path) -> None:
    scale = torch.amp.GradScaler.scale

    def hooks(model: nn.Module, optimizer: Any) -> int:
        on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in HOOKS)
        on_parameters = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
        on_optimizer = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
        return on_modules + on_parameters + on_optimizer + (torch.amp.GradScaler.scale is not scale)

    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradwire.capture(model, optimizer, out=tmp_path / "t", iterations=1, warmup=0, overhead_pairs=0) as cap:
        assert hooks(model, optimizer) > 10
        for _ in range(2):
            model(images()).mean().backward()
            optimizer.step()
            cap.step()
            assert hooks(model, optimizer) == 0
    with (
        pytest.raises(RuntimeError, match="mine"),
        gradwire.capture(model, optimizer, out=tmp_path / "u", warmup=0, raw=True) as cap,
    ):
        model(images()).mean().backward()
        optimizer.step()
        cap.step()
        raise RuntimeError("mine")
    assert hooks(model, optimizer) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_raw_option_stores_exact_gradients(tmp_path: Path) -> None:
    model = Tiny()
    model.spare = nn.Linear(2, 2)
    model.fc.to(torch.bfloat16)
    model.fc.register_forward_pre_hook(lambda module, inputs: inputs[0].bfloat16())
    kept: dict[int, list[np.ndarray]] = {}

    def keep(step: int) -> None:
        kept[step] = [p.grad.float().numpy().copy() for p in model.parameters() if p.grad is not None]

    phases = {"training": range(1, 4)}
    trace = train(model, tmp_path / "t", images, phases, on_gradients=keep, raw=True, every=2)
    assert [t.dtype for t in trace.tensors][-2:] == ["bfloat16", "bfloat16"]
    for index in (0, 2):
        for number, tensor in enumerate(trace.tensors):
            raw = raw_gradient(tmp_path / "t", index, number)
            assert raw.shape == tensor.shape
            np.testing.assert_array_equal(raw, kept[index + 1][number])
    assert sorted(path.name for path in (tmp_path / "t" / "raw").iterdir()) == ["iter0000", "iter0002"]
    expect_gradients(trace, kept, rtol=2e-3)


# Mixed precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_step_skipped_by_the_grad_scaler_is_not_recorded(tmp_path: Path, fused: bool) -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    raw: dict[int, list[np.ndarray]] = {}
    options = {"iterations": 3, "warmup": 1, "overhead_pairs": 2}
    with gradwire.capture(model, optimizer, out=tmp_path / "t", raw=True, **options) as cap:
        for step in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(images()).float().square().mean()
            scaler.scale(loss * float("inf") if step in (2, 6) else loss).backward()
            raw[step] = [values / scaler.get_scale() for values in gradients(model)]
            scaler.step(optimizer)
            scaler.update()
            cap.step(loss)
            if cap.done:
                break
    trace = load_trace(tmp_path / "t")
    assert [iteration.step for iteration in trace.iterations] == [1, 3, 4]
    assert trace.manifest["skipped_steps"] == [2]
    assert trace.manifest["capture_overhead"]["pairs"] == 1  # steps 5 to 8, of which 6 was skipped
    expect_gradients(trace, raw)
    np.testing.assert_allclose(raw_gradient(tmp_path / "t", 1, 0), raw[3][0], rtol=1e-6)


# Other loops --------------------------------------------------------------------------------------------------------------


def test_micro_batches_form_one_iteration_with_gradients_of_the_last(tmp_path: Path, counting: CountingClock) -> None:
    """An iteration lasts from the first micro-batch to the optimiser. Gradients are ready and summarised after the
    last micro-batch."""
    model = nn.Sequential(nn.Linear(300, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    raw = {}
    with gradwire.capture(model, optimizer, out=tmp_path / "t", iterations=2, warmup=0) as cap:
        for step in range(2):
            optimizer.zero_grad()
            for _ in range(3):
                model(torch.randn(3, 300)).square().mean().backward()
            raw[step] = gradients(model)
            optimizer.step()
            cap.step(1.0)
    trace = load_trace(tmp_path / "t")
    assert trace.manifest["model_calls"] == [3, 3]
    expect_gradients(trace, raw)
    for iteration in trace.iterations:
        # Marks: 0 begin, 1 model, 2-3 and 4-5 layers, 6 model's end, 7-10 gradients; a second micro-batch has no
        # starts, so it marks two layers' ends, the model's and four gradients: 11-13, 14-17; a third 18-20, 21-24.
        assert iteration.forward_start_ps.tolist() == [2, 4]
        assert iteration.forward_end_ps.tolist() == [18, 19]
        assert sorted(iteration.ready_ps.tolist()) == [21, 22, 23, 24]
        assert iteration.backward_end_ps == 25


def test_magnitudes_are_taken_after_gradient_clipping(tmp_path: Path) -> None:
    model = Tiny()
    raw: dict[int, list[np.ndarray]] = {}

    def clip(step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        raw[step] = gradients(model)

    trace = train(model, tmp_path / "t", images, {"early": range(2)}, on_gradients=clip)
    expect_gradients(trace, raw)
    assert sum((trace.l2(0, n) ** 2).sum() for n in range(len(trace.tensors))) <= 1.01e-6


def test_optimizer_time_spans_consecutive_optimizers(tmp_path: Path, counting: CountingClock) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    both = [torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.Adam(model[1].parameters())]
    with gradwire.capture(model, both, out=tmp_path / "t", iterations=1, warmup=1) as cap:
        for _ in range(2):
            model(torch.randn(3, 4)).mean().backward()
            for optimizer in both:
                optimizer.step()
            cap.step(1.0)
    iteration = load_trace(tmp_path / "t").iterations[0]
    # The backward pass ends before the first one, 11, which starts at 12; 13 and 14 are the ends of both.
    assert (iteration.backward_end_ps, iteration.optimizer_ps) == (11, 2)


def test_argument_that_is_not_an_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"optimiser Tiny; expected a torch\.optim\.Optimizer"):
        TraceRecorder(Tiny(), [Tiny()], {"early": [0]})


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_forward_passes_do_not_change_forward_times(
    tmp_path: Path, counting: CountingClock, reentrant: bool
) -> None:
    """The forward pass that a checkpoint repeats in the backward pass does not count. The first forward pass counts
    even without gradients."""

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            rest = lambda y: torch.tanh(self.third(torch.tanh(self.second(y))))
            return checkpoint(rest, self.first(x), use_reentrant=reentrant)

    trace = train(Saving(), tmp_path / "t", lambda: torch.randn(2, 4), {"early": range(2)})
    assert trace.layers == ["first", "second", "third"]
    for iteration in trace.iterations:
        assert iteration.forward_start_ps.tolist() == [2, 4, 6]
        assert iteration.forward_end_ps.tolist() == [3, 5, 7]
        assert iteration.ready_ps.min() > 8


def test_checkpointed_model_counts_as_called_once(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Tiny()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Whole()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradwire.capture(model.inner, optimizer, out=tmp_path / "t", warmup=0, iterations=1) as cap:
        model(images()).square().mean().backward()
        optimizer.step()
        cap.step()
    assert "model_calls" not in load_trace(tmp_path / "t").manifest


def test_iteration_begins_with_the_first_called_submodule(tmp_path: Path, counting: CountingClock) -> None:
    """The loop calls the parts of the model and never the model."""
    model = nn.Module()
    model.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradwire.capture(model, optimizer, out=tmp_path / "t", warmup=1, iterations=1) as cap:
        for _ in range(4):
            hidden = model.parts[0](torch.randn(3, 4))
            model.parts[1](hidden).mean().backward()
            optimizer.step()
            cap.step(1.0)
    trace = load_trace(tmp_path / "t")
    assert trace.layers == ["parts.0", "parts.1"]
    assert trace.iterations[0].forward_start_ps.tolist() == [0, 2]  # one hook marks both moments at the beginning
    assert trace.manifest["capture_overhead"]["pairs"] == 1


def test_channels_last_gradient_is_summarised_in_row_major_order() -> None:
    gradient = torch.randn(20, 16, 3, 3).to(memory_format=torch.channels_last)
    assert not gradient.is_contiguous()
    runs = np.split(gradient.contiguous().numpy().reshape(-1), range(256, 2880, 256))
    mean, largest, root = summarise(gradient).numpy()
    np.testing.assert_allclose(mean, [np.abs(run).mean() for run in runs], rtol=1e-5)
    np.testing.assert_array_equal(largest, [np.abs(run).max() for run in runs])
    np.testing.assert_allclose(root, [np.sqrt((run**2).mean()) for run in runs], rtol=1e-5)


def test_rms_neither_underflows_nor_overflows() -> None:
    for size in (1e-30, 1e30):
        _, _, root = summarise(torch.tensor([size] * 200 + [0.0] * 56)).double().numpy()
        np.testing.assert_allclose(root, size * np.sqrt(200 / 256), rtol=1e-5)
    assert summarise(torch.zeros(300)).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 256 * 1024, 256 * 1024 + 1, 256 * 2500 + 77])
def test_gradient_statistics_do_not_depend_on_the_block_size(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = torch.randn(elements)
    before = gradient.clone()
    at_once = summarise(gradient)
    assert at_once.shape == (3, -(-elements // 256)) and torch.equal(gradient, before)
    for rows in (1, 7, 10**9):
        monkeypatch.setattr(
            "gradwire.traces.capture.statistics.CACHED_ROWS", rows if rows > 1 or elements < 10**4 else 3
        )
        assert torch.equal(summarise(gradient), at_once)


def test_sparse_gradient_has_magnitudes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2))
    trace = train(model, tmp_path / "t", lambda: torch.randint(0, 50, (3, 4)), {"early": range(1)}, momentum=0.0)
    assert trace.chunk_max(0, 0).max() > 0


# Compiled models ----------------------------------------------------------------------------------------------------


def compiled_whole(model: Tiny, backend: Any) -> nn.Module:
    return torch.compile(model, backend=backend)  # type: ignore[no-any-return]


def compiled_in_place(model: Tiny, backend: Any) -> nn.Module:
    model.compile(backend=backend)
    return model


@pytest.mark.parametrize("compiled", [compiled_whole, compiled_in_place])
def test_compiled_model_runs_without_graph_breaks_and_divides_layer_times(tmp_path: Path, compiled: Any) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    runs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*arguments: Any) -> Any:
            runs.append(1)
            return graph.forward(*arguments)

        return run

    model = Tiny()
    wrapped = compiled(model, backend)
    call = model._compiled_call_impl
    wrapped(images()).mean().backward()
    assert len(runs) == 1
    raw: dict[int, list[np.ndarray]] = {}

    def keep(step: int) -> None:
        raw[step] = gradients(model)

    trace = train(wrapped, tmp_path / "t", images, {"early": range(2, 4)}, on_gradients=keep)
    assert len(runs) == 1 + len(raw)  # the compiled code ran in every step, in one piece
    assert not torch._dynamo.utils.counters["graph_break"]
    assert trace.manifest["model"] == "Tiny"
    assert trace.manifest["compiled"]["modules"] == ["model"]
    assert trace.layers == ["conv1", "bn", "conv2", "fc"]
    assert [t.name for t in trace.tensors][:3] == ["conv1.weight", "conv1.bias", "bn.weight"]
    expect_gradients(trace, raw)
    for iteration in trace.iterations:
        lengths = iteration.forward_end_ps - iteration.forward_start_ps
        assert lengths.min() > 0
        assert lengths.max() - lengths.min() <= 1
        assert (iteration.forward_start_ps[1:] == iteration.forward_end_ps[:-1]).all()
        assert iteration.forward_end_ps.max() < iteration.ready_ps.min()
    assert model._compiled_call_impl is call


def test_compiled_submodule_is_recorded_and_layers_around_it_are_timed(tmp_path: Path) -> None:
    """Layers around the compiled submodule are timed. An unused layer within it is absent from the trace."""
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    inner.spare = nn.Linear(3, 3)
    inner.forward = lambda x: inner[2](inner[1](inner[0](x)))  # type: ignore[method-assign]
    model = nn.Sequential(nn.Linear(8, 8), torch.compile(inner, backend="eager"), nn.Linear(8, 2))
    trace = train(model, tmp_path / "t", lambda: torch.randn(2, 8), {"early": range(1, 3)})
    assert trace.layers == ["0", "1.0", "1.2", "2"]
    assert trace.manifest["compiled"]["modules"] == ["1"]
    assert trace.manifest["without_gradient"] == ["1.spare.weight", "1.spare.bias"]
    for iteration in trace.iterations:
        assert (iteration.forward_start_ps[1:] >= iteration.forward_end_ps[:-1]).all()


def test_data_parallel_is_refused() -> None:
    model = nn.DataParallel(Tiny())
    with pytest.raises(TraceError, match=r"nn\.DataParallel; expected DistributedDataParallel"):
        TraceRecorder(model, torch.optim.SGD(model.parameters(), 0.1), {"early": [0]})
