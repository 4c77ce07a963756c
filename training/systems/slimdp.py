"""Declares the settings of the system `slimdp`, which exchanges a significant core and an explorer of parameters;
`PartialAveraging` does it. Source: Sun et al., arXiv 1709.09393."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Flag, single_mistake
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.units import Fraction
from gradwire.training.reducers.fields import Ratio
from gradwire.training.systems.base import Momentum, System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


HAS_CORE = Precondition(lambda at: at.table.beta > 0, "there is no core", "beta above 0")
OWN_SETS = Precondition(lambda at: at.table.sets == "own", "no positions are sent", 'sets = "own"')


class SlimDP(System):
    """Workers push updates, and pull parameters, of a part of each tensor only, and train local models.

    Of n elements (alpha n) are exchanged at a time: the core, (beta n) of greatest |w| + c |g|, and the explorer, drawn
    from the rest. The defaults are [recalled] of the paper, as are the significance and that a core stays some 20
    rounds. With beta = 0 there is no core, with beta = alpha no explorer; with alpha = 1 it is plain data parallelism.

    Whose core and explorer they are is our choice. Shared sets are chosen by the server, and each exchange averages
    over all workers; each way these are 4 alpha n bytes, and 4 beta n more come back with a new core. With their own
    sets workers send the explorer's positions, 4 beta n + 8 (alpha - beta) n bytes each way, and push 4 beta n more
    with a new core.
    """

    kind: Literal["slimdp"] = "slimdp"
    alpha: Ratio = 0.3
    """Share of each tensor that is pushed and pulled at a time."""
    beta: Fraction = 0.15
    """Share of each tensor that is core."""
    every: Annotated[Count, HAS_CORE] = 20
    """Exchanges for which a core stays, q."""
    gradient_weight: Annotated[float, Field(ge=0, le=1e6, strict=True), HAS_CORE] = 1.0
    """c: weight of a gradient relative to a parameter. The server estimates gradients from the parameters' moves."""
    sets: Literal["shared", "own"] = "shared"
    """The same core and explorer for all workers, or each worker's own."""
    keys: Annotated[Flag, OWN_SETS] = True
    """Send the explorer's positions; without them it is drawn from a seed that both sides have, 4 alpha n bytes."""
    period: Count = 1
    """Steps from one exchange to the next."""
    momentum: Momentum | None = None
    """Workers' momentum of exchanged elements, as of `partial_averaging`; implied with shared sets and local with own
    ones if absent."""

    @model_validator(mode="after")
    def _within(self) -> SlimDP:
        if self.beta > self.alpha:
            raise single_mistake(
                "beta", "is more than alpha", self.beta, f"at most {self.alpha:g}: the core is a part of it"
            )
        return self

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.devices import model_device
        from gradwire.training.parameter_server.partial_averaging import PartialAveraging
        from gradwire.training.parameter_server.selections import OwnSets, Rotation, Selection
        from gradwire.training.trainer import tensors_of

        infos, device = tensors_of(model), model_device(model)
        shares = (self.alpha, self.beta, self.every, self.gradient_weight)
        selection: Selection
        if self.sets == "own":
            selection = OwnSets(infos, recipe.seed, device, *shares, self.keys, recipe.workers)
        else:
            selection = Rotation(infos, recipe.seed, device, *shares)
        momentum = self.momentum or ("implied" if selection.shared and recipe.optimizer == "sgd" else "local")
        return PartialAveraging(model, data, recipe, network, selection=selection, momentum=momentum, every=self.period)
