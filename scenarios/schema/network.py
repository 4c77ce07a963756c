"""The network of a scenario: links, switches and hosts. The topology is in `gradwire.scenarios.schema.topology`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import core_schema

from gradwire.scenarios.components import components, is_name
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.schema.base import Flag, Mistakes, Natural, Table, refuse
from gradwire.scenarios.schema.chosen import examples
from gradwire.scenarios.schema.effect_conditions import CABLE_IN_USE, SEVERAL_PATHS, Needs
from gradwire.scenarios.schema.per_queue import OneForAll, entries, fits
from gradwire.scenarios.schema.switch_conditions import (
    ALL_PAUSED,
    DROPPABLE,
    FLOWLETS,
    MARKS,
    MORE_QUEUES,
    OWN_BUFFER,
    PAUSES,
    RAMP,
    SEVERAL_CLASSES,
    SEVERAL_GPUS,
    SEVERAL_SWITCHES,
    SHARED,
    SUMS,
    TRIMS,
)
from gradwire.scenarios.units import (
    Bps,
    Bytes,
    PositiveTime,
    Ps,
    Quantity,
    Rate,
    Size,
    Time,
    UnitError,
    format_size,
    parse_fraction,
    parse_size,
)

MAX_QUEUES = 8


def _policy(value: object) -> object:
    if isinstance(value, str) and not is_name("queue", value):
        raise UnitError("is no queue policy", ", ".join(components("queue")) + ' or "my_module:MyPolicy"')
    return value


def _parse_loss(value: object) -> float:
    loss = parse_fraction(value)
    if loss == 1.0:
        raise UnitError("loses every packet", "a fraction below 1, such as 0.001")
    return loss


Loss = Annotated[
    float, BeforeValidator(_parse_loss), Field(json_schema_extra={"minimum": 0, "exclusiveMaximum": 1})
]


class Link(Table):
    """Every cable, unless `[[link_override]]` or the topology says otherwise. Both directions are alike."""

    rate: Rate = Bps(100_000_000_000)
    latency: Time = Ps(1_000_000)
    """Propagation delay of one cable."""
    loss: Loss = 0.0
    """Probability that a packet is lost on the cable, each on its own (a gray failure)."""


class LinkOverride(Table):
    """One cable that differs from `[link]`, in both directions."""

    between: Annotated[tuple[str, ...], Field(min_length=2, max_length=2), CABLE_IN_USE]
    """The names of its two ends, such as ["h0", "leaf0"]."""
    rate: Rate | None = None
    latency: Time | None = None
    loss: Loss | None = None

    @model_validator(mode="after")
    def _says_something(self) -> LinkOverride:
        if self.rate is None and self.latency is None and self.loss is None:
            raise refuse("", "changes nothing", None, "at least one of rate, latency, loss")
        return self


class Thresholds:
    """Pydantic annotation: one size or a list of sizes in the file, a tuple of bytes inside, `OneForAll` for one."""

    def parse(self, value: Any) -> tuple[int, ...]:
        entries = value if isinstance(value, (list, tuple)) else [value]
        mistakes: list[Mistake] = []
        sizes: list[int] = []
        cause: UnitError | None = None
        for index, entry in enumerate(entries):
            path = f"[{index}]" if entries is value else ""
            try:
                sizes.append(Quantity("size", parse_size, format_size, "64KiB").validate(entry))
            except UnitError as error:
                cause = error
                mistakes.append(Mistake(path, error.what, entry, error.expected))
        if not entries:
            mistakes.append(Mistake("", "is an empty list", value, "one size, or one size per queue"))
        if mistakes:
            raise Mistakes(mistakes) from cause
        return tuple(sizes) if entries is value else OneForAll(sizes)

    def format(self, sizes: tuple[int, ...]) -> str | list[str]:
        written = [format_size(size) for size in sizes]
        return written[0] if isinstance(sizes, OneForAll) else written

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        text = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.no_info_plain_validator_function(self.parse, serialization=text)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        one = {"type": "string", "examples": ["64KiB"]}
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": MAX_QUEUES}]}


class Shares:
    """Pydantic annotation: one fraction or a list of fractions in the file, a tuple inside, `OneForAll` for one."""

    def parse(self, value: Any) -> tuple[float, ...]:
        given = value if isinstance(value, (list, tuple)) else [value]
        mistakes: list[Mistake] = []
        shares: list[float] = []
        for index, entry in enumerate(given):
            path = f"[{index}]" if given is value else ""
            try:
                shares.append(parse_fraction(entry))
                if shares[-1] == 0.0:
                    raise UnitError("leaves no room at all", "a fraction above 0, such as 0.25")
            except UnitError as error:
                mistakes.append(Mistake(path, error.what, entry, error.expected))
        if not given:
            mistakes.append(Mistake("", "is an empty list", value, "one fraction, or one fraction per queue"))
        if mistakes:
            raise Mistakes(mistakes)
        return tuple(shares) if given is value else OneForAll(shares)

    def format(self, shares: tuple[float, ...]) -> float | list[float]:
        return shares[0] if isinstance(shares, OneForAll) else list(shares)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        text = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.no_info_plain_validator_function(self.parse, serialization=text)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        one = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": MAX_QUEUES}]}


class Room(NamedTuple):
    """The most that a queue can hold: bytes, the key of [switch] that says so, and that in words."""

    size: int
    key: str
    words: str


class Switch(Table):
    """Every egress port of every switch; the hosts' network interfaces have the same queues.

    Strict priority: queue 0 is served first. A packet that does not fit into the port's buffer is dropped
    (tail drop). Above its queue's ECN threshold an ECN-capable packet is marked; with `selective_drop` a
    packet that is not ECN-capable (droppable) is dropped there [notes: the DSCP and ECN trick of Aeolus].
    """

    queues: Annotated[int, Field(ge=1, le=MAX_QUEUES, strict=True), MORE_QUEUES] = MAX_QUEUES
    drr_quantum: Annotated[
        Annotated[tuple[int, ...], Thresholds()] | None,
        Needs(lambda at: at.switch.queues > 1, "one queue takes no turns", "switch.queues above 1"), SEVERAL_CLASSES,
    ] = None
    """Deficit round robin: bytes per turn, one size for all queues that take turns or a list with one for each. The
    hosts' interfaces stay strict. All queues are strict if absent."""
    drr_after: Natural = 0
    """So many of the first queues stay strictly first, and the others take turns."""
    buffer: Annotated[Size, OWN_BUFFER, ALL_PAUSED] = Bytes(512 * 1024)
    """Bytes that all queues of one egress port hold together."""
    shared_buffer: Size | None = None
    """Bytes that all ports of a switch hold together, instead of `buffer` for each port by itself."""
    buffer_alpha: Annotated[float, Field(gt=0, le=1024, strict=True), SHARED] = 1.0
    """A queue may hold this times what is free of the shared buffer (dynamic thresholds)."""
    buffer_share: Annotated[Annotated[tuple[float, ...], Shares()] | None, ALL_PAUSED] = None
    """The largest part of the buffer that packets of one queue may fill, one fraction for all queues or a list with one
    for each, so that low classes cannot crowd high ones out: of `buffer` at each port, or of `shared_buffer` over all
    ports of a switch. What does not fit is dropped as where the buffer is full. No limit if absent. Ours."""
    ecn_threshold: Annotated[Annotated[tuple[int, ...], Thresholds()] | None, MARKS] = None
    """K, in bytes waiting in a queue: one size for all or a list with one per queue; no marking if absent."""
    ecn_ceiling: Size | None = None
    """Kmax: with it, marking (or selective drop) is random from ecn_threshold (Kmin) on and certain from here on."""
    ecn_probability: Annotated[float, Field(gt=0, le=1, strict=True), RAMP] = 1.0
    """Pmax: the chance just below ecn_ceiling; it rises from 0 at ecn_threshold in a straight line."""
    selective_drop: Annotated[Flag, DROPPABLE] = False
    policy: Annotated[str, BeforeValidator(_policy), Field(json_schema_extra=examples("queue"))] | None = None
    """What a queue does with a packet for which there is room: take, mark or drop it. "threshold" if absent, as
    ecn_threshold says; "red" with ecn_ceiling. One of your own sees the same words."""
    trim_threshold: Size | None = None
    """Above so many bytes in a queue a data packet is cut to its header, which goes into the queue of `trim_priority`
    and is dropped only where that has no room either (NDP, SIGCOMM 2017). NDP: 8 full packets."""
    trim_priority: Annotated[Natural, TRIMS] = 0
    trim_size: Annotated[Size, TRIMS] = Bytes(64)
    """Bytes of a header on the wire."""
    shortest_first: Flag = False
    """Within a queue the packet of the message with the least left goes first, and where the buffer is full the packet
    of the one with the most left is dropped (pFabric, SIGCOMM 2013). Needs a transport that says what is left."""
    pfc: Flag = False
    """Priority flow control (IEEE 802.1Qbb): a switch tells its neighbour to stop sending a class before it has to
    drop packets of it. `buffer`, `shared_buffer` and `buffer_share` then drop no packet of these classes."""
    pfc_threshold: Annotated[Size, PAUSES] = Bytes(64 * 1024)
    """Bytes of one class that came in by one link and wait in the switch, above which the far end is told to stop. With
    `shared_buffer` it is told to stop earlier when little of that is free: above `buffer_alpha` times what is free, if
    that is less. What is accepted beyond that stays the same: this threshold and the headroom."""
    pfc_hysteresis: Annotated[Size | None, PAUSES] = None
    """It is told to go on when there are so many less than the threshold; two full packets if absent (ours)."""
    pfc_headroom: Annotated[Size | None, PAUSES] = None
    """What is accepted above the threshold, until the far end has stopped. If absent, what can still come in: the
    round trip of the cable and the packets under way at both ends."""
    pfc_classes: Annotated[Annotated[tuple[int, ...], Field(min_length=1)] | None, PAUSES] = None
    """The queues it is for; all if absent."""
    flowlet_gap: Annotated[PositiveTime, FLOWLETS, SEVERAL_PATHS] = Ps(50_000_000)
    """Flowlet balancing: a flow that was silent for longer may change its way (our choice of the default)."""
    aggregation_slots: Annotated[
        int, Field(ge=0, le=1 << 24, strict=True),
        Needs(lambda at: any(job.exchange.aggregates for job in at.scenario.job),
              "no job's exchange uses switches that sum",
              "job.exchange.aggregation = true, or an exchange in the network"),
    ] = 0
    """Slots in which a switch adds up packets of many workers for a server, and so many that an exchange with
    `aggregation` has (ATP and SwitchML, NSDI 2021). 0: switches do not sum."""
    aggregation_levels: Annotated[Literal[1, 2], SUMS, SEVERAL_SWITCHES] = 2
    """Where they do so. 2: the switch that several workers hang on adds up theirs, and that of the server what comes
    from there, as in ATP; results are copied in the same places. 1: that of the server alone."""
    path_entropies: Annotated[
        Annotated[int, Field(ge=1, le=1 << 16, strict=True)] | None, SEVERAL_PATHS
    ] = None
    """Where hosts choose paths (source_random, source_round_robin, reps): how many a message has to choose among, each
    drawn at random; any of 65,536 if absent. htsim has 64 [code]."""

    @model_validator(mode="after")
    def _ramp_rises(self) -> Switch:
        if self.ecn_ceiling is None:
            return self
        if self.ecn_threshold is None:
            raise refuse(
                "ecn_ceiling",
                "needs a threshold below it",
                format_size(self.ecn_ceiling),
                "ecn_threshold as well",
            )
        if self.ecn_ceiling <= max(self.ecn_threshold):
            raise refuse(
                "ecn_ceiling", "is not above ecn_threshold", format_size(self.ecn_ceiling),
                f"more than {format_size(max(self.ecn_threshold))}",
            )
        return self

    @model_validator(mode="after")
    def _turns_fit(self) -> Switch:
        if self.drr_quantum is None:
            if self.drr_after:
                raise refuse(
                    "drr_after", "means nothing without turns", self.drr_after, "drr_quantum as well"
                )
            return self
        turns = self.queues - self.drr_after
        if turns < 1:
            raise refuse(
                "drr_after",
                f"leaves none of {self.queues} queues",
                self.drr_after,
                f"less than {self.queues}",
            )
        if not fits(self.drr_quantum, turns):
            raise refuse(
                "drr_quantum", f"has {entries(self.drr_quantum)} for {turns} queues that take turns",
                [format_size(size) for size in self.drr_quantum], f"one size without brackets, or a list of {turns}",
            )
        if min(self.drr_quantum) < 64:
            raise refuse(
                "drr_quantum", "is less than a packet can be", format_size(min(self.drr_quantum)),
                "at least 64B; about a full packet, such as 4KiB",
            )
        return self

    @model_validator(mode="after")
    def _policy_fits(self) -> Switch:
        if self.policy == "red" and self.ecn_ceiling is None:
            raise refuse("policy", "marks between two sizes, of which one is missing", "red", "ecn_ceiling as well")
        if self.policy == "threshold" and self.ecn_ceiling is not None:
            raise refuse("policy", "does not look at ecn_ceiling", "threshold", '"red", or no ecn_ceiling')
        return self

    @property
    def queue_policy(self) -> str:
        """The name of what decides about packets for which there is room."""
        return self.policy or ("threshold" if self.ecn_ceiling is None else "red")

    def quanta(self) -> tuple[int, ...] | None:
        """Bytes per turn of every queue, 0 = strictly first; None if all are."""
        if self.drr_quantum is None:
            return None
        turns = self.queues - self.drr_after
        sizes = self.drr_quantum if len(self.drr_quantum) == turns else self.drr_quantum * turns
        return (0,) * self.drr_after + sizes

    def shared(self) -> tuple[int, float] | None:
        """Bytes of the shared buffer, and alpha; None where every port has its own."""
        return None if self.shared_buffer is None else (self.shared_buffer, self.buffer_alpha)

    def limits(self) -> tuple[int, ...] | None:
        """Bytes that every queue may hold of its port's buffer, or of the shared one over all ports; None: any."""
        if self.buffer_share is None:
            return None
        room = self.buffer if self.shared_buffer is None else self.shared_buffer
        shares = self.buffer_share if len(self.buffer_share) == self.queues else self.buffer_share * self.queues
        return tuple(allowed_loss(room, share) for share in shares)

    def room(self, queue: int) -> Room | None:
        """Return the most bytes that one queue of a port can hold; None where flow control limits its senders instead.

        Sizes in bytes. A queue alone in a shared buffer ends up with alpha / (1 + alpha) of it, since it may hold alpha
        times what is free (Choudhury and Hahne, ToN 1998).
        """
        if self.pfc and (self.pfc_classes is None or queue in self.pfc_classes):
            return None
        if self.shared_buffer is None:
            whole = Room(self.buffer, "buffer", "switch.buffer")
        else:
            most = int(self.shared_buffer * self.buffer_alpha / (1 + self.buffer_alpha))
            whole = Room(most, "shared_buffer", "what buffer_alpha leaves one queue of switch.shared_buffer")
        limits = self.limits()
        if limits is None or queue >= len(limits) or limits[queue] >= whole.size:
            return whole
        return Room(limits[queue], "buffer_share", "what buffer_share leaves it")

    def rooms(self) -> list[Room]:
        """Return the rooms of all queues that have one (see `room`)."""
        return [room for room in map(self.room, range(self.queues)) if room is not None]

    def ramp(self) -> tuple[int, float] | None:
        """Kmax in bytes and Pmax; None where the threshold is a step."""
        return None if self.ecn_ceiling is None else (self.ecn_ceiling, self.ecn_probability)

    def thresholds(self) -> tuple[int, ...] | None:
        """K of every queue, bytes; None if nothing is marked or selectively dropped."""
        if self.ecn_threshold is None or len(self.ecn_threshold) == self.queues:
            return self.ecn_threshold
        return self.ecn_threshold * self.queues


