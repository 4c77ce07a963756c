"""Declares the base classes of transport tables, with the keys and class attributes that all transports share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Natural, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.units import Bytes, PositiveTime, Ps, Size, format_size, format_time

MIN_PAYLOAD, MAX_PAYLOAD = 64, 9000

Gain = Annotated[float, Field(gt=0, le=1, strict=True)]


Window = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Factor = Annotated[float, Field(ge=0, le=1000, strict=True)]


class Transport(ScenarioTable):
    """Common keys of all transports."""

    # A subclass is a complete transport. Its fields are its parameters in a scenario; the rest are its requirements on
    # switches, and the interface of gradwire.protocols.transports.base.

    # requirements on switches, for checks and remarks
    wants_trimming: ClassVar[bool] = False
    wants_shortest_first: ClassVar[bool] = False
    wants_pfc: ClassVar[bool] = False
    ignores_losses: ClassVar[bool] = False
    needs_drops: ClassVar[bool] = False
    wants_marks: ClassVar[bool] = False
    wants_order: ClassVar[bool] = False
    acknowledges: ClassVar[bool] = True  # each data packet individually
    switches_between: ClassVar[int | None] = None  # maximum switches on a path
    simulated: ClassVar[bool] = True  # False: on the testbed only
    repeats_important: ClassVar[bool] = False  # retransmissions are important, whatever the tag
    kernel_tcp: ClassVar[str] = ""  # congestion control of the kernel's TCP that implements it on the testbed
    may_lose: ClassVar[bool] = False  # it can deliver a message with some of its packets missing
    sums: ClassVar[bool] = False  # switches may add up its packets: see `gradwire.protocols.transports.base`
    keeps_important: ClassVar[Any] = False  # a flag or property: no important packet may be lost, whatever the bound
    shares_bound: ClassVar[bool] = False  # messages may use the unused bound of others

    # interface of its rules: see gradwire.protocols.transports.base
    control_bytes: ClassVar[int]
    data_overhead: ClassVar[int]
    sender_bitmaps: ClassVar[int]
    receiver_bitmaps: ClassVar[int]
    pair_words: ClassVar[int]
    peer_words: ClassVar[int]
    host_words: ClassVar[int]
    pair_at_rest: ClassVar[Any]
    peer_at_rest: ClassVar[Any]
    host_at_rest: ClassVar[Any]
    sender_at_rest: ClassVar[Any]
    receiver_at_rest: ClassVar[Any]
    fresh_word: ClassVar[int]
    probe_word: ClassVar[int]
    streams: ClassVar[bool] = False
    forgets: ClassVar[bool] = False  # the fate of a message depends on its own packets only ...
    further_dependence: ClassVar[Any]  # ... or on this
    pulls: ClassVar[bool] = False
    rides: ClassVar[bool] = False
    queues_at_nic: ClassVar[bool] = False
    important: ClassVar[Any]
    parameters: ClassVar[Any]
    start: ClassVar[Any]
    pull: ClassVar[Any]
    on_control: ClassVar[Any]
    on_timer: ClassVar[Any]
    at_nic: ClassVar[Any]
    resume: ClassVar[Any]
    forget: ClassVar[Any]
    on_data: ClassVar[Any]
    on_probe: ClassVar[Any]
    on_trimmed: ClassVar[Any]
    on_late: ClassVar[Any]
    forget_received: ClassVar[Any]

    wire: ClassVar[str] = "tcp"
    """Headers of its packets: one of `gradwire.scenarios.wire.WIRES`."""

    kind: str
    payload: Size = Bytes(4096)
    """Data bytes of a full packet; whole float32 values, so that a lost packet loses whole gradients."""
    control_priority: Natural = 0
    """Queue of acknowledgements and control packets."""

    def conflicts(self) -> Iterator[Mistake]:
        yield from super().conflicts()
        if self.payload % 4 or not MIN_PAYLOAD <= self.payload <= MAX_PAYLOAD:
            what = "is not a payload of whole float32 values"
            expected = f"a multiple of 4 bytes from {MIN_PAYLOAD}B to {MAX_PAYLOAD}B"
            yield Mistake("payload", what, format_size(self.payload), expected)

    @property
    def overhead(self) -> Bytes:
        """Header bytes of a data packet, as `gradwire.scenarios.wire` counts them."""
        return Bytes(self.data_overhead)

    @property
    def handles_trimming(self) -> bool:
        """True if it reads headers of trimmed packets."""
        return hasattr(self, "on_trimmed")

    @property
    def ecn_capable(self) -> bool:
        """True if untagged packets are ECN-capable, so that switches do not drop them selectively."""
        return bool(self.important(self.model_dump()))

    @property
    def control_ecn_capable(self) -> bool:
        """True if acknowledgements and control packets are ECN-capable."""
        rule = getattr(self, "control_important", None)
        return rule is None or bool(rule(self.model_dump()))

    @classmethod
    def congestion(cls) -> str:
        """Return the kernel's congestion control that carries it on the testbed, or "" if its own rules run over UDP.
        Subclasses do not inherit it, since they have their own rules."""
        return str(vars(cls).get("kernel_tcp", ""))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the parameters that have a default, with it."""
        return {name: field.get_default() for name, field in cls.model_fields.items() if not field.is_required()}

    def classes_from(self, priority: int) -> range:
        """Return the queues that data of a message with this priority may use."""
        return range(priority, priority + 1)


