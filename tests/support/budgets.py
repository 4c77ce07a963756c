"""How many examples property tests try."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def budget(share: float = 1.0) -> settings:
    """How many examples a test tries: a share of the profile's. The usual profile tries the same ones every time;
    `--hypothesis-profile thorough` tries others, and more."""
    return settings(
        max_examples=max(1, int(settings.default.max_examples * share)),
        derandomize=settings.default.max_examples < 1000,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
