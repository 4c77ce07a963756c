"""What goes wrong, and when: what the `[[fault]]` tables of all kinds have in common.

A fault begins at `at` and ends at `until`; without `until` it lasts to the end of the run. Routes follow a cut cable or
a failed switch after `noticed_after`, and its return as well.

A kind is a class in a file of its own (see `gradwire.scenarios.components`). It is a fault of a cable, a switch or a
host, and says what becomes of that while it lasts; `gradwire.sim.faults` does it, and reckons with several at once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Flag, Table, refuse
from gradwire.scenarios.schema.effect_conditions import CABLE_IN_USE, Needs
from gradwire.scenarios.schema.in_use import is_idle
from gradwire.scenarios.units import PositiveTime, Ps, Time, format_time


class Fault(Table):
    """What all faults have."""

    cuts: ClassVar[bool] = False
    """While it lasts, its links lose what is sent on them, and routing avoids them once it has noticed."""
    stops: ClassVar[bool] = False
    """While it lasts, its hosts stand still."""

    kind: str
    at: Annotated[
        Time,
        Needs(lambda at: at.scenario.duration is None or at.table.at < at.scenario.duration,
              "the run is over by then", "a time before duration"),
    ]
    """When it begins."""
    until: PositiveTime | None = None
    """When it ends."""

    @model_validator(mode="after")
    def _ends_later(self) -> Fault:
        if self.until is not None and self.until <= self.at:
            raise refuse(
                "until", "is not after at", format_time(self.until), f"later than {format_time(self.at)}"
            )
        return self

    @property
    def engine(self) -> bool:
        """Whether the packet engine has to be able to do more than change rate and loss of a link."""
        return self.cuts or self.stops

    @property
    def most_rate(self) -> int | None:
        """Bit/s that its links have at most while it lasts; None: their own rate. Of several the worst counts."""
        return None

    @property
    def least_loss(self) -> float:
        """Probability with which its links lose packets while it lasts, at least; of several the worst counts."""
        return 0.0

    @property
    def slowness(self) -> float:
        """How many times longer computing takes on its hosts while it lasts; several multiply."""
        return 1.0


class LinkFault(Fault):
    """A fault of one cable."""

    between: Annotated[tuple[str, ...], Field(min_length=2, max_length=2), CABLE_IN_USE]
    """The names of its two ends, such as ["h0", "leaf0"]; parallel cables between them fare alike."""
    one_way: Flag = False
    """Only from the first end to the second."""


class SwitchFault(Fault):
    """A fault of one switch: of all its cables."""

    switch: str
    """Its name."""


class HostFault(Fault):
    """A fault of one host."""

    host: Annotated[
        str,
        Needs(lambda at: not is_idle(at.scenario, [at.table.host]), "nothing is sent from or to this host",
              "a host in use"),
    ]
    """Its name."""


class Cut(Fault):
    """What faults have that cut cables."""

    cuts = True

    noticed_after: Time = Ps(1_000_000_000)
    """How long routing takes to avoid it, and to use it again. Ours."""
