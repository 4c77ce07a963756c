"""`Ratio` is the type of a reducer's share of elements to send; `share_count` converts it to a number of elements."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Ratio = Annotated[float, Field(gt=0, le=1, strict=True)]
"""A share of elements, above 0, at most 1."""


def share_count(ratio: float, numel: int) -> int:
    """Return a share of `numel` elements as a number: rounded down, at least one if there are any."""
    return min(numel, max(1, int(numel * ratio)))
