"""Significance of parameters, and the share of each layer that is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

SIGNIFICANCE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "taylor": lambda values, gradients: (values * gradients).abs(),
        "fisher": lambda values, gradients: gradients.square(),
        "magnitude": lambda values, gradients: gradients.abs(),
    }
)
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
