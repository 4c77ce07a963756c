"""A failed switch."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.fault import Cut, SwitchFault


class SwitchDown(Cut, SwitchFault):
    """A switch fails: all its cables are cut."""

    kind: Literal["switch_down"]
