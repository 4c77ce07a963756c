"""Transports: what carries a message from one host to another, and its parameters.

In a scenario either a name (`transport = "dctcp"`, everything at its default) or a table
(`[transport] kind = "dctcp"`, `g = 0.125`). A transport of your own is named by where it is,
`kind = "my_module:MyTransport"`, and takes whatever parameters it declares.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Count, Flag, refuse
from gradwire.scenarios.schema.network import Thresholds
from gradwire.scenarios.schema.transport_base import Connected, Gain, Tcp, Transport, Windowed
from gradwire.scenarios.schema.transport_switches import Ndp, Nscc, PFabric
from gradwire.scenarios.units import PositiveTime, Rate, Size, format_size, format_time
from gradwire.scenarios.wire import HPCC_OVERHEAD, ROCE_OVERHEAD, TCP_OVERHEAD, UDP_OVERHEAD

USER_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a scenario names something of the user's own: "module:Class"."""

DEFAULT_KIND = "dctcp"
MOST_THRESHOLDS = 7  # of PIAS: there are eight priorities


class TcpNewReno(Connected, Windowed):
    """TCP NewReno; by default its packets are not ECN-capable."""

    kind: Literal["tcp_newreno"]
    ecn: Flag = False
    """Whether packets are ECN-capable; others are dropped above K where `selective_drop` is on."""


class ByMarks(Windowed):
    """What DCTCP and its descendants share."""

    ecn: Flag = True
    g: Gain = 0.0625
    """Weight of the newest window in the estimate of the marked share, 1/16 [RFC 8257]."""

    @property
    def wants_marks(self) -> bool:  # type: ignore[override]
        """Unless it has been told to do without."""
        return self.ecn

    @property
    def control_ecn_capable(self) -> bool:
        return self.ecn


class Dctcp(Connected, ByMarks):
    """DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257): the window shrinks by the share of marked packets."""

    kind: Literal["dctcp"]


class Dlcp(Transport):
    """DLCP: bounded loss over UDP with Stop, Probe and Bitmap [notes on arXiv 2008.08445].

    Values marked "ours" are our choice, because those of the paper are not known to us.
    """

    kind: Literal["dlcp"]
    stop_policy: Literal["early", "eager", "on_probe"] = "early"
    """When a message may end without the rest: as soon as the bound allows, as the paper has it (eager); also, with
    no more
    sent than that takes until it is known what was lost (early, ours); or only when all is sent (on_probe, ours)."""
    send_order: Literal["important_first", "sequential", "random"] = "important_first"
    """In which order packets go: important ones first, then the others, from another one on in every message; from the
    first to the last; or in an order drawn for every message. Ours."""
    rate_control: Literal["receiver", "dctcp", "delay"] = "receiver"
    """How fast a pair of hosts sends: by what the receiver says of its senders, line / n each, and by marks (ours); by
    marks alone, as DCTCP (DLCP); or by delay, as TIMELY (MLT)."""
    g: Gain = 0.0625
    floor: Count = 64
    """The rate never falls below line rate over this. Ours."""
    probe_timeout: PositiveTime = 200_000_000
    """A probe is repeated after the larger of this and three smoothed round trips, twice as long each time, but within
    the larger of this and 24 base round trips; the first one follows half a smoothed round trip of silence. Ours."""
    important_must_arrive: Flag = True
    """Whether Stop also waits for every important packet, beyond the bound. Ours."""
    t_low: PositiveTime = 50_000_000
    """TIMELY's lower delay threshold [recalled], as are the next four."""
    t_high: PositiveTime = 500_000_000
    beta: Gain = 0.8
    ewma: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.875
    """Weight of the newest difference of round trips."""
    add_rate: Rate = 10_000_000
    """Additive increase per update on a 10 Gbps line; scaled with the line rate (the scaling is ours)."""

    @model_validator(mode="after")
    def _ordered(self) -> Dlcp:
        if self.t_low >= self.t_high:
            raise refuse("t_low", "is not below t_high", format_time(self.t_low), "t_low < t_high")
        return self

    wire = "udp"

    @property
    def overhead(self) -> int:
        return UDP_OVERHEAD

    @property
    def may_lose(self) -> bool:
        return True


