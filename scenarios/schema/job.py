"""Training jobs: who exchanges which gradients, how, and with how much loss allowed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Natural, Table, refuse
from gradwire.scenarios.schema.policy import Tagging
from gradwire.scenarios.schema.transport import AnyTransport
from gradwire.scenarios.units import Bytes, Fraction, Ps, Rate, Size, Time, format_size

HostNames = tuple[Annotated[str, Field(min_length=1)], ...]


class HostPlacement(Table):
    """Named hosts, in the order of the workers and of the servers."""

    union_tag: ClassVar[str] = "hosts"

    workers: HostNames
    servers: HostNames = ()

    @model_validator(mode="after")
    def _distinct(self) -> HostPlacement:
        for role, names in (("workers", self.workers), ("servers", self.servers)):
            if len(set(names)) != len(names):
                raise refuse(role, "names a host twice", list(names), "distinct hosts")
        return self


def _placement_tag(value: Any) -> str:
    return "rule" if isinstance(value, str) else "hosts"


Placement = Annotated[
    Annotated[Literal["packed", "spread", "random"], Tag("rule")] | Annotated[HostPlacement, Tag("hosts")],
    Discriminator(_placement_tag),
]


class ParameterServer(Table):
    """Workers push gradients to servers and pull the sum back; every tensor partition has one server."""

    kind: Literal["parameter_server"]
    pull: Literal["layerwise", "barrier"] = "layerwise"
    """Forward of a layer waits for that layer's tensors only, or for all of them."""
    colocated: Flag = False
    """Servers on the workers' hosts rather than on hosts of their own."""
    partition: Size = Bytes(4 * 2**20)
    """Largest message: longer tensors are cut, and the parts spread over the servers."""
    server_rate: Rate | None = None
    """Bandwidth at which a server adds up what it receives; free if absent."""

    @model_validator(mode="after")
    def _whole_values(self) -> ParameterServer:
        if self.partition % 4:
            raise refuse(
                "partition", "cuts a float32 value", format_size(self.partition), "a multiple of 4 bytes"
            )
        return self


class Ring(Table):
    """Ring all-reduce of buckets of tensors: 2(N-1) steps of a bucket's N-th part each."""

    kind: Literal["ring"]
    bucket: Size = Bytes(25 * 2**20)
    """Tensors are gathered into buckets of about this size, 25 MiB in PyTorch DDP [code]."""


Exchange = Annotated[ParameterServer | Ring, Field(discriminator="kind")]


class Job(Table):
    """One data-parallel training job: `workers` replicas that replay a trace and exchange its gradients."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    trace: Annotated[str, Field(min_length=1)]
    """Name of a bundled trace, or path of a trace directory relative to the scenario file."""
    phase: Annotated[str, Field(min_length=1)] | None = None
    """Which captured part of training to replay, as the trace names it; all captured iterations if absent."""
    iterations: Count = 5
    """Iterations to replay; the captured ones are repeated in order if there are fewer."""
    workers: Count
    servers: Natural = 0
    """Parameter servers; only with that exchange."""
    placement: Placement = "packed"
    """packed: hosts in order; spread: dealt over the switches in turn; random: any hosts; or hosts by name."""
    compute_scale: Annotated[float, Field(ge=0, le=1000, strict=True)] = 1.0
    """Factor on the trace's compute times: 0.5 is a worker twice as fast; 0 leaves communication alone."""
    jitter: Annotated[float, Field(ge=0, le=3, strict=True)] = 0.0
    """Sigma of a log-normal factor on compute time, drawn per worker and iteration."""
    start: Time = Ps(0)
    transport: AnyTransport | None = None
    """What carries its messages, a name or a table; that of the scenario if absent."""
    exchange: Exchange
    order: Literal["fifo", "layer"] = "fifo"
    """Which waiting message a host sends first: fifo sends all at once, as they become ready, and leaves their order to
    the queues of the network; layer holds messages back, and releases those of the frontmost layers first."""
    credit: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 4
    """With order = "layer": as many partitions (in a ring: parts of buckets) may be under way. Ours; ByteScheduler
    tunes it [notes]."""
    credit_per: Literal["host", "destination"] = "host"
    """Whether a host has this credit once, over all its destinations, or for each of them: over all, a destination that
    is slow holds up the others."""
    tagging: Tagging = Tagging()
    push_bound: Fraction = 0.0
    """Share of a message's bytes that may be lost on the way to a server (in a ring: in reduce-scatter)."""
    pull_bound: Fraction = 0.0
    """The same on the way back (in a ring: in all-gather)."""
    pull_important: Flag = True
    """Whether all packets of the way back are important: they carry aggregates of all workers [notes]."""

    @model_validator(mode="after")
    def _roles_match(self) -> Job:
        exchange, placement = self.exchange, self.placement
        if isinstance(exchange, ParameterServer) and self.servers == 0:
            raise refuse("servers", "is zero, but the exchange is by parameter server", 0, "at least one")
        if isinstance(exchange, Ring):
            if self.servers:
                raise refuse("servers", "has no meaning in a ring", self.servers, "no servers")
            if self.workers < 2:
                raise refuse("workers", "makes no ring", self.workers, "at least two workers")
        if isinstance(placement, HostPlacement):
            for role, count in (("workers", self.workers), ("servers", self.servers)):
                named = len(getattr(placement, role))
                if named != count:
                    what = f"names {named} hosts for {count} {role}"
                    raise refuse(f"placement.{role}", what, named, f"{count}")
        return self