class Tcp(Transport):
    """Common keys of TCP's variants: selective acknowledgements and time-outs [RFC 5681, 6582, 6675, 6298]."""

    must_not_exceed = ("min_rto", "max_rto")

    initial_window: Count = 10
    """Packets [RFC 6928]."""
    min_rto: PositiveTime = Ps(2_000_000_000)
    """Smallest retransmission time-out: 2 ms as in the DCTCP experiments [code]; Linux has 200 ms."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest retransmission time-out."""


class LossBasedTcp(Tcp):
    """Common keys of TCP's variants with a loss-based window."""

    recovery: Annotated[
        Literal["pipe", "prr"],
        Precondition(
            lambda at: not at.table.falls_in_proportion,
            "these rules reduce the window proportionally (prr)",
            'preset = "classic", and none of the other rules',
            names_default=True,
        ),
    ] = "pipe"
    """Sending while the window is reduced after a loss: once enough data is known to have left the network [RFC 6675],
    or in proportion to what arrives [RFC 6937], as ns-3 does and Linux, on the testbed, always."""
    delayed_acks: PositiveTime | None = None
    """The receiver acknowledges every second packet, or one that has waited for this long: Linux has 40 ms, ns-3 200 ms
    [RFC 1122]; out-of-order packets at once. If absent, every packet. Below min_rto."""

    @property
    def falls_in_proportion(self) -> bool:
        """Return True if the window is reduced by prr, regardless of `recovery`."""
        return False

    def conflicts(self) -> Iterator[Mistake]:
        yield from super().conflicts()
        if self.delayed_acks is not None and self.delayed_acks >= self.min_rto:
            what = "is not below min_rto: a single packet would be retransmitted before it is acknowledged"
            expected = f"less than {format_time(self.min_rto)}, or a larger min_rto"
            yield Mistake("delayed_acks", what, format_time(self.delayed_acks), expected)


class ConnectionTransport(Transport):
    """Common keys of transports whose connections may outlive a message."""

    connections: Literal["fresh", "persistent"] = "fresh"
    """fresh: a new connection for every message, with an initial window; persistent: one for each pair of hosts and
    class, as in distributed training: its messages follow each other in the order of their starts, the next one's
    packets as soon as the window allows, and window, round trip estimate and time-out carry over; after a silence of
    more than a time-out the window is reset [RFC 5681 section 4.1, RFC 2861]."""
