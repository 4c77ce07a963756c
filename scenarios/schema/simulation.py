"""`[simulation]`: approximations of the simulator that show in the Result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.schema.effect_conditions import Precondition


class Simulation(ScenarioTable):
    """Approximations of the simulator. The testbed ignores them."""

    approximate: Annotated[
        Annotated[float, Field(gt=0, le=0.1, strict=True)] | None,
        Precondition(lambda at: bool(at.scenario.job), "there are no iterations to skip", "a job"),
    ] = None
    """Largest relative error of mean iteration times: once a job's iterations have become statistically alike, the rest
    are not simulated and the earlier ones represent them. The Result states the estimated error. No approximation if
    absent."""
