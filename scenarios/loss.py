"""How much of a message may be lost: one rule for the engine, the sockets, the oracle and the checks of a Result."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray


def allowed_loss(size: int, bound: float) -> int:
    """Bytes of a message of `size` bytes that may be lost: the share as it was written, rounded down.

    A bound such as 0.29 is not exact in binary, and 0.29 * 100 comes out just below 29. What counts is the shortest
    decimal that means the same number, so this is 29.
    """
    return _allowed(int(size), Fraction(repr(float(bound))))


def _allowed(size: int, share: Fraction) -> int:
    return min(size, size * share.numerator // share.denominator)


class Allowance(NamedTuple):
    """What a message may lose: `bound`, never more; `share`, its own part of a budget; `pool`, the number of the
    budget, 0 for none, and then its share is its bound. A number or an array of each."""

    bound: Any
    share: Any
    pool: Any = 0


def allowed_losses(sizes: Any, bounds: Any) -> NDArray[Any]:
    """The same for many messages, int64[n]; `bounds`: one for each, or one for all."""
    import numpy as np

    sizes, bounds = np.broadcast_arrays(np.asarray(sizes, dtype=np.int64), np.asarray(bounds, dtype=np.float64))
    found = np.zeros(len(sizes), dtype=np.int64)
    for bound in np.unique(bounds).tolist():
        mine, share = bounds == bound, Fraction(repr(bound))
        each, which = np.unique(sizes[mine], return_inverse=True)  # messages have few different lengths
        found[mine] = np.array([_allowed(size, share) for size in each.tolist()], dtype=np.int64)[which]
    return found
