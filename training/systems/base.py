"""`System` is the base class of training systems, whose tables declare settings and make the system's trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.scenarios.schema.base import ScenarioTable

if TYPE_CHECKING:
    from gradwire.training.data import Images, Text
    from gradwire.training.networks.builtin_networks import Network
    from gradwire.training.recipe import Recipe
    from gradwire.training.reducers.base import Reducer
    from gradwire.training.trainer import Trainer

Momentum = Literal["implied", "averaged", "local", "zero"]
"""What becomes of a worker's momentum of exchanged elements: worked out from how far the server's values have moved
since their last exchange, over the sum of the learning rates; averaged, at twice the bytes (three times with Adam);
left alone; or set to zero."""


class System(ScenarioTable):
    """Base of all systems. A subclass has a literal `kind` and overrides `trainer`."""

    reduces: ClassVar[bool] = False
    """True if gradients pass through a reducer."""
    together: ClassVar[bool] = True
    """True if all workers push together; else each pushes when it is ready."""
    traced: ClassVar[bool] = False
    """True if it sends one message per tensor, so that a trace of the model can give the times."""
    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The name in scenarios."""

    @property
    def needs_sgd(self) -> bool:
        """Return True if it works out momentum from moves, which only that of SGD allows."""
        return getattr(self, "momentum", None) == "implied"

    def trainer(
        self, model: object, data: Images | Text, recipe: Recipe, reducer: Reducer, network: Network
    ) -> Trainer:
        """Return the trainer of a model, a torch module. Raises ValueError if the arguments do not go together; the
        message says what would."""
        raise NotImplementedError
