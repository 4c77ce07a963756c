"""A host that stands still."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.fault import HostFault
from gradwire.scenarios.units import PositiveTime


class HostPaused(HostFault):
    """A host stands still: it sends nothing, its timers do not go off, and what arrives waits for it."""

    stops = True

    kind: Literal["host_paused"]
    until: PositiveTime
    """When it goes on."""
