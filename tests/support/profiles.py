"""What is drawn of engines: every combination of transports, balancer and features takes seconds to compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

T = TypeVar("T")


def is_usual() -> bool:
    """Whether tests run in the usual profile, and not in the thorough one."""
    return settings.default.max_examples < 1000


def of_engines(several: Sequence[T], usual: Sequence[T]) -> st.SearchStrategy[T]:
    """One of several values that ask for engines of their own; in the usual profile one of `usual`."""
    return st.sampled_from(usual if is_usual() else several)
