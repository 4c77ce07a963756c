"""How many examples property tests try."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from profiles import is_usual

USUAL = 0.25
"""Fewer than a profile has: what breaks much shows in few, and the usual profile tries the same ones every time. More of
them, and new ones, are for the thorough profile and `python -m tests.soak`."""


def budget(share: float = 1.0) -> settings:
    """How many examples a test tries: a share of the profile's, and of that `USUAL` in the usual profile, which tries the
    same ones every time; `--hypothesis-profile thorough` tries others, and more."""
    usual = is_usual()
    return settings(
        max_examples=max(1, int(settings.default.max_examples * share * (USUAL if usual else 1))),
        derandomize=usual,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
