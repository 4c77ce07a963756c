"""Training jobs: who exchanges which gradients, how, and with how much loss allowed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Mistakes, Natural, Table, refuse
from gradwire.scenarios.schema.bound import AnyBound, most_of
from gradwire.scenarios.schema.chosen import NAME_ALONE, Chosen
from gradwire.scenarios.schema.effect_conditions import PACKETS, Needs, Situation
from gradwire.scenarios.schema.exchange import ExchangeTable
from gradwire.scenarios.schema.parallel import ModelSplit
from gradwire.scenarios.schema.policy import Tagging
from gradwire.scenarios.schema.scheduler import SchedulerTable
from gradwire.scenarios.schema.transport import AnyTransport
from gradwire.scenarios.units import Fraction, Ps, Time

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
    Annotated[Literal["packed", "spread", "random", "rails"], Tag("rule")] | Annotated[HostPlacement, Tag("hosts")],
    Discriminator(_placement_tag),
]

AnyExchange = Annotated[ExchangeTable, Chosen("exchange")]
AnyScheduler = Annotated[SchedulerTable, Chosen("scheduler"), NAME_ALONE]


def _may_lose(at: Situation, back: bool) -> bool:
    """Return True if some packet of a way may be lost for good: not each is important and has to arrive."""
    tagging, transport = at.table.tagging, at.transport
    if ":" in transport.kind or not transport.keeps_important or not transport.ecn_capable:
        return True
    return bool(tagging.magnitude and not (back and at.table.pull_important))


def _is_lossy(at: Situation) -> bool:
    """Return True if a bound of the job allows loss."""
    return max(most_of(at.table.push_bound), most_of(at.table.pull_bound)) > 0


def _most_differs(at: Situation) -> bool:
    """Return True if a message may lose something else at most than with the default of bound_most."""
    most, default = at.table.bound_most, type(at.table).model_fields["bound_most"].default
    return any(
        not isinstance(bound, float) or (bound > 0 and max(most, bound) != max(default, bound))
        for bound in (at.table.push_bound, at.table.pull_bound)
    )


NOT_IMPORTANT = "all packets are important and have to arrive, so that nothing may be lost"
TAGS = "job.tagging.magnitude = true, or important_must_arrive = false in the transport"
BOUNDED = Needs(_is_lossy, "no bound allows any loss", "job.push_bound or job.pull_bound above 0")
COMPUTES = Needs(
    lambda at: at.table.compute_scale > 0, "computing takes no time", "job.compute_scale above 0"
)
WORKERS_UPDATE = Needs(
    lambda at: at.table.parallel is not None or at.table.exchange.workers_update, "no worker makes an optimiser step",
    "an exchange without servers, such as ring",
)
OF_TIMES = Needs(
    lambda at: not at.is_trained() or at.scenario.training.takes_time,
    "it is of a run; no times of the trace are taken", 'training.compute = "trace"',
)
IN_LAYERS = Needs(lambda at: at.table.order == "layer", "no message is held back", 'job.order = "layer"')
LEARNS = Needs(
    lambda at: at.scenario.training is not None, "a run replays times, and learns nothing from values",
    "a table [training]",
)
LOSES = Needs(
    lambda at: not at.is_trained() or at.scenario.training.network != "ideal", "an ideal network loses nothing",
    "another training.network",
)
OF_A_RUN = Needs(
    lambda at: at.scenario.training is None, "it is of a run; the clock of a training run begins with the first step",
    "gradwire run",
)
OF_A_TRACE = Needs(
    lambda at: at.scenario.training is None or at.scenario.training.compute == "trace",
    "it is of a run; no times of the trace are taken", 'training.compute = "trace"',
)


class Job(Table):
    """One data-parallel training job: `workers` replicas that replay a trace and exchange its gradients."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    trace: Annotated[str, Field(min_length=1)]
    """Name of a bundled trace, or path of a trace directory relative to the scenario file."""
    phase: Annotated[Annotated[str, Field(min_length=1)] | None, OF_A_TRACE] = None
    """Which captured part of training to replay, as the trace names it; all captured iterations if absent."""
    iterations: Annotated[Count, OF_TIMES] = 5
    """Iterations to replay; the captured ones are repeated in order if there are fewer."""
    workers: Count
    servers: Natural = 0
    """Parameter servers; only with that exchange."""
    placement: Placement = "packed"
    """packed: hosts in order; spread: dealt over the switches in turn; random: any hosts; rails: the first accelerator
    of every host, then the second of every one; or hosts by name. All accelerators of a host follow one another but for
    the last two."""
    compute_scale: Annotated[float, Field(ge=0, le=1000, strict=True), OF_TIMES] = 1.0
    """Factor on the trace's compute times: 0.5 is a worker twice as fast; 0 leaves communication alone, and all
    gradients of an iteration are ready at one time (see `order`)."""
    optimizer: Annotated[Time | None, WORKERS_UPDATE, PACKETS] = None
    """How long the optimiser step of all parameters takes where workers make it, whatever `compute_scale` says; as
    captured, and scaled, unless given. Where servers update parameters (`parameter_server`, `in_network`), that takes
    no time."""
    accumulate: Annotated[int, Field(ge=1, le=1 << 16, strict=True)] = 1
    """Gradient accumulation: an iteration computes so many micro-batches, each a captured forward and backward pass,
    before its gradients are exchanged, with the last one. At most 65,536: what workers do in an iteration is laid out
    at once, about 60 bytes for each gradient of each micro-batch."""
    jitter: Annotated[float, Field(ge=0, le=3, strict=True), COMPUTES, OF_TIMES] = 0.0
    """Sigma of a log-normal factor on compute time, drawn per worker and iteration."""
    start: Annotated[Time, OF_A_RUN] = Ps(0)
    transport: AnyTransport | None = None
    """What carries its messages, a name or a table; that of the scenario if absent."""
    exchange: AnyExchange
    parallel: ModelSplit | None = None
    """Into how many parts the model is split; all workers have all of it, and exchange gradients only, if absent."""
    scheduler: AnyScheduler | None = None
    """When and in which order gradients are communicated, a name or a table; `order`, `credit` and `credit_per` say so
    if absent."""
    order: Literal["fifo", "layer"] = "fifo"
    """Which waiting message a host sends first: fifo sends all at once, as they become ready, and leaves their order to
    the queues of the network; layer holds messages back, and releases those of the frontmost layers first. Of
    messages that are ready at the same time, as all of an iteration are with compute_scale = 0, fifo starts those of
    the front layers first; for layer they become ready in the order in which the trace has them, back layers first
    (front layers first where it has all of them at one time), and what the credit allows is released at once."""
    credit: Annotated[int, Field(ge=1, le=1 << 20, strict=True), IN_LAYERS] = 4
    """With order = "layer": as many partitions (in a ring: parts of buckets) may be under way. Ours; ByteScheduler
    tunes it [notes]."""
    credit_per: Annotated[Literal["host", "destination"], IN_LAYERS] = "host"
    """Whether a host has this credit once, over all its destinations, or for each of them: over all, a destination that
    is slow holds up the others."""
    tagging: Tagging = Tagging()
    push_bound: Annotated[AnyBound, Needs(lambda at: _may_lose(at, False), NOT_IMPORTANT, TAGS, "on the run")] = 0.0
    """Share of a message's bytes that may be lost on the way to a server (in a ring: in reduce-scatter): a number, or a
    table that says it by layer and phase of training (below)."""
    pull_bound: Annotated[
        AnyBound,
        Needs(lambda at: _may_lose(at, True), NOT_IMPORTANT, f"{TAGS}; job.pull_important = false, too", "on the run"),
    ] = 0.0
    """The same on the way back (in a ring: in all-gather)."""
    bound_per: Annotated[Literal["message", "exchange", "step"], BOUNDED] = "message"
    """What the bound holds for. exchange: for all messages together that values go through on their way, on average
    over the workers, so that each may lose a part of it: in a ring of N workers 2/(N-1) of it [notes], and never more
    than all of it; with servers values go through one message, and it is the same as message. step: for all messages
    together that go in one iteration, one way, from one host to one other; what those before have not lost of their
    bounds, the next one may, if it may lose anything. A transport that delivers with losses before all is sent leaves
    little over: dlcp wants stop_policy = "on_probe". Ours."""
    bound_most: Annotated[
        Fraction,
        Needs(lambda at: at.table.bound_per == "step", "bounds hold for messages by themselves",
              'job.bound_per = "step"'),
        Needs(_most_differs, "the bound itself is larger, as it is than the default", "more than the bound"),
    ] = 0.5
    """With bound_per = "step": no message loses more than this, or than its own bound, so that none is lost as a whole
    unless this is 1. Ours."""
    fill: Annotated[Literal["zero", "rescaled", "stale"], LEARNS, LOSES] = "zero"
    """What stands for values that are lost on the way to a server (in a ring: in reduce-scatter), where they are added
    up: zero adds nothing [notes]; rescaled divides by the number of workers whose value has arrived and not by that of
    all, so that the mean has no bias; stale takes the worker's value of the last iteration. Replaying does not depend
    on it; training does. The testbed adds zeros."""
    pull_fill: Annotated[Literal["stale", "zero"], LEARNS, LOSES] = "stale"
    """What stands for values that are lost on the way back: those of the last iteration [notes], or zero."""
    pull_important: Annotated[
        Flag,
        Needs(lambda at: at.table.tagging.magnitude, "packets are not tagged by magnitude",
              "job.tagging.magnitude = true"),
    ] = True
    """With magnitude tagging: whether all packets of the way back are important, because they carry aggregates of all
    workers [notes]."""

    @model_validator(mode="after")
    def _roles_match(self) -> Job:
        exchange, placement = self.exchange, self.placement
        parallel = self.parallel
        # of a split model it is known what exchanges gradients when the trace has been looked at
        mistakes = list(exchange.misfits(self) if parallel is None else parallel.misfits(self))
        if self.scheduler is not None and all(each.path != "scheduler" for each in mistakes):
            mistakes += self.scheduler.misfits(self)
        if mistakes:
            raise Mistakes(mistakes)
        if isinstance(placement, HostPlacement):
            for role, count in (("workers", self.workers), ("servers", self.servers)):
                named = len(getattr(placement, role))
                if named != count:
                    what = f"names {named} host{'s' * (named != 1)} for {count} {role}"
                    raise refuse(f"placement.{role}", what, named, f"{count}")
        return self
