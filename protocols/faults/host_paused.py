"""Declares the table of the fault `host_paused`, a host that stops until a time; `gradwire.sim.faults` applies it."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import HostFault
from gradwire.scenarios.units import PositiveTime


class HostPaused(HostFault):
    """A host stops: it sends nothing, its timers do not expire, and arriving packets wait."""

    stops = True

    kind: Literal["host_paused"]
    until: PositiveTime
    """Time at which it resumes."""
