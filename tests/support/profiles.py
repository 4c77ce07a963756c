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


def by_profile(thorough: T, usual: T) -> T:
    """What a test takes in the thorough profile, and the less that it takes in the usual one. There are these:

    * `test_engines`, both ways of compiling: engines of DCTCP, in the thorough profile of DCTCP and DLCP. What is compared
      are two compilers; each further transport is 12 s of Numba's own way.
    * `test_emu_agreement`, drops of a job: means of two runs, in the thorough profile of three. The limits are the same."""
    return usual if is_usual() else thorough


def of_engines(several: Sequence[T], usual: Sequence[T]) -> st.SearchStrategy[T]:
    """One of several values that ask for engines of their own; in the usual profile one of `usual`."""
    return st.sampled_from(usual if is_usual() else several)
