"""Triton kernels compute batch norms and weight gradients of N workers at once, and convolutions of few channels.

Libraries lack the former and are slow for the latter. Pictures are bfloat16, channels last, (samples, height, width,
channels) in memory, workers one after the other. Sums are float32, in a fixed order. Triton comes with torch for CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLITS = 64
"""Parts of a worker's values that are added up in parallel."""
TILE = 4096
"""Values of a tile."""
PIXELS = 128
"""Pixels multiplied at once."""
PART = 2048
"""Minimum number of pixels of a partial weight gradient."""
NARROW = 16
"""Minimum number of channels of a product; missing ones are zero [Triton]."""


@triton.jit
def _moments(x, pivot, out, rows, channels, span, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each worker and channel, by part: the sum of x - pivot, and that of its square."""
    worker, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = c < channels
    middle = tl.load(pivot + worker * channels + c, mask=inside, other=0.0)
    once = tl.zeros([ROWS, WIDTH], tl.float32)
    twice = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, span, ROWS):
        within = first + tl.arange(0, ROWS)
        r = part * span + within
        here = ((within < span) & (r < rows))[:, None] & inside[None, :]
        value = tl.load(x + (worker * rows + r[:, None]) * channels + c[None, :], mask=here, other=0.0).to(tl.float32)
        value = tl.where(here, value - middle[None, :], 0.0)
        once += value
        twice += value * value
    at = out + (worker * tl.num_programs(1) + part) * 2 * channels + c
    tl.store(at, tl.sum(once, 0), mask=inside)
    tl.store(at + channels, tl.sum(twice, 0), mask=inside)


@triton.jit
def _normalise(x, mean, scale, shift, out, rows, channels, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """(x - mean) scale + shift, with one scale of each worker and channel and one shift of each channel."""
    worker = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = c < channels
    here = (r < rows)[:, None] & inside[None, :]
    at = (worker * rows + r[:, None]) * channels + c[None, :]
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    middle = tl.load(mean + worker * channels + c, mask=inside, other=0.0)
    factor = tl.load(scale + worker * channels + c, mask=inside, other=0.0)
    added = tl.load(shift + c, mask=inside, other=0.0)
    value = (value - middle[None, :]) * factor[None, :] + added[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def _back_sums(dy, x, mean, rstd, out, rows, channels, span, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each worker and channel, by part: the sum of dy, and that of dy times the normalised x."""
    worker, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = c < channels
    middle = tl.load(mean + worker * channels + c, mask=inside, other=0.0)
    factor = tl.load(rstd + worker * channels + c, mask=inside, other=0.0)
    once = tl.zeros([ROWS, WIDTH], tl.float32)
    twice = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, span, ROWS):
        within = first + tl.arange(0, ROWS)
        r = part * span + within
        here = ((within < span) & (r < rows))[:, None] & inside[None, :]
        at = (worker * rows + r[:, None]) * channels + c[None, :]
        slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        once += slope
        twice += slope * (value - middle[None, :]) * factor[None, :]
    at = out + (worker * tl.num_programs(1) + part) * 2 * channels + c
    tl.store(at, tl.sum(once, 0), mask=inside)
    tl.store(at + channels, tl.sum(twice, 0), mask=inside)


