"""`Mp2Trainer` trains with MP2; workers exchange a ninth of the parameters at a time, and the server predicts the rest.

Workers train local models, which are averaged in rotation (`gradwire.training.parameter_server.partial_averaging`). Of
what was not pushed the server has values of earlier exchanges. A network predicts how far these have moved since, which
gives the server a full model between exchanges: the one that it serves, and that is evaluated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradwire.training.data import Images, Text
from gradwire.training.networks.network_interface import Network
from gradwire.training.parameter_server.block_predictor import predicted
from gradwire.training.parameter_server.partial_averaging import PartialAveraging
from gradwire.training.parameter_server.predictor import kinds_of, load_predictor
from gradwire.training.parameter_server.predictor_file import UNPREDICTED
from gradwire.training.parameter_server.selections import Rotation
from gradwire.training.recipe import Recipe
from gradwire.training.trainer import Score, tensors_of

if TYPE_CHECKING:
    from gradwire.training.systems.mp2 import MP2


class Mp2Trainer(PartialAveraging):
    """Trains with MP2. The server's predicted model is evaluated."""

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, rules: MP2, network: Network | None = None
    ) -> None:
        """Load the predictor; otherwise as `PartialAveraging`."""
        device = next(model.parameters()).device
        selection = Rotation(tensors_of(model), recipe.seed, device, 1 / rules.period)
        super().__init__(model, data, recipe, network, selection=selection, momentum=rules.momentum, every=rules.every)
        self.kinds, self.predictor = kinds_of(model), rules.predictor
        self.net: nn.Module | None = None
        if rules.predictor not in UNPREDICTED:
            self.net = load_predictor("mp2", rules.predictor)[0].to(self.device)

    @torch.no_grad()
    def full_model(self, predictor: str) -> Tensor:
        """Return the server's model of all parameters, (n,): "none" and "hold" as `MP2.predictor`, else by the
        network."""
        if predictor == "none":
            return self.history.values
        if predictor == "hold" or self.net is None:
            return self.history.held()
        return predicted(self.net, self.history, self.kinds)

    def score(self, batch: int = 500) -> Score:
        """Return loss and accuracy of the predicted model on held-out data."""
        began = time.thread_time_ns()
        full = self.full_model(self.predictor)
        self.server_ns += time.thread_time_ns() - began
        self.last_score = self._score_of(full, batch)
        return self.last_score

    def _score_of(self, flat: Tensor, batch: int = 500) -> Score:
        self._show(flat)
        score = super().score(batch)
        self._show(self.history.values)
        return score

    def prediction_rows(self) -> list[dict[str, Any]]:
        """Return how good the server's model is now with each predictor, after a `score`.

        error : its distance from the workers' mean, over that of the values that the server knows; no real server knows
        that mean. accuracy, loss : on held-out data.
        """
        mean = self.local.flat.mean(dim=0)
        stale = (self.history.values - mean).norm().clamp(min=1e-30)
        rows = []
        for predictor in dict.fromkeys((self.predictor, *UNPREDICTED)):
            full = self.full_model(predictor)
            score = self.last_score if predictor == self.predictor else self._score_of(full)
            error = float((full - mean).norm() / stale)
            rows.append({"predictor": predictor, "error": error, "accuracy": score.accuracy, "loss": score.loss})
        return rows
