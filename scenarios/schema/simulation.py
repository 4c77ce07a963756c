"""`[simulation]`: how the simulator may go about a scenario, where that shows in the Result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gradwire.scenarios.schema.base import Table
from gradwire.scenarios.schema.effect_conditions import Needs


class Simulation(Table):
    """What the simulator may leave out. The testbed does not heed it."""

    approximate: Annotated[
        Annotated[float, Field(gt=0, le=0.1, strict=True)] | None,
        Needs(lambda at: bool(at.scenario.job), "there are no iterations to leave out", "a job"),
    ] = None
    """Iterations of jobs that are alike on average, once they are, are not simulated: those that were stand for them,
    and mean iteration times may be off by so much, relatively. The Result says how far off they may be. Never if
    absent."""
