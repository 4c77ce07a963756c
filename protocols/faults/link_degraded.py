"""Declares the table of the fault `link_degraded`, which lowers a cable to a given rate; `gradwire.sim.faults` applies
it.
"""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import LinkFault
from gradwire.scenarios.units import Rate


class LinkDegraded(LinkFault):
    """A cable is slower than normal."""

    kind: Literal["link_degraded"]
    rate: Rate
    """At most the cable's own rate."""

    @property
    def most_rate(self) -> int:
        return self.rate
