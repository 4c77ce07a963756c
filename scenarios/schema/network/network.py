"""Declares the scenario's tables [link], [[link_override]], [switch] and [host];
`gradwire.scenarios.schema.network.topology` declares [topology].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field
from pydantic_core import core_schema

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.loading.registry import components, is_known_kind
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.schema.base import Flag, Mistakes, Natural, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import CABLE_IN_USE, SEVERAL_PATHS, SEVERAL_SWITCHES, Precondition
from gradwire.scenarios.schema.kinds import examples
from gradwire.scenarios.schema.network import switch_conditions as conditions
from gradwire.scenarios.schema.network.per_queue import OneForAll, count_text, fits
from gradwire.scenarios.schema.network.port_override import PortOverride
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
    if isinstance(value, str) and not is_known_kind("queue", value):
        known = components("queue")
        expected = f'{", ".join(known)} or "my_module:MyPolicy"{nearest(value, known)}'
        raise UnitError("is not a queue policy", expected)
    return value


def _parse_loss(value: object) -> float:
    loss = parse_fraction(value)
    if loss == 1.0:
        raise UnitError("loses every packet", "a fraction below 1, such as 0.001")
    return loss


Loss = Annotated[float, BeforeValidator(_parse_loss), Field(json_schema_extra={"minimum": 0, "exclusiveMaximum": 1})]


class Link(ScenarioTable):
    """Every cable, unless `[[link_override]]` or the topology overrides it. Both directions are alike."""

    rate: Rate = Bps(100_000_000_000)
    latency: Time = Ps(1_000_000)
    """Propagation delay of one cable."""
    loss: Loss = 0.0
    """Probability that a packet is lost on the cable, independently of others (a gray failure)."""


class LinkOverride(ScenarioTable):
    """One cable that differs from `[link]`, in both directions."""

    between: Annotated[tuple[str, ...], Field(min_length=2, max_length=2), CABLE_IN_USE]
    """The names of its two ends, such as ["h0", "leaf0"]."""
    rate: Rate | None = None
    latency: Time | None = None
    loss: Loss | None = None

    def conflicts(self) -> Iterator[Mistake]:
        if self.rate is None and self.latency is None and self.loss is None:
            yield Mistake("", "changes nothing", None, "at least one of rate, latency, loss")


@dataclass(frozen=True, eq=False)
class PerQueue:
    """Pydantic annotation: one value or a list of values in the file, a tuple inside, `OneForAll` for one.

    parse_one, write_one : convert one value of the file; `parse_one` raises UnitError.
    noun : name of a value in messages.
    schema : JSON Schema of a value.
    """

    parse_one: Callable[[Any], Any]
    write_one: Callable[[Any], Any]
    noun: str
    schema: dict[str, Any]

    def parse(self, value: Any) -> tuple[Any, ...]:
        entries = value if isinstance(value, (list, tuple)) else [value]
        mistakes: list[Mistake] = []
        values: list[Any] = []
        cause: UnitError | None = None
        for index, entry in enumerate(entries):
            try:
                values.append(self.parse_one(entry))
            except UnitError as error:
                cause = error
                path = f"[{index}]" if entries is value else ""
                mistakes.append(Mistake(path, error.what, entry, error.expected))
        if not entries:
            mistakes.append(Mistake("", "is an empty list", value, f"one {self.noun}, or one {self.noun} per queue"))
        if mistakes:
            raise Mistakes(mistakes) from cause
        return tuple(values) if entries is value else OneForAll(values)

    def write(self, values: tuple[Any, ...]) -> Any:
        written = [self.write_one(value) for value in values]
        return written[0] if isinstance(values, OneForAll) else written

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        text = core_schema.plain_serializer_function_ser_schema(self.write, when_used="json")
        return core_schema.no_info_plain_validator_function(self.parse, serialization=text)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        several = {"type": "array", "items": self.schema, "minItems": 1, "maxItems": MAX_QUEUES}
        return {"anyOf": [self.schema, several]}


def _parse_share(value: object) -> float:
    share = parse_fraction(value)
    if share == 0.0:
        raise UnitError("leaves no space", "a fraction above 0, such as 0.25")
    return share


_SIZE = Quantity("size", parse_size, format_size, "64KiB")
Sizes = Annotated[
    tuple[int, ...], PerQueue(_SIZE.validate, format_size, "size", {"type": "string", "examples": ["64KiB"]})
]
Shares = Annotated[
    tuple[float, ...],
    PerQueue(_parse_share, float, "fraction", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
]


class QueueCapacity(NamedTuple):
    """Capacity of a queue in bytes, the key of [switch] that limits it, and its description."""

    size: int
    key: str
    words: str


class Switch(ScenarioTable):
    """Every egress port of every switch; the hosts' NICs have the same queues.

    Strict priority: queue 0 is served first. A packet that does not fit into the port's buffer is dropped (tail drop).
    An ECN-capable packet is marked if the bytes that wait in its queue when it arrives, without its own, have reached
    the queue's ECN threshold K; with `selective_drop` a packet that is not ECN-capable (droppable) is dropped there
    [notes: the DSCP and ECN trick of Aeolus].
    """

    queues: Annotated[int, Field(ge=1, le=MAX_QUEUES, strict=True), conditions.MORE_QUEUES] = MAX_QUEUES
    drr_quantum: Annotated[
        Sizes | None,
        Precondition(lambda at: at.switch.queues > 1, "one queue takes no turns", "switch.queues above 1"),
        conditions.SEVERAL_CLASSES,
    ] = None
    """Deficit round robin: bytes per turn, one size for all queues that take turns or a list with one for each. The
    hosts' NICs stay strict. All queues are strict if absent."""
    drr_after: Natural = 0
    """Number of first queues that keep strict priority; the others take turns."""
    buffer: Annotated[Size, conditions.OWN_BUFFER, conditions.ALL_PAUSED] = Bytes(512 * 1024)
    """Bytes that all queues of one egress port hold together."""
    shared_buffer: Size | None = None
    """Bytes that all ports of a switch hold together, instead of `buffer` at each port."""
    buffer_alpha: Annotated[float, Field(gt=0, le=1024, strict=True), conditions.SHARED] = 1.0
    """A queue may hold this factor times the free part of the shared buffer (dynamic thresholds)."""
    buffer_share: Annotated[Shares | None, conditions.ALL_PAUSED] = None
    """Maximum fraction of the buffer for packets of one queue, one for all queues or a list with one for each, so that
    low classes cannot crowd high ones out: of `buffer` at each port, or of `shared_buffer` over all ports of a switch.
    Excess packets are dropped as with a full buffer. No limit if absent. Ours."""
    ecn_threshold: Annotated[Sizes | None, conditions.MARKS] = None
    """K, in bytes waiting in a queue: one size for all or a list with one per queue; no marking if absent."""
    ecn_ceiling: Size | None = None
    """Kmax: with it, marking (or selective drop) is random from ecn_threshold (Kmin) on and certain from here on."""
    ecn_probability: Annotated[float, Field(gt=0, le=1, strict=True), conditions.RAMP] = 1.0
    """Pmax: probability just below ecn_ceiling; it rises linearly from 0 at ecn_threshold."""
    selective_drop: Annotated[Flag, conditions.DROPPABLE] = False
    policy: Annotated[str, BeforeValidator(_policy), Field(json_schema_extra=examples("queue"))] | None = None
    """Decision of a queue on a packet that fits: accept, mark or drop it. If absent "threshold", by ecn_threshold, or
    "red" with ecn_ceiling. A user-defined policy sees the same state."""
    trim_threshold: Size | None = None
    """Above this many bytes in a queue a data packet is trimmed to its header, which goes into the queue of
    `trim_priority` and is dropped only if it does not fit there (NDP, SIGCOMM 2017). NDP: 8 full packets."""
    trim_priority: Annotated[Natural, conditions.TRIMS] = 0
    trim_size: Annotated[Size, conditions.TRIMS] = Bytes(64)
    """Bytes of a trimmed packet on the wire."""
    shortest_first: Flag = False
    """Within a queue, serve the packet of the message with the fewest remaining bytes first, and if the buffer is full
    drop the packet of the one with the most (pFabric, SIGCOMM 2013). Needs a transport that sends the remaining bytes.
    """
    pfc: Flag = False
    """Priority flow control (IEEE 802.1Qbb): a switch pauses a class at its neighbour before it would have to drop
    packets of it. `buffer`, `shared_buffer` and `buffer_share` then drop no packet of these classes."""
    pfc_threshold: Annotated[Size, conditions.PAUSES] = Bytes(64 * 1024)
    """Bytes of one class from one ingress link in the switch above which the far end is paused. With `shared_buffer` it
    is paused earlier if less than that is `buffer_alpha` times the free buffer. The amount accepted beyond stays the
    same: this threshold and the headroom."""
    pfc_hysteresis: Annotated[Size | None, conditions.PAUSES] = None
    """Bytes below the threshold at which it is resumed; two full packets if absent (ours)."""
    pfc_headroom: Annotated[Size | None, conditions.PAUSES] = None
    """Bytes accepted above the threshold until the far end has stopped. If absent, what can still arrive: the round
    trip of the cable and the packets in flight at both ends."""
    pfc_classes: Annotated[Annotated[tuple[int, ...], Field(min_length=1)] | None, conditions.PAUSES] = None
    """Queues with flow control; all if absent."""
    flowlet_gap: Annotated[PositiveTime, conditions.FLOWLETS, SEVERAL_PATHS, SEVERAL_SWITCHES] = Ps(50_000_000)
    """Flowlet balancing: a flow that was silent for longer may change its path (our choice of the default)."""
    aggregation_slots: Annotated[
        int,
        Field(ge=0, le=1 << 24, strict=True),
        Precondition(
            lambda at: any(job.exchange.aggregates for job in at.scenario.job),
            "no job's exchange uses switches that sum",
            "job.exchange.aggregation = true, or an exchange in the network",
        ),
    ] = 0
    """Slots in which a switch adds up packets of many workers for a server; an exchange with `aggregation` uses all of
    them (ATP and SwitchML, NSDI 2021). 0: switches do not sum."""
    aggregation_levels: Annotated[Literal[1, 2], conditions.SUMS, conditions.SEVERAL_SWITCHES] = 2
    """Levels of aggregation. 2: the switch of several workers sums theirs, and the server's switch sums those sums, as
    in ATP; results are copied in the same places. 1: the server's switch only."""
    path_entropies: Annotated[
        Annotated[int, Field(ge=1, le=1 << 16, strict=True)] | None, SEVERAL_PATHS, SEVERAL_SWITCHES
    ] = None
    """Where hosts choose paths: number of entropies that a message chooses from. source_random, source_round_robin and
    reps draw each of them at random, from 65,536 if absent; oblivious, bitmap and mixed number them (a power of two up
    to 128), 64 if absent as in htsim [code]."""
    override: tuple[PortOverride, ...] = ()
    """Ports whose queues differ; a list of tables."""

    def conflicts(self) -> Iterator[Mistake]:
        if self.ecn_ceiling is not None and self.ecn_threshold is None:
            what = "needs a threshold below it"
            yield Mistake("ecn_ceiling", what, format_size(self.ecn_ceiling), "ecn_threshold as well")
        elif self.ecn_ceiling is not None and self.ecn_ceiling <= max(self.ecn_threshold or ()):
            expected = f"more than {format_size(max(self.ecn_threshold or ()))}"
            yield Mistake("ecn_ceiling", "is not above ecn_threshold", format_size(self.ecn_ceiling), expected)
        yield from self._quanta_conflicts()
        if self.policy == "red" and self.ecn_ceiling is None:
            yield Mistake("policy", "needs an upper threshold", "red", "ecn_ceiling as well")
        if self.policy == "threshold" and self.ecn_ceiling is not None:
            yield Mistake("policy", "ignores ecn_ceiling", "threshold", '"red", or no ecn_ceiling')
        for index, override in enumerate(self.override):
            for key in override.changes():
                if key == "buffer" and (self.shared_buffer or self.buffer_share):
                    what = f"has no effect with {'shared_buffer' if self.shared_buffer else 'buffer_share'}"
                    yield Mistake(
                        f"override[{index}].buffer", what, format_size(override.buffer or 0), "no buffer here"
                    )
                elif getattr(self, key) is None and getattr(override, key, None) is not None:
                    what = f"changes what [switch] does not have: {key}"
                    value = format_size(getattr(override, key))
                    yield Mistake(f"override[{index}].{key}", what, value, f"switch.{key} as well")
            for mistake in self.at_ports([index]).conflicts():
                yield replace(mistake, path=f"override[{index}].{mistake.path}")

    def at_ports(self, overrides: Iterable[int]) -> Switch:
        """Return the settings of ports to which these overrides, by index, apply."""
        changes: dict[str, Any] = {"override": ()}
        for index in overrides:
            changes |= self.override[index].changes()
        return self.model_copy(update=changes)

    def _quanta_conflicts(self) -> Iterator[Mistake]:
        if self.drr_quantum is None:
            if self.drr_after:
                yield Mistake("drr_after", "has no effect without turns", self.drr_after, "drr_quantum as well")
            return
        turns = self.queues - self.drr_after
        if turns < 1:
            what = f"leaves none of {self.queues} queues"
            yield Mistake("drr_after", what, self.drr_after, f"less than {self.queues}")
        if not fits(self.drr_quantum, turns):
            what = f"has {count_text(self.drr_quantum)} for {turns} queues that take turns"
            expected = f"one size without brackets, or a list of {turns}"
            yield Mistake("drr_quantum", what, [format_size(size) for size in self.drr_quantum], expected)
        if min(self.drr_quantum) < 64:
            what = "is less than a packet can be"
            expected = "at least 64B; about a full packet, such as 4KiB"
            yield Mistake("drr_quantum", what, format_size(min(self.drr_quantum)), expected)

    @property
    def queue_policy(self) -> str:
        """Name of the policy for packets that fit."""
        return self.policy or ("threshold" if self.ecn_ceiling is None else "red")

    def quanta(self) -> tuple[int, ...] | None:
        """Return the bytes per turn of every queue, 0 = strict priority; None if all are strict."""
        if self.drr_quantum is None:
            return None
        turns = self.queues - self.drr_after
        sizes = self.drr_quantum if len(self.drr_quantum) == turns else self.drr_quantum * turns
        return (0,) * self.drr_after + sizes

    def shared(self) -> tuple[int, float] | None:
        """Return the bytes of the shared buffer, and alpha; None if every port has its own."""
        return None if self.shared_buffer is None else (self.shared_buffer, self.buffer_alpha)

    def limits(self) -> tuple[int, ...] | None:
        """Return the bytes that every queue may hold of its port's buffer, or of the shared one over all ports; None:
        no limit."""
        if self.buffer_share is None:
            return None
        room = self.buffer if self.shared_buffer is None else self.shared_buffer
        shares = self.buffer_share if len(self.buffer_share) == self.queues else self.buffer_share * self.queues
        return tuple(allowed_loss(room, share) for share in shares)

    def queue_capacity(self, queue: int) -> QueueCapacity | None:
        """Return the capacity of one queue of a port in bytes; None if flow control limits its senders instead. A queue
        alone in a shared buffer ends up with alpha / (1 + alpha) of it, since it may hold alpha times the free bytes
        (Choudhury and Hahne, ToN 1998)."""
        if self.pfc and (self.pfc_classes is None or queue in self.pfc_classes):
            return None
        if self.shared_buffer is None:
            whole = QueueCapacity(self.buffer, "buffer", "switch.buffer")
        else:
            most = int(self.shared_buffer * self.buffer_alpha / (1 + self.buffer_alpha))
            whole = QueueCapacity(most, "shared_buffer", "what buffer_alpha leaves one queue of switch.shared_buffer")
        limits = self.limits()
        if limits is None or queue >= len(limits) or limits[queue] >= whole.size:
            return whole
        return QueueCapacity(limits[queue], "buffer_share", "what buffer_share leaves it")

    def queue_capacities(self) -> list[QueueCapacity]:
        """Return the capacities of all queues that have one (see `room`)."""
        return [room for room in map(self.queue_capacity, range(self.queues)) if room is not None]

    def ramp(self) -> tuple[int, float] | None:
        """Return Kmax in bytes and Pmax; None if the threshold is a step."""
        return None if self.ecn_ceiling is None else (self.ecn_ceiling, self.ecn_probability)

    def thresholds(self) -> tuple[int, ...] | None:
        """Return K of every queue, bytes; None if nothing is marked or selectively dropped."""
        if self.ecn_threshold is None or len(self.ecn_threshold) == self.queues:
            return self.ecn_threshold
        return self.ecn_threshold * self.queues


