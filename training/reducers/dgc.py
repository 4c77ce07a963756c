"""Deep gradient compression: sparse gradients whose momentum is not lost (Lin et al., ICLR '18)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Flag, Natural
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer, scattered
from gradwire.training.reducers.fields import Ratio, kept
from gradwire.training.reducers.state import State, finite, flat
from gradwire.training.rows import Whole

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.rows import Rows

LOWER, UPPER = 0.8, 1.3
"""How far from the wanted number of elements the threshold may lead [code]."""
TRIES = 10
"""How often the threshold is adapted at most [code]."""
WARMUP = 0.25
"""Ratio of the first stage of the warm-up, and what each stage multiplies it by [code]."""


class DGC(Reducer):
    """The elements beyond a threshold, estimated from a sample, of what has added up locally with momentum.

    Each worker keeps u <- m u + g and v <- v + u, sends the elements of v beyond the threshold, and clears both there
    (momentum correction and factor masking, sections 3.1 and 3.3 of the paper), so the optimiser must have no
    momentum of its own. The threshold is that of a sample, and is multiplied by 0.8 or 1.3 while it lets through too
    few or too many; beyond 1.3 times as many, the largest are taken. Gradients may be clipped locally to `clip` /
    sqrt(workers) before they are added (section 3.2). Value and 32-bit index: 8 bytes an element.
    """

    remembers_error: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True

    kind: Literal["dgc"] = "dgc"
    ratio: Ratio = 0.001
    """Share of the elements that is aimed at after the warm-up."""
    sample: Ratio = 0.01
    """Share of the elements from which the threshold is estimated."""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """m; with 0 what is left is error feedback."""
    masking: Flag = True
    """Whether the momentum of sent elements is cleared, too."""
    clip: Annotated[float, Field(ge=0, le=1e6, strict=True)] = 0.0
    """Norm to which a tensor's gradient of all workers would be clipped; 0 does not clip."""
    warmup: Natural = 0
    """Steps of each stage of the warm-up, whose ratios are 0.25, 0.0625, ... as long as they are above `ratio`."""

    def ratio_at(self, step: int) -> float:
        """The ratio aimed at in a step, counted from 0."""
        stage = step // self.warmup if self.warmup else math.inf
        return max(self.ratio, WARMUP ** (stage + 1)) if stage < 64 else self.ratio

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        import torch

        gradient = flat(tensor, info)
        if self.clip:
            gradient = gradient * min(1.0, self.clip / math.sqrt(state.workers) / max(float(gradient.norm()), 1e-30))
        momentum = state.values.get("momentum", torch.zeros_like(gradient)) * self.momentum + gradient
        total = state.values.get("total", torch.zeros_like(gradient)) + momentum
        indices = self._chosen(_sizes(total), self.ratio_at(state.step), state)
        values = total[indices]
        total[indices] = 0
        if self.masking:
            momentum[indices] = 0
        state.values.update(momentum=finite(momentum), total=finite(total))
        return Encoded((values, indices.to(torch.int32)))

    def _chosen(self, sizes: Tensor, ratio: float, state: State) -> Tensor:
        """Indices of about `ratio` of the elements, the largest."""
        import torch

        numel = len(sizes)
        wanted = kept(ratio, numel)
        if not wanted:
            return torch.empty(0, dtype=torch.long, device=sizes.device)
        count = self._sample(numel)
        sampled = sizes
        if count < numel:
            sampled = sizes[torch.randint(numel, (count,), generator=state.own(sizes.device), device=sizes.device)]
        threshold = float(sampled.topk(max(1, round(count * wanted / numel))).values[-1])
        for _ in range(TRIES):
            found = int((sizes >= threshold).sum())
            if found > UPPER * wanted:
                threshold *= UPPER
            elif found < LOWER * wanted:
                threshold *= LOWER
            else:
                break
        indices = (sizes >= threshold).nonzero().view(-1)
        if len(indices) > UPPER * wanted:
            indices = indices[sizes[indices].topk(wanted, sorted=False).indices]
        return indices if len(indices) else sizes.topk(wanted, sorted=False).indices

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        values, indices = encoded.fields
        return scattered(values, indices, info.numel, arrived)

    @property
    def in_rows(self) -> bool:
        return not self.clip  # whose norms are of a worker's tensor by itself

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        import torch

        nothing = torch.zeros_like(gradients)
        momentum = rows.values.get("momentum", nothing) * self.momentum + gradients
        total = rows.values.get("total", nothing) + momentum
        chosen = self._chosen_of_all(_sizes(total), rows)
        sent = torch.where(chosen, total, 0.0)
        momentum = torch.where(chosen, 0.0, momentum) if self.masking else momentum
        rows.values.update(momentum=finite(momentum), total=finite(torch.where(chosen, 0.0, total)))
        return Whole(sent, (2 * gradients.element_size() * chosen.sum(dim=1)).tolist())

    def _chosen_of_all(self, sizes: Tensor, rows: Rows) -> Tensor:
        """Which elements `_chosen` chooses, (N, P)."""
        import torch

        ratio = self.ratio_at(rows.step)
        wanted = [kept(ratio, info.numel) for info in rows.infos]
        parts = [self._sampled(sizes, tensor, wanted[tensor], rows) for tensor in range(len(wanted))]
        threshold = torch.stack(parts, dim=1).double()
        aimed = torch.tensor(wanted, device=sizes.device)
        for _ in range(TRIES):
            found = rows.counts(sizes >= rows.spread(threshold.float()))
            few, many = found < LOWER * aimed, found > UPPER * aimed
            threshold = torch.where(many, threshold * UPPER, torch.where(few, threshold * LOWER, threshold))
        chosen = sizes >= rows.spread(threshold.float())
        found = rows.counts(chosen)
        unfit = (found > UPPER * aimed) | (found == 0)
        if bool(unfit.any()):
            largest = torch.zeros_like(chosen)
            largest.view(-1)[rows.largest(sizes, wanted)] = True
            chosen = torch.where(rows.spread(unfit), largest, chosen)
        return chosen

    def _sampled(self, sizes: Tensor, tensor: int, wanted: int, rows: Rows) -> Tensor:
        """The first threshold of a tensor for each worker, (N,)."""
        import torch

        begin, end = rows.bounds[tensor]
        numel, mine = end - begin, sizes[:, begin:end]
        count = self._sample(numel)
        if count < numel:
            drawn = [
                torch.randint(numel, (count,), generator=rows.own(tensor, worker), device=rows.device)
                for worker in range(len(sizes))
            ]
            mine = mine.gather(1, torch.stack(drawn))
        return mine.topk(max(1, round(count * wanted / numel))).values[:, -1]

    def _sample(self, numel: int) -> int:
        """How many elements the first threshold is taken from."""
        return max(min(numel, 1000), int(numel * self.sample))  # a handful says nothing of a tail


def _sizes(total: Tensor) -> Tensor:
    """Magnitudes. What is not a number is beyond any threshold, so that it is sent and seen."""
    return total.abs().nan_to_num(math.inf, math.inf)
