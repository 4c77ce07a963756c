"""Capture where the optimiser is not simply called after the backward pass: closures, several optimisers, wrappers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")
from capture_cases import CountingClock, Tiny, images, train  # noqa: E402
from torch import nn  # noqa: E402
from trace_cases import small_trace  # noqa: E402

import gradwire  # noqa: E402
from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.traces.capture.recorder import TraceRecorder  # noqa: E402
from gradwire.traces.trace import Trace, load_trace  # noqa: E402


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingClock:
    clock = CountingClock()
    monkeypatch.setattr("gradwire.traces.capture.recorder.clock_for", lambda device: clock)
    return clock


class Kept:
    """Mean |g| of the gradients with which the optimiser really worked, by step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.means: list[list[float]] = []
        self._parameters = list(model.parameters())
        for group in optimizer.param_groups:
            assert not group.get("weight_decay")
        optimizer.register_step_post_hook(self._keep)

    def _keep(self, *_: Any) -> None:
        self.means.append([float(p.grad.abs().mean()) for p in self._parameters])

    def expect_in(self, trace: Trace) -> None:
        for index, iteration in enumerate(trace.iterations):
            seen = [trace.magnitudes(index, tensor)[0].mean() for tensor in range(len(trace.tensors))]
            np.testing.assert_allclose(seen, self.means[iteration.step], rtol=2e-3)


def expect_order(trace: Trace) -> None:
    """Forward, then gradients from back to front, then the optimiser: of a plain chain of layers."""
    for iteration in trace.iterations:
        assert (np.diff(iteration.forward_start_ps) > 0).all()
        assert iteration.forward_start_ps.min() > 0
        assert iteration.forward_end_ps.max() < iteration.ready_ps.min()
        layers = [tensor.layer for tensor in trace.tensors]
        earliest = [
            min(r for r, of in zip(iteration.ready_ps, layers, strict=True) if of == n) for n in sorted(set(layers))
        ]
        assert (np.diff(earliest) < 0).all()
        assert iteration.ready_ps.max() <= iteration.backward_end_ps
        assert iteration.optimizer_ps > 0


# Closures -------------------------------------------------------------------------------------------------------------


def small_chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))


@pytest.mark.parametrize("named", [False, True])
def test_optimizer_closure_gradients_are_recorded_in_their_step(
    tmp_path: Path, counting: CountingClock, named: bool
) -> None:
    """The gradients exist only within optimizer.step(), and belong to this step."""
    model = small_chain()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    kept = Kept(model, optimizer)
    losses = []
    with gradwire.capture(model, optimizer, out=tmp_path / "t", iterations=3, warmup=1, overhead_pairs=0) as cap:
        for step in range(4):

            def closure(step: int = step) -> Any:
                optimizer.zero_grad()
                loss = (step + 1) * model(torch.ones(3, 4) * (step + 1)).square().mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure=closure) if named else optimizer.step(closure))
            cap.step(losses[-1])
    trace = load_trace(tmp_path / "t")
    kept.expect_in(trace)
    for iteration in trace.iterations:
        # Marks: 0 begin, 1 the model's start, 2-3 and 4-5 layers, 6 its end, 7-8 gradients, 9 end of the closure,
        # then start and end of what is left of the optimiser.
        assert iteration.forward_start_ps.tolist() == [2, 4]
        assert iteration.forward_end_ps.tolist() == [3, 5]
        assert iteration.ready_ps.tolist() == [8, 7]
        assert (iteration.backward_end_ps, iteration.optimizer_ps, iteration.end_ps) == (9, 1, 10)
        assert iteration.loss == pytest.approx(float(losses[iteration.step].detach()))


def lbfgs(model: nn.Module, out: Path, **options: Any) -> Kept:
    optimizer = torch.optim.LBFGS(model.parameters(), 0.01, **options)
    kept = Kept(model, optimizer)
    batch = torch.randn(8, 4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    with gradwire.capture(model, optimizer, out=out, iterations=2, warmup=0) as cap:
        for _ in range(3):
            cap.step(optimizer.step(closure))
    return kept


def test_lbfgs_with_one_evaluation_per_step_is_recorded(tmp_path: Path) -> None:
    lbfgs(small_chain(), tmp_path / "t", max_iter=1).expect_in(load_trace(tmp_path / "t"))
    expect_order(load_trace(tmp_path / "t"))


def test_lbfgs_with_several_evaluations_per_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"step 0: the optimiser took gradients \d+ times.*LBFGS has max_iter=1"):
        lbfgs(small_chain(), tmp_path / "t", max_iter=4)
    assert not list(tmp_path.iterdir())


