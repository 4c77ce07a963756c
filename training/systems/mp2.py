"""MP2: an eighth of the parameters is pushed, the rest is predicted (Computer Networks 255, 2024, 110883)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Count
from gradwire.training.systems.base import System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


UNPREDICTED = ("hold", "none")
"""What `predictor` is where no file is needed."""


class MP2(System):
    """Workers push an eighth of their parameters, and the server predicts the others.

    [abstract] says that a subset is pushed and the rest predicted by a network of convolution, channel attention and
    max pooling, trained beforehand on parameters of normal trainings. Our choice is how: blocks of 32 consecutive
    parameters, of which four are pushed, other ones in each of eight steps, drawn from a seed that everybody has, so
    that no places are sent; the network sees what was pushed, how long each other one has not been, the block before,
    how each moved when it was pushed last, and the type of layer, normalised tensor by tensor. Biases and what belongs
    to normalisations are pushed as they are, every time.
    """


    kind: Literal["mp2"] = "mp2"
    descends = True
    predictor: Annotated[str, Field(min_length=1)] = "bundled"
    """bundled, from trainings of ResNet-8; several, from those of ResNet-8, a VGG and an LSTM; a file that
    `gradwire predictor mp2` wrote; hold: everything moves as it did when it was pushed last; none: what is not pushed
    stays."""
    full_every: Count = 50
    """Steps after which everything is pushed."""
    tolerance: Annotated[float, Field(gt=0, le=1e6, strict=True)] = 1.0
    """Error of predictions, relative to what is predicted, beyond which everything is pushed: some of what is pushed is
    held out to measure it."""
    pull: Literal["full", "pushed"] = "full"
    """What comes back: all parameters, or the averages of what was pushed, and workers predict by themselves."""

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.served.mp2 import Mp2Trainer, Predicted

        return Mp2Trainer(model, data, recipe, Predicted(**self.model_dump(exclude={"kind"})), network)
