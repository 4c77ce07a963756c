"""What makes a parameter matter, and how much of each layer is sent for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

SIGNIFICANCE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({
    "taylor": lambda values, gradients: (values * gradients).abs(),
    "fisher": lambda values, gradients: gradients.square(),
    "magnitude": lambda values, gradients: gradients.abs(),
})  # fmt: skip
"""(parameters, gradients) to significance, element by element: how much the loss would change without the parameter, to
first order (Molchanov et al., ICLR '17); the diagonal of the empirical Fisher information; the size of the gradient."""


def ratios_of(
    sums: Sequence[float], sizes: Sequence[int], ratio: float, gamma: float, floor: float, ceiling: float
) -> list[float]:
    """The share of each layer that is kept: proportional to (sum of its significance)^gamma, within floor and ceiling.

    All together keep `ratio` of their elements, or as much as floor and ceiling allow: the factor is found by
    bisection. Layers without any significance have the floor.

    sums, sizes : significance and elements of each layer.
    """
    most = max(sums)
    weights = [(each / most) ** gamma if each > 0 else 0.0 for each in sums] if most > 0 else [1.0] * len(sums)
    wanted = ratio * sum(sizes)

    def at(factor: float) -> list[float]:
        return [min(ceiling, max(floor, factor * weight)) for weight in weights]

    def kept(factor: float) -> float:
        return sum(share * size for share, size in zip(at(factor), sizes, strict=True))

    low, high = 0.0, 1.0
    while kept(high) < wanted and high < 1e30:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) < wanted else (low, middle)
    return [round(each, 9) for each in at(high)]  # all of a layer is all of it
