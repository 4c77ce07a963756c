"""What the tables of all transports have in common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Natural, Table, refuse
from gradwire.scenarios.schema.effect_conditions import Needs
from gradwire.scenarios.units import Bytes, PositiveTime, Ps, Size, format_size, format_time

MIN_PAYLOAD, MAX_PAYLOAD = 64, 9000

Gain = Annotated[float, Field(gt=0, le=1, strict=True)]


Window = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Factor = Annotated[float, Field(ge=0, le=1000, strict=True)]


class Transport(Table):
    """What all transports have."""

    # A class derived from it is a transport with all there is to know of it. Its fields are its parameters in a
    # scenario; the rest is what it makes of switches, and what gradwire.components.transports.base asks for.

    # what a transport makes of the switches, for checks and remarks
    wants_trimming: ClassVar[bool] = False
    wants_shortest_first: ClassVar[bool] = False
    wants_pfc: ClassVar[bool] = False
    needs_drops: ClassVar[bool] = False
    wants_marks: ClassVar[bool] = False
    wants_order: ClassVar[bool] = False
    acknowledges: ClassVar[bool] = True  # each data packet by itself
    switches_between: ClassVar[int | None] = None  # at most
    simulated: ClassVar[bool] = True  # or on the testbed only
    repeats_important: ClassVar[bool] = False  # whether what it sends again is, whatever its tag says
    kernel_tcp: ClassVar[str] = ""  # the congestion control by which the kernel's TCP is it on the testbed, if it is
    may_lose: ClassVar[bool] = False  # whether it can deliver a message with some of its packets missing
    sums: ClassVar[bool] = False  # whether switches may add up its packets: see `gradwire.components.transports.base`
    keeps_important: ClassVar[Any] = False  # a flag or property: no important packet may be lost, whatever the bound
    shares_bound: ClassVar[bool] = False  # whether what one message does not lose of its bound, others may

    # what its rules are made of: see gradwire.components.transports.base
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
    forgets: ClassVar[bool] = False  # nothing but its own packets decides what becomes of a message ...
    goes_by: ClassVar[Any]  # ... or what does
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
    """Whose headers its packets have: one of `gradwire.scenarios.wire.WIRES`."""

    kind: str
    payload: Size = Bytes(4096)
    """Data bytes of a full packet; whole float32 values, so that a lost packet loses whole gradients."""
    control_priority: Natural = 0
    """Queue of acknowledgements and control packets."""

    @model_validator(mode="after")
    def _whole_values(self) -> Transport:
        if self.payload % 4 or not MIN_PAYLOAD <= self.payload <= MAX_PAYLOAD:
            raise refuse(
                "payload", "fits no packet of whole float32 values", format_size(self.payload),
                f"a multiple of 4 bytes from {MIN_PAYLOAD}B to {MAX_PAYLOAD}B",
            )  # fmt: skip
        return self

    @property
    def overhead(self) -> Bytes:
        """Header bytes of a data packet, as `gradwire.scenarios.wire` counts them."""
        return Bytes(self.data_overhead)

    @property
    def handles_trimming(self) -> bool:
        """Whether it reads headers of packets that switches have cut."""
        return hasattr(self, "on_trimmed")

    @property
    def ecn_capable(self) -> bool:
        """Whether packets that nobody has tagged are ECN-capable, so that switches do not drop them by choice."""
        return bool(self.important(self.model_dump()))

    @property
    def control_ecn_capable(self) -> bool:
        """The same of acknowledgements and control packets."""
        rule = getattr(self, "control_important", None)
        return rule is None or bool(rule(self.model_dump()))

    @classmethod
    def congestion(cls) -> str:
        """The kernel's congestion control that carries it on the testbed, "" where its rules do over UDP: what is
        derived from a class has rules of its own."""
        return str(vars(cls).get("kernel_tcp", ""))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The parameters that have a default, with it."""
        return {name: field.get_default() for name, field in cls.model_fields.items() if not field.is_required()}

    def classes_from(self, priority: int) -> range:
        """Queues that data of a message with this priority may go to."""
        return range(priority, priority + 1)


class Tcp(Transport):
    """What TCP's variants share: selective acknowledgements and time-outs [RFC 5681, 6582, 6675, 6298]."""

    initial_window: Count = 10
    """Packets [RFC 6928]."""
    min_rto: PositiveTime = Ps(2_000_000_000)
    """Smallest retransmission time-out: 2 ms as in the DCTCP experiments [code]; Linux has 200 ms."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest retransmission time-out."""

    @model_validator(mode="after")
    def _ordered(self) -> Tcp:
        check_timeouts(self.min_rto, self.max_rto)
        return self


class Windowed(Tcp):
    """What TCP's variants share whose window falls by losses."""

    recovery: Annotated[
        Literal["pipe", "prr"],
        Needs(lambda at: not at.table.falls_in_proportion, "by these rules the window falls in proportion (prr)",
              'preset = "classic", and none of the other rules', names_default=True),
    ] = "pipe"
    """How sending goes on while the window falls after a loss: not before enough is known to have left the network [RFC
    6675], or in proportion to what arrives [RFC 6937], as ns-3 does and Linux, on the testbed, always."""
    delayed_acks: PositiveTime | None = None
    """The receiver acknowledges every second packet, or one that has waited so long: Linux has 40 ms, ns-3 200 ms [RFC
    1122]; at once what is out of order. Unless given, every packet by itself. Below min_rto."""

    @property
    def falls_in_proportion(self) -> bool:
        """Return True if the window falls by prr, whatever `recovery` says."""
        return False

    @model_validator(mode="after")
    def _soon_enough(self) -> Windowed:
        if self.delayed_acks is not None and self.delayed_acks >= self.min_rto:
            raise refuse(
                "delayed_acks", "is not below min_rto: a single packet would be sent again before it is acknowledged",
                format_time(self.delayed_acks), f"less than {format_time(self.min_rto)}, or a larger min_rto",
            )  # fmt: skip
        return self


class Connected(Transport):
    """What transports have whose connections may outlive a message."""

    connections: Literal["fresh", "persistent"] = "fresh"
    """A new connection for every message, with a fresh window, or one for each pair of hosts and class, as distributed
    training has: messages follow each other on it in the order in which they start, the next one's packets as soon as
    the window has room, and window, round trip estimate and time-out go on from one to the next; after a silence of
    more than a time-out the window falls again [RFC 5681 section 4.1, RFC 2861]."""


def check_timeouts(least: int, most: int) -> None:
    """Raise the mistake of a smallest time-out above the largest one."""
    if least > most:
        raise refuse("min_rto", "is above max_rto", format_time(least), "min_rto <= max_rto")