class Cubic(Connected, Windowed):
    """TCP CUBIC (RFC 9438); by default its packets are not ECN-capable."""

    kind: Literal["cubic"]
    ecn: Flag = False
    """Whether packets are ECN-capable; others are dropped above K where `selective_drop` is on."""
    beta: Annotated[float, Field(ge=0.1, lt=1, strict=True)] = 0.7
    """What a reduction leaves of the window [RFC 9438 section 4.6]."""
    c: Annotated[float, Field(ge=0.001, le=10, strict=True)] = 0.4
    """Steepness of the curve, packets per cubed second [RFC 9438 section 5.1]."""
    fast_convergence: Flag = True
    """Aim lower when the last peak was not reached again [RFC 9438 section 4.7]."""


class Pias(ByMarks):
    """PIAS (Bai et al., NSDI 2015): DCTCP whose packets sink through the priorities as the flow sends."""

    kind: Literal["pias"]
    thresholds: Annotated[tuple[int, ...], Thresholds()] = tuple(
        packets * 1460 for packets in (1059, 1412, 1643, 1869, 2008, 2115, 2184)
    )
    """Bytes sent from which on a flow is one priority lower, then two, and so on: at most seven, rising. The default
    is for eight queues at 10 Gbps: packets of 1460 bytes [code]."""

    @model_validator(mode="after")
    def _rising(self) -> Pias:
        sizes = self.thresholds
        if len(sizes) > MOST_THRESHOLDS or any(a >= b for a, b in pairwise(sizes)):
            raise refuse(
                "thresholds", "are not rising, or too many", [format_size(size) for size in sizes],
                f"at most {MOST_THRESHOLDS} sizes, each above the one before",
            )  # fmt: skip
        return self

    def classes_from(self, priority: int) -> range:
        return range(priority, priority + len(self.thresholds) + 1)


class Timely(Tcp):
    """TIMELY (Mittal et al., SIGCOMM 2015): the rate follows the gradient of the round trip time; over UDP.

    Retransmission is that of the TCP variants. [recalled] unless marked.
    """

    kind: Literal["timely"]
    t_low: PositiveTime = 50_000_000
    """Round trips below this raise the rate. More than 500 KB of queue takes at 100 Gbps: set it to suit."""
    t_high: PositiveTime = 500_000_000
    """Round trips above this lower the rate whatever the gradient."""
    beta: Gain = 0.8
    """Multiplicative decrease."""
    ewma: Gain = 0.875
    """Weight of the newest difference of round trips; the authors' code has 0.02."""
    add_rate: Rate = 10_000_000
    """Additive increase per segment on a 10 Gbps line; scaled with the line rate (the scaling is ours)."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate never falls below line rate over this. Ours."""
    segment: Size = 16_384
    """The rate changes once per this many bytes acknowledged."""

    @model_validator(mode="after")
    def _thresholds(self) -> Timely:
        if self.t_low >= self.t_high:
            raise refuse("t_low", "is not below t_high", format_time(self.t_low), "t_low < t_high")
        return self

    wire = "udp"

    @property
    def overhead(self) -> int:
        return UDP_OVERHEAD


