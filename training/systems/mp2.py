"""MP2: an eighth of the parameters is pushed, the rest is predicted (Computer Networks 255, 2024, 110883)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Count
from gradwire.training.systems.base import System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


class MP2(System):
    """Workers push an eighth of their parameters, and the server predicts the others.

    [abstract] says that a subset is pushed and the rest predicted by a network of convolution, channel attention and
    max pooling, trained beforehand on parameters of ordinary training runs. The details are our choice: blocks of 32
    consecutive parameters, of which four are pushed, different ones in each of eight steps, drawn from a shared seed,
    so that no positions are sent. The network sees what was pushed, the age of each other parameter, the previous
    block, each last pushed movement, and the type of layer, normalised tensor by tensor. Biases and parameters of
    normalisations are pushed as they are, every time.
    """

    kind: Literal["mp2"] = "mp2"
    descends = True
    predictor: Annotated[str, Field(min_length=1)] = "bundled"
    """bundled, from training runs of ResNet-8; several, from those of ResNet-8, a VGG and an LSTM; a file that
    `gradwire predictor mp2` wrote; hold: every parameter moves as when it was last pushed; none: what is not pushed
    stays."""
    full_every: Count = 50
    """Steps after which everything is pushed."""
    tolerance: Annotated[float, Field(gt=0, le=1e6, strict=True)] = 1.0
    """Relative prediction error above which everything is pushed; it is measured on pushed values that are held out."""
    pull: Literal["full", "pushed"] = "full"
    """What comes back: all parameters, or the averages of what was pushed, and workers predict by themselves."""

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.mp2_trainer import Mp2Trainer

        return Mp2Trainer(model, data, recipe, self, network)
