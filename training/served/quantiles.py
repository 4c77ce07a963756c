"""Quantisation by quantiles: values to b bits, with edges where a fitted distribution has them equally likely.

Values are fitted by a Gaussian or a Laplace distribution, whichever explains them better (greater likelihood); of both,
the 2^b bins between quantiles hold equally many values if the fit is right, so every code is worth its b bits. A code
is decoded as the mean of its bin under the fit, which keeps the mean of all (our choice: MIPD's own rule is not
public).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gradwire.training.encoded import Encoded

GAUSSIAN, LAPLACE = 0, 1
TOGETHER = 8
"""Values whose codes are one unit, of b bytes."""


def fitted(values: Tensor) -> tuple[int, float, float]:
    """(distribution, centre, scale) that explain values best: mean and deviation, or median and mean distance to it."""
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
    """(edges, means) of 2^b equally likely bins of a distribution of centre 0 and scale 1: 2^b - 1 and 2^b float32."""
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


def quantised(values: Tensor, bits: int) -> Encoded:
    """Values, flat float32 (k,), as codes of 1 to 8 bits; distribution, centre and scale in the head, 9 bytes."""
    if not len(values):
        return Encoded((torch.empty(0, bits, dtype=torch.uint8, device=values.device),))
    distribution, centre, scale = fitted(values)
    edges, _ = bins(distribution, bits)
    codes = torch.bucketize((values - centre) / (scale or 1.0), edges.to(values.device))
    head = (
        torch.tensor([centre, scale], device=values.device),
        torch.tensor([distribution], dtype=torch.uint8, device=values.device),
    )
    return Encoded((packed(codes, bits),), head)


def restored(encoded: Encoded, bits: int, count: int) -> Tensor:
    """The values again, (count,)."""
    if not count:
        return torch.empty(0, device=encoded.fields[0].device)
    (centre, scale), distribution = encoded.head[0].tolist(), int(encoded.head[1])
    _, means = bins(distribution, bits)
    return centre + scale * means.to(encoded.fields[0].device)[unpacked(encoded.fields[0], bits, count)]


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes below 2^b, (k,), as bytes without gaps, (units, b) uint8: the code with the lowest bits first."""
    short = -len(codes) % TOGETHER
    rows = torch.nn.functional.pad(codes, (0, short)).view(-1, TOGETHER, 1)
    single = (rows >> torch.arange(bits, device=codes.device)) & 1
    octets = single.reshape(-1, bits, 8) << torch.arange(8, device=codes.device)
    return octets.sum(dim=2).to(torch.uint8)


def unpacked(units: Tensor, bits: int, count: int) -> Tensor:
    """Codes again, (count,) int64."""
    if 8 % bits == 0:  # none spans two bytes: many times faster, and what a server's time is about
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=units.device)
        within = (units.reshape(-1, 1) >> shifts) & (2**bits - 1)
        return within.view(-1)[:count].long()
    single = (units.long()[:, :, None] >> torch.arange(8, device=units.device)) & 1
    rows = single.reshape(-1, TOGETHER, bits) << torch.arange(bits, device=units.device)
    return rows.sum(dim=2).view(-1)[:count]
