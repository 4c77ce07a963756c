"""Replaces layers' forward functions by ones that compute weight gradients separately for each worker's slice of the
batch.

Conv1d, Conv2d, Linear, BatchNorm1d and 2d, LayerNorm, Embedding. These functions replace the modules' forward functions
while all workers' samples go through a model at once (`gradwire.training.backward.worker_gradients.JointGradients`):
(module, input of all workers, N, keep) -> output. `keep` receives a parameter with all workers' gradients, (N, ...).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.training.precision import cast_bias, cast_factors, match_memory_format

Keep = Callable[[Tensor, Tensor], None]


def kernels_for(x: Tensor) -> Any:
    """Return the module of Triton kernels if they run here on `x` as it lies in memory, else None."""
    if x.dtype != torch.bfloat16 or not x.is_cuda:
        return None
    kernels = _kernels(x.device)
    return kernels if kernels is not None and kernels.supports_layout(x) else None


@cache
def _kernels(device: torch.device) -> Any:
    """Return the module, or None with a warning if Triton or its compiler is missing."""
    try:
        from gradwire.training.backward import triton_kernels as kernels

        kernels.try_out(device)
    except Exception as error:  # compilers and drivers raise anything
        first = str(error).partition("\n")[0]
        warnings.warn(f"kernels for {device} cannot be used; libraries take twice as long: {first}", stacklevel=2)
        return None
    return kernels


class _PerWorkerWeights(torch.autograd.Function):
    """A layer with weights: the usual forward pass and input gradient; weight gradients per slice, passed to `keep`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Any) -> Tensor:
        x, weight = cast_factors(x, weight)
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.forward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return ctx.layer.backward(x, weight, match_memory_format(gradients[0], x), ctx.needs_input_grad[0]), None, None


class _Layer:
    """A layer with per-worker gradients, which `backward` passes to `keep`."""

    def __init__(self, module: Any, workers: int, keep: Keep) -> None:
        self.module, self.workers, self.keep = module, workers, keep


class _Convolution(_Layer):
    """A convolution of any dimension with per-worker gradients. `padding`: zeros on both sides of each dimension."""

    def __init__(self, module: Any, workers: int, keep: Keep, padding: Sequence[int]) -> None:
        super().__init__(module, workers, keep)
        self.padding = padding
        self.more = (module.stride, padding, module.dilation, False, [0] * len(padding), module.groups)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.module.bias is None and (kernels := self._narrow_kernels(x)):
            return kernels.convolve(x, weight)
        return torch.convolution(x, weight, cast_bias(self.module.bias, weight), *self.more)

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> Tensor | None:
        module = self.module
        if (kernels := kernels_for(x)) and kernels.supports_layer(module, self.padding):
            side, stride = module.kernel_size[0], module.stride[0]
            weights = kernels.weight_gradients_per_worker(x, gradient, self.workers, side, stride, self.padding[0])
        else:
            slices = zip(x.chunk(self.workers), gradient.chunk(self.workers), strict=True)
            back, only_weights = torch.ops.aten.convolution_backward, (False, True, False)
            weights = torch.stack([back(g, part, weight, None, *self.more, only_weights)[1] for part, g in slices])
        self.keep(module.weight, weights)
        if module.bias is not None:
            spatial = tuple(range(2, x.dim()))
            self.keep(module.bias, gradient.sum(dim=spatial).view(self.workers, -1, gradient.shape[1]).sum(dim=1))
        if not of_input:
            return None
        if kernels := self._narrow_kernels(x):
            return kernels.convolve(gradient, kernels.transposed_weights(weight))
        return torch.ops.aten.convolution_backward(gradient, x, weight, None, *self.more, (True, False, False))[0]

    def _narrow_kernels(self, x: Tensor) -> Any:
        """Return the kernels for a convolution with few channels, for which libraries are slow, or None."""
        kernels = kernels_for(x)
        few = kernels and kernels.supports_layer(self.module, self.padding, kernels.NARROW)
        return kernels if few and kernels.keeps_size(self.module, self.padding) else None


