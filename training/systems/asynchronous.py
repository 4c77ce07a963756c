"""Declares the settings of the system `asynchronous`, a server with or without a bound on staleness;
`asynchronous_trainer` implements it. The bound is that of Ho et al., NeurIPS '13."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Natural
from gradwire.scenarios.units import Rate, Time
from gradwire.training.systems.base import System

if TYPE_CHECKING:
    from gradwire.training.parameter_server.asynchronous_trainer import LinkTiming
    from gradwire.training.trainer import Trainer


class AsynchronousSystem(System):
    """Base of systems whose workers push one by one."""

    together: ClassVar[bool] = False

    staleness: Natural | None = None
    """Turns by which a worker may be ahead of the slowest; no bound if absent."""
    computing: Annotated[tuple[Time, ...], Field(min_length=1)] = (0,)  # type: ignore[assignment]
    """Compute time of a turn by worker, repeated cyclically. Not used with `compute = "trace"`, whose times are the
    trace's."""
    rate: Rate | None = None
    """Rate of each worker's link, both ways, if no network is simulated; transfers take no time if absent."""
    server_rate: Rate | None = None
    """Rate of the server's link, both ways, if no network is simulated; it carries pushes and pulls one after the
    other. If absent, transfers do not share it."""

    def pace(self) -> LinkTiming:
        """Return the timing for the trainer."""
        from gradwire.training.parameter_server.asynchronous_trainer import LinkTiming

        return LinkTiming(tuple(int(time) for time in self.computing), int(self.rate or 0), int(self.server_rate or 0))


class AsynchronousServer(AsynchronousSystem):
    """Every worker pushes when it is ready, and the server updates after every push; gradients may be stale. A step is
    as many pushes as there are workers, and each has that part of the learning rate."""

    reduces: ClassVar[bool] = True
    traced: ClassVar[bool] = True

    kind: Literal["asynchronous"] = "asynchronous"

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous

        return Asynchronous(model, data, recipe, reducer, network, staleness=self.staleness, pace=self.pace())
