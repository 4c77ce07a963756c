"""`RandomK` encodes gradient elements drawn at random from a seed that workers share (Stich et al., NeurIPS '18)."""

from __future__ import annotations

from typing import ClassVar, Literal

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.base import Flag
from gradwire.traces.parts import TensorInfo
from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, scatter
from gradwire.training.reducers.fields import Ratio, share_count
from gradwire.training.reducers.state import State, flat


class RandomK(Reducer):
    """A random `ratio` of the elements, the same for all workers, new in each step: 4 bytes per element, no index."""

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"
    adds_up: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True

    kind: Literal["randomk"] = "randomk"
    ratio: Ratio = 0.01
    """Share of the elements of each tensor that are sent, rounded down, at least one."""
    unbiased: Flag = False
    """Multiply by numel/k, so that the expectation is the gradient. Not with error feedback, which compensates for what
    is not sent and would diverge."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor, info)
        count = share_count(self.ratio, len(values))
        indices = torch.randperm(len(values), generator=state.shared(values.device), device=values.device)[:count]
        chosen = values[indices] * (len(values) / count) if self.unbiased and count else values[indices]
        return Encoded((chosen,), known={"indices": indices})

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        return scatter(encoded.fields[0], encoded.known["indices"], info.numel, arrived)

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        mask = arrived.new_ones(info.numel)
        mask[encoded.known["indices"][~arrived]] = False
        return mask

    def without_feedback(self) -> str:
        return "is unbiased" if self.unbiased else ""

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        counts = [share_count(self.ratio, info.numel) for info in rows.infos]
        indices = [
            torch.randperm(info.numel, generator=rows.shared(tensor), device=rows.device)[:count] + begin
            for tensor, (info, count, (begin, _)) in enumerate(zip(rows.infos, counts, rows.bounds, strict=True))
        ]
        chosen = torch.zeros(gradients.shape[1], dtype=torch.bool, device=rows.device)
        chosen[torch.cat(indices)] = True
        if self.unbiased:
            factors = [info.numel / count for info, count in zip(rows.infos, counts, strict=True)]
            gradients = gradients * rows.repeat_per_element(gradients.new_tensor([factors]))
        nbytes = gradients.element_size() * sum(counts)
        return EncodedModels(torch.where(chosen, gradients, 0.0), [nbytes] * len(gradients), nbytes)
