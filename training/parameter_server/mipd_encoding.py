"""Encodes the most significant elements of MIPD's workers as codes of b bits, and decodes these.

The edges of the codes make them equally likely: a Gaussian or a Laplace distribution is fitted, whichever has the
greater likelihood. The 2^b bins between its quantiles hold equally many values if the fit is right, so every code is
worth its b bits. A code is decoded as the mean of its bin under the fit, which preserves the overall mean (our choice:
MIPD's own rule is not public).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.jit.compiled import njit
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers import base
from gradwire.training.reducers.base import group_units

GAUSSIAN, LAPLACE = 0, 1
CODES_PER_UNIT = 8
"""Values whose codes are one unit, of b bytes."""
SIGNIFICANCE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "taylor": lambda values, gradients: (values * gradients).abs(),
    "fisher": lambda values, gradients: gradients.square(),
    "magnitude": lambda values, gradients: gradients.abs(),
}
"""(parameters, gradients) -> significance, element by element. "taylor": change of the loss without the parameter, to
first order (Molchanov et al., ICLR '17); "fisher": the diagonal of the empirical Fisher information; "magnitude": the
size of the gradient."""


def ratios_of(
    sums: Sequence[float], sizes: Sequence[int], ratio: float, gamma: float, floor: float, ceiling: float
) -> list[float]:
    """Return the share of each layer that is sent: proportional to (sum of its significance)^gamma, within floor and
    ceiling. All together send `ratio` of their elements, or as many as floor and ceiling allow: the factor is found by
    bisection. Layers without any significance have the floor.

    sums, sizes : significance and elements of each layer.
    """
    most = max(sums)
    weights = [(total / most) ** gamma if total > 0 else 0.0 for total in sums] if most > 0 else [1.0] * len(sums)
    aim = ratio * sum(sizes)

    def at(factor: float) -> list[float]:
        return [min(ceiling, max(floor, factor * weight)) for weight in weights]

    def kept(factor: float) -> float:
        return sum(share * size for share, size in zip(at(factor), sizes, strict=True))

    low, high = 0.0, 1.0
    while kept(high) < aim and high < 1e30:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) < aim else (low, middle)
    return [round(share, 9) for share in at(high)]  # 1 stays exactly 1


def fit_distribution(values: Tensor) -> tuple[int, float, float]:
    """Return the best-fitting (distribution, centre, scale): mean and deviation, or median and mean distance to it."""
    mean, deviation = float(values.mean()), float(values.std(correction=0))
    median = float(values.median())
    distance = float((values - median).abs().mean())
    if not deviation or not distance:
        return GAUSSIAN, mean, deviation
    gaussian = -math.log(deviation) - 0.5 * math.log(2 * math.pi * math.e)
    laplace = -math.log(2 * distance) - 1
    return (GAUSSIAN, mean, deviation) if gaussian >= laplace else (LAPLACE, median, distance)


@functools.cache
def bins(distribution: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return (edges, means) of 2^b equally likely bins of a distribution of centre 0 and scale 1: 2^b - 1 and 2^b
    float32."""
    count = 2**bits
    shares = torch.arange(1, count, dtype=torch.float64) / count
    if distribution == GAUSSIAN:
        edges = math.sqrt(2) * torch.erfinv(2 * shares - 1)
        inner = -torch.exp(-edges.square() / 2) / math.sqrt(2 * math.pi)  # of x times the density
    else:
        edges = torch.where(shares < 0.5, (2 * shares).log(), -(2 * (1 - shares)).log())
        inner = torch.where(edges < 0, (edges - 1) * edges.exp() / 2, -(edges + 1) * (-edges).exp() / 2)
    zero = torch.zeros(1, dtype=torch.float64)
    means = count * torch.diff(torch.cat([zero, inner, zero]))
    return edges.float(), means.float()


def quantise(values: Tensor, bits: int) -> Encoded:
    """Encode flat float32 values (k,) as codes of 1 to 8 bits; the head holds distribution, centre and scale, 9
    bytes."""
    if not len(values):
        return Encoded((torch.empty(0, bits, dtype=torch.uint8, device=values.device),))
    distribution, centre, scale = fit_distribution(values)
    edges, _ = bins(distribution, bits)
    codes = torch.bucketize((values - centre) / (scale or 1.0), edges.to(values.device))
    head = (
        torch.tensor([centre, scale], device=values.device),
        torch.tensor([distribution], dtype=torch.uint8, device=values.device),
    )
    return Encoded((packed(codes, bits),), head)


def dequantise(encoded: Encoded, bits: int, count: int) -> Tensor:
    """Decode values, (count,)."""
    if not count:
        return torch.empty(0, device=encoded.fields[0].device)
    (centre, scale), distribution = encoded.head[0].tolist(), int(encoded.head[1])
    _, means = bins(distribution, bits)
    if encoded.fields[0].device.type == "cpu":
        values, octets = torch.empty(count), encoded.fields[0].contiguous().view(-1)
        decode_codes(octets.numpy(), bits, means.numpy(), np.float32(centre), np.float32(scale), values.numpy())
        return values
    return centre + scale * means.to(encoded.fields[0].device)[unpack(encoded.fields[0], bits, count)]


def packed(codes: Tensor, bits: int) -> Tensor:
    """Pack codes below 2^b, (k,), into bytes without gaps, (units, b) uint8: the first code in the lowest bits."""
    rows = group_units(codes, CODES_PER_UNIT)[:, :, None]
    single = (rows >> torch.arange(bits, device=codes.device)) & 1
    octets = single.reshape(-1, bits, 8) << torch.arange(8, device=codes.device)
    return octets.sum(dim=2).to(torch.uint8)


def unpack(units: Tensor, bits: int, count: int) -> Tensor:
    """Unpack codes, (count,) int64."""
    if 8 % bits == 0:  # no code spans two bytes: many times faster, and the bulk of a server's time
        return base.unpack(units, bits)[:count].long()
    single = (units.long()[:, :, None] >> torch.arange(8, device=units.device)) & 1
    rows = single.reshape(-1, CODES_PER_UNIT, bits) << torch.arange(bits, device=units.device)
    return rows.sum(dim=2).view(-1)[:count]


def encode_positions(positions: Tensor, numel: int) -> Encoded:
    """Encode sorted positions as a bit per element or as 32-bit indices, whichever is shorter; as nothing if there are
    none."""
    if not len(positions) or 4 * len(positions) <= -(-numel // 8):
        return Encoded((positions.to(torch.int32),))
    bits = torch.zeros(numel, dtype=torch.long, device=positions.device)
    bits[positions] = 1
    return Encoded((packed(bits, 1),))


# Compiled inner loops of the server, on the CPU. In torch every operation is a pass over memory, and packed codes need
# several per bit. Here a code is looked up where it is unpacked, and a half is updated in one pass. On other devices
# the trainer uses torch.

Array = Any
"""A NumPy array that shares the memory of a tensor."""


@njit(nogil=True)
def decode_codes(octets: Array, bits: int, means: Array, centre: float, scale: float, values: Array) -> None:
    """Decode the codes of `bits` bits that lie in bytes without gaps, uint8, to float32 values, (k,).

    means : float32[2^bits], what each code stands for before it is scaled and moved.
    """
    mask = (1 << bits) - 1
    last = len(octets) - 1
    for place in range(len(values)):
        begin = place * bits
        at = begin >> 3
        word = int(octets[at]) | int(octets[min(at + 1, last)]) << 8
        values[place] = centre + scale * means[word >> (begin & 7) & mask]


@njit(nogil=True)
def add_moves(vector: Array, positions: Array, values: Array, weight: float) -> None:
    """Add moves times a weight to a vector, float32, at positions, int64."""
    for place in range(len(positions)):
        vector[positions[place]] += weight * values[place]


@njit(nogil=True)
def add_smoothed_moves(
    vector: Array, smoothed: Array, positions: Array, values: Array, weight: float, share: float, fade: float
) -> None:
    """Add moves to a part of a vector, (k,), and the smoothed move where there is none.

    positions : within the part.
    share : weight of a new move in the smoothed one, below 1. `fade` is 1 - share: where there is none, the smoothed
        move fades by it. All numbers are float32, so that the bits are those of torch.
    """
    for at in range(len(vector)):  # without branches, so that many elements are updated at a time
        vector[at] += weight * smoothed[at]
        smoothed[at] *= fade
    for place in range(len(positions)):
        at = positions[place]
        before = smoothed[at] / fade
        vector[at] += weight * (values[place] - before)
        smoothed[at] = before + share * (values[place] - before)


@functools.cache
def compile_loops() -> None:
    """Compile all loops now, so that no measured time includes it."""
    one, floats, octets, places = np.float32(1), np.zeros(1, np.float32), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    decode_codes(octets, 1, floats.repeat(2), one, one, floats.copy())
    add_moves(floats.copy(), places, floats, one)
    add_smoothed_moves(floats.copy(), floats.copy(), places, floats, one, one, one)
