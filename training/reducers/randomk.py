"""Random-k: elements drawn at random from a seed that everybody has (Stich et al., NeurIPS '18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from gradwire.scenarios.schema.base import Flag
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, State, flat, scattered
from gradwire.training.reducers.fields import Ratio, kept

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo


class RandomK(Reducer):
    """A `ratio` of the elements, the same for all workers of a step, drawn anew in each: 4 bytes an element, no
    index."""

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"

    kind: Literal["randomk"] = "randomk"
    ratio: Ratio = 0.01
    """Share of the elements of each tensor that are sent, rounded down, at least one."""
    unbiased: Flag = False
    """Multiply by numel/k, so that the expectation is the gradient. Not together with error feedback, which makes up
    for what is not sent and would diverge."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        import torch

        values = flat(tensor)
        count = kept(self.ratio, len(values))
        indices = torch.randperm(len(values), generator=state.shared(values.device), device=values.device)[:count]
        chosen = values[indices] * (len(values) / count) if self.unbiased else values[indices]
        return Encoded((chosen,), known={"indices": indices})

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        return scattered(encoded.fields[0], encoded.known["indices"], info.numel, arrived)

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        there = arrived.new_ones(info.numel)
        there[encoded.known["indices"][~arrived]] = False
        return there