class Swift(Tcp):
    """Swift (Kumar et al., SIGCOMM 2020): the window keeps the fabric delay near a target.

    The values are those of htsim, whose authors call them guesses [code], unless marked.
    """

    kind: Literal["swift"]
    base_target: PositiveTime = 10_000_000
    """What may wait in queues, on top of the flow's smallest round trip. Ours."""
    ai: Annotated[float, Field(ge=0.001, le=100, strict=True)] = 1.0
    """Packets that the window grows by per round trip below the target."""
    beta: Gain = 0.8
    """The window falls by this times the share of the delay that is above the target."""
    max_decrease: Gain = 0.5
    """It falls by this share at most, and by it after losses."""
    fs_range: PositiveTime = 50_000_000
    """Flow scaling: the most that is added to the target for a small window."""
    fs_min_window: Annotated[float, Field(ge=0.01, le=1000, strict=True)] = 0.1
    """Packets; windows up to this get all of fs_range."""
    fs_max_window: Annotated[float, Field(ge=0.01, le=100_000, strict=True)] = 100.0
    """Packets; windows from this on get nothing."""
    min_window: Annotated[float, Field(ge=0.01, le=1, strict=True)] = 0.01
    """Packets; below one the packets are paced. Ours."""
    max_window: Annotated[int, Field(ge=1, le=1 << 22, strict=True)] = 1000
    """Packets."""

    @model_validator(mode="after")
    def _windows(self) -> Swift:
        if self.fs_min_window >= self.fs_max_window:
            what = "is not below fs_max_window"
            raise refuse("fs_min_window", what, self.fs_min_window, "fs_min_window < fs_max_window")
        return self


class Ltp(Transport):
    """LTP (Chen et al., IWQoS 2023): messages are closed early, by fraction and time, within their bound; over UDP.

    Times are in units of what the message would take alone, its start-up included. All values are ours.
    """

    kind: Literal["ltp"]
    threshold: Annotated[float, Field(ge=0, le=100, strict=True)] = 1.0
    """Until then the receiver waits for the whole message; from then on `fraction` of it is enough."""
    deadline: Annotated[float, Field(ge=0, le=100, strict=True)] = 2.0
    """From then on whatever the message's bound allows is enough."""
    fraction: Gain = 0.8
    """Of the message's bytes; the bound holds as well."""
    critical_must_arrive: Flag = True
    """Whether a message also waits for every important packet."""
    initial_window: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 10
    """Packets in the first round trip, evenly spaced."""
    min_timeout: PositiveTime = 200_000_000
    """When nothing at all came back, all is sent again after the larger of this and three smoothed round trips."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate never falls below line rate over this."""

    @model_validator(mode="after")
    def _ordered(self) -> Ltp:
        if self.threshold > self.deadline:
            raise refuse("threshold", "is above deadline", self.threshold, "threshold <= deadline")
        return self

    wire = "udp"

    @property
    def overhead(self) -> int:
        return UDP_OVERHEAD

    @property
    def may_lose(self) -> bool:
        return True

    @property
    def ecn_capable(self) -> bool:
        return False


class Roce(Transport):
    """What the transports over RoCEv2 share: go-back-N, as its reliable connections have it [recalled].

    A loss costs a round trip, a packet out of order as much: they want `switch.pfc` and no spraying.
    """

    wants_pfc = True
    wants_order = True

    rto: PositiveTime = 2_000_000_000
    """Time-out without progress; at least three unloaded round trips. It doubles each time in a row. Ours."""
    max_rto: PositiveTime = 1_000_000_000_000

    @model_validator(mode="after")
    def _rto_ordered(self) -> Roce:
        if self.rto > self.max_rto:
            raise refuse("rto", "is above max_rto", format_time(self.rto), "rto <= max_rto")
        return self

    wire = "roce"

    @property
    def overhead(self) -> int:
        return ROCE_OVERHEAD


class Dcqcn(Roce):
    """DCQCN (Zhu et al., SIGCOMM 2015): rates over RoCE by notifications about marks; starts at line rate.

    It needs marks: `ecn_threshold` (Kmin), `ecn_ceiling` (Kmax) and `ecn_probability` (Pmax) of the switch. The paper
    has 5 KB, 200 KB and 0.01 at 40 Gbps [recalled]; the HPCC paper 4 KB and 16 KB per Gbps and 0.2 [code].
    """

    wants_marks = True

    kind: Literal["dcqcn"]
    g: Gain = 0.00390625
    """Weight of a notification in alpha, 1/256 [recalled], as all that is not marked."""
    alpha_period: PositiveTime = 55_000_000
    """alpha falls by g for every such time without a notification."""
    rate_timer: PositiveTime = 55_000_000
    """The rate rises at each tick of this clock. Adapters have 300 us [code]."""
    byte_counter: Size = 10_000_000
    """And whenever so much has been sent."""
    cnp_interval: PositiveTime = 50_000_000
    """The receiver sends one notification in this time at most."""
    fast_recovery: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    """So many ticks of a clock halve the distance to the target before the target rises."""
    rate_ai: Rate = 40_000_000
    """Additive increase on a 40 Gbps line; scaled with the line rate (the scaling is ours)."""
    rate_hai: Rate = 400_000_000
    """Hyper increase, once both clocks are beyond fast_recovery; scaled likewise. Ours: ten times rate_ai."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate never falls below line rate over this. Ours."""


