"""Computes the bytes that a message may lose by its bound, one rule for engine, sockets, oracle and checks."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray


def allowed_loss(size: int, bound: float) -> int:
    """Return the bytes of a message of `size` bytes that may be lost: the decimal share, rounded down. A bound such as
    0.29 is not exact in binary, and 0.29 * 100 comes out just below 29. The shortest decimal of the same number counts,
    so this is 29."""
    return _allowed(int(size), Fraction(repr(float(bound))))


def _allowed(size: int, share: Fraction) -> int:
    return min(size, size * share.numerator // share.denominator)


class LossAllowance(NamedTuple):
    """Loss allowance of a message, as numbers or arrays. `bound` is the maximum; `share` is the message's own part of a
    budget; `pool` is the number of the budget, 0 for none, in which case the share equals the bound."""

    bound: Any
    share: Any
    pool: Any = 0


def allowed_loss_per_message(sizes: Any, bounds: Any) -> NDArray[Any]:
    """Return `allowed_loss` of many messages, int64[n]; `bounds`: one per message, or one for all."""
    import numpy as np

    sizes, bounds = np.broadcast_arrays(np.asarray(sizes, dtype=np.int64), np.asarray(bounds, dtype=np.float64))
    allowed = np.zeros(len(sizes), dtype=np.int64)
    for bound in np.unique(bounds).tolist():
        rows, share = bounds == bound, Fraction(repr(bound))
        unique_sizes, index = np.unique(sizes[rows], return_inverse=True)  # messages have few different lengths
        allowed[rows] = np.array([_allowed(size, share) for size in unique_sizes.tolist()], dtype=np.int64)[index]
    return allowed
