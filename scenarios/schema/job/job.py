"""Declares the scenario's [[job]] table of training jobs, with workers, gradient exchange, loss bounds and placement,
and its checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Flag, Mistakes, Natural, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import PACKETS, Precondition, TableContext
from gradwire.scenarios.schema.job.exchange import ExchangeTable
from gradwire.scenarios.schema.job.loss_bound import AnyBound, largest_bound_of_sender
from gradwire.scenarios.schema.job.parallel import ModelSplit
from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.scenarios.schema.kinds import NAME_ALONE, ComponentByKind
from gradwire.scenarios.schema.network.transport import AnyTransport
from gradwire.scenarios.schema.policy import Tagging
from gradwire.scenarios.units import Fraction, Ps, Time

HostNames = tuple[Annotated[str, Field(min_length=1)], ...]


class HostPlacement(ScenarioTable):
    """Named hosts, in the order of the workers and of the servers."""

    union_tag: ClassVar[str] = "hosts"

    workers: HostNames
    servers: HostNames = ()

    def conflicts(self) -> Iterator[Mistake]:
        for role, names in (("workers", self.workers), ("servers", self.servers)):
            if len(set(names)) != len(names):
                yield Mistake(role, "names a host twice", list(names), "distinct hosts")


Placement = Annotated[
    Annotated[Literal["packed", "spread", "random", "rails"], Tag("rule")] | Annotated[HostPlacement, Tag("hosts")],
    Discriminator(lambda value: "rule" if isinstance(value, str) else "hosts"),
]

AnyExchange = Annotated[ExchangeTable, ComponentByKind("exchange")]
AnyScheduler = Annotated[SchedulerTable, ComponentByKind("scheduler"), NAME_ALONE]


def _may_lose(at: TableContext, back: bool) -> bool:
    """Return True if a packet in this direction may be lost for good, that is, if not all must arrive."""
    tagging, transport = at.table.tagging, at.transport
    if ":" in transport.kind or not transport.keeps_important or not transport.ecn_capable:
        return True
    return bool(tagging.magnitude and not (back and at.table.pull_important))


def _most_differs(at: TableContext) -> bool:
    """Return True if bound_most changes the largest loss of a message, compared with its default."""
    most, default = at.table.bound_most, type(at.table).model_fields["bound_most"].default
    return any(
        not isinstance(bound, float) or (bound > 0 and max(most, bound) != max(default, bound))
        for bound in (at.table.push_bound, at.table.pull_bound)
    )


NOT_IMPORTANT = "all packets are important and must arrive, so nothing may be lost"
TAGS = "job.tagging.magnitude = true, or important_must_arrive = false in the transport"
BOUNDED = Precondition(
    lambda at: largest_bound_of_sender(at.table) > 0,
    "no bound allows any loss",
    "job.push_bound or job.pull_bound above 0",
)
COMPUTES = Precondition(lambda at: at.table.compute_scale > 0, "computing takes no time", "job.compute_scale above 0")
WORKERS_UPDATE = Precondition(
    lambda at: at.table.parallel is not None or at.table.exchange.workers_update,
    "no worker makes an optimiser step",
    "an exchange without servers, such as ring",
)
OF_TIMES = Precondition(
    lambda at: not at.is_trained() or at.scenario.training.has_compute_times,
    "it applies to runs; training uses no times of the trace",
    'training.compute = "trace"',
)
IN_LAYERS = Precondition(lambda at: at.table.order == "layer", "no message is held back", 'job.order = "layer"')
LEARNS = Precondition(
    lambda at: at.scenario.training is not None, "a run replays times and does not use values", "a table [training]"
)
LOSES = Precondition(
    lambda at: not at.is_trained() or at.scenario.training.network != "ideal",
    "an ideal network loses nothing",
    "another training.network",
)
OF_A_RUN = Precondition(
    lambda at: at.scenario.training is None,
    "it applies to runs; the clock of a training run begins with the first step",
    "gradwire run",
)
OF_A_TRACE = Precondition(
    lambda at: at.scenario.training is None or at.scenario.training.compute == "trace",
    "it applies to runs; training uses no times of the trace",
    'training.compute = "trace"',
)


class Job(ScenarioTable):
    """One data-parallel training job: `workers` replicas that replay a trace and exchange its gradients."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    trace: Annotated[str, Field(min_length=1)]
    """Name of a bundled trace, or path of a trace directory relative to the scenario file."""
    phase: Annotated[Annotated[str, Field(min_length=1)] | None, OF_A_TRACE] = None
    """Captured phase of training to replay, as named in the trace; all captured iterations if absent."""
    iterations: Annotated[Count, OF_TIMES] = 5
    """Iterations to replay; the captured ones are repeated in order if there are fewer."""
    workers: Count
    servers: Natural = 0
    """Parameter servers; only with that exchange."""
    placement: Placement = "packed"
    """packed: hosts in order; spread: dealt over the switches in turn; random: any hosts; rails: the first accelerator
    of every host, then the second of every one; or hosts by name. All but the last two keep the accelerators of a host
    together."""
    compute_scale: Annotated[float, Field(ge=0, le=1000, strict=True), OF_TIMES] = 1.0
    """Factor on the trace's compute times: 0.5 is a worker twice as fast; 0 leaves communication alone, and all
    gradients of an iteration are ready at one time (see `order`)."""
    optimizer: Annotated[Time | None, WORKERS_UPDATE, PACKETS] = None
    """Duration of the optimiser step of all parameters, if workers make it, independent of `compute_scale`; as
    captured, and scaled, if absent. Where servers update parameters (`parameter_server`, `in_network`), the update
    takes no time."""
    accumulate: Annotated[int, Field(ge=1, le=1 << 16, strict=True)] = 1
    """Gradient accumulation: micro-batches of an iteration, each a captured forward and backward pass; gradients are
    exchanged with the last one. At most 65,536: the schedule of an iteration is created at once, about 60 bytes for
    each gradient of each micro-batch."""
    jitter: Annotated[float, Field(ge=0, le=3, strict=True), COMPUTES, OF_TIMES] = 0.0
    """Sigma of a log-normal factor on compute time, drawn per worker and iteration."""
    start: Annotated[Time, OF_A_RUN] = Ps(0)
    transport: AnyTransport | None = None
    """Transport of its messages, a name or a table; that of the scenario if absent."""
    exchange: AnyExchange
    parallel: ModelSplit | None = None
    """Partition of the model over workers; if absent, every worker has the whole model and exchanges gradients only."""
    scheduler: AnyScheduler | None = None
    """Time and order of communication, a name or a table; set by `order`, `credit` and `credit_per` if absent."""
    order: Literal["fifo", "layer"] = "fifo"
    """Order in which a host sends waiting messages. fifo: all at once, as they become ready, leaving their order to the
    queues of the network; layer: holds messages back, and releases those of the frontmost layers first. Of messages
    that are ready at the same time, as all of an iteration are with compute_scale = 0, fifo starts those of the front
    layers first; with layer they become ready in the order of the trace, back layers first (front layers first if the
    trace has all of them at one time), and messages within the credit are released at once."""
    credit: Annotated[int, Field(ge=1, le=1 << 20, strict=True), IN_LAYERS] = 4
    """With order = "layer": partitions (in a ring: parts of buckets) in flight. Ours; ByteScheduler tunes it [notes].
    """
    credit_per: Annotated[Literal["host", "destination"], IN_LAYERS] = "host"
    """host: one credit over all destinations of a host, where a slow destination delays the others; destination: one
    for each of them."""
    tagging: Tagging = Tagging()
    push_bound: Annotated[
        AnyBound, Precondition(lambda at: _may_lose(at, False), NOT_IMPORTANT, TAGS, "on the run")
    ] = 0.0
    """Share of a message's bytes that may be lost on the way to a server (in a ring: in reduce-scatter): a number, or a
    table by layer and phase of training (below)."""
    pull_bound: Annotated[
        AnyBound,
        Precondition(
            lambda at: _may_lose(at, True), NOT_IMPORTANT, f"{TAGS}; job.pull_important = false, too", "on the run"
        ),
    ] = 0.0
    """The same on the way back (in a ring: in all-gather)."""
    bound_per: Annotated[Literal["message", "exchange", "step"], BOUNDED] = "message"
    """Scope of the bound. exchange: all messages on the way of a value together, as a mean over the workers. Each
    message has a part of the bound: in a ring of N workers 2/(N-1) of it [notes], and at most all of it. With servers,
    a value is in one message, so it equals message. step: all messages of one iteration, in
    one direction, from one host to another; loss that earlier messages have left unused may be used by the next one, if
    it may lose anything. A transport that delivers with losses before all is sent leaves little for others: dlcp needs
    stop_policy = "on_probe". Ours."""
    bound_most: Annotated[
        Fraction,
        Precondition(
            lambda at: at.table.bound_per == "step", "bounds apply to single messages", 'job.bound_per = "step"'
        ),
        Precondition(_most_differs, "the bound is larger than both it and the default", "more than the bound"),
    ] = 0.5
    """With bound_per = "step": no message loses more than this, or than its own bound, so that none is lost as a whole
    unless this is 1. Ours."""
    fill: Annotated[Literal["zero", "rescaled", "stale"], LEARNS, LOSES] = "zero"
    """Replacement of values lost on the way to a server (in a ring: in reduce-scatter), where they are added up: zero
    adds nothing [notes]; rescaled divides by the number of workers whose value has arrived instead of all, so that the
    mean is unbiased; stale uses the worker's value of the last iteration. It affects training but not replay. The
    testbed adds zeros."""
    pull_fill: Annotated[Literal["stale", "zero"], LEARNS, LOSES] = "stale"
    """Replacement of values lost on the way back: those of the last iteration [notes], or zero."""
    pull_important: Annotated[
        Flag,
        Precondition(
            lambda at: at.table.tagging.magnitude, "packets are not tagged by magnitude", "job.tagging.magnitude = true"
        ),
    ] = True
    """With magnitude tagging: make all packets of the way back important, because they carry aggregates of all workers
    [notes]."""

    def conflicts(self) -> Iterator[Mistake]:
        exchange, placement = self.exchange, self.placement
        parallel = self.parallel
        # for a split model, the trace determines which workers exchange gradients
        mistakes = list(exchange.misfits(self) if parallel is None else parallel.misfits(self))
        if self.scheduler is not None and all(each.path != "scheduler" for each in mistakes):
            mistakes += self.scheduler.misfits(self)
        if mistakes:
            raise Mistakes(mistakes)
        if isinstance(placement, HostPlacement):
            for role, count in (("workers", self.workers), ("servers", self.servers)):
                hosts = len(getattr(placement, role))
                if hosts != count:
                    what = f"names {hosts} host{'s' * (hosts != 1)} for {count} {role}"
                    yield Mistake(f"placement.{role}", what, hosts, f"{count}")
