"""Recipes: how a model is trained, in numbers and names, checked when one is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import number_within, one_of, whole_number
from gradwire.training.exchange import Fill
from gradwire.training.precision import Precision


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; defaults suit a small residual network.

    workers, batch : N, and samples of each worker in a step.
    steps : of the whole training, which the schedule needs to know.
    rate : the learning rate at its highest.
    schedule : "constant"; "triangle", linearly up to `rate` for the first `rise` of the steps and down to zero; or
        "steps", a tenth after half and a hundredth after three quarters of the steps, as He et al. (2016).
    optimizer : "sgd", or "adamw", Adam with decoupled weight decay, both as torch has them.
    momentum, nesterov : of sgd; no momentum where a reducer corrects for it. betas, epsilon : of adamw.
    weight_decay : of either.
    clip : norm that the mean gradient is scaled down to; 0 does not.
    fill, feed_back, payload, collective, bucket, encode_time : see `Exchange`.
    pull_fill : what stands for what is lost on the way back: what was there before, or zero.
    resync : steps after which workers whose parameters differ are given the same ones, 0 for never. In a ring it is
        another all-reduce of as many bytes, of which nothing is lost; servers take no time for it on the clock.
    precision : what the model computes with (`gradwire.training.precision`).
    data_seed, seed : what the order of samples hangs on, and what reducers draw from.

    Raises
    ------
    ScenarioError
        A value is none that can be trained with.
    """

    workers: int = 8
    batch: int = 16
    steps: int = 1000
    rate: float = 0.1
    schedule: Literal["constant", "triangle", "steps"] = "triangle"
    rise: float = 0.3
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 1e-4
    clip: float = 0.0
    fill: Fill = "zero"
    feed_back: bool = False
    payload: int = 4096
    collective: Literal["parameter_server", "ring"] = "parameter_server"
    bucket: int = 25 * 2**20
    pull_fill: Literal["stale", "zero"] = "stale"
    resync: int = 0
    encode_time: Literal["none", "measured"] | float = "none"
    precision: Precision = "float32"
    data_seed: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("workers", "batch", "steps", "payload", "bucket", "resync", "data_seed", "seed"):
            least = 1 if name in ("workers", "batch", "payload") else 0
            whole_number(getattr(self, name), f"Recipe({name})", least, ScenarioError)
        if self.collective == "ring" and not self.bucket:
            raise ScenarioError("is 0", "Recipe(bucket)", "bytes of a ring's buckets, at least 1")
        for name, most in (("rate", 1e3), ("rise", 1.0), ("momentum", 1.0), ("weight_decay", 1e6), ("clip", 1e6)):
            number_within(getattr(self, name), f"Recipe({name})", 0, most, ScenarioError)
        for each in self.betas:
            number_within(each, "Recipe(betas)", 0, 1, ScenarioError)
        number_within(self.epsilon, "Recipe(epsilon)", 0, 1, ScenarioError)
        for name, words in (
            ("optimizer", ("sgd", "adamw")),
            ("schedule", ("constant", "triangle", "steps")),
            ("fill", ("zero", "rescaled", "stale")),
            ("collective", ("parameter_server", "ring")),
            ("pull_fill", ("stale", "zero")),
            ("precision", ("float32", "bfloat16")),
        ):
            one_of(getattr(self, name), f"Recipe({name})", words, ScenarioError)
        if self.encode_time not in ("none", "measured"):
            number_within(self.encode_time, "Recipe(encode_time)", 0, 1e9, ScenarioError)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0. Beyond `steps` a triangle stays at zero, and others at what they
        had last."""
        share = step / max(self.steps, 1)
        if self.schedule == "triangle":
            up, down = (step + 1) / max(self.rise * self.steps, 1), (1 - share) / max(1 - self.rise, 1e-9)
            return self.rate * max(min(up, down, 1.0), 0.0)
        if self.schedule == "steps":
            return self.rate * (1.0 if share < 0.5 else 0.1 if share < 0.75 else 0.01)
        return self.rate
