"""Declares the settings of the system `wnn`, in which parameters jump to predicted values; `WnnTrainer` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Natural
from gradwire.training.systems.base import System

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer


class WNN(System):
    """Plain data-parallel training in which every fifth epoch ends with a jump of the parameters to predicted values.
    Each parameter is predicted by itself, from its last five values and their four differences, by separate networks
    for convolutions, matrices and biases; parameters of normalisations are left alone [code]."""

    reduces: ClassVar[bool] = True
    traced: ClassVar[bool] = True

    kind: Literal["wnn"] = "wnn"
    predictor: Annotated[str, Field(min_length=1)] = "bundled"
    """bundled, or a file that `gradwire predictor wnn` wrote."""
    period: Natural = 0
    """Steps between two of the five values; an epoch if 0."""

    def trainer(self, model: Any, data: Any, recipe: Any, reducer: Any, network: Any) -> Trainer:
        from gradwire.training.parameter_server.wnn_trainer import WnnTrainer

        return WnnTrainer(model, data, recipe, reducer, network, predictor=self.predictor, period=self.period)
