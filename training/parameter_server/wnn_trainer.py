"""`WnnTrainer` trains by weight nowcasting; every few epochs it sets parameters to their predicted later values.

The baseline that MP2's abstract names. Each parameter is predicted from its own values at the ends of the last five
epochs, after each fifth [code], and the prediction aims five epochs ahead [poster]. In between it is plain
data-parallel training, so the only saving is the skipped epochs. Sources are in `weight_nowcaster`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradwire.training.data import Images, Text
from gradwire.training.networks.network_interface import Network
from gradwire.training.parameter_server.predictor import kinds_of, load_predictor
from gradwire.training.parameter_server.weight_nowcaster import HISTORY, WeightNowcaster, nowcast
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.trainer import StepRow, Trainer


class WnnTrainer(Trainer):
    """Trains with weight nowcasting. Parameters come back, 4 bytes each, whatever is pushed."""

    state_key: ClassVar[str] = "wnn"
    state_names: ClassVar[tuple[str, ...]] = ("seen", "jumps")

    def __init__(
        self,
        model: nn.Module,
        data: Images | Text,
        recipe: Recipe,
        reducer: Reducer | None = None,
        network: Network | None = None,
        *,
        predictor: str = "bundled",
        period: int = 0,
    ) -> None:
        """Load the predictor.

        predictor : a file, or "bundled".
        period : steps between two values; an epoch if 0.
        """
        super().__init__(model, data, recipe, reducer, network)
        net, _ = load_predictor("wnn", predictor)
        assert isinstance(net, WeightNowcaster)
        self.net, self.kinds = net.to(self.device), kinds_of(model)
        self.period = period or self.dealer.steps_per_epoch
        self.seen: list[list[Tensor]] = []
        self.jumps = 0

    def step(self) -> StepRow:
        """Run a step, and jump after each fifth period."""
        before = self.pulled_bytes
        row = super().step()
        began = time.thread_time_ns()
        if self.done % self.period == 0:
            self.seen.append([parameter.detach().clone() for parameter in self.model.parameters()])
            if len(self.seen) == HISTORY:
                self._jump()
        self.server_ns += time.thread_time_ns() - began
        pulled = 4 * sum(info.numel for info in self.infos) * self.recipe.workers
        self.pulled_bytes = before + pulled
        return replace(row, pulled_bytes=pulled)

    @torch.no_grad()
    def _jump(self) -> None:
        for at, (parameter, kind) in enumerate(zip(self.model.parameters(), self.kinds, strict=True)):
            if kind != "norm":
                history = torch.stack([row[at].view(-1) for row in self.seen])
                parameter.copy_(nowcast(self.net.of(kind), history).view(parameter.shape))
        self.seen, self.jumps = [], self.jumps + 1
