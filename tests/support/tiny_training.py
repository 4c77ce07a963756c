"""Loads the library scenario `train-tiny`, shortened to a few steps."""

from __future__ import annotations

from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.scenario import Scenario

SHORT = ["training.steps=6", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2"]


def tiny(*more: str, policy: str = "dlcp") -> Scenario:
    """Return the scenario of a policy with overrides."""
    return load_scenario("train-tiny", set=[*SHORT, *more], policy=policy)
