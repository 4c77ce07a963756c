"""Slim-DP: a significant core and a random explorer are pushed and pulled (Sun et al., arXiv 1709.09393)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Flag, single_mistake
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.units import Fraction
from gradwire.training.reducers.fields import Ratio
from gradwire.training.systems.base import System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


HAS_CORE = Precondition(lambda at: at.table.beta > 0, "there is no core", "beta above 0")


class SlimDP(System):
    """Workers push updates, and pull parameters, of a part of each tensor only, and train copies that differ.

    Of n elements (alpha n) are exchanged in a step: the core, (beta n) of greatest |w| + c |g|, which both sides
    remember, and the explorer, drawn anew from the rest. Each way these are 4 beta n + 8 (alpha - beta) n bytes; a new
    core's keys are 4 beta n more, once. The defaults are [recalled] of the paper, as are the significance and that the
    core stays some 20 rounds; a separate core for each worker, tensor by tensor, is our choice. With beta = 0 there is
    no core, with beta = alpha no explorer; with alpha = 1 it is plain data parallelism.
    """

    kind: Literal["slimdp"] = "slimdp"
    descends = True
    alpha: Ratio = 0.3
    """Share of each tensor that is pushed and pulled in a step."""
    beta: Fraction = 0.15
    """Share of each tensor that is core."""
    every: Annotated[Count, HAS_CORE] = 20
    """Steps for which a core stays, q."""
    gradient_weight: Annotated[float, Field(ge=0, le=1e6, strict=True), HAS_CORE] = 1.0
    """c: weight of a gradient relative to a parameter."""
    keys: Flag = True
    """Send the explorer's positions; without them it is drawn from a seed that both sides have, 4 alpha n bytes."""
    unsent: Literal["kept", "dropped"] = "kept"
    """A worker's updates of elements that are not exchanged: kept until their turn to be pushed, or dropped when they
    are pulled (our choice)."""

    @model_validator(mode="after")
    def _within(self) -> SlimDP:
        if self.beta > self.alpha:
            raise single_mistake(
                "beta", "is more than alpha", self.beta, f"at most {self.alpha:g}: the core is a part of it"
            )
        return self

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.slimdp_trainer import SlimTrainer

        return SlimTrainer(model, data, recipe, self, network)
