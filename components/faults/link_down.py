"""A cut cable."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.fault import Cut, LinkFault


class LinkDown(Cut, LinkFault):
    """A cable is cut: what is sent on it is lost; what was on the way arrives."""

    kind: Literal["link_down"]