def test_optimizer_that_ignores_its_closure_is_refused(tmp_path: Path) -> None:
    class Deaf(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            pass

    model = small_chain()
    with (
        pytest.raises(TraceError, match="never called its closure"),
        gradwire.capture(model, optimizer := Deaf(model.parameters(), 0.1), out=tmp_path / "t", warmup=0) as cap,
    ):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step(lambda: 0.0)
        cap.step()


# Several optimisers ---------------------------------------------------------------------------------------------------


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def gan_loop(gan: Gan, optimizers: Any, captures: list[Any], steps: int, critics: int = 1) -> None:
    for _ in range(steps):
        for _ in range(critics):
            optimizers[0].zero_grad()
            fake = gan.generator(torch.randn(5, 4)).detach()
            (gan.discriminator(fake).mean() - gan.discriminator(torch.randn(5, 8)).mean()).backward()
            optimizers[0].step()
        optimizers[1].zero_grad()
        loss = -gan.discriminator(gan.generator(torch.randn(5, 4))).mean()
        loss.backward()
        optimizers[1].step()
        for cap in captures:
            cap.step(loss)


@pytest.fixture
def gan() -> tuple[Gan, list[Any]]:
    model = Gan()
    return model, [torch.optim.SGD(part.parameters(), 0.01) for part in (model.discriminator, model.generator)]


def test_a_gan_in_one_capture_is_refused(tmp_path: Path, gan: tuple[Gan, list[Any]]) -> None:
    model, optimizers = gan
    with (
        pytest.raises(TraceError, match=r"optimisers step at different times.*one capture per network"),
        gradwire.capture(model, optimizers, out=tmp_path / "t", warmup=1) as cap,
    ):
        gan_loop(model, optimizers, [cap], 3)
    assert not list(tmp_path.iterdir())


def test_gan_is_recorded_with_one_capture_per_network(tmp_path: Path, gan: tuple[Gan, list[Any]]) -> None:
    model, optimizers = gan
    kept = [Kept(model.discriminator, optimizers[0]), Kept(model.generator, optimizers[1])]
    with contextlib.ExitStack() as stack:
        parts = zip((model.discriminator, model.generator), optimizers, "dg", strict=True)
        captures = [
            stack.enter_context(gradwire.capture(part, optimizer, out=tmp_path / name, iterations=3, warmup=1))
            for part, optimizer, name in parts
        ]
        gan_loop(model, optimizers, captures, 8)
    traces = [load_trace(tmp_path / name) for name in "dg"]
    for trace, seen in zip(traces, kept, strict=True):
        seen.expect_in(trace)
        expect_order(trace)
        assert len(trace.tensors) == 4


def test_several_optimizer_steps_per_recorded_step_are_refused(tmp_path: Path, gan: tuple[Gan, list[Any]]) -> None:
    model, optimizers = gan
    part = model.discriminator
    with (
        pytest.raises(TraceError, match=r"took gradients 3 times, each time from another backward pass"),
        gradwire.capture(part, optimizers[0], out=tmp_path / "t", warmup=0) as cap,
    ):
        gan_loop(model, optimizers, [cap], 2, critics=3)


# Wrappers -------------------------------------------------------------------------------------------------------------


def lightning() -> Any:
    return pytest.importorskip("pytorch_lightning", reason="the test tools (extra: dev) have it")


def fit(module: Any, captures: list[Any], **options: Any) -> None:
    pl = lightning()

    class Step(pl.Callback):  # type: ignore[name-defined,misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            for cap in captures:
                cap.step(outputs["loss"] if outputs else None)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=5)
    pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Step()], **options,
    ).fit(module, data)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_lightning_automatic_optimisation_is_recorded(tmp_path: Path, clip: float | None) -> None:
    """Lightning runs forward pass, backward pass and clipping in a closure."""

    class Module(lightning().LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = small_chain()
            self.optimizer = torch.optim.SGD(self.parameters(), 0.1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return self.optimizer

    module = Module()
    kept = Kept(module, module.optimizer)
    with gradwire.capture(module, module.optimizer, out=tmp_path / "t", iterations=3, warmup=2) as cap:
        fit(module, [cap], gradient_clip_val=clip)
    trace = load_trace(tmp_path / "t")
    assert [tensor.name for tensor in trace.tensors] == ["net.0.weight", "net.2.weight"]
    assert all(iteration.loss > 0 for iteration in trace.iterations)
    kept.expect_in(trace)
    expect_order(trace)


@pytest.mark.filterwarnings("ignore")
def test_lightning_gan_needs_one_capture_per_network(tmp_path: Path) -> None:
    class Module(lightning().LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gan = Gan()
            self.automatic_optimization = False
            self.both = [torch.optim.SGD(p.parameters(), 0.01) for p in (self.gan.discriminator, self.gan.generator)]

        def training_step(self, batch: Any, index: int) -> None:
            for optimizer, real in zip(self.optimizers(), (True, False), strict=True):
                optimizer.zero_grad()
                fake = self.gan.generator(batch[0])
                self.manual_backward(self.gan.discriminator(fake.detach() if real else fake).mean())
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return self.both

    module = Module()
    with contextlib.ExitStack() as stack:
        captures = [
            stack.enter_context(gradwire.capture(part, optimizer, out=tmp_path / name, iterations=2, warmup=1))
            for part, optimizer, name in zip(
                (module.gan.discriminator, module.gan.generator), module.both, "dg", strict=True
            )
        ]
        fit(module, captures)
    for name in "dg":
        expect_order(load_trace(tmp_path / name))
    with (
        pytest.raises(TraceError, match="optimisers step at different times"),
        gradwire.capture(module := Module(), module.both, out=tmp_path / "t", warmup=1) as cap,
    ):
        fit(module, [cap])


@pytest.fixture
def accelerator() -> Iterator[Any]:
    accelerate = pytest.importorskip("accelerate", reason="the test tools (extra: dev) have it")
    made = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    yield made
    made.free_memory()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_accelerate_optimizer_is_recorded_with_micro_batches(
    tmp_path: Path, accelerator: Any, micro_batches: int
) -> None:
    bare = small_chain()
    inner = torch.optim.SGD(bare.parameters(), 0.1)
    kept = Kept(bare, inner)
    model, optimizer = accelerator.prepare(bare, inner)
    with gradwire.capture(model, optimizer, out=tmp_path / "t", iterations=3, warmup=1) as cap:
        for _ in range(4):
            for place in range(micro_batches):
                accelerator.gradient_state._set_sync_gradients(place == micro_batches - 1)
                loss = model(torch.randn(3, 4)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
            cap.step(loss)
            optimizer.zero_grad()
    trace = load_trace(tmp_path / "t")
    assert [tensor.name for tensor in trace.tensors] == ["0.weight", "2.weight"]
    kept.expect_in(trace)
    expect_order(trace)


def test_optimizer_without_hooks_is_refused() -> None:
    class Bare(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    with pytest.raises(TraceError, match=r"optimiser Bare; expected a torch\.optim\.Optimizer"):
        TraceRecorder(Tiny(), Bare(), {"early": [0]})


# What is refused or noted ---------------------------------------------------------------------------------------------


def test_capture_without_a_recorded_step_is_refused(tmp_path: Path) -> None:
    model = Tiny()
    with (
        pytest.raises(TraceError, match=r"cap\.step\(\) was never called"),
        gradwire.capture(model, optimizer := torch.optim.SGD(model.parameters(), 0.1), out=tmp_path / "t"),
    ):
        model(images()).sum().backward()
        optimizer.step()


def test_complex_parameters_are_refused_before_training() -> None:
    model = nn.Linear(3, 3, dtype=torch.complex64)
    with pytest.raises(TraceError, match="parameter weight is complex64; expected float64, float32"):
        TraceRecorder(model, torch.optim.SGD(model.parameters(), 0.1), {"early": [0]})


def test_manifest_lists_sparse_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2))
    trace = train(model, tmp_path / "t", lambda: torch.randint(0, 50, (3, 4)), {"early": range(1)}, momentum=0.0)
    assert trace.manifest["sparse_gradients"] == {"parameters": ["0.weight"], "counted": "dense, with their zeros"}


def test_forward_pass_after_the_backward_pass_is_refused(tmp_path: Path) -> None:
    """A layer cannot end after its gradients, as it would with model statistics taken before the optimiser."""
    model = Tiny()

    def look(step: int) -> None:
        model(images())

    with pytest.raises(TraceError, match=r"step 0: the gradient of \S+ was ready before its layer had run"):
        train(model, tmp_path / "t", images, {"early": range(1)}, on_gradients=look)


def test_trace_rejects_gradients_ready_before_their_layer_ran() -> None:
    good = small_trace(tensors=6)
    iteration = good.iterations[0]

    def with_times(**times: Any) -> Trace:
        changed = [replace(iteration, **times), *good.iterations[1:]]
        return Trace(good.manifest, good.layers, good.tensors, changed, good._mean, good._max)

    with_times()
    late = iteration.forward_end_ps.copy()
    late[1] = iteration.backward_end_ps + 1
    with pytest.raises(TraceError, match="iteration 0: layer layer1 runs forward until"):
        with_times(forward_end_ps=late)
    for tensor in range(6):
        ready = iteration.ready_ps.copy()
        ready[tensor] = iteration.forward_end_ps[tensor // 2] - 1
        with pytest.raises(TraceError, match=f"iteration 0: the gradient of t{tensor} is ready at"):
            with_times(ready_ps=ready)
