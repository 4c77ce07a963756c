"""Kernels for GPUs against torch's own, in float32. Where there is no GPU, Triton's interpreter computes them:
`pip install triton; TRITON_INTERPRET=1 pytest tests/unit/training/test_kernels.py`."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no CUDA device", allow_module_level=True)

from torch.nn.functional import batch_norm, conv2d  # noqa: E402

from gradwire.training.backward import triton_kernels  # noqa: E402

pytestmark = pytest.mark.gpu
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
MULTIPLIED = torch.bfloat16 if GPU else torch.float16
"""What is multiplied: the interpreter takes bfloat16 for whole numbers there."""
ROUNDING = 0.01


def pictures(*shape: int, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE).to(dtype).to(memory_format=torch.channels_last)


def far(one, other) -> float:
    return float((one.detach().float() - other.detach().float()).norm() / other.detach().float().norm())


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("workers", "samples", "channels", "side"),
    [(2, 3, 16, 9), (3, 2, 5, 8), (2, 4, 64, 4), (2, 3, 80, 5), (1, 2, 3, 40)],
)
def test_batch_norm_kernel_per_worker_matches_torch(workers: int, samples: int, channels: int, side: int) -> None:
    x = pictures(workers * samples, channels, side, side) * 2 + 3
    dy = pictures(*x.shape)
    weight, bias = torch.rand(channels, device=DEVICE) + 0.5, torch.randn(channels, device=DEVICE)
    heard: dict[str, torch.Tensor] = {}
    mine = x.clone().requires_grad_()
    y = triton_kernels.BatchNormPerWorker.apply(
        mine, weight, bias, workers, 1e-5, lambda mean, var: heard.update(mean=mean, var=var),
        lambda by, shift: heard.update(weight=by, bias=shift),
    )  # fmt: skip
    y.backward(dy)
    values = samples * side * side
    for worker in range(workers):
        part = slice(worker * samples, (worker + 1) * samples)
        theirs, by, shift = (
            x[part].float().requires_grad_(),
            weight.clone().requires_grad_(),
            bias.clone().requires_grad_(),
        )
        mean, var = torch.zeros(channels, device=DEVICE), torch.zeros(channels, device=DEVICE)
        expected = batch_norm(theirs, mean, var, by, shift, True, 1.0, 1e-5)
        expected.backward(dy[part].float())
        assert far(y[part], expected) < ROUNDING and far(mine.grad[part], theirs.grad) < ROUNDING
        assert far(heard["weight"][worker], by.grad) < 1e-5 and far(heard["bias"][worker], shift.grad) < 1e-5
        assert far(heard["mean"][worker], mean) < 1e-5 and far(heard["var"][worker] * values / (values - 1), var) < 1e-5
    assert y.dtype == x.dtype and y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("scales", [True, False])
def test_batch_norm_layer_with_kernels_matches_library(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, gradients by worker and running statistics agree, with and without a scale."""
    from gradwire.training.backward import sliced_layers

    norm = torch.nn.BatchNorm2d(8, momentum=0.25).to(DEVICE)
    if scales:
        torch.nn.init.uniform_(norm.weight, 0.5, 2)
    else:
        norm.register_parameter("weight", None)
    torch.nn.init.normal_(norm.bias)
    x, dy = pictures(6, 8, 5, 5) + 1, pictures(6, 8, 5, 5)

    def found(by) -> list[torch.Tensor]:
        monkeypatch.setattr(sliced_layers, "kernels_for", lambda x: by)
        norm.reset_running_stats()
        mine, heard = x.float().requires_grad_() if by is None else x.clone().requires_grad_(), {}
        out = sliced_layers._batch_norm(
            norm, mine, 3, lambda parameter, gradient: heard.update({id(parameter): gradient})
        )
        out.backward(dy.to(out.dtype))
        parts = [heard[id(each)] for each in norm.parameters()]
        return [out, mine.grad, *parts, norm.running_mean.clone(), norm.running_var.clone()]

    kernels_, library = found(triton_kernels), found(None)
    assert len(kernels_) == 5 + scales
    assert all(far(one, other) < ROUNDING for one, other in zip(kernels_, library, strict=True))


def test_batch_norm_kernel_is_precise_for_large_means() -> None:
    """Sums are of differences from a value of the channel. A mean a thousand deviations from zero costs no
    precision."""
    x = (torch.randn(4, 8, 16, 16, device=DEVICE) + 1000).to(memory_format=torch.channels_last)
    heard = {}
    triton_kernels.BatchNormPerWorker.apply(
        x,
        torch.ones(8, device=DEVICE),
        torch.zeros(8, device=DEVICE),
        2,
        1e-5,
        lambda mean, var: heard.update(var=var),
        None,
    )
    assert far(heard["var"][0], x[:2].double().var(dim=(0, 2, 3), unbiased=False)) < 1e-4


