"""Declares [[switch.override]]: switch ports whose queues differ from those of [switch]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Flag, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import REACTS_TO_MARKS
from gradwire.scenarios.schema.network import switch_conditions as conditions
from gradwire.scenarios.schema.network.per_queue import OneForAll
from gradwire.scenarios.units import Size

SETTINGS = ("buffer", "ecn_threshold", "ecn_ceiling", "trim_threshold")


class PortOverride(ScenarioTable):
    """Egress ports of switches whose queues differ from `[switch]`: those of one tier, or of one direction of a cable.
    Where several overrides name a port, a later one prevails."""

    ports: Annotated[str, Field(min_length=1, max_length=200)]
    """Ports by name, "switch->node", with `*` for any characters: "edge*->h*" are the last hops of a fat-tree."""
    ecn: Annotated[Flag, REACTS_TO_MARKS, conditions.MARKS] = True
    """False: these ports neither mark nor drop selectively. htsim does so on last hops if the receiver controls the
    rate [code]."""
    buffer: Annotated[Size | None, conditions.ALL_PAUSED] = None
    """Not with a shared buffer, or with shares of queues."""
    ecn_threshold: Annotated[Size | None, conditions.MARKS] = None
    """K of every queue; [switch] has one, too."""
    ecn_ceiling: Size | None = None
    """As in [switch], which has one, too."""
    trim_threshold: Size | None = None
    """As in [switch], which has one, too."""

    def conflicts(self) -> Iterator[Mistake]:
        if "->" not in self.ports:
            yield Mistake("ports", "does not name ports", self.ports, 'such as "leaf*->h*"')
        elif self.ecn and not self.changes():
            yield Mistake("", "changes nothing", None, f"at least one of ecn = false, {', '.join(SETTINGS)}")
        elif not self.ecn and (self.ecn_threshold or self.ecn_ceiling):
            yield Mistake("ecn", "turns off the threshold beside it", False, "one of the two")

    def changes(self) -> dict[str, Any]:
        """Return the keys of [switch] that these ports replace, with their values there."""
        changed = {key: getattr(self, key) for key in SETTINGS if getattr(self, key) is not None}
        if "ecn_threshold" in changed:
            changed["ecn_threshold"] = OneForAll((changed["ecn_threshold"],))
        return changed if self.ecn else changed | {"ecn_threshold": None, "ecn_ceiling": None, "selective_drop": False}
