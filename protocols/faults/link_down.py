"""Declares the table of the fault `link_down`, a cable that is cut for some time; `gradwire.sim.faults` applies it."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import CuttingFault, LinkFault


class LinkDown(CuttingFault, LinkFault):
    """A cable is cut: packets sent on it are lost; packets already in flight arrive."""

    kind: Literal["link_down"]
