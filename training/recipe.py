"""`Recipe` declares the hyperparameters of a training run, validates them, and computes the learning rate of each
step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.scenarios.validation.argument_checks import require_in_range, require_integer, require_one_of

Fill = Literal["zero", "rescaled", "stale"]
"""Treatment of lost values: zero, which makes the mean smaller; a mean over the workers that arrived; or the worker's
last values."""
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training run; defaults suit a small residual network.

    workers, batch : N, and samples of each worker in a step.
    steps : of the whole training run, which the schedule needs to know.
    rate : the peak learning rate.
    schedule : "constant"; "triangle", linearly up to `rate` during the first `rise` of the steps and down to zero; or
        "steps", a tenth after half and a hundredth after three quarters of the steps, as He et al. (2016).
    optimizer : "sgd", or "adamw" (Adam with decoupled weight decay), as in torch.
    momentum, nesterov : of sgd; no momentum if a reducer corrects for it. betas, epsilon : of adamw.
    weight_decay : of either.
    clip : norm to which the mean gradient is scaled down; 0: no clipping.
    fill, feed_back, payload, collective, bucket, encode_time : see `Exchange`.
    pull_fill : replacement for what is lost on the way back: the previous value, or zero.
    resync : steps after which workers whose parameters differ are given the same ones; 0: never. In a ring it is
        another all-reduce of as many bytes without loss; servers take no time for it.
    precision : number format of the model's computation (`gradwire.training.precision`).
    data_seed, seed : of the order of samples, and of the reducers' draws.

    Raises ScenarioError if a value is out of range.
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
            minimum = 1 if name in ("workers", "batch", "payload") else 0
            require_integer(getattr(self, name), f"Recipe({name})", minimum, ScenarioError)
        if self.collective == "ring" and not self.bucket:
            raise ScenarioError("is 0", "Recipe(bucket)", "bytes of a ring's buckets, at least 1")
        for name, maximum in (("rate", 1e3), ("rise", 1.0), ("momentum", 1.0), ("weight_decay", 1e6), ("clip", 1e6)):
            require_in_range(getattr(self, name), f"Recipe({name})", 0, maximum, ScenarioError)
        for beta in self.betas:
            require_in_range(beta, "Recipe(betas)", 0, 1, ScenarioError)
        require_in_range(self.epsilon, "Recipe(epsilon)", 0, 1, ScenarioError)
        for name in ("optimizer", "schedule", "fill", "collective", "pull_fill", "precision"):
            require_one_of(getattr(self, name), f"Recipe({name})", CHOICES[name], ScenarioError)
        if self.encode_time not in ("none", "measured"):
            require_in_range(self.encode_time, "Recipe(encode_time)", 0, 1e9, ScenarioError)

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0. Beyond `steps` a triangle stays at zero, and other
        schedules at their last rate."""
        share = step / max(self.steps, 1)
        if self.schedule == "triangle":
            up, down = (step + 1) / max(self.rise * self.steps, 1), (1 - share) / max(1 - self.rise, 1e-9)
            return self.rate * max(min(up, down, 1.0), 0.0)
        if self.schedule == "steps":
            return self.rate * (1.0 if share < 0.5 else 0.1 if share < 0.75 else 0.01)
        return self.rate


CHOICES = {name: get_args(kind) for name, kind in get_type_hints(Recipe).items()}
"""The values of each key that has a few only."""


def check_samples(count: int, workers: int, batch: int) -> None:
    """Raise TraceError if there are fewer samples than all workers take in a step."""
    if workers * batch > count:
        raise TraceError(
            f"{count} samples for {workers} workers with {batch} each in a step",
            "training.samples or the data",
            f"at least {workers * batch}, or a smaller training.batch",
        )
