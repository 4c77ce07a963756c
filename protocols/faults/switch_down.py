"""Declares the table of the fault `switch_down`, a switch whose cables are all cut; `gradwire.sim.faults` applies
it.
"""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import CuttingFault, SwitchFault


class SwitchDown(CuttingFault, SwitchFault):
    """A switch fails: all its cables are cut."""

    kind: Literal["switch_down"]
