"""Declares the table of the fault `gray_loss`, a cable that drops packets at random; `gradwire.sim.faults` applies
it.
"""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.fault import LinkFault
from gradwire.scenarios.schema.network.network import Loss


class GrayLoss(LinkFault):
    """A cable loses packets at random, unnoticed."""

    kind: Literal["gray_loss"]
    loss: Loss
    """Probability that a packet is lost."""

    @property
    def least_loss(self) -> float:
        return self.loss
