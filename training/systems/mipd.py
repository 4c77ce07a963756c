"""MIPD: what matters is sent in few bits to an asynchronous server (Zhang and Wang, IEEE TPDS 33(11), 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Natural, refuse
from gradwire.scenarios.schema.effect_conditions import Needs
from gradwire.scenarios.units import Fraction
from gradwire.training.reducers.fields import Ratio
from gradwire.training.systems.asynchronous import Unsynchronised

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


IN_HALVES = Needs(lambda at: at.table.update == "half", "all parameters are updated per push", 'update = "half"')


class MIPD(Unsynchronised):
    """An asynchronous server is sent the gradients that matter, in few bits, and updates half of the parameters a push.

    [abstract] says that significance is that of model interpretability, that ratios adapt layer by layer, that codes
    follow the gradients' distribution, that the server makes up for dropped gradients by exponential smoothing, and
    that it updates half of the parameters per step. How is our choice, key by key.

    A worker sends the elements of greatest significance, whose places go along whenever they are worked out anew.
    For an element of which nothing has arrived since its last update, the server takes the exponentially smoothed
    gradient of before, once for each push, and lets that fade. Halves are made of blocks: those that matter most, and
    the rest; what belongs to the half that is not updated adds up. A worker pulls the half that its push has updated.
    """

    kind: Literal["mipd"] = "mipd"
    descends = True
    ratio: Ratio = 0.3
    """Share of the elements of large tensors that is sent."""
    significance: Literal["taylor", "fisher", "magnitude"] = "taylor"
    """What makes a parameter w with gradient g matter: |w g|, g^2, or |g|."""
    decay: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.5
    """What is left of an older significance when a new one is worked out."""
    refresh: Count = 20
    """Turns of a worker after which it works significance out anew."""
    gamma: Annotated[float, Field(ge=0, le=4, strict=True)] = 0.5
    """A tensor's share is proportional to the sum of its significance to this power; 0: all alike."""
    floor: Fraction = 0.05
    """Least share of a tensor; at least one element."""
    ceiling: Ratio = 1.0
    """Greatest share of a tensor."""
    small: Natural = 1024
    """Tensors of at most so many elements are sent in full: they cost little, and a parameter that begins as zero, as
    many of normalisations do, would never matter by |w g|."""
    warmup: Natural = 20
    """Turns of a worker until which everything is sent, so that no layer starves that begins to learn late."""
    bits: Annotated[int, Field(ge=0, le=8, strict=True)] = 4
    """Of a value; 0: float32."""
    smoothing: Annotated[
        Ratio,
        Needs(lambda at: at.table.compensate or at.table.update == "half", "nothing goes by the smoothed gradient",
              'compensate = true, or update = "half"'),
    ] = 0.4
    """Weight of a new gradient in the smoothed one."""
    compensate: Flag = True
    """Whether the smoothed gradient stands in for what was dropped."""
    update: Literal["half", "all"] = "half"
    """What of the parameters is updated, and pulled, per push."""
    rotation: Annotated[int, Field(ge=2, le=1000, strict=True), IN_HALVES] = 2
    """Of so many turns of a worker, one is for the half that matters less."""
    block: Annotated[Count, IN_HALVES] = 256
    """Elements of a block of a half."""

    @model_validator(mode="after")
    def _between(self) -> MIPD:
        if self.floor > self.ceiling:
            raise refuse("floor", "is above the ceiling", self.floor, f"at most {self.ceiling:g}")
        return self

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.served.mipd import Interpretable, Mipd

        rules = Interpretable(**self.model_dump(exclude={"kind", "staleness", "computing", "rate", "server_rate"}))
        return Mipd(model, data, recipe, rules, network, staleness=self.staleness, pace=self.pace())