@pytest.mark.parametrize(("workers", "samples", "inputs", "outputs", "pixels", "side", "stride"), [
    (2, 3, 3, 16, 8, 3, 1), (2, 2, 16, 16, 9, 3, 1), (3, 2, 16, 32, 8, 3, 2), (2, 2, 16, 24, 8, 1, 2), (1, 40, 16, 16, 16, 3, 1),
    (2, 2, 64, 64, 8, 3, 1),
])  # fmt: skip
def test_weight_gradient_kernel_per_worker_matches_torch(
    workers: int, samples: int, inputs: int, outputs: int, pixels: int, side: int, stride: int
) -> None:
    x = pictures(workers * samples, inputs, pixels, pixels, dtype=MULTIPLIED)
    weight = torch.randn(outputs, inputs, side, side, device=DEVICE)
    dy = pictures(*conv2d(x.float(), weight, None, stride, side // 2).shape, dtype=MULTIPLIED)
    found = triton_kernels.weight_gradients_per_worker(x, dy, workers, side, stride, side // 2)
    assert found.dtype == torch.float32
    for worker in range(workers):
        part = slice(worker * samples, (worker + 1) * samples)
        theirs = weight.clone().requires_grad_()
        conv2d(x[part].float(), theirs, None, stride, side // 2).backward(dy[part].float())
        assert far(found[worker], theirs.grad) < 1e-4


@pytest.mark.parametrize(("inputs", "outputs", "side"), [(3, 16, 3), (16, 16, 3), (16, 8, 1), (5, 7, 3)])
def test_convolution_kernel_matches_torch_forward_and_backward(inputs: int, outputs: int, side: int) -> None:
    x = pictures(3, inputs, 9, 9, dtype=MULTIPLIED)
    weight = torch.randn(outputs, inputs, side, side, device=DEVICE).to(MULTIPLIED)
    theirs = x.float().requires_grad_()
    expected = conv2d(theirs, weight.float(), None, 1, side // 2)
    dy = pictures(*expected.shape, dtype=MULTIPLIED)
    expected.backward(dy.float())
    assert far(triton_kernels.convolve(x, weight), expected) < ROUNDING
    assert far(triton_kernels.convolve(dy, triton_kernels.transposed_weights(weight)), theirs.grad) < ROUNDING


def test_kernels_that_fail_to_compile_are_disabled_with_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwire.training.backward import sliced_layers

    triton_kernels.try_out(DEVICE)
    sliced_layers._kernels.cache_clear()
    assert sliced_layers._kernels(DEVICE) is triton_kernels
    sliced_layers._kernels.cache_clear()
    monkeypatch.setattr(triton_kernels, "try_out", lambda device: 1 / 0)
    with pytest.warns(UserWarning, match="libraries take twice as long: division by zero"):
        assert sliced_layers._kernels(DEVICE) is None
    sliced_layers._kernels.cache_clear()


@pytest.mark.skipif(not GPU, reason="no CUDA device")
@pytest.mark.parametrize("name", ["resnet20", "resnet20-v2", "vgg11-quarter"])
def test_model_with_kernels_is_repeatable_and_close_to_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwire.traces.models import find_model
    from gradwire.training.backward import sliced_layers
    from gradwire.training.backward.worker_gradients import JointGradients, sequential_gradients
    from gradwire.training.devices import deterministic
    from gradwire.training.precision import in_precision
    from gradwire.training.trainer import losses_of

    model = find_model(name).build(10).to(DEVICE)
    inputs, targets = (torch.randn(128, 3, 32, 32, device=DEVICE),), torch.randint(10, (128,), device=DEVICE)
    mixed = in_precision(losses_of, "bfloat16", DEVICE)

    def of_all(gradients):
        return torch.cat([each.reshape(-1) for mine in gradients for each in mine])

    with deterministic(DEVICE):
        expected = of_all(sequential_gradients(model, losses_of, inputs, targets, 4)[1])
        before = {key: value.clone() for key, value in model.named_buffers()}
        found, again = (of_all(JointGradients(model, 4)(mixed, inputs, targets)[1]) for _ in range(2))
        with_kernels = {key: value.clone() for key, value in model.named_buffers()}
        monkeypatch.setattr(sliced_layers, "kernels_for", lambda x: None)
        for key, value in model.named_buffers():
            value.copy_(before[key])
        plain, _ = (of_all(JointGradients(model, 4)(mixed, inputs, targets)[1]) for _ in range(2))
    assert torch.equal(found, again) and not torch.equal(found, plain)
    assert far(found, expected) < 1.5 * far(plain, expected) + 1e-3
    for key, value in model.named_buffers():
        assert far(with_kernels[key], value) < ROUNDING, key