@triton.jit
def _back(dy, x, mean, rstd, weight, sums, out, rows, channels, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """weight rstd (dy - (sum of dy + xn sum of dy xn) / rows), xn being the normalised x."""
    worker = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = c < channels
    here = (r < rows)[:, None] & inside[None, :]
    at = (worker * rows + r[:, None]) * channels + c[None, :]
    middle = tl.load(mean + worker * channels + c, mask=inside, other=0.0)
    factor = tl.load(rstd + worker * channels + c, mask=inside, other=0.0)
    by = tl.load(weight + c, mask=inside, other=0.0)
    once = tl.load(sums + 2 * worker * channels + c, mask=inside, other=0.0) / rows
    twice = tl.load(sums + (2 * worker + 1) * channels + c, mask=inside, other=0.0) / rows
    slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
    value = (tl.load(x + at, mask=here, other=0.0).to(tl.float32) - middle[None, :]) * factor[None, :]
    slope = (slope - once[None, :] - value * twice[None, :]) * (by * factor)[None, :]
    tl.store(out + at, slope.to(out.dtype.element_ty), mask=here)


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    x, dy, out, samples, height, width, tall, wide, inputs, outputs, stride, padding, part,
    SIDE: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each worker, by part of its pixels: what a row of a square kernel's weights gets, (SIDE, inputs, outputs)."""
    row, worker, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    ci, co = tl.arange(0, CI), tl.arange(0, CO)
    pixels = samples * tall * wide
    if SIDE == 3:
        left = tl.zeros([CI, CO], tl.float32)
        right = tl.zeros([CI, CO], tl.float32)
    middle = tl.zeros([CI, CO], tl.float32)
    for first in range(0, part, BLOCK):
        within = first + tl.arange(0, BLOCK)
        p = split * part + within
        there = (within < part) & (p < pixels)
        at = worker * pixels + p
        slope = tl.load(
            dy + at[:, None] * outputs + co[None, :], mask=there[:, None] & (co < outputs)[None, :], other=0.0
        )
        sample, y, z = worker * samples + p // (tall * wide), p // wide % tall, p % wide
        up = y * stride + row - padding
        there = there & (up >= 0) & (up < height)
        over = z * stride - padding
        line = x + ((sample * height + up) * width)[:, None] * inputs + ci[None, :]
        if SIDE == 3:
            mask = (there & (over >= 0) & (over < width))[:, None] & (ci < inputs)[None, :]
            left = tl.dot(tl.trans(tl.load(line + over[:, None] * inputs, mask=mask, other=0.0)), slope, left)
            over += 1
        mask = (there & (over >= 0) & (over < width))[:, None] & (ci < inputs)[None, :]
        middle = tl.dot(tl.trans(tl.load(line + over[:, None] * inputs, mask=mask, other=0.0)), slope, middle)
        if SIDE == 3:
            over += 1
            mask = (there & (over >= 0) & (over < width))[:, None] & (ci < inputs)[None, :]
            right = tl.dot(tl.trans(tl.load(line + over[:, None] * inputs, mask=mask, other=0.0)), slope, right)
    size = inputs * outputs
    at = out + ((worker * tl.num_programs(2) + split) * SIDE + row) * SIDE * size
    at = at + ci[:, None] * outputs + co[None, :]
    mask = (ci < inputs)[:, None] & (co < outputs)[None, :]
    if SIDE == 3:
        tl.store(at, left, mask=mask)
        tl.store(at + size, middle, mask=mask)
        tl.store(at + 2 * size, right, mask=mask)
    else:
        tl.store(at, middle, mask=mask)


@triton.jit
def _convolve(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    pixels,
    height,
    width,
    inputs,
    outputs,
    SIDE: tl.constexpr,
    CI: tl.constexpr,
    CO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A convolution whose output is as large as its input; weights are (SIDE, SIDE, inputs, outputs)."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ci, co = tl.arange(0, CI), tl.arange(0, CO)
    y, z = p // width % height, p % width
    total = tl.zeros([BLOCK, CO], tl.float32)
    for row in tl.static_range(SIDE):
        for column in tl.static_range(SIDE):
            down, over = row - SIDE // 2, column - SIDE // 2
            there = (p < pixels) & (y + down >= 0) & (y + down < height) & (z + over >= 0) & (z + over < width)
            value = tl.load(
                x + (p.to(tl.int64) + down * width + over)[:, None] * inputs + ci[None, :],
                mask=there[:, None] & (ci < inputs)[None, :],
                other=0.0,
            )
            by = tl.load(
                weight + (row * SIDE + column) * inputs * outputs + ci[:, None] * outputs + co[None, :],
                mask=(ci < inputs)[:, None] & (co < outputs)[None, :],
                other=0.0,
            )
            total = tl.dot(value, by, total)
    tl.store(
        out + p.to(tl.int64)[:, None] * outputs + co[None, :],
        total.to(out.dtype.element_ty),
        mask=(p < pixels)[:, None] & (co < outputs)[None, :],
    )


class BatchNormPerWorker(torch.autograd.Function):
    """A batch norm over each worker's samples of channels-last pictures.

    forward : x (N x B, C, H, W), weight and bias (C,), and N, eps, a callback for each worker's mean and variance of
        each channel, both (N, C), and one for the gradients of weight and bias, (N, C) each.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, workers: int, eps: float, seen: Any, keep: Any
    ) -> Tensor:
        channels = x.shape[1]
        rows = x.numel() // channels // workers
        pivot = x.detach()[:: len(x) // workers, :, 0, 0].float().contiguous()
        parts = x.new_empty(workers, SPLITS, 2, channels, dtype=torch.float32)
        high, wide = _tile(channels)
        grid = (workers, SPLITS, triton.cdiv(channels, wide))
        _moments[grid](x, pivot, parts, rows, channels, triton.cdiv(rows, SPLITS), ROWS=high, WIDTH=wide)
        once, twice = (parts.sum(dim=1) / rows).unbind(dim=1)
        mean, variance = pivot + once, (twice - once * once).clamp_(min=0)
        seen(mean, variance)
        rstd = (variance + eps).rsqrt_()
        out = torch.empty_like(x)
        grid = (triton.cdiv(rows, high), workers, triton.cdiv(channels, wide))
        _normalise[grid](x, mean, rstd * weight, bias, out, rows, channels, ROWS=high, WIDTH=wide)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.keep = keep
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        assert dy.dtype == x.dtype
        workers, channels = mean.shape
        rows = x.numel() // channels // workers
        parts = x.new_empty(workers, SPLITS, 2, channels, dtype=torch.float32)
        high, wide = _tile(channels)
        grid = (workers, SPLITS, triton.cdiv(channels, wide))
        _back_sums[grid](dy, x, mean, rstd, parts, rows, channels, triton.cdiv(rows, SPLITS), ROWS=high, WIDTH=wide)
        sums = parts.sum(dim=1)
        ctx.keep(sums[:, 1], sums[:, 0])
        out = torch.empty_like(x)
        grid = (triton.cdiv(rows, high), workers, triton.cdiv(channels, wide))
        _back[grid](dy, x, mean, rstd, weight, sums, out, rows, channels, ROWS=high, WIDTH=wide)
        return out, None, None, None, None, None, None


def try_out(device: torch.device) -> None:
    """Compile the smallest kernel. Raises whatever Triton raises if it cannot."""
    x = torch.ones(1, 1, 1, 1, device=device)
    out = torch.empty_like(x)
    _normalise[(1, 1, 1)](x, x, x, x, out, 1, 1, ROWS=1, WIDTH=1)
    if out.item() != 1.0:
        raise RuntimeError("(1 - 1) 1 + 1 is not 1")


def weight_gradients_per_worker(x: Tensor, dy: Tensor, workers: int, side: int, stride: int, padding: int) -> Tensor:
    """Return the gradient of a convolution's weights for N workers, (N, outputs, inputs, side, side) float32.

    x, dy : its input and its output's gradient, channels last.
    side, stride, padding : the same in both dimensions; side 1 or 3.
    """
    inputs, outputs = x.shape[1], dy.shape[1]
    samples, pixels = len(x) // workers, dy.numel() // outputs // workers
    splits = max(1, min(128, pixels // PART))
    part = triton.cdiv(triton.cdiv(pixels, splits), PIXELS) * PIXELS
    out = x.new_empty(workers, splits, side, side, inputs, outputs, dtype=torch.float32)
    _weights[(side, workers, splits)](
        x, dy, out, samples, x.shape[2], x.shape[3], dy.shape[2], dy.shape[3], inputs, outputs, stride, padding, part,
        SIDE=side, CI=_wide(inputs), CO=_wide(outputs), BLOCK=PIXELS,
    )  # fmt: skip
    return out.sum(dim=1).permute(0, 4, 3, 1, 2).contiguous()


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Return a convolution that keeps the size of pictures, (samples, outputs, H, W), channels last.

    x, weight : (samples, inputs, H, W) and (outputs, inputs, side, side).
    """
    outputs, inputs, side, _ = weight.shape
    out = x.new_empty(len(x), *x.shape[2:], outputs).permute(0, 3, 1, 2)
    pixels = x.numel() // inputs
    _convolve[(triton.cdiv(pixels, PIXELS),)](
        x,
        weight.permute(2, 3, 1, 0).contiguous(),
        out,
        pixels,
        x.shape[2],
        x.shape[3],
        inputs,
        outputs,
        SIDE=side,
        CI=_wide(inputs),
        CO=_wide(outputs),
        BLOCK=PIXELS,
    )
    return out


def supports_layer(layer: Any, padding: Sequence[int], widest: int = 64) -> bool:
    """Return True if the kernels support a convolution, and it has at most `widest` channels."""
    side, stride = layer.kernel_size, layer.stride
    return (
        side in ((1, 1), (3, 3))
        and stride[0] == stride[1]
        and padding[0] == padding[1]
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and max(layer.in_channels, layer.out_channels) <= widest
    )


def keeps_size(layer: Any, padding: Sequence[int]) -> bool:
    """Return True if a convolution's output is as large as its input."""
    return layer.stride == (1, 1) and 2 * padding[0] + 1 == layer.kernel_size[0]


def supports_layout(x: Tensor) -> bool:
    """Return True if the kernels support pictures with this memory layout."""
    is_picture = x.is_cuda and x.dtype == torch.bfloat16 and x.dim() == 4
    return is_picture and x.is_contiguous(memory_format=torch.channels_last)


def transposed_weights(weight: Tensor) -> Tensor:
    """Return the weights with which a size-preserving convolution passes gradients back."""
    return weight.flip(2, 3).transpose(0, 1)


def _wide(channels: int) -> int:
    return max(NARROW, triton.next_power_of_2(channels))


def _tile(channels: int) -> tuple[int, int]:
    """Return (rows, channels) of a tile."""
    wide = min(64, triton.next_power_of_2(channels))
    return TILE // wide, wide
