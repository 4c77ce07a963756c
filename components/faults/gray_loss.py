"""A cable that loses packets."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.fault import LinkFault
from gradwire.scenarios.schema.network import Loss


class GrayLoss(LinkFault):
    """A cable loses packets at random, and nobody notices."""

    kind: Literal["gray_loss"]
    loss: Loss
    """Probability that a packet is lost."""

    @property
    def least_loss(self) -> float:
        return self.loss
