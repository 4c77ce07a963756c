"""`MoveHistory` holds the last known values and velocities of parameters that workers and server exchange in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.training.reducers.state import cloned

PERSISTENCE_DECAY = 0.9
"""Weight of a tensor's older persistence relative to a new one."""


class MoveHistory:
    """The last known values of n parameters in T tensors, and their moves before.

    Moves are counted in learning rates, since these say how far a step goes: a velocity is a move over the sum of the
    learning rates of its steps, in the direction of the gradient, like the momentum of SGD.

    values : (n,), each element as of its last exchange.
    velocity, earlier : (n,), the velocity before the last exchange, and before the one before it.
    at : (n,) float64, the sum of all learning rates at the last exchange of each element; `rates` is that of now.
    persistence : (T,), how much of a tensor's velocity is still there an exchange later: the slope of a line through
        zero, over the exchanged elements, smoothed over exchanges.
    """

    NAMES = ("values", "velocity", "earlier", "at", "rates", "persistence")

    def __init__(self, values: Tensor, sizes: Sequence[int]) -> None:
        self.values, self.sizes = values.clone(), list(sizes)
        self.velocity, self.earlier = torch.zeros_like(values), torch.zeros_like(values)
        self.at, self.rates = torch.zeros_like(values, dtype=torch.float64), 0.0
        self.persistence = values.new_zeros(len(self.sizes))
        counts = torch.tensor(self.sizes, device=values.device)
        self.tensor_of = torch.repeat_interleave(torch.arange(len(self.sizes), device=values.device), counts)
        """The tensor of each element, (n,)."""

    def record(self, positions: Tensor, values: Tensor) -> None:
        """Take new values of exchanged elements, (k,) each."""
        passed = self.rates - self.at[positions]
        moved = (passed > 0).nonzero().view(-1)
        where, before = positions[moved], self.velocity[positions[moved]]
        velocity = ((self.values[where] - values[moved]) / passed[moved]).to(values.dtype)
        self.earlier[where], self.velocity[where] = before, velocity
        self.values[positions], self.at[positions] = values, self.rates
        tensor, zero = self.tensor_of[where], torch.zeros_like(self.persistence)
        norms = zero.index_add(0, tensor, before.square())
        slopes = zero.index_add(0, tensor, before * velocity) / norms.clamp(min=1e-30)
        self.persistence = torch.where(
            norms > 0, torch.lerp(slopes.clamp(-1, 2), self.persistence, PERSISTENCE_DECAY), self.persistence
        )

    def passed(self) -> Tensor:
        """Return the sum of the learning rates since each element's last exchange, (n,)."""
        return (self.rates - self.at).to(self.values.dtype)

    def held(self) -> Tensor:
        """Return the values if every element has moved on with its last velocity, (n,)."""
        return self.values - self.velocity * self.passed()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: cloned(getattr(self, name)) for name in self.NAMES}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        for name in self.NAMES:
            setattr(self, name, saved[name])
