"""Declares the settings of the system `partial_averaging`, which averages a part of local models at a time;
`PartialAveraging` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.units import Fraction
from gradwire.training.reducers.fields import Ratio
from gradwire.training.systems.base import Momentum, System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


class PartialAveragingSystem(System):
    """Workers train local models, of which a part is averaged at a time.

    With `share = 1` and `every = H` it is local SGD (Stich, ICLR '19); with `pieces = "tensors"` partial averaging (Lee
    et al., arXiv 2201.03789), and with an outer optimiser streaming DiLoCo (Douillard et al., arXiv 2501.18512; rate
    0.4, Nesterov momentum 0.9 and `mixing = 0.5` [recalled]), without its quantisation and its overlap of sending and
    computing.
    """

    kind: Literal["partial_averaging"] = "partial_averaging"
    share: Ratio = 0.125
    """Share of the parameters that is exchanged at a time."""
    pieces: Literal["elements", "tensors"] = "elements"
    """A share of the elements of each tensor in turn, or whole tensors in turn."""
    every: Count = 1
    """Steps from one exchange to the next."""
    momentum: Momentum = "implied"
    """Workers' momentum of exchanged elements: implied by how far the server's values have moved, averaged at twice the
    bytes, local, or zero. With adamw it cannot be implied."""
    outer_rate: Annotated[float, Field(gt=0, le=10, strict=True)] = 1.0
    """Learning rate of the server, whose gradient is the workers' mean move."""
    outer_momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    """Nesterov momentum of the server."""
    mixing: Fraction = 0.0
    """Share of its distance from the server's values that a worker keeps when it pulls them."""

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.devices import model_device
        from gradwire.training.parameter_server.partial_averaging import PartialAveraging
        from gradwire.training.parameter_server.selections import Fragments, Rotation, Selection
        from gradwire.training.trainer import tensors_of

        infos, device = tensors_of(model), model_device(model)
        kind = Rotation if self.pieces == "elements" else Fragments
        selection: Selection = kind(infos, recipe.seed, device, self.share)
        return PartialAveraging(
            model,
            data,
            recipe,
            network,
            selection=selection,
            momentum=self.momentum,
            every=self.every,
            outer_rate=self.outer_rate,
            outer_momentum=self.outer_momentum,
            mixing=self.mixing,
        )
