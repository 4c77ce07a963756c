"""Declares the settings of the system `mp2`, which pushes some of the parameters and predicts the rest; `Mp2Trainer`
does it. Source: Computer Networks 255, 2024, 110883."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Count
from gradwire.training.systems.base import Momentum, System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


class MP2(System):
    """Workers push and pull a ninth of the parameters at a time, and the server predicts the others.

    [abstract] says that a subset of the parameters is pushed and the rest predicted by a network of convolution,
    channel attention and max pooling, trained beforehand on parameters of ordinary training runs. The details are our
    choice. Workers train local models. The pushed elements are the same for all workers and rotate, from a shared seed,
    so that no positions are sent; workers pull their averages. Tensors of at most 64 elements are always exchanged. So
    the bytes are a ninth both ways, and whatever is not pushed waits for its turn. The prediction is the server's model
    of elements whose last exchange is up to eight steps ago; workers train without it.
    """

    kind: Literal["mp2"] = "mp2"
    period: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 9
    """Exchanges in which every parameter is pushed once."""
    every: Count = 1
    """Steps from one exchange to the next."""
    predictor: Annotated[str, Field(min_length=1)] = "bundled"
    """bundled, from training runs of ResNet-8; several, from those of ResNet-8, a VGG and an LSTM; a file that
    `gradwire predictor mp2` wrote; hold: every parameter moves on with its last velocity; none: what is not pushed
    stays."""
    momentum: Momentum = "implied"
    """Workers' momentum of exchanged elements, as of `partial_averaging`."""

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.mp2_trainer import Mp2Trainer

        return Mp2Trainer(model, data, recipe, self, network)
