"""The fault kind `link_down`: a cut cable."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import CuttingFault, LinkFault


class LinkDown(CuttingFault, LinkFault):
    """A cable is cut: packets sent on it are lost; packets already in flight arrive."""

    kind: Literal["link_down"]
