"""Declares the scenario's table `[training]`, the model, data, optimiser, reducer and network of `gradwire train`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Flag, Natural, ScenarioTable, single_mistake
from gradwire.scenarios.schema.effect_conditions import PACKETS, Precondition
from gradwire.scenarios.schema.kinds import ComponentByKind
from gradwire.scenarios.units import Fraction, format_rate, format_time


class UserReducer(ScenarioTable):
    """User-defined reducer, a class derived from `gradwire.training.reducers.base.Reducer`. Its fields are the other
    keys of the table, and checked."""

    model_config = ConfigDict(extra="allow")
    union_tag: ClassVar[str] = "user"

    kind: Annotated[str, Field(min_length=1)]
    """"module:Class"; the module lies beside the scenario file, or in the folder `modules`."""


AnyReducer = Annotated[ScenarioTable, ComponentByKind("reducer", own=UserReducer)]
AnySystem = Annotated[ScenarioTable, ComponentByKind("system")]

Number = Annotated[float, Field(ge=0, le=1e6, strict=True)]


Beta = Annotated[float, Field(ge=0, lt=1, strict=True)]


class Optimizer(ScenarioTable):
    """Optimiser: stochastic gradient descent with momentum, or Adam."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """adamw: Adam with decoupled weight decay (Loshchilov and Hutter, ICLR '19), as in torch."""
    rate: Annotated[float, Field(gt=0, le=1e3, strict=True)] = 0.1
    """Peak learning rate; for adamw typically 0.001."""
    schedule: Literal["triangle", "constant", "steps"] = "triangle"
    """triangle: linearly up for the first `rise` of the steps, and down to zero; steps: a tenth after half, a hundredth
    after three quarters of them."""
    rise: Annotated[
        float,
        Field(gt=0, lt=1, strict=True),
        Precondition(lambda at: at.table.schedule == "triangle", "the rate does not rise", 'schedule = "triangle"'),
    ] = 0.3
    """Share of the steps in which a triangle rises."""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """For sgd; 0 with `momentum_correction`."""
    nesterov: Flag = False
    """For sgd: Nesterov momentum."""
    betas: Annotated[tuple[Beta, ...], Field(min_length=2, max_length=2)] = (0.9, 0.999)
    """For adamw: weights of the past in the mean of gradients, and in that of their squares."""
    epsilon: Annotated[float, Field(gt=0, le=1, strict=True)] = 1e-8
    """For adamw: added to the root of the mean of squares."""
    weight_decay: Number = 1e-4
    """sgd: share of a parameter that is added to its gradient; adamw: share, times `rate`, that is subtracted from it.
    """
    clip: Number = 0.0
    """Maximum norm of the mean gradient; 0: no clipping."""

    def conflicts(self) -> Iterator[Mistake]:
        others = ("betas", "epsilon") if self.kind == "sgd" else ("momentum", "nesterov")
        for name in others:
            if name in self.model_fields_set:
                kind = "adamw" if self.kind == "sgd" else "sgd"
                yield Mistake(name, f"is not a key of {self.kind}", getattr(self, name), f'kind = "{kind}"')
        if self.nesterov and not self.momentum:
            yield Mistake("nesterov", "needs momentum", True, "momentum above 0")

    @property
    def remembers(self) -> bool:
        """True if it averages gradients over time, which reducers may do themselves."""
        return self.kind == "adamw" or self.momentum > 0

    @property
    def is_memoryless(self) -> str:
        """Setting of an optimiser without memory, for messages."""
        return "optimizer.momentum = 0" if self.kind == "sgd" else 'optimizer = { kind = "sgd", momentum = 0 }'


ANY_LOSS = Precondition(lambda at: at.table.loss > 0, "no packet is lost", "loss above 0")


class RandomLoss(ScenarioTable):
    """Random packet loss instead of a network; communication takes no time then."""

    union_tag: ClassVar[str] = "rule"

    loss: Fraction
    """Loss probability of a packet."""
    layers: Annotated[Literal["all", "front", "back"], ANY_LOSS] = "all"
    """Layers with loss: all, or the front or back half."""
    magnitudes: Annotated[Literal["all", "small", "large"], ANY_LOSS] = "all"
    """Packets of each tensor that may be lost: all, or the half with the smaller or larger mean magnitude."""
    burst: Annotated[
        float,
        Field(ge=1, le=1e4, strict=True),
        ANY_LOSS,
        Precondition(
            lambda at: not (at.table.last or at.table.quota),
            "each tensor loses a fixed number of packets",
            "last = false and quota = false",
        ),
    ] = 1.0
    """Mean length of a run of lost packets."""
    quota: Annotated[
        Flag, ANY_LOSS, Precondition(lambda at: not at.table.last, "last loses that share already", "last = false")
    ] = False
    """Lose exactly that share of each tensor's eligible packets (half of them with `magnitudes`), rounded at random,
    instead of a random number around it."""
    last: Annotated[Flag, ANY_LOSS] = False
    """Lose the last packets of each tensor rather than any."""
    way: Annotated[Literal["push", "pull", "both"], ANY_LOSS] = "push"
    """Direction with loss: to the servers (in a ring: reduce-scatter), back (all-gather), or both."""
    worker: Annotated[Natural | None, ANY_LOSS] = None
    """Only messages that this worker sends, or receives from servers, counted from 0; all workers if absent."""
    seed: Annotated[Natural, ANY_LOSS] = 0
    """Seed of the losses."""


class ReplayedLosses(ScenarioTable):
    """Losses and step times of an earlier training run, replayed step by step."""

    union_tag: ClassVar[str] = "replay"

    replay: Annotated[str, Field(min_length=1)]
    """Folder of that training run, relative to the working directory; it needs `keep_missing`, the same model, workers
    and payload, and as many steps. Or of a run with `output.missing`, whose iterations repeat."""


def _tag(value: Any) -> str:
    if isinstance(value, ReplayedLosses) or (isinstance(value, dict) and "replay" in value):
        return "replay"
    return "rule" if isinstance(value, (dict, RandomLoss)) else "name"


def _network(value: object) -> object:
    if _tag(value) == "name" and value not in ("simulated", "emulated", "ideal"):
        tables = "or a table such as { loss = 0.01 } or { replay = FOLDER }"
        raise single_mistake("", "is not a network", value, f'"simulated", "emulated" or "ideal", {tables}')
    return value


AnyNetwork = Annotated[
    Annotated[Literal["simulated", "emulated", "ideal"], Tag("name")]
    | Annotated[RandomLoss, Tag("rule")]
    | Annotated[ReplayedLosses, Tag("replay")],
    Discriminator(_tag),
    BeforeValidator(_network),
]
"""The name of a network, a loss rule, or recorded losses."""


def _encode_time(value: object) -> object:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if value not in ("none", "measured") and not 0 <= number <= 1e9:
        what = "is not an encoding time"
        raise single_mistake("", what, value, '"none", "measured", or nanoseconds per element, from 0')
    return value


DEVICE_PATTERN = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
"""Valid values of `training.device`."""
PACKET_NETWORKS = ("simulated", "emulated")
"""Networks that carry packets."""


class Training(ScenarioTable):
    """Data-parallel training of a model by the workers of the scenario's one job, step by step over its network."""

    model: Annotated[str, Field(min_length=1)]
    """A model of `gradwire capture` for pictures or texts, such as "resnet8" or "char-lstm"; or "module:function", a
    user-defined function that creates one from the number of classes."""
    data: Annotated[str, Field(min_length=1)] = "synthetic"
    """Folder or file of the data, relative to the working directory; "synthetic" generates learnable data;
    "module:function" is a user-defined function that reads them."""
    learns: Literal["pictures", "text"] | None = None
    """Kind of data of a user-defined model, unless a user-defined function reads the data; pictures if absent."""
    size: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Pixels of a side, or tokens of a sample; the model's default if absent."""
    samples: Count | None = None
    """Maximum pictures of each split: the first ones, or of pictures by class a selection from all of it; all if
    absent."""
    augment: Flag = True
    """Shift and mirror pictures."""
    batch: Count = 16
    """Samples of each worker in a step."""
    steps: Count | None = None
    """Steps of the training run; instead of `epochs`."""
    epochs: Annotated[float, Field(gt=0, le=1e5, strict=True)] = 1.0
    """Passes over all samples."""
    optimizer: Optimizer = Optimizer()
    """See below."""
    reducer: AnyReducer | None = None
    """Gradient compression; uncompressed float32 if absent."""
    error_feedback: Flag = False
    """Add what the reducer did not send to the next gradient."""
    feed_back: Flag = False
    """With error feedback: count network losses as not sent."""
    momentum_correction: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    """Momentum before the reduction; the optimiser must have none."""
    system: AnySystem | None = None
    """Consistency of parameters between workers and servers; if absent, all workers make each step with one mean
    gradient."""
    network: AnyNetwork = "simulated"
    """simulated: the scenario's, packet by packet; emulated: the same on real sockets, as set in the table [emulation];
    ideal: no loss and no time; or losses by a rule, or those of an earlier training run."""
    spread: Flag = False
    """With the simulated or the emulated network: lose as many bytes in each step as the network, but from packets
    spread evenly over workers, tensors and hops."""
    keep_missing: Flag = False
    """Record which packets were lost, and the duration of each round, in the training run's folder: for `network = {
    replay = ... }` and for analysis."""
    resync: Annotated[
        Natural,
        Precondition(
            lambda at: at.table.network != "ideal", "an ideal network loses nothing", "another training.network"
        ),
    ] = 0
    """Steps after which workers whose parameters differ, because of losses on the way back, get the same ones; 0 for
    never."""
    compute: Annotated[Literal["trace", "none"], PACKETS] = "none"
    """trace: with the simulated or the emulated network, computing takes the times of the job's trace, which must be
    one of this model; none: no time."""
    encode_time: Annotated[
        Literal["none", "measured"] | Annotated[float, Field(ge=0, le=1e9, strict=True)],
        Field(union_mode="left_to_right"),
        BeforeValidator(_encode_time),
    ] = "none"
    """Time of encoding and decoding on the network's clock. none; measured: the processor time on this machine, which
    varies from run to run; or nanoseconds for each element of a tensor."""
    device: Annotated[str, Field(min_length=1)] = "cpu"
    """Compute device: cpu; cuda, a GPU, or cuda:1 for one of several; auto, a GPU if there is one. GPUs give other bits
    than CPUs, so auto makes results depend on the machine."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the model's computation: bfloat16 is mixed precision, for GPUs. Parameters, gradients and messages
    are float32 in any case."""
    score_every: Natural = 0
    """Steps between two evaluations on validation data; ten evaluations per training run if 0."""
    checkpoint_every: Count | None = None
    """Steps after which the simulated or the emulated network becomes idle and forgets its connections and pairs, so
    that a checkpoint can be resumed; ten times in a training run if absent. Other networks have no memory: their
    checkpoints are written at evaluations."""
    model_seed: Natural = 1
    """Seed of the initial parameters."""
    data_seed: Natural = 0
    """Seed of the order of samples."""

    @property
    def has_compute_times(self) -> bool:
        """Return True if workers' computation may take time on the network's clock."""
        return self.compute == "trace" or self.encode_time != "none" or self.system is not None

    def conflicts(self) -> Iterator[Mistake]:
        if not DEVICE_PATTERN.fullmatch(self.device):
            yield Mistake("device", "is not a compute device", self.device, '"cpu", "cuda", "cuda:1" or "auto"')
        if self.momentum_correction and self.optimizer.remembers:
            what = "duplicates the optimiser's momentum"
            yield Mistake("momentum_correction", what, self.momentum_correction, self.optimizer.is_memoryless)
        if self.spread and self.network not in PACKET_NETWORKS:
            yield Mistake("spread", "needs the losses of a network", True, 'network = "simulated" or "emulated"')
        if self.feed_back and not self.error_feedback:
            yield Mistake("feed_back", "needs error feedback", True, "error_feedback = true")
        if self.system is not None:
            self._check_system(self.system)
        if not isinstance(self.reducer, UserReducer):  # its class is not loaded yet
            self.fits_reducer(self.reducer)
        if isinstance(self.network, RandomLoss):
            most = self.network.burst / (self.network.burst + 1)
            if self.network.burst > 1 and self.network.loss >= most:
                what = "leaves no gap between bursts"
                yield Mistake("network.loss", what, self.network.loss, f"less than {most:.3g}")

    def fits_reducer(self, reducer: Any) -> None:
        """Raise `Mistakes` if training would repeat something that a reducer does itself."""
        dense = reducer is None or reducer.kind == "none"
        if self.error_feedback and dense and not self.feed_back:
            what = "has nothing to feed back: the whole gradient is sent"
            raise single_mistake("error_feedback", what, True, "a reducer, or feed_back = true for network losses")
        if reducer is None:
            return
        for key, around, why in (
            ("error_feedback", "error feedback", reducer.without_feedback()),
            ("momentum_correction", "momentum correction", reducer.without_momentum()),
        ):
            if why and getattr(self, key):
                raise single_mistake(key, f"{reducer.kind} {why}", getattr(self, key), f"no {around} around it")
        if reducer.has_momentum and reducer.momentum and self.optimizer.remembers:
            what = "duplicates the optimiser's momentum"
            raise single_mistake("reducer.momentum", what, reducer.momentum, self.optimizer.is_memoryless)

    def _check_system(self, system: Any) -> None:
        """Check conflicts with a system, which decides what is sent and may not support packet-level networks."""
        if self.reducer is not None and not system.reduces:
            what = f"conflicts with {system.kind}, which decides what is sent"
            raise single_mistake("reducer", what, None, "no reducer")
        for key in () if system.reduces else ("error_feedback", "momentum_correction"):
            if getattr(self, key):
                what = f"conflicts with {system.kind}, which decides what is sent"
                raise single_mistake(key, what, getattr(self, key), "none")
        if self.optimizer.kind != "sgd" and system.needs_sgd:
            what = f"conflicts with {system.kind}, whose momentum is worked out from the parameters' moves"
            expected = "sgd, or another training.system.momentum"
            raise single_mistake("optimizer.kind", what, self.optimizer.kind, expected)
        if self.compute == "trace" and not system.traced:
            raise single_mistake("compute", f"{system.kind} does not send what a trace has", self.compute, "none")
        if not system.together:
            self._check_asynchronous(system)

    def _check_asynchronous(self, system: Any) -> None:
        """Check conflicts with asynchronous workers, which make no steps together."""
        for key, is_set, expected in (
            ("keep_missing", self.keep_missing, "false"),
            ("network", isinstance(self.network, ReplayedLosses), "a network, or losses by a rule"),
        ):
            if is_set:
                what = f"needs synchronous steps, which {system.kind} does not have"
                raise single_mistake(key, what, getattr(self, key), expected)
        if self.spread:
            what = f"spreads the losses of synchronous steps, which {system.kind} does not have"
            raise single_mistake("spread", what, True, "false")
        if self.network == "emulated":
            what = f"{system.kind} cannot run on real sockets, where steps run one after the other"
            raise single_mistake("network", what, self.network, '"simulated", "ideal" or losses by a rule')
        for key in ("rate", "server_rate") if self.network == "simulated" else ():
            if (rate := getattr(system, key)) is not None:
                what = "is for links without a simulator, but the network is simulated"
                raise single_mistake(f"system.{key}", what, format_rate(rate), "no such key")
        if self.compute == "trace" and any(system.computing):
            times = [format_time(each) for each in system.computing]
            raise single_mistake("system.computing", "conflicts with the times of a trace", times, 'compute = "none"')
        reducer: Any = self.reducer
        if (rounds := getattr(reducer, "rounds", 1)) > 1:
            what = f"has {rounds} synchronous rounds, but workers of {system.kind} push one by one"
            raise single_mistake("reducer", f"{reducer.kind} {what}", None, "a reducer with one round")
        for key in ("vote", "both_ways"):
            if getattr(reducer, key, False):
                what = f"needs all workers together, but those of {system.kind} push one by one"
                raise single_mistake(f"reducer.{key}", what, True, "false")
