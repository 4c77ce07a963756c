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


SMOOTHED = Precondition(lambda at: at.table.compensate, "nothing is smoothed", "compensate = true")


class MIPD(AsynchronousSystem):
    """An asynchronous server receives significant moves, in few bits, and updates half of the parameters per push.

    [abstract] says that significance is that of model interpretability, that ratios adapt layer by layer, that codes
    follow the gradients' distribution, that the server compensates for dropped gradients by exponential smoothing, and
    that it updates half of the parameters per step. The details are our choice, key by key.

    Workers train local models. A push has the moves of one half's most significant elements since they were last common
    with the server, with their positions whenever these are recomputed; the halves take turns. The server adds an N-th,
    the worker pulls that half, and keeps what it has not sent on top of it.
    """

    kind: Literal["mipd"] = "mipd"
    ratio: Ratio = 0.3
    """Share of the elements of a half's large tensors that is sent."""
    significance: Literal["taylor", "fisher", "magnitude"] = "taylor"
    """Significance of a parameter w that has moved by m: |w m|, m^2, or |m|."""
    decay: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.5
    """Weight of the old significance when a new one is computed."""
    refresh: Count = 10
    """Pushes of a half after which a worker recomputes what is significant in it."""
    gamma: Annotated[float, Field(ge=0, le=4, strict=True)] = 0.5
    """A tensor's share is proportional to the sum of its significance to this power; 0: all alike."""
    floor: Fraction = 0.05
    """Least share of a tensor; at least one element."""
    ceiling: Ratio = 1.0
    """Greatest share of a tensor."""
    small: Natural = 1024
    """Tensors of at most this many elements are sent in full: they cost little, and parameters that begin as zero, as
    many of normalisations do, would never be significant by |w m|."""
    bits: Annotated[int, Field(ge=0, le=8, strict=True)] = 4
    """Bits of a value; 0: float32."""
    smoothing: Annotated[float, Field(gt=0, lt=1, strict=True), SMOOTHED] = 0.4
    """Weight of a new move in the smoothed one."""
    compensate: Flag = True
    """Add the smoothed move of an element that was not sent, which fades."""
    update: Literal["half", "all"] = "half"
    """Part of the parameters that is pushed, updated and pulled at a time."""
    momentum: Literal["local", "implied"] = "local"
    """A worker's momentum of pulled elements: its own, or implied by how far the server's values have moved."""
    look_ahead: Flag = True
    """Nesterov's momentum in the local steps of SGD."""

    @model_validator(mode="after")
    def _between(self) -> MIPD:
        if self.floor > self.ceiling:
            raise single_mistake("floor", "is above the ceiling", self.floor, f"at most {self.ceiling:g}")
        return self

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.mipd_trainer import MipdTrainer

        return MipdTrainer(model, data, recipe, self, network, staleness=self.staleness, pace=self.pace())