class HostTable(ScenarioTable):
    """Every host."""

    software_latency: Time = Ps(2_000_000)
    """From a job's decision to send to the first byte at the NIC. Also the lookahead between jobs and network, so it
    must be at least the time of the smallest packet over the shortest link."""
    gpus: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Accelerators in each of the topology's hosts. With more than one, each of them is a host to jobs and traffic,
    named h0.gpu0, h0.gpu1, ...: a worker is an accelerator. If a host has as many NICs, rail i serves accelerator i;
    accelerators share fewer NICs."""
    scale_up_rate: Annotated[Rate, conditions.SEVERAL_GPUS] = Bps(3_600_000_000_000)
    """Rate, each way, of the cable between an accelerator and its host's scale-up switch, which carries traffic between
    accelerators of one host: 450 GB/s of NVLink 4 [recalled]."""
    scale_up_latency: Annotated[Time, conditions.SEVERAL_GPUS] = Ps(500_000)
    """Propagation delay of one such cable; ours."""
    pcie_rate: Annotated[Rate, conditions.SEVERAL_GPUS] = Bps(504_000_000_000)
    """Rate, each way, of the cable between an accelerator and the switch of a shared NIC: 16 lanes of PCIe 5 [derived].
    """
    pcie_latency: Annotated[Time, conditions.SEVERAL_GPUS] = Ps(500_000)
    """Propagation delay of one such cable; ours."""

    @property
    def inside(self) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
        """Accelerators of a machine, and rate and latency of a scale-up and of a PCIe cable; None with one accelerator
        per host."""
        if self.gpus == 1:
            return None
        return self.gpus, (self.scale_up_rate, self.scale_up_latency), (self.pcie_rate, self.pcie_latency)