class HpccTransport(Roce):
    """HPCC (Li et al., SIGCOMM 2019): a paced window by what switches tell about their ports; over RoCE.

    [recalled] unless marked; the rule as the authors' ns-3 and their Internet draft have it [code].
    """

    switches_between = 6

    kind: Literal["hpcc"]
    eta: Gain = 0.95
    """The utilisation it aims at."""
    max_stage: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    """So many round trips of additive increase follow each other before the window is set by the utilisation again."""
    flows: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 100
    """Flows that may share a link without a queue: a window grows by (1 - eta) / flows of the first window per step."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The window never falls below the first one over this. Ours."""

    @property
    def overhead(self) -> int:
        return HPCC_OVERHEAD


class ConstantRate(Transport):
    """Packets at a constant rate over UDP, no acknowledgements: for tests and background load."""

    acknowledges = False

    kind: Literal["constant_rate"]
    share: Annotated[float, Field(ge=0.00001, le=1, strict=True)] = 1.0
    """Of the line rate of the sending host."""
    repeat_after: PositiveTime = 1_000_000_000
    """Silence after the last packet before the message is sent again; at least the longest unloaded
    round trip."""

    wire = "udp"

    @property
    def overhead(self) -> int:
        return UDP_OVERHEAD

    @property
    def may_lose(self) -> bool:
        return True

    @property
    def ecn_capable(self) -> bool:
        return False


class Bbr(Connected):
    """TCP BBR as the kernel has it [Cardwell et al., ACM Queue 2016]: on the testbed only (`gradwire emulate`)."""

    simulated = False

    kind: Literal["bbr"]


class UserTransport(Transport):
    """A transport of the user's own. It gets its parameters unchecked and refuses those it does not know."""

    model_config = ConfigDict(extra="allow")
    union_tag: ClassVar[str] = "user"

    kind: str

    @property
    def parameters(self) -> dict[str, Any]:
        """What the table holds beyond the common parameters."""
        return dict(self.model_extra or {})

    @property
    def overhead(self) -> int:
        return max(TCP_OVERHEAD, UDP_OVERHEAD)

    @property
    def may_lose(self) -> bool:
        return True


def _named(value: Any) -> Any:
    """A bare name is a table with nothing but that kind; a table without one has the default kind."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": DEFAULT_KIND, **value} if isinstance(value, dict) else value


def _tag(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "user" if isinstance(kind, str) and USER_CLASS.fullmatch(kind) else kind


AnyTransport = Annotated[
    Annotated[TcpNewReno, Tag("tcp_newreno")]
    | Annotated[Dctcp, Tag("dctcp")]
    | Annotated[Dlcp, Tag("dlcp")]
    | Annotated[Cubic, Tag("cubic")]
    | Annotated[Pias, Tag("pias")]
    | Annotated[Timely, Tag("timely")]
    | Annotated[Swift, Tag("swift")]
    | Annotated[Ltp, Tag("ltp")]
    | Annotated[Dcqcn, Tag("dcqcn")]
    | Annotated[HpccTransport, Tag("hpcc")]
    | Annotated[Ndp, Tag("ndp")]
    | Annotated[PFabric, Tag("pfabric")]
    | Annotated[Nscc, Tag("nscc")]
    | Annotated[ConstantRate, Tag("constant_rate")]
    | Annotated[Bbr, Tag("bbr")]
    | Annotated[UserTransport, Tag("user")],
    Discriminator(_tag),
    BeforeValidator(_named),
]
