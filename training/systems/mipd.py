"""Declares the settings of the system `mipd`, asynchronous training by significant gradients in few bits; `MipdTrainer`
does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Natural, single_mistake
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.units import Fraction
from gradwire.training.reducers.fields import Ratio
from gradwire.training.systems.asynchronous import AsynchronousSystem

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


IN_HALVES = Precondition(lambda at: at.table.update == "half", "all parameters are updated per push", 'update = "half"')


class MIPD(AsynchronousSystem):
    """An asynchronous server receives the significant gradients, in few bits, and updates half of the parameters per
    push.

    [abstract] says that significance is that of model interpretability, that ratios adapt layer by layer, that codes
    follow the gradients' distribution, that the server compensates for dropped gradients by exponential smoothing, and
    that it updates half of the parameters per step. The details are our choice, key by key.

    A worker sends the elements of greatest significance, with their positions whenever these are recomputed. For an
    element of which nothing has arrived since its last update, the server takes the exponentially smoothed gradient,
    once for each push, and lets it fade. Halves are made of blocks: the most significant ones, and the rest; gradients
    of the half that is not updated accumulate. A worker pulls the half that its push has updated.
    """

    kind: Literal["mipd"] = "mipd"
    descends = True
    ratio: Ratio = 0.3
    """Share of the elements of large tensors that is sent."""
    significance: Literal["taylor", "fisher", "magnitude"] = "taylor"
    """Significance of a parameter w with gradient g: |w g|, g^2, or |g|."""
    decay: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.5
    """Weight of the old significance when a new one is computed."""
    refresh: Count = 20
    """Turns of a worker after which it recomputes significance."""
    gamma: Annotated[float, Field(ge=0, le=4, strict=True)] = 0.5
    """A tensor's share is proportional to the sum of its significance to this power; 0: all alike."""
    floor: Fraction = 0.05
    """Least share of a tensor; at least one element."""
    ceiling: Ratio = 1.0
    """Greatest share of a tensor."""
    small: Natural = 1024
    """Tensors of at most this many elements are sent in full: they cost little, and parameters that begin as zero, as
    many of normalisations do, would never be significant by |w g|."""
    warmup: Natural = 20
    """Turns of a worker in which everything is sent, so that no layer starves that begins to learn late."""
    bits: Annotated[int, Field(ge=0, le=8, strict=True)] = 4
    """Bits of a value; 0: float32."""
    smoothing: Annotated[
        Ratio,
        Precondition(
            lambda at: at.table.compensate or at.table.update == "half",
            "the smoothed gradient is not used",
            'compensate = true, or update = "half"',
        ),
    ] = 0.4
    """Weight of a new gradient in the smoothed one."""
    compensate: Flag = True
    """Use the smoothed gradient in place of what was dropped."""
    update: Literal["half", "all"] = "half"
    """Part of the parameters that is updated, and pulled, per push."""
    rotation: Annotated[int, Field(ge=2, le=1000, strict=True), IN_HALVES] = 2
    """One in this many turns of a worker is for the less significant half."""
    block: Annotated[Count, IN_HALVES] = 256
    """Elements of a block of a half."""

    @model_validator(mode="after")
    def _between(self) -> MIPD:
        if self.floor > self.ceiling:
            raise single_mistake("floor", "is above the ceiling", self.floor, f"at most {self.ceiling:g}")
        return self

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.mipd_trainer import MipdTrainer

        return MipdTrainer(model, data, recipe, self, network, staleness=self.staleness, pace=self.pace())
