"""Transports that rely on what switches do with packets besides queueing them: cut them, or rank them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Flag, refuse
from gradwire.scenarios.schema.transport_base import Gain, Transport
from gradwire.scenarios.units import PositiveTime, format_time
from gradwire.scenarios.wire import UDP_OVERHEAD

Window = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Factor = Annotated[float, Field(ge=0, le=1000, strict=True)]


class Ndp(Transport):
    """NDP (Handley et al., SIGCOMM 2017): trimmed packets and pulling receivers; over UDP.

    It needs `switch.trim_threshold`, of eight full packets in the paper, and spraying.
    """

    wants_trimming = True
    handles_trimming = True
    needs_drops = True

    kind: Literal["ndp"]
    initial_window: Window | None = None
    """Packets sent before the first pull; by default one more than the longest path holds in an unloaded round trip
    (ours). htsim: 15 [code]."""
    min_rto: PositiveTime = 1_000_000_000
    """Smallest time-out, for what neither a packet nor a header told of; at least three unloaded round trips. Ours."""
    max_rto: PositiveTime = 1_000_000_000_000
    below_control: Flag = True
    """Data goes one queue below the one it would go to otherwise: headers and control packets go first. Ours."""

    @model_validator(mode="after")
    def _ordered(self) -> Ndp:
        _check_timeouts(self.min_rto, self.max_rto)
        return self

    wire = "udp"

    @property
    def overhead(self) -> int:
        return UDP_OVERHEAD

    def classes_from(self, priority: int) -> range:
        return range(priority + self.below_control, priority + self.below_control + 1)


class PFabric(Transport):
    """pFabric (Alizadeh et al., SIGCOMM 2013): the message with the least left goes first.

    It needs `switch.shortest_first`, with a buffer of about two bandwidth-delay products.
    """

    wants_shortest_first = True
    needs_drops = True

    kind: Literal["pfabric"]
    window: Window | None = None
    """Packets, at first and at most; by default what the longest path holds in an unloaded round trip."""
    rto: PositiveTime | None = None
    """The time-out, always the same; at least one unloaded round trip, three if absent [recalled]."""
    patience: Count = 5
    """After so many time-outs in a row it only probes [recalled]."""


class Nscc(Transport):
    """NSCC, the sender's congestion control of Ultra Ethernet (specification 1.0, section 3.6.13); over UDP. With
    `control`, the receiver's beside it or alone.

    The values are those of table 3-82, by way of public simulators [code], unless marked. Gains are for 100 Gbps and a
    round trip of 12 us, and are scaled with the bandwidth-delay product.
    """

    handles_trimming = True
    wants_marks = True

    kind: Literal["nscc"]
    trimming: Flag = True
    """Whether switches trim packets: decides target_delay and qa_threshold."""
    control: Literal["sender", "receiver", "both"] = "sender"
    """Who limits what is sent: the sender by its window (NSCC), the receiver by pulls with which it shares out its line
    (RCCC, as in EQDS and NDP), or both. Then max_window is what goes before the first pull."""
    ack_every: Annotated[int, Field(ge=1, le=256, strict=True)] = 1
    """Packets that one acknowledgement tells of. At once answered are marked packets, what was sent again and what
    nothing can follow. htsim has 16,384 bytes, 4 packets of 4 KiB [code]."""
    target_delay: PositiveTime | None = None
    """Waiting in queues that it aims at; by default 0.75 unloaded round trips, 1 without trimming."""
    max_window: Annotated[float, Field(ge=0.01, le=1000, strict=True)] = 1.5
    """Bandwidth-delay products, at first and at most."""
    alpha: Factor = 4.0
    """Proportional increase: packets per round trip without any delay; scaled with the target as well."""
    fi: Factor = 5.0
    """Fair increase: packets per round trip."""
    fi_scale: Factor = 0.25
    """Fast increase: packets per acknowledged packet."""
    eta: Factor = 0.15
    """Packets that are added every round trip in any case."""
    gamma: Gain = 0.8
    """The window falls by this times the share of the average delay that is above the target."""
    max_md_jump: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.5
    """A decrease leaves at least so much of it."""
    adjust_packets: Count = 8
    """Increases are applied after more than so many packets."""
    quick_adapt: Flag = True
    """Whether the window is set to what arrived, after a header or a long delay."""
    qa_gate: Annotated[int, Field(ge=0, le=32, strict=True)] = 3
    """Quick adapt acts when less than the largest window over 2 to this has arrived in its period."""
    qa_threshold: PositiveTime | None = None
    """A delay above this is long; by default four times the target without trimming, and never with it."""
    min_rto: PositiveTime = 100_000_000
    """Smallest time-out [code: htsim]; at least three unloaded round trips."""
    max_rto: PositiveTime = 1_000_000_000_000
    below_control: Flag = True
    """Data goes one queue below the one it would go to otherwise: headers and control packets go first. Ours."""

    @model_validator(mode="after")
    def _ordered(self) -> Nscc:
        _check_timeouts(self.min_rto, self.max_rto)
        return self

    @property
    def wants_trimming(self) -> bool:  # type: ignore[override]
        """As the table says."""
        return self.trimming

    wire = "udp"

    @property
    def overhead(self) -> int:
        return UDP_OVERHEAD

    def classes_from(self, priority: int) -> range:
        return range(priority + self.below_control, priority + self.below_control + 1)


def _check_timeouts(least: int, most: int) -> None:
    if least > most:
        raise refuse("min_rto", "is above max_rto", format_time(least), "min_rto <= max_rto")