def _convolution(module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
    x, padding = padded(module, x)
    return _PerWorkerWeights.apply(x, module.weight, _Convolution(module, workers, keep, padding))  # type: ignore[no-any-return]


def padded(module: Any, x: Tensor) -> tuple[Tensor, list[int]]:
    """Return (input, zeros that a convolution still has to add on both sides of each dimension). Padding that a
    convolution cannot add is applied here: asymmetric zeros, as for "same" with an even kernel, or values other than
    zeros."""
    shape = list(zip(module.kernel_size, module.dilation, strict=True))
    if module.padding == "same":
        total = [dilation * (size - 1) for size, dilation in shape]
        sides = [(size // 2, size - size // 2) for size in total]
    else:
        sides = [(size, size) for size in ([0] * len(shape) if module.padding == "valid" else module.padding)]
    if module.padding_mode == "zeros" and all(before == after for before, after in sides):
        return x, [before for before, _ in sides]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padding = [size for pair in reversed(sides) for size in pair]  # the last dimension first
    return functional.pad(x, padding, mode=mode), [0] * len(sides)


class _Linear(_Layer):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight, cast_bias(self.module.bias, weight))

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> Tensor | None:
        left = gradient.reshape(self.workers, -1, gradient.shape[-1])
        self.keep(self.module.weight, left.transpose(1, 2) @ x.reshape(self.workers, -1, x.shape[-1]))
        if self.module.bias is not None:
            self.keep(self.module.bias, left.sum(dim=1))
        return gradient @ weight if of_input else None


class _Embedding(_Layer):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(x, weight)

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> None:
        gradients = gradient.new_zeros(self.workers, *weight.shape)
        slices = zip(gradients, x.chunk(self.workers), gradient.chunk(self.workers), strict=True)
        for worker_gradient, tokens, g in slices:
            worker_gradient.index_add_(0, tokens.reshape(-1), g.reshape(-1, g.shape[-1]))
        if self.module.padding_idx is not None:
            gradients[:, self.module.padding_idx] = 0
        self.keep(self.module.weight, gradients)


def _forward_of(layer: Any) -> Any:
    """Return the forward function of a layer class above. The weight is passed as an argument so that autograd always
    has something to differentiate; it gets no gradient."""

    def forward(module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
        return _PerWorkerWeights.apply(x, module.weight, layer(module, workers, keep))

    return forward


def _copies(parameter: Tensor, workers: int, keep: Keep) -> Tensor:
    """Return a parameter as (N, ...), whose gradient is passed to `keep`."""
    copies = parameter.detach().expand(workers, *parameter.shape).clone().requires_grad_()
    copies.register_hook(lambda gradient: keep(parameter, gradient))
    return copies


def _batch_norm(module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
    """Normalise over each worker's samples. Running statistics move by the mean of the workers' (our choice; PyTorch's
    DDP keeps those of the first)."""
    tracked = module.track_running_stats and module.momentum is not None
    if module.training and module.bias is not None and tracked and (kernels := kernels_for(x)):
        return _fused_batch_norm(kernels, module, x, workers, keep)
    weight, bias = (
        _copies(parameter, workers, keep) if isinstance(parameter, nn.Parameter) else [parameter] * workers
        for parameter in (module.weight, module.bias)
    )
    slices = list(zip(x.chunk(workers), weight, bias, strict=True))
    running = [(module.running_mean, module.running_var)] * workers
    if module.training and module.track_running_stats:
        running = [(mean.clone(), variance.clone()) for mean, variance in running]
    elif module.training:
        running = [(None, None)] * workers
    momentum = 0.0
    if module.training:
        momentum = module.momentum if module.momentum is not None else 1 / (int(module.num_batches_tracked) + 1)
    parts = [
        functional.batch_norm(samples, *statistics, w, b, module.training, momentum, module.eps)
        for (samples, w, b), statistics in zip(slices, running, strict=True)
    ]
    if module.training and module.track_running_stats:
        module.num_batches_tracked += 1
        means, variances = zip(*running, strict=True)
        module.running_mean.copy_(torch.stack(means).mean(dim=0))
        module.running_var.copy_(torch.stack(variances).mean(dim=0))
    return torch.cat(parts)


def _fused_batch_norm(kernels: Any, module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
    values = x.numel() // x.shape[1] // workers

    def seen(mean: Tensor, variance: Tensor) -> None:
        module.num_batches_tracked += 1
        for running, of_each, factor in (
            (module.running_mean, mean, 1.0),
            (module.running_var, variance, values / (values - 1)),
        ):
            running.mul_(1 - module.momentum).add_(of_each.mean(dim=0), alpha=factor * module.momentum)

    def kept(weight: Tensor, bias: Tensor) -> None:
        if isinstance(module.weight, nn.Parameter):
            keep(module.weight, weight)
        keep(module.bias, bias)

    weight = module.weight if module.weight is not None else torch.ones_like(module.bias)
    return kernels.BatchNormPerWorker.apply(x, weight, module.bias, workers, module.eps, seen, kept)  # type: ignore[no-any-return]


def _layer_norm(module: nn.LayerNorm, x: Tensor, workers: int, keep: Keep) -> Tensor:
    y = functional.layer_norm(x, module.normalized_shape, None, None, module.eps)
    if not module.elementwise_affine:
        return y
    rows = y.reshape(workers, -1, *module.normalized_shape)
    y = rows * _copies(module.weight, workers, keep)[:, None]
    if module.bias is not None:
        y = y + _copies(module.bias, workers, keep)[:, None]
    return y.reshape(x.shape)


FORWARDS: dict[type[nn.Module], Any] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Linear: _forward_of(_Linear),
    nn.Embedding: _forward_of(_Embedding),
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
}
"""Forward functions by module class: (module, input of all workers, N, keep) -> output."""
