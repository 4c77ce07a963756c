"""Declares the base classes of [[fault]] tables for cables, switches and hosts; `gradwire.sim.faults` applies them.

A fault begins at `at` and ends at `until`; without `until` it lasts to the end of the run. Routes change
`noticed_after` a cable is cut, a switch fails, or either returns.

A kind is a class in its own file (see `gradwire.scenarios.loading.registry`). It is a fault of a cable, a switch or a
host, and declares its effects; `gradwire.sim.faults` applies them and combines overlapping faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Flag, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import CABLE_IN_USE, Precondition
from gradwire.scenarios.schema.network.hosts_in_use import is_idle
from gradwire.scenarios.units import PositiveTime, Ps, Time, format_time


class Fault(ScenarioTable):
    """Base of all faults."""

    cuts: ClassVar[bool] = False
    """True if its links lose all packets, and routing avoids them once it has noticed."""
    stops: ClassVar[bool] = False
    """True if its hosts stop."""

    kind: str
    at: Annotated[
        Time,
        Precondition(
            lambda at: at.scenario.duration is None or at.table.at < at.scenario.duration,
            "the run is over by then",
            "a time before duration",
        ),
    ]
    """Start of the fault."""
    until: PositiveTime | None = None
    """End of the fault."""

    def conflicts(self) -> Iterator[Mistake]:
        if self.until is not None and self.until <= self.at:
            what = "is not after at"
            yield Mistake("until", what, format_time(self.until), f"later than {format_time(self.at)}")

    @property
    def engine(self) -> bool:
        """True if the packet engine must do more than change rate and loss of a link."""
        return self.cuts or self.stops

    @property
    def most_rate(self) -> int | None:
        """Maximum bit/s of its links; None: their own rate. The worst of several faults applies."""
        return None

    @property
    def least_loss(self) -> float:
        """Minimum loss probability of its links; the worst of several faults applies."""
        return 0.0

    @property
    def slowness(self) -> float:
        """Factor on compute times of its hosts; several multiply."""
        return 1.0


class LinkFault(Fault):
    """A fault of one cable."""

    between: Annotated[tuple[str, ...], Field(min_length=2, max_length=2), CABLE_IN_USE]
    """The names of its two ends, such as ["h0", "leaf0"]; all parallel cables between them are affected."""
    one_way: Flag = False
    """Only from the first end to the second."""


class SwitchFault(Fault):
    """A fault of one switch, with all its cables."""

    switch: str
    """Its name."""


class HostFault(Fault):
    """A fault of one host."""

    host: Annotated[
        str,
        Precondition(
            lambda at: not is_idle(at.scenario, [at.table.host]),
            "this host sends and receives nothing",
            "a host in use",
        ),
    ]
    """Its name."""


class CuttingFault(Fault):
    """Base of faults that cut cables."""

    cuts = True

    noticed_after: Time = Ps(1_000_000_000)
    """Delay until routing avoids it, or uses it again. Ours."""
