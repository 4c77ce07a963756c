"""The base of what a scenario says of a system: who trains by it, and what it goes together with."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradwire.scenarios.schema.base import Table

if TYPE_CHECKING:
    from gradwire.training.data import Images, Text
    from gradwire.training.network import Network
    from gradwire.training.recipe import Recipe
    from gradwire.training.reducers.base import Reducer
    from gradwire.training.trainer import Trainer


class System(Table):
    """Base of all systems. A subclass has a literal `kind` and overrides `trainer`."""

    reduces: ClassVar[bool] = False
    """Whether gradients go through a reducer on their way."""
    together: ClassVar[bool] = True
    """Whether all workers push together; else each does when it is ready."""
    traced: ClassVar[bool] = False
    """Whether it sends a message for each tensor, so that a trace of the model can say when each is ready."""
    descends: ClassVar[bool] = False
    """Whether it updates parameters by a stochastic gradient descent of its own, instead of the optimiser's."""
    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """By which it is chosen."""

    def trainer(
        self, model: object, data: Images | Text, recipe: Recipe, reducer: Reducer, network: Network
    ) -> Trainer:
        """The trainer of a model, a torch module.

        Raises
        ------
        ValueError
            What is asked does not go together; the message says what would.
        """
        raise NotImplementedError
