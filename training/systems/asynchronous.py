"""The asynchronous parameter server, with a bound on how far workers get apart or without (Ho et al., NeurIPS '13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Natural
from gradwire.scenarios.units import Rate, Time
from gradwire.training.systems.base import System

if TYPE_CHECKING:
    from gradwire.training.served.pace import Pace
    from gradwire.training.trainer import Trainer


class Unsynchronised(System):
    """Base of systems whose workers come one by one."""

    together: ClassVar[bool] = False

    staleness: Natural | None = None
    """Turns by which a worker may be ahead of the slowest; no bound if absent."""
    computing: Annotated[tuple[Time, ...], Field(min_length=1)] = (0,)  # type: ignore[assignment]
    """How long each worker computes in a turn; from the first again where there are more workers. Nothing with
    `compute = "trace"`, whose times are the trace's."""
    rate: Rate | None = None
    """Of each worker's link, both ways, where no network is simulated; what it carries takes no time if absent."""
    server_rate: Rate | None = None
    """Of the server's link, both ways, where no network is simulated, which carries one push, and one pull, after the
    other; each has it to itself if absent."""

    def pace(self) -> Pace:
        """The same, for the trainer."""
        from gradwire.training.served.pace import Pace

        return Pace(tuple(int(each) for each in self.computing), int(self.rate or 0), int(self.server_rate or 0))


class AsynchronousServer(Unsynchronised):
    """Every worker pushes when it is ready, and the server makes an update of every push; gradients may be stale.

    A step is as many pushes as there are workers, and each has that part of the learning rate.
    """

    reduces: ClassVar[bool] = True
    traced: ClassVar[bool] = True

    kind: Literal["asynchronous"] = "asynchronous"

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.served.asynchronous import Asynchronous

        return Asynchronous(model, data, recipe, reducer, network, staleness=self.staleness, pace=self.pace())
