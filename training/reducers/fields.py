"""Parameters that several reducers have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Ratio = Annotated[float, Field(gt=0, le=1, strict=True)]
"""A share of elements, above 0, at most 1."""


def kept(ratio: float, numel: int) -> int:
    """How many of `numel` elements a share of them is: rounded down, at least one of any."""
    return min(numel, max(1, int(numel * ratio)))
