"""The fault kind `switch_down`: a failed switch."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import CuttingFault, SwitchFault


class SwitchDown(CuttingFault, SwitchFault):
    """A switch fails: all its cables are cut."""

    kind: Literal["switch_down"]
