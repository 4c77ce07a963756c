"""What is trained while a network carries the gradients: the table [training] of a scenario, for `gradwire train`."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Natural, Table, refuse
from gradwire.scenarios.schema.chosen import Chosen
from gradwire.scenarios.schema.effect_conditions import PACKETS, Needs
from gradwire.scenarios.units import Fraction, format_rate, format_time


class UserReducer(Table):
    """A reducer of the user's own, a class derived from `gradwire.training.reducers.base.Reducer`. Its fields are the
    other keys of the table, and checked."""

    model_config = ConfigDict(extra="allow")
    union_tag: ClassVar[str] = "user"

    kind: Annotated[str, Field(min_length=1)]
    """"module:Class"; the module lies beside the scenario file, or where `modules` says."""


AnyReducer = Annotated[Table, Chosen("reducer", own=UserReducer)]
AnySystem = Annotated[Table, Chosen("system")]

Number = Annotated[float, Field(ge=0, le=1e6, strict=True)]


Beta = Annotated[float, Field(ge=0, lt=1, strict=True)]


class Optimizer(Table):
    """What updates parameters by gradients: stochastic gradient descent with momentum, or Adam."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """adamw: Adam with decoupled weight decay (Loshchilov and Hutter, ICLR '19), as torch has it."""
    rate: Annotated[float, Field(gt=0, le=1e3, strict=True)] = 0.1
    """The learning rate at its highest; of adamw it is rather 0.001."""
    schedule: Literal["triangle", "constant", "steps"] = "triangle"
    """triangle: linearly up for the first `rise` of the steps, and down to zero; steps: a tenth after half, a hundredth
    after three quarters of them."""
    rise: Annotated[
        float, Field(gt=0, lt=1, strict=True),
        Needs(lambda at: at.table.schedule == "triangle", "the rate does not rise", 'schedule = "triangle"'),
    ] = 0.3
    """Share of the steps in which a triangle rises."""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """Of sgd; with `momentum_correction` give 0 here."""
    nesterov: Flag = False
    """Of sgd: look ahead by the momentum."""
    betas: Annotated[tuple[Beta, ...], Field(min_length=2, max_length=2)] = (0.9, 0.999)
    """Of adamw: weights of the past in the mean of gradients, and in that of their squares."""
    epsilon: Annotated[float, Field(gt=0, le=1, strict=True)] = 1e-8
    """Of adamw: added to the root of the mean of squares."""
    weight_decay: Number = 1e-4
    """sgd: share of a parameter that is added to its gradient; adamw: of which `rate` times is taken from it."""
    clip: Number = 0.0
    """Norm that the mean gradient is scaled down to; 0 does not."""

    @model_validator(mode="after")
    def _its_own(self) -> Optimizer:
        others = ("betas", "epsilon") if self.kind == "sgd" else ("momentum", "nesterov")
        for name in others:
            if name in self.model_fields_set:
                kind = "adamw" if self.kind == "sgd" else "sgd"
                raise refuse(name, f"is not known to {self.kind}", getattr(self, name), f'kind = "{kind}"')
        if self.nesterov and not self.momentum:
            raise refuse("nesterov", "has no momentum to look ahead with", True, "momentum above 0")
        return self

    @property
    def remembers(self) -> bool:
        """Whether it takes a mean of gradients over time, which reducers may do themselves."""
        return self.kind == "adamw" or self.momentum > 0

    @property
    def forgetful(self) -> str:
        """What would not."""
        return "optimizer.momentum = 0" if self.kind == "sgd" else 'optimizer = { kind = "sgd", momentum = 0 }'


ANY_LOSS = Needs(lambda at: at.table.loss > 0, "no packet is lost", "loss above 0")


class RandomLoss(Table):
    """Packets are lost at random instead of by the network; it takes no time then."""

    union_tag: ClassVar[str] = "rule"

    loss: Fraction
    """Odds of a packet."""
    layers: Annotated[Literal["all", "front", "back"], ANY_LOSS] = "all"
    """Half of the layers that lose any."""
    magnitudes: Annotated[Literal["all", "small", "large"], ANY_LOSS] = "all"
    """Half of each tensor's packets, by mean magnitude, that may be lost."""
    burst: Annotated[
        float, Field(ge=1, le=1e4, strict=True), ANY_LOSS,
        Needs(lambda at: not (at.table.last or at.table.quota), "lost packets are counted out by tensor",
              "last = false and quota = false"),
    ] = 1.0
    """Mean length of a run of lost packets."""
    quota: Annotated[
        Flag, ANY_LOSS, Needs(lambda at: not at.table.last, "last loses that share already", "last = false")
    ] = False
    """Lose that share of the packets of each tensor that may be lost (of half of them with `magnitudes`), rounded at
    random, and not a random number around it."""
    last: Annotated[Flag, ANY_LOSS] = False
    """Lose the last packets of each tensor rather than any."""
    way: Annotated[Literal["push", "pull", "both"], ANY_LOSS] = "push"
    """What loses: what goes to the servers (in a ring: reduce-scatter), what comes back (all-gather), or both."""
    worker: Annotated[Natural | None, ANY_LOSS] = None
    """Only of what this worker sends, or gets back from servers, the first one being 0; of all of them if absent."""
    seed: Annotated[Natural, ANY_LOSS] = 0
    """Of the draws."""


class Replayed(Table):
    """What an earlier training lost is lost again, step by step, and steps take as long as they took there."""

    union_tag: ClassVar[str] = "replay"

    replay: Annotated[str, Field(min_length=1)]
    """Folder of that training, relative to where one stands; it has to have `keep_missing`, the same model, workers and
    payload, and as many steps. Or of a run with `output.missing`, whose iterations begin again after the last."""


def _tag(value: Any) -> str:
    if isinstance(value, Replayed) or (isinstance(value, dict) and "replay" in value):
        return "replay"
    return "rule" if isinstance(value, (dict, RandomLoss)) else "name"


def _network(value: object) -> object:
    if _tag(value) == "name" and value not in ("simulated", "emulated", "ideal"):
        tables = "or a table such as { loss = 0.01 } or { replay = FOLDER }"
        raise refuse("", "is no network", value, f'"simulated", "emulated" or "ideal", {tables}')
    return value


AnyNetwork = Annotated[
    Annotated[Literal["simulated", "emulated", "ideal"], Tag("name")] | Annotated[RandomLoss, Tag("rule")]
    | Annotated[Replayed, Tag("replay")],
    Discriminator(_tag), BeforeValidator(_network),
]
"""The name of a network, a rule of loss, or what was lost before."""


def _encode_time(value: object) -> object:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if value not in ("none", "measured") and not 0 <= number <= 1e9:
        raise refuse("", "is no time of encoding", value, '"none", "measured", or nanoseconds for each element, from 0')
    return value


DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
"""What `training.device` may be."""
PLAYED = ("simulated", "emulated")
"""Networks that carry packets."""


class Training(Table):
    """Data-parallel training of a model by the workers of the scenario's one job, step by step over its network."""

    model: Annotated[str, Field(min_length=1)]
    """A model of `gradwire capture` that learns pictures or texts, such as "resnet8" or "char-lstm"; or
    "module:function", a function of your own that makes one from the number of classes."""
    data: Annotated[str, Field(min_length=1)] = "synthetic"
    """Folder or file of the data, relative to where one stands; "synthetic" makes something up that can be learned;
    "module:function" is a function of your own that reads them."""
    learns: Literal["pictures", "text"] | None = None
    """Of a model of your own: what it learns, where data are not read by a function of your own; pictures if absent."""
    size: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Pixels of a side, or tokens of a sample; what the model is meant for if absent."""
    samples: Count | None = None
    """At most so many pictures of each split, the first ones, or of pictures by class from all over it; all if
    absent."""
    augment: Flag = True
    """Shift and mirror pictures."""
    batch: Count = 16
    """Samples of each worker in a step."""
    steps: Count | None = None
    """Steps of the training; instead of `epochs`."""
    epochs: Annotated[float, Field(gt=0, le=1e5, strict=True)] = 1.0
    """Times that all samples are learned from."""
    optimizer: Optimizer = Optimizer()
    """See below."""
    reducer: AnyReducer | None = None
    """What is sent instead of gradients; float32 as it is if absent."""
    error_feedback: Flag = False
    """What the reducer did not send is added to the next gradient."""
    feed_back: Flag = False
    """With error feedback: what the network lost counts as not sent."""
    momentum_correction: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    """Momentum before the reduction; the optimiser has to have none."""
    system: AnySystem | None = None
    """How workers and servers keep parameters together; all workers make each step with one mean gradient if absent."""
    network: AnyNetwork = "simulated"
    """simulated: the scenario's, packet by packet; emulated: the same on real sockets, as the table [emulation] says;
    ideal: nothing is lost and it takes no time; or losses by a rule, or those of an earlier training."""
    spread: Flag = False
    """With the simulated or the emulated network: as many bytes are lost in each step as it loses, but of any packets,
    spread evenly over workers, tensors and hops."""
    keep_missing: Flag = False
    """Keep which packets were lost, and how long each round took, in the training's folder: for
    `network = { replay = ... }`, and for whoever wants to know."""
    resync: Annotated[
        Natural,
        Needs(lambda at: at.table.network != "ideal", "an ideal network loses nothing", "another training.network"),
    ] = 0
    """Steps after which workers whose parameters differ, because something was lost on the way back, are given the same
    ones; 0 for never."""
    compute: Annotated[Literal["trace", "none"], PACKETS] = "none"
    """trace: with the simulated or the emulated network computing takes the times of the job's trace, which must be one
    of this model; none: no time."""
    encode_time: Annotated[
        Literal["none", "measured"] | Annotated[float, Field(ge=0, le=1e9, strict=True)],
        Field(union_mode="left_to_right"), BeforeValidator(_encode_time),
    ] = "none"
    """How long encoding and decoding take on the clock: none; measured: the processor time that they take here, which
    no two runs have alike; or so many nanoseconds for each element of a tensor."""
    device: Annotated[str, Field(min_length=1)] = "cpu"
    """What computes: cpu; cuda, a GPU, or cuda:1 for one of several; auto, a GPU if there is one. With auto the same
    scenario would have other bits where there is a GPU, so a GPU has to be asked for."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the model computes with: bfloat16 is mixed precision, for GPUs. Parameters, gradients and what is sent are
    float32 in any case."""
    score_every: Natural = 0
    """Steps between two looks at data that is not learned from; ten in a training if 0."""
    checkpoint_every: Count | None = None
    """Steps after which the simulated or the emulated network rests, and what it remembers of connections and pairs is
    gone, so that a checkpoint can be gone on from; ten times in a training if absent. Checkpoints of other networks,
    which remember nothing, are written when data is looked at that is not learned from."""
    model_seed: Natural = 1
    """Of the initial parameters."""
    data_seed: Natural = 0
    """Of the order of samples."""

    @property
    def takes_time(self) -> bool:
        """Return True if anything that workers do may take time on the network's clock."""
        return self.compute == "trace" or self.encode_time != "none" or self.system is not None

    @model_validator(mode="after")
    def _once(self) -> Training:
        if not DEVICES.fullmatch(self.device):
            raise refuse("device", "is none that is computed on", self.device, '"cpu", "cuda", "cuda:1" or "auto"')
        if self.momentum_correction and self.optimizer.remembers:
            raise refuse(
                "momentum_correction", "is momentum besides that of the optimiser", self.momentum_correction,
                self.optimizer.forgetful,
            )  # fmt: skip
        if self.spread and self.network not in PLAYED:
            raise refuse("spread", "has no losses of a network to spread", True, 'network = "simulated" or "emulated"')
        if self.feed_back and not self.error_feedback:
            raise refuse("feed_back", "has no error feedback to go into", True, "error_feedback = true")
        if self.system is not None:
            self._with_a_system(self.system)
        if not isinstance(self.reducer, UserReducer):  # whose class is not known here
            self.fits_reducer(self.reducer)
        if isinstance(self.network, RandomLoss):
            most = self.network.burst / (self.network.burst + 1)
            if self.network.burst > 1 and self.network.loss >= most:
                raise refuse("network.loss", "leaves no room between runs", self.network.loss, f"less than {most:.3g}")
        return self

    def fits_reducer(self, reducer: Any) -> None:
        """Raise `Mistakes` where what a reducer does by itself would be done around it, too."""
        dense = reducer is None or reducer.kind == "none"
        if self.error_feedback and dense and not self.feed_back:
            what = "has nothing to feed back: all of a gradient is sent"
            raise refuse("error_feedback", what, True, "a reducer, or feed_back = true for what the network loses")
        if reducer is None:
            return
        for key, around, why in (
            ("error_feedback", "error feedback", reducer.without_feedback()),
            ("momentum_correction", "momentum correction", reducer.without_momentum()),
        ):
            if why and getattr(self, key):
                raise refuse(key, f"{reducer.kind} {why}", getattr(self, key), f"no {around} around it")
        if reducer.has_momentum and reducer.momentum and self.optimizer.remembers:
            raise refuse(
                "reducer.momentum", "is momentum besides that of the optimiser", reducer.momentum,
                self.optimizer.forgetful,
            )  # fmt: skip

    def _with_a_system(self, system: Any) -> None:
        """A system says by itself what is sent, and some cannot be played packet by packet."""
        if self.reducer is not None and not system.reduces:
            raise refuse("reducer", f"has no place in {system.kind}, which says what is sent", None, "no reducer")
        for key in () if system.reduces else ("error_feedback", "momentum_correction"):
            if getattr(self, key):
                raise refuse(key, f"has no place in {system.kind}, which says what is sent", getattr(self, key), "none")
        if self.optimizer.kind != "sgd" and system.descends:
            what = f"is not what {system.kind} updates parameters by, which has momentum and steps of its own"
            raise refuse("optimizer.kind", what, self.optimizer.kind, "sgd")
        if self.compute == "trace" and not system.traced:
            raise refuse("compute", f"{system.kind} does not send what a trace has", self.compute, "none")
        if not system.together:
            self._one_by_one(system)

    def _one_by_one(self, system: Any) -> None:
        """Workers that push when they are ready make no steps together."""
        for key, asked, expected in (
            ("keep_missing", self.keep_missing, "false"),
            ("network", isinstance(self.network, Replayed), "a network, or losses by a rule"),
        ):
            if asked:
                what = f"knows steps in which all push together, which {system.kind} has not got"
                raise refuse(key, what, getattr(self, key), expected)
        if self.spread:
            what = f"spreads the losses of steps in which all push together, which {system.kind} has not got"
            raise refuse("spread", what, True, "false")
        if self.network == "emulated":
            what = f"{system.kind} cannot be carried on real sockets, where steps are played one after the other"
            raise refuse("network", what, self.network, '"simulated", "ideal" or losses by a rule')
        for key in ("rate", "server_rate") if self.network == "simulated" else ():
            if (rate := getattr(system, key)) is not None:
                what = "is of links that nobody simulates, and the network is simulated"
                raise refuse(f"system.{key}", what, format_rate(rate), "to leave it out")
        if self.compute == "trace" and any(system.computing):
            times = [format_time(each) for each in system.computing]
            raise refuse("system.computing", "is beside the times of a trace", times, 'compute = "none"')
        reducer: Any = self.reducer
        if (rounds := getattr(reducer, "rounds", 1)) > 1:
            what = f"has {rounds} rounds in which workers agree, and those of {system.kind} come one by one"
            raise refuse("reducer", f"{reducer.kind} {what}", None, "one of one round")
        if getattr(reducer, "vote", False):
            what = f"is of all workers together, and those of {system.kind} come one by one"
            raise refuse("reducer.vote", what, True, "false")