class Host(Table):
    """Every host."""

    software_latency: Time = Ps(2_000_000)
    """From a job's decision to send to the first byte at the network interface. Also the lookahead between
    jobs and network, so it must be at least the time of the smallest packet over the shortest link."""
    gpus: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Accelerators in each of what the topology calls hosts. With more than one, each of them is a host to jobs and
    traffic, named h0.gpu0, h0.gpu1, ...: a worker is an accelerator. Each has a network card of its own where a host
    has as many (rail i for accelerator i); where there are fewer cards they share them."""
    scale_up_rate: Annotated[Rate, SEVERAL_GPUS] = Bps(3_600_000_000_000)
    """Rate, each way, of the cable between an accelerator and the switch that joins those of one host: 450 GB/s of
    NVLink 4 [recalled]. What goes between accelerators of one host goes this way."""
    scale_up_latency: Annotated[Time, SEVERAL_GPUS] = Ps(500_000)
    """Propagation delay of one such cable; ours."""
    pcie_rate: Annotated[Rate, SEVERAL_GPUS] = Bps(504_000_000_000)
    """Rate, each way, of the cable between an accelerator and the switch before a network card that it shares:
    16 lanes of PCIe 5 [derived]."""
    pcie_latency: Annotated[Time, SEVERAL_GPUS] = Ps(500_000)
    """Propagation delay of one such cable; ours."""

    @property
    def inside(self) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
        """Accelerators of a machine, and rate and latency of a scale-up and of a PCIe cable; None where a host is a
        host."""
        if self.gpus == 1:
            return None
        return self.gpus, (self.scale_up_rate, self.scale_up_latency), (self.pcie_rate, self.pcie_latency)

