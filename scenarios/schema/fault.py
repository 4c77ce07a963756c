"""What goes wrong, and when: the `[[fault]]` tables of a scenario.

A fault begins at `at` and ends at `until`; without `until` it lasts to the end of the run. Routes follow a cut cable or
a failed switch after `noticed_after`, and its return as well.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Flag, Table, refuse
from gradwire.scenarios.schema.network import Loss
from gradwire.scenarios.units import PositiveTime, Ps, Rate, Time, format_time


class Fault(Table):
    """What all faults have."""

    at: Time
    """When it begins."""
    until: PositiveTime | None = None
    """When it ends."""

    engine: ClassVar[bool] = False
    """Whether the packet engine has to be able to do more than change the state of a link."""

    @model_validator(mode="after")
    def _ends_later(self) -> Fault:
        if self.until is not None and self.until <= self.at:
            raise refuse(
                "until", "is not after at", format_time(self.until), f"later than {format_time(self.at)}"
            )
        return self


class LinkFault(Fault):
    """A fault of one cable."""

    between: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
    """The names of its two ends, such as ["h0", "leaf0"]; parallel cables between them fare alike."""
    one_way: Flag = False
    """Only from the first end to the second."""


class LinkDown(LinkFault):
    """A cable is cut: what is sent on it is lost; what was on the way arrives."""

    kind: Literal["link_down"]
    noticed_after: Time = Ps(1_000_000_000)
    """How long routing takes to avoid it, and to use it again. Ours."""
    engine = True


class LinkDegraded(LinkFault):
    """A cable is slower than it should be."""

    kind: Literal["link_degraded"]
    rate: Rate
    """At most the cable's own."""


class GrayLoss(LinkFault):
    """A cable loses packets at random, and nobody notices."""

    kind: Literal["gray_loss"]
    loss: Loss


class SwitchDown(Fault):
    """A switch fails: all its cables are cut."""

    kind: Literal["switch_down"]
    switch: str
    """Its name."""
    noticed_after: Time = Ps(1_000_000_000)
    """How long routing takes to avoid it, and to use it again. Ours."""
    engine = True


class HostPaused(Fault):
    """A host stands still: it sends nothing, its timers do not go off, and what arrives waits for it."""

    kind: Literal["host_paused"]
    host: str
    """Its name."""
    until: PositiveTime
    engine = True


class HostSlow(Fault):
    """A host computes more slowly: what workers begin to compute there meanwhile (a layer, the time to the next
    gradient) takes `factor` times as long."""

    kind: Literal["host_slow"]
    host: str
    """Its name."""
    factor: Annotated[float, Field(gt=1, le=1000, strict=True)]


def _tag(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


AnyFault = Annotated[
    Annotated[LinkDown, Tag("link_down")]
    | Annotated[LinkDegraded, Tag("link_degraded")]
    | Annotated[GrayLoss, Tag("gray_loss")]
    | Annotated[SwitchDown, Tag("switch_down")]
    | Annotated[HostPaused, Tag("host_paused")]
    | Annotated[HostSlow, Tag("host_slow")],
    Discriminator(_tag),
]
